"""Who comes from pyspark finds its names, its calls and its results, for what is here."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("pyspark")

import pyspark

from penstock.spark import functions
from penstock.spark.expressions import Column
from penstock.spark.frame import Frame, GroupedFrame
from penstock.spark.functions import fn
from penstock.spark.reader import Reader
from penstock.spark.rows import Row
from tests.kit.connect import needs_connect

if TYPE_CHECKING:
    from penstock.spark.session import Session
    from tests.kit.connect import ConnectServer

OURS = {
    Frame: {"session", "plan", "ddl", "explain_string", "stream", "to_polars", "to_parquet", "put"},
    GroupedFrame: set(),
    Column: {"expression"},
    Reader: set(),
    Row: set(),
}
"""What pyspark has no name for."""
ALIASES = {
    "starts_with": "startswith", "ends_with": "endswith", "drop_duplicates": "dropDuplicates", "to_df": "toDF",
    "is_nan": "isNaN", "bitwise_and": "bitwiseAND", "bitwise_or": "bitwiseOR", "bitwise_xor": "bitwiseXOR",
    "cross_join": "crossJoin", "print_schema": "printSchema",
}  # fmt: skip
SAME = {"asc_nulls_first", "asc_nulls_last", "desc_nulls_first", "desc_nulls_last", "try_cast"}
"""pyspark's own names with underscores."""
KEYWORDS = {
    "on", "how", "fraction", "seed", "withReplacement", "allowMissingColumns", "n", "truncate", "vertical", "num",
    "subset", "thresh", "value", "numPartitions", "extended", "mode", "level", "existing", "new", "values", "other",
    "condition", "schema", "path", "format",
}  # fmt: skip
"""Parameters that are often named."""


def pairs() -> Iterator[tuple[type, type, str, str]]:
    """Yield our class and pyspark's, our name of a method and pyspark's."""
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql import Row as SparkRow
    from pyspark.sql.readwriter import DataFrameReader

    theirs = {
        Frame: DataFrame, GroupedFrame: GroupedData, Column: SparkColumn, Reader: DataFrameReader, Row: SparkRow,
    }  # fmt: skip
    for kind, names in OURS.items():
        for name in dir(kind):
            inherited = name in dir(tuple) and kind is Row
            if name.startswith("_") or name in names or inherited or not name.islower():
                continue
            camel = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
            yield kind, theirs[kind], name, name if name in SAME else ALIASES.get(name, camel)


NAMES = list(pairs())


@pytest.mark.parametrize(("ours", "theirs", "name", "spark"), NAMES, ids=lambda each: getattr(each, "__name__", each))
def test_a_method_has_pysparks_name_and_call(ours: type, theirs: type, name: str, spark: str) -> None:
    """Under that name, too; it takes as many arguments, and the keywords that are often named."""
    if not hasattr(theirs, spark) and pyspark.__version__ < "4.3":
        pytest.skip(f"PySpark {pyspark.__version__} has no {spark}")
    assert hasattr(theirs, spark)
    assert getattr(ours, spark) == getattr(ours, name)
    ours_is, theirs_is = inspect.getattr_static(ours, name), inspect.getattr_static(theirs, spark)
    if isinstance(theirs_is, property) or not callable(ours_is):
        return
    mine, parameters = inspect.signature(getattr(ours, name)), inspect.signature(getattr(theirs, spark)).parameters
    by_position = [each for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    least, most = sum(each.default is each.empty for each in by_position), len(by_position)
    if any(each.kind is each.VAR_POSITIONAL for each in parameters.values()):
        least, most = max(least, 2), max(most, 2)  # self, and one more
    fewer = ours is Reader or name == "local_checkpoint"  # further ones are options; a level of storage
    for count in range(least, (least if fewer else most) + 1):
        mine.bind(*range(count))
    assert set(parameters) & KEYWORDS <= set(mine.parameters) or ours is Reader


def test_every_name_of_pysparks_leads_to_a_method() -> None:
    """Those that aren't ours are pyspark's."""
    named = {(ours, spark) for ours, _, _, spark in NAMES}
    known = {ours: theirs for ours, theirs, _, _ in NAMES}
    for ours, theirs in known.items():
        for name in dir(ours):
            if not name.startswith("_") and not name.islower() and (ours, name) not in named:
                assert hasattr(theirs, name), name


def calls() -> dict[str, tuple[str, bool, tuple[int, ...], int]]:
    """Return for each of pyspark's functions what it calls, which of its arguments it takes for text, and how many."""
    from pyspark.sql.connect.expressions import LiteralExpression, UnresolvedFunction
    from pyspark.sql.connect.functions import builtin

    found = {}
    for name, function in list(vars(builtin).items()):
        if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != builtin.__name__:
            continue
        parameters = list(inspect.signature(function).parameters.values())
        by_position = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        more = ["v0", "v1"] * any(each.kind is each.VAR_POSITIONAL for each in parameters)
        for count in range(len(by_position), -1, -1):
            arguments = [f"s{number}" for number in range(count)] + more
            try:
                with warnings.catch_warnings(action="ignore"):
                    expression: Any = function(*arguments)._expr
            except Exception:  # it wants a number, a function, a frame
                continue
            if isinstance(expression, UnresolvedFunction):
                texts = {each._value for each in expression._args if isinstance(each, LiteralExpression)}
                positions = tuple(number for number, each in enumerate(arguments) if each in texts)
                found[name] = (expression._name, expression._is_distinct, positions, len(arguments))
            break
    return found


def test_functions_are_called_as_pysparks_are() -> None:
    """Strings are columns or text where pyspark takes them so; other names stand for the same functions."""
    needs_connect()
    theirs = calls()
    assert len(theirs) > 400
    wrong: list[tuple[str, Any, Any]] = []
    numeric = re.compile("sketch|union|intersection|theta|kll|hll|percentile|shift|rand|uuid|uniform|shuffle|call_udf")
    for name, (called, distinct, positions, count) in theirs.items():
        if numeric.search(name):  # numbers alone are meant there
            continue
        fields = getattr(fn, name)(*(f"s{number}" for number in range(count))).expression.fields
        texts = tuple(number for number, each in enumerate(fields["arguments"]) if each.kind == "literal")
        if (fields["function_name"], bool(fields["is_distinct"])) != (called, distinct):
            wrong.append((name, fields["function_name"], called))
        elif name in functions._TEXTS and texts != positions:
            wrong.append((name, texts, positions))
    assert not wrong


def test_lists_are_columns_where_pyspark_takes_them() -> None:
    """Elsewhere a list is a value."""
    needs_connect()
    from pyspark.sql.connect.expressions import ColumnReference, UnresolvedFunction
    from pyspark.sql.connect.functions import builtin

    found = set()
    for name, function in list(vars(builtin).items()):
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                expression: Any = function(["a", "b"])._expr
        except Exception:  # it takes no list
            continue
        arguments = expression._args if isinstance(expression, UnresolvedFunction) else []
        if len(arguments) == 2 and all(isinstance(each, ColumnReference) for each in arguments):
            found.add(name)
            for listed in (["a", "b"], ("a", "b")):
                assert repr(getattr(fn, name)(listed)) == repr(getattr(fn, name)("a", "b"))
    assert found == {"array", "create_map", "map_concat", "struct"}


@pytest.fixture(scope="module")
def both(spark_server: ConnectServer) -> Iterator[tuple[Session, Any]]:
    """A session of ours and one of pyspark's, with one server."""
    import penstock

    needs_connect()
    with penstock.spark_connect(f"sc://127.0.0.1:{spark_server.port}") as ours:
        yield ours, spark_server.connect()


Query = Callable[[Any, Any], Any]
TABLE = "select * from values (1, 'a', 1.5D), (2, 'b', null), (3, 'a', 2.5D), (3, 'a', 2.5D) as t(id, name, x)"
QUERIES: dict[str, Query] = {
    "select": lambda t, f: t.select("id", (f.col("x") * 2).alias("y"), f.upper("name")),
    "selectExpr": lambda t, f: t.selectExpr("id + 1 as id", "name"),
    "filter": lambda t, f: t.filter((f.col("id") > 1) & ~f.col("name").isin("b", "c")),
    "withColumn": lambda t, f: t.withColumn("id", f.col("id").cast("string")).withColumnRenamed("x", "y"),
    "drop": lambda t, f: t.drop("x", "nope"),
    "when": lambda t, f: t.select(f.when(f.col("id") == 1, "one").when(f.col("id") == 2, "two").otherwise("more")),
    "nulls": lambda t, f: t.select(f.col("x").isNull(), f.col("x").eqNullSafe(None), f.coalesce("x", f.lit(0))),
    "text": lambda t, f: t.select(t["name"].startswith("a"), f.concat_ws("-", "name", "id"), f.substring("name", 1, 1)),
    "groupBy": lambda t, f: t.groupBy("name").agg(f.sum("id").alias("s"), f.countDistinct("id")),
    "groupBy sum": lambda t, f: t.groupBy("name").sum(),
    "groupBy dict": lambda t, f: t.groupBy("name").agg({"id": "max", "x": "avg"}),
    "pivot": lambda t, f: t.groupBy("name").pivot("id", [1, 3]).count(),
    "cube": lambda t, f: t.cube("name", "id").count(),
    "rollup": lambda t, f: t.rollup("name", "id").count(),
    "distinct": lambda t, f: t.distinct(),
    "dropDuplicates": lambda t, f: t.select("name", "id").dropDuplicates(["name", "id"]),
    "orderBy": lambda t, f: t.orderBy(f.col("x").desc(), "id").limit(3),
    "orderBy ascending": lambda t, f: t.orderBy("name", "id", ascending=[False, True]).offset(1),
    "join": lambda t, f: t.join(t.select("id", f.col("name").alias("other")), "id", "left"),
    "join of two": lambda t, f: t.alias("a").join(t.alias("b"), f.col("a.id") == f.col("b.id")).select("a.id", "b.x"),
    "semi": lambda t, f: t.join(t.filter("id = 3"), ["id", "name"], "left_semi"),
    "anti": lambda t, f: t.join(t.filter("id = 3"), "id", "anti"),
    "right": lambda t, f: t.filter("id = 3").join(t.select("id"), "id", "right"),
    "full": lambda t, f: t.join(t.filter("id = 3").distinct(), "id", "full"),
    "cross": lambda t, f: t.select("id").crossJoin(t.select("name")),
    "union": lambda t, f: t.union(t).subtract(t.filter("id = 1")),
    "unionByName": lambda t, f: t.unionByName(t.select("name", "id"), allowMissingColumns=True),
    "exceptAll": lambda t, f: t.exceptAll(t.distinct()).intersect(t),
    "intersectAll": lambda t, f: t.intersectAll(t.filter("id = 3")),
    "sample": lambda t, f: t.sample(0.5, 3),
    "fillna": lambda t, f: t.fillna(0.0).fillna({"name": "?"}),
    "fillna of whole numbers": lambda t, f: t.fillna(0).fillna({"id": 1}),
    "describe": lambda t, f: t.describe("id", "x"),
    "lists": lambda t, f: t.select(f.array(["id", "x"]), f.struct(["id"]), f.map_concat([f.create_map(["name", "x"])])),
    "dropna": lambda t, f: t.dropna(subset=["x"]),
    "nested": lambda t, f: t.select(f.struct("id", "name").alias("s"), f.array("id", f.lit(9)).alias("xs")).select(
        "s", f.col("s").getField("name"), f.col("xs")[1], f.transform("xs", lambda x: x + 1)
    ),
    "map": lambda t, f: t.select(f.create_map("name", "id")),
    "decimal": lambda t, f: t.select(f.col("id").cast("decimal(10,2)"), f.lit("x").alias("binary").cast("binary")),
    "dates": lambda t, f: t.select(f.date_format(f.lit("2026-01-31"), "yyyy"), f.to_date(f.lit("31.01."), "dd.MM.")),
    "describe by aggregates": lambda t, f: t.agg(f.mean("id"), f.max_by("name", "id"), f.percentile_approx("id", 0.5)),
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.parametrize("name", QUERIES)
def test_results_are_pysparks(name: str, both: tuple[Session, Any]) -> None:
    """One text of a query, with our names and with pyspark's Connect client, on the same server."""
    import pyspark.sql.connect.functions as theirs

    ours, spark = both
    mine = QUERIES[name](ours.sql(TABLE), fn)
    other = QUERIES[name](spark.sql(TABLE), theirs)
    assert mine.columns == other.columns
    assert [kind for _, kind in mine.dtypes] == [kind for _, kind in other.dtypes]
    ordered = name.startswith("orderBy")
    rows, expected = mine.collect(), [tuple(row) for row in other.collect()]
    assert (rows if ordered else sorted(rows, key=str)) == (expected if ordered else sorted(expected, key=str))
    assert mine.count() == other.count()


@pytest.mark.spark
@pytest.mark.process
def test_a_shown_table_is_pysparks(both: tuple[Session, Any], capsys: pytest.CaptureFixture[str]) -> None:
    ours, spark = both
    for options in ({}, {"n": 2, "truncate": False}, {"truncate": 1}, {"vertical": True}):
        ours.sql(TABLE).show(**options)
        shown = capsys.readouterr().out
        spark.sql(TABLE).show(**options)
        assert shown == capsys.readouterr().out
        assert "id" in shown
