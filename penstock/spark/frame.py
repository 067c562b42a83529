"""A frame: a plan of Spark's, frozen and lazy, and the session that runs it."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pyarrow as pa

from penstock.spark import protos, types
from penstock.spark.collecting import MAX_BYTES, MAX_ROWS, Rows
from penstock.spark.errors import InvalidPlan, no_such_name
from penstock.spark.expressions import Column, Value, attribute, call, column_of, condition_of, flat, literal
from penstock.spark.plans import Node, PlanId, encode, format_expression, format_plan, node, part
from penstock.spark.rows import Row, to_rows
from penstock.text import suggest

if TYPE_CHECKING:
    from penstock.spark.session import Session

Named = str | Column
"""A column, or its name."""
Listed = Named | Sequence[Named]
"""One of some arguments, or a list of all."""
Mode = Literal["simple", "extended", "codegen", "cost", "formatted"]

_MODES = ("simple", "extended", "codegen", "cost", "formatted")
_JOINS = {
    "inner": 1, "outer": 2, "full": 2, "fullouter": 2, "left": 3, "leftouter": 3, "right": 4, "rightouter": 4,
    "anti": 5, "leftanti": 5, "semi": 6, "leftsemi": 6, "cross": 7,
}  # fmt: skip
_INTERSECT, _UNION, _EXCEPT = 1, 2, 3
_GROUP_BY, _ROLLUP, _CUBE, _PIVOT = 1, 2, 3, 4
_ELSEWHERE = {
    "rdd": "stream() has the rows as Arrow batches",
    "write": "put() and to_parquet() write here; spark.sql('CREATE TABLE t AS SELECT …') writes there",
    "writeTo": "put() and to_parquet() write here; spark.sql('INSERT INTO …') writes there",
    "writeStream": "streaming queries are pyspark's",
    "mapInArrow": "Python functions don't travel: pyspark's do, with penstock.read and penstock.write around them",
    "mapInPandas": "Python functions don't travel: pyspark's do, with penstock.read and penstock.write around them",
    "foreach": "stream() has the rows as Arrow batches",
    "foreachPartition": "stream() has the rows as Arrow batches",
    "toLocalIterator": "stream() has the rows as Arrow batches",
    "pandas_api": "to_pandas() has the rows",
    "na": "fillna() and dropna(), or fn.coalesce(…) and filter(…)",
    "stat": "fn.corr, fn.covar_samp, fn.percentile_approx compute them",
    "randomSplit": "with_column('r', fn.rand(7)).local_checkpoint() has a number to filter the parts by",
    "cache": "local_checkpoint() keeps the rows at Spark's executors",
    "persist": "local_checkpoint() keeps the rows at Spark's executors",
}
"""What pyspark's frames have and these don't: what to write instead."""


class Frame(Rows):
    """Rows that Spark computes when they are asked for. Each operation returns a new frame, and sends nothing."""

    __slots__ = ("_plan", "_session")

    def __init__(self, session: Session, plan: Node) -> None:
        self._session, self._plan = session, plan

    @property
    def session(self) -> Session:
        """The session that the frame belongs to."""
        return self._session

    @property
    def plan(self) -> Node:
        """What Spark is asked to compute."""
        return self._plan

    def __repr__(self) -> str:
        return f"Frame[{format_plan(self._plan)}]"

    if not TYPE_CHECKING:  # a type checker finds such names by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_name("a frame has", self, name, _ELSEWHERE, f" A column is frame[{name!r}]")

    def __getitem__(self, name: str) -> Column:
        """Return this frame's column, where a name alone would be a column of both sides of a join."""
        if not isinstance(name, str):
            raise InvalidPlan(f"frame[{name!r}]: expected a column's name; filter(…) and select(…) take columns")
        return Column(attribute(name, PlanId(self._plan)))

    def __iter__(self) -> NoReturn:
        raise TypeError("a frame has no rows before Spark computes them: collect() has them, stream() as they come")

    def __bool__(self) -> NoReturn:
        raise InvalidPlan("a frame has no truth value: count() > 0 asks Spark whether it has rows")

    # --- columns -------------------------------------------------------------------------

    def select(self, *columns: Listed) -> Frame:
        """Keep, compute and name columns: select("id", col("amount") * 2, fn.upper("city").alias("city"))."""
        return self._then("project", expressions=_named(columns))

    def select_expr(self, *texts: str | Sequence[str]) -> Frame:
        """Keep, compute and name columns by SQL: select_expr("id", "amount * 2 AS double")."""
        return self._then(
            "project", expressions=tuple(node("expression_string", expression=each) for each in flat(texts))
        )

    def with_column(self, name: str, column: Column) -> Frame:
        """Add a column, or replace the one of this name."""
        return self.with_columns({name: column})

    def with_columns(self, columns: Mapping[str, Column]) -> Frame:
        """Add columns, or replace those of these names. None of them sees another."""
        aliases = [Column(_expression(each, name)).alias(name).expression for name, each in columns.items()]
        return self._then("with_columns", aliases=tuple(map(part, aliases)))

    def with_column_renamed(self, existing: str, new: str) -> Frame:
        """Rename a column; a name that isn't there is no error."""
        return self.with_columns_renamed({existing: new})

    def with_columns_renamed(self, names: Mapping[str, str]) -> Frame:
        """Rename columns, old name to new."""
        renames = tuple(node("", col_name=old, new_col_name=new) for old, new in names.items())
        return self._then("with_columns_renamed", renames=renames)

    def to_df(self, *names: str) -> Frame:
        """Name all columns anew."""
        return self._then("to_df", column_names=names)

    def drop(self, *columns: Named) -> Frame:
        """Leave out columns; a name that isn't there is no error."""
        names = tuple(each for each in columns if isinstance(each, str))
        others = tuple(_expression(each) for each in columns if not isinstance(each, str))
        return self._then("drop", columns=others, column_names=names)

    def alias(self, name: str) -> Frame:
        """Name the frame, for col("name.column")."""
        return self._then("subquery_alias", alias=name)

    def transform(self, function: Callable[..., Frame], *arguments: Any, **options: Any) -> Frame:
        """Return what a function makes of this frame."""
        return function(self, *arguments, **options)

    # --- rows ----------------------------------------------------------------------------

    def filter(self, condition: Named) -> Frame:
        """Keep the rows for which a condition holds: col("a") > 1, or SQL, "a > 1"."""
        return self._then("filter", condition=condition_of(condition))

    def limit(self, num: int) -> Frame:
        """Keep at most so many rows."""
        return self._then("limit", limit=_count("limit", num))

    def offset(self, num: int) -> Frame:
        """Leave out so many rows at the start."""
        return self._then("offset", offset=_count("offset", num))

    def distinct(self) -> Frame:
        """Keep one of equal rows."""
        return self._then("deduplicate", all_columns_as_keys=True)

    def drop_duplicates(self, subset: Sequence[str] | None = None) -> Frame:
        """Keep one of the rows that are equal in some columns, or in all."""
        if subset is None:
            return self.distinct()
        if isinstance(subset, str):
            raise InvalidPlan(f"drop_duplicates({subset!r}): expected a list of names, [{subset!r}]")
        return self._then("deduplicate", column_names=tuple(subset))

    def sample(
        self, withReplacement: float | None = None, fraction: float | None = None, seed: int | None = None
    ) -> Frame:
        """Keep about a fraction of the rows, at random: sample(0.1), sample(fraction=0.1, seed=7)."""
        replaces = withReplacement
        if withReplacement is not None and not isinstance(withReplacement, bool):  # sample(0.1, 7), as pyspark takes it
            seed = seed if fraction is None else int(fraction)
            replaces, fraction = None, withReplacement
        if not isinstance(fraction, float | int) or isinstance(fraction, bool) or not fraction >= 0:
            raise InvalidPlan(f"sample({fraction!r}): expected a fraction such as 0.1")
        if fraction > 1 and not replaces:
            raise InvalidPlan(f"sample({fraction!r}): a fraction above 1 takes rows twice, sample(True, {fraction!r})")
        return self._then(
            "sample", lower_bound=0.0, upper_bound=float(fraction), with_replacement=bool(replaces),
            seed=random.randrange(1 << 63) if seed is None else seed,  # noqa: S311  # a sample, no secret
        )  # fmt: skip

    def order_by(self, *columns: Listed, ascending: bool | Sequence[bool] = True) -> Frame:
        """Sort the rows: order_by("a", col("b").desc())."""
        return self._then("sort", order=_orders(columns, ascending), is_global=True)

    def sort_within_partitions(self, *columns: Listed, ascending: bool | Sequence[bool] = True) -> Frame:
        """Sort the rows of each partition."""
        return self._then("sort", order=_orders(columns, ascending), is_global=False)

    def repartition(self, numPartitions: int | Named, *columns: Named) -> Frame:
        """Spread the rows over so many partitions, or by columns."""
        if isinstance(numPartitions, int) and not columns:
            return self._then("repartition", num_partitions=_count("repartition", numPartitions), shuffle=True)
        is_number = isinstance(numPartitions, int)
        keys, number = (columns, numPartitions) if is_number else ((numPartitions, *columns), None)
        return self._then("repartition_by_expression", partition_exprs=_named(keys), num_partitions=number)

    def coalesce(self, numPartitions: int) -> Frame:
        """Bring the rows together in at most so many partitions, without a shuffle."""
        return self._then("repartition", num_partitions=_count("coalesce", numPartitions), shuffle=False)

    def hint(self, name: str, *parameters: Value) -> Frame:
        """Tell Spark what it may not see itself: hint("broadcast")."""
        return self._then("hint", name=name, parameters=tuple(map(literal, parameters)))

    def fillna(self, value: Value | Mapping[str, Value], subset: Sequence[str] | None = None) -> Frame:
        """Replace nulls by a value, in columns of its type, or by one for each of some columns."""
        values = value if isinstance(value, Mapping) else {}
        names = tuple(values) or ((subset,) if isinstance(subset, str) else tuple(subset or ()))
        literals = tuple(map(_filling, values.values() if values else [value]))
        return self._then("fill_na", cols=names, values=literals)

    def describe(self, *columns: str | Sequence[str]) -> Frame:
        """Return count, mean, stddev, min and max of some columns, or of all that are numbers or text."""
        return self._then("describe", cols=tuple(flat(columns)))

    def dropna(
        self, how: Literal["any", "all"] = "any", thresh: int | None = None, subset: Sequence[str] | None = None
    ) -> Frame:
        """Leave out rows with nulls: in any column, in all, or with fewer than `thresh` values."""
        if how not in ("any", "all"):
            raise InvalidPlan(f"dropna(how={how!r}): expected 'any' or 'all'")
        least = thresh if thresh is not None else 1 if how == "all" else None
        names = (subset,) if isinstance(subset, str) else tuple(subset or ())
        return self._then("drop_na", cols=names, min_non_nulls=least)

    # --- two frames ----------------------------------------------------------------------

    def join(
        self, other: Frame, on: Named | Sequence[str] | Sequence[Column] | None = None, how: str = "inner"
    ) -> Frame:
        """Join by names that both have, or by a condition; inner, left, right, full, semi, anti or cross."""
        kind = str(how or "inner").lower().replace("_", "")
        if kind not in _JOINS:
            raise InvalidPlan(f"join(how={how!r}): there is no such join; {suggest(kind, _JOINS)}")
        keys: Sequence[Named] = [] if on is None else [on] if isinstance(on, str | Column) else list(on)
        names = tuple(each for each in keys if isinstance(each, str))
        conditions = [each for each in keys if isinstance(each, Column)]
        if len(names) + len(conditions) != len(keys) or (names and conditions):
            raise InvalidPlan(f"join(on={on!r}): expected names that both frames have, or conditions")
        condition = reduce(operator.and_, conditions).expression if conditions else None
        return self._and(other, "join", join_condition=condition, using_columns=names, join_type=_JOINS[kind])

    def cross_join(self, other: Frame) -> Frame:
        """Pair each row with each row of the other."""
        return self.join(other, how="cross")

    def union(self, other: Frame) -> Frame:
        """Add the other's rows, columns by position; equal rows stay."""
        return self._set(other, _UNION, is_all=True, by_name=False)

    def union_by_name(self, other: Frame, allowMissingColumns: bool = False) -> Frame:
        """Add the other's rows, columns by name; one that is missing may be null."""
        return self._set(other, _UNION, is_all=True, by_name=True, allow_missing_columns=allowMissingColumns)

    def intersect(self, other: Frame) -> Frame:
        """Keep the rows that both have, each once."""
        return self._set(other, _INTERSECT, is_all=False)

    def intersect_all(self, other: Frame) -> Frame:
        """Keep the rows that both have, as often as both."""
        return self._set(other, _INTERSECT, is_all=True)

    def subtract(self, other: Frame) -> Frame:
        """Keep the rows that the other doesn't have, each once."""
        return self._set(other, _EXCEPT, is_all=False)

    def except_all(self, other: Frame) -> Frame:
        """Take away the other's rows, one for one."""
        return self._set(other, _EXCEPT, is_all=True)

    # --- groups --------------------------------------------------------------------------

    def group_by(self, *columns: Listed) -> GroupedFrame:
        """Group the rows by columns."""
        return GroupedFrame(self, _GROUP_BY, _keys(columns))

    def rollup(self, *columns: Listed) -> GroupedFrame:
        """Group the rows by columns, by all but the last, and so on."""
        return GroupedFrame(self, _ROLLUP, _keys(columns))

    def cube(self, *columns: Listed) -> GroupedFrame:
        """Group the rows by each choice of the columns."""
        return GroupedFrame(self, _CUBE, _keys(columns))

    def agg(self, *columns: Column | Mapping[str, str]) -> Frame:
        """Aggregate all rows."""
        return self.group_by().agg(*columns)

    # --- what asks Spark -----------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns and Arrow's types, by one call that runs no job."""
        return types.to_schema(self._spark_schema())

    @property
    def ddl(self) -> str:
        """The columns as Spark's SQL writes them."""
        return types.to_columns(self._spark_schema())

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [each.name for each in self._spark_schema().struct.fields]

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """The names of the columns and Spark's types."""
        return [(each.name, types.to_ddl(each.data_type)) for each in self._spark_schema().struct.fields]

    def print_schema(self, level: int | None = None) -> None:
        """Print the columns as a tree."""
        tree = {"plan": self._message()} if level is None else {"plan": self._message(), "level": level}
        print(self._session.analyze(tree_string=tree).tree_string.tree_string)  # noqa: T201  # what it is for

    def explain_string(self, mode: Mode = "simple") -> str:
        """Return how Spark would compute the rows."""
        if mode not in _MODES:
            raise InvalidPlan(f"explain({mode!r}): there is no such mode; {suggest(str(mode), _MODES)}")
        request = {"plan": self._message(), "explain_mode": _MODES.index(mode) + 1}
        return str(self._session.analyze(explain=request).explain.explain_string)

    def explain(self, extended: bool | Mode | None = None, mode: Mode | None = None) -> None:
        """Print how Spark would compute the rows: simple, extended, codegen, cost or formatted."""
        if isinstance(extended, str):
            extended, mode = None, extended
        print(self.explain_string(mode or ("extended" if extended else "simple")))  # noqa: T201  # what it is for

    def collect(self, *, max_rows: int | None = MAX_ROWS, max_bytes: int | None = MAX_BYTES // 10) -> list[Row]:
        """Return all rows as tuples with names, with the limits of `to_arrow`; Python's objects take ten times more."""
        return to_rows(self.to_arrow(max_rows=max_rows, max_bytes=max_bytes))

    def take(self, num: int) -> list[Row]:
        """Return the first rows."""
        return self.limit(num).collect()

    def first(self) -> Row | None:
        """Return the first row; None if there is none."""
        return next(iter(self.take(1)), None)

    def tail(self, num: int) -> list[Row]:
        """Return the last rows."""
        return self._then("tail", limit=_count("tail", num)).collect()

    def is_empty(self) -> bool:
        """Return whether there are no rows."""
        return not self.take(1)

    def head(self, n: int | None = None) -> Row | list[Row] | None:
        """Return the first row, or a list of the first n."""
        return self.first() if n is None else self.take(n)

    def count(self) -> int:
        """Count the rows."""
        ((number,),) = self.agg(call("count", 1)).collect()
        return int(number)

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first rows as a table; long cells are cut at 20 characters, or at `truncate`."""
        width = 20 if truncate is True else int(truncate)
        shown = self._then("show_string", num_rows=_count("show", n), truncate=width, vertical=vertical)
        ((text,),) = shown.collect()
        print(text)  # noqa: T201  # what it is for

    def create_or_replace_temp_view(self, name: str) -> None:
        """Let SQL of this session read the frame by a name."""
        self._create_view(name, replace=True)

    def create_temp_view(self, name: str) -> None:
        """Let SQL of this session read the frame by a name, which must be new."""
        self._create_view(name, replace=False)

    def local_checkpoint(self, eager: bool = True, **options: Any) -> Frame:
        """Compute the rows, now or with the first query, and keep them at Spark's executors until the session ends.

        The options are `tag`, `timeout` and `on_progress`, as `stream` has them.
        """
        command = node("checkpoint_command", relation=self._plan, local=True, eager=eager)
        kept = self._session.run(command, "CheckpointCommandResult", **options).relation
        return Frame(self._session, node("cached_remote_relation", relation_id=kept.relation_id))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Show the frame in a notebook: columns, first rows and plan, by one query of few rows."""
        from penstock.spark.notebook import mimebundle

        return mimebundle(self)

    # pyspark's names
    selectExpr, withColumn, withColumns = select_expr, with_column, with_columns
    withColumnRenamed, withColumnsRenamed, toDF = with_column_renamed, with_columns_renamed, to_df
    where = filter  # noqa: A003  # the method above
    sort, orderBy, sortWithinPartitions = order_by, order_by, sort_within_partitions
    dropDuplicates, crossJoin, unionAll, unionByName = drop_duplicates, cross_join, union, union_by_name
    intersectAll, exceptAll, groupBy, groupby = intersect_all, except_all, group_by, group_by
    printSchema, createTempView, createOrReplaceTempView = print_schema, create_temp_view, create_or_replace_temp_view
    localCheckpoint, isEmpty = local_checkpoint, is_empty
    toArrow, toPandas = Rows.to_arrow, Rows.to_pandas

    # --- within ----------------------------------------------------------------------------

    def _then(self, kind: str, /, **fields: Any) -> Frame:
        return Frame(self._session, node(kind, input=self._plan, **fields))

    def _and(self, other: Frame, kind: str, /, left: str = "left", right: str = "right", **fields: Any) -> Frame:
        if not isinstance(other, Frame):
            raise InvalidPlan(f"expected a frame, got {type(other).__qualname__}; spark.create_frame(table) makes one")
        if other._session is not self._session:
            raise InvalidPlan("the frames are of two sessions: make both in one of them")
        return Frame(self._session, Node(kind, {left: self._plan, right: other._plan, **fields}))

    def _set(self, other: Frame, operation: int, **fields: bool) -> Frame:
        return self._and(other, "set_op", left="left_input", right="right_input", set_op_type=operation, **fields)

    def _message(self) -> Any:
        plan = protos.Plan()
        encode(self._plan, plan.root)  # in place: a message that is copied may not be deep
        return plan

    def _spark_schema(self) -> Any:
        return self._session.analyze(schema={"plan": self._message()}).schema.schema

    def _create_view(self, name: str, *, replace: bool) -> None:
        self._session.run(node("create_dataframe_view", input=self._plan, name=name, is_global=False, replace=replace))


class GroupedFrame:
    """The groups of a frame's rows, which `agg` and its short forms make one row of."""

    __slots__ = ("_columns", "_frame", "_pivot", "_type")

    def __init__(self, frame: Frame, type: int, columns: tuple[Node, ...], pivot: Node | None = None) -> None:
        self._frame, self._type, self._columns, self._pivot = frame, type, columns, pivot

    def __repr__(self) -> str:
        return f"GroupedFrame[{', '.join(map(format_expression, self._columns))} of {self._frame!r}]"

    if not TYPE_CHECKING:  # a type checker finds such names by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_name("groups have", self, name, {}, f" agg(fn.{name}(…)) has any function")

    def agg(self, *columns: Column | Mapping[str, str]) -> Frame:
        """Compute one row of each group: agg(fn.sum("amount").alias("s")), or agg({"amount": "sum"})."""
        if not columns:
            raise InvalidPlan("agg(): expected aggregates, fn.sum('amount') or {'amount': 'sum'}")
        (first, *_) = columns
        if isinstance(first, Mapping):
            columns = tuple(call(function, Column(attribute(name))) for name, function in first.items())
        return Frame(
            self._frame.session,
            node(
                "aggregate", input=self._frame.plan, group_type=self._type, grouping_expressions=self._columns,
                aggregate_expressions=tuple(map(_expression, columns)), pivot=self._pivot,
            ),
        )  # fmt: skip

    def pivot(self, column: str, values: Sequence[Value] | None = None) -> GroupedFrame:
        """Make a column of each value of a column; Spark looks for the values where none are named."""
        if self._type != _GROUP_BY:
            raise InvalidPlan("pivot() follows group_by(), once")
        literals = tuple(part(literal(each)) for each in values or ())
        return GroupedFrame(self._frame, _PIVOT, self._columns, node("", col=column_of(column), values=literals))

    def count(self) -> Frame:
        """Count the rows of each group, as `count`."""
        return self.agg(call("count", 1).alias("count"))

    def sum(self, *names: str) -> Frame:
        """Add the values of columns, or of all that are numbers."""
        return self._each("sum", names)

    def avg(self, *names: str) -> Frame:
        """Average the values of columns, or of all that are numbers."""
        return self._each("avg", names)

    def min(self, *names: str) -> Frame:
        """Return the least values of columns, or of all that are numbers."""
        return self._each("min", names)

    def max(self, *names: str) -> Frame:
        """Return the greatest values of columns, or of all that are numbers."""
        return self._each("max", names)

    mean = avg  # pyspark's name

    def _each(self, function: str, names: Sequence[str]) -> Frame:
        if not names:
            numbers = (each.name for each in self._frame.schema if types.is_number(each.type))
            names = ["`" + each.replace("`", "``") + "`" for each in numbers]
        return self.agg(*(call(function, Column(attribute(each))) for each in names))


def _expression(value: object, name: str = "") -> Node:
    """Return a column's expression."""
    if isinstance(value, Column):
        return value.expression
    what = f"{name}: " if name else ""
    raise InvalidPlan(f"{what}expected a column, col('a') or fn.sum('a'), got {value!r}; lit({value!r}) is a value")


def _named(columns: Sequence[Any]) -> tuple[Node, ...]:
    """Return columns, and names as columns."""
    return tuple(attribute(each) if isinstance(each, str) else _expression(each) for each in flat(columns))


def _keys(columns: Sequence[Any]) -> tuple[Node, ...]:
    """Return what is grouped, or sorted, by; pyspark takes columns' numbers for these, too."""
    for each in flat(columns):
        if isinstance(each, int):
            raise InvalidPlan(f"expected a column or its name, got {each!r}: frame.columns has the names by number")
    return _named(columns)


def _filling(value: Value) -> Node:
    """Return a value that stands for nulls. Spark takes whole numbers of 64 bits alone."""
    whole = literal(value)
    return Node("", {"long": whole.fields["integer"]}) if "integer" in whole.fields else part(whole)


def _orders(columns: Sequence[Any], ascending: bool | Sequence[bool]) -> tuple[Node, ...]:
    """Return what is sorted by."""
    keys = [Column(each) for each in _keys(columns)]
    if not keys:
        raise InvalidPlan("order_by(): expected columns or their names")
    ups = [bool(ascending)] * len(keys) if isinstance(ascending, bool | int) else [bool(each) for each in ascending]
    if len(ups) != len(keys):
        raise InvalidPlan(f"order_by(ascending={ascending!r}): expected a bool, or one for each of {len(keys)} columns")
    sorts = [key if key.expression.kind == "sort_order" else key.asc() for key in keys]
    return tuple(
        part(sort.expression if up else _reversed(key)) for sort, key, up in zip(sorts, keys, ups, strict=True)
    )


def _reversed(key: Column) -> Node:
    child = Column(key.expression.fields["child"]) if key.expression.kind == "sort_order" else key
    return child.desc().expression


def _count(method: str, number: object) -> int:
    """Return a number of rows, or of partitions."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
        raise InvalidPlan(f"{method}({number!r}): expected a whole number, from 0 to {(1 << 31) - 1:,}")
    return number
