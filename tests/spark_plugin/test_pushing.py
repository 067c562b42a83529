"""Filters that the server takes over from Spark keep what Spark keeps; the others go back."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock
from penstock.flight_server import selection
from penstock.flight_server.server import PenstockServer
from penstock.rows.filter.parse import Filter, parse_filter
from penstock.spark_plugin.pushing import PushedFilters

sql = pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
if not hasattr(sql, "EqualTo"):
    pytest.skip("filters are pushed from Spark 4.1 on", allow_module_level=True)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CONF = "spark.sql.python.filterPushdown.enabled"
NAN, BERLIN = math.nan, ZoneInfo("Europe/Berlin")
KINDS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "i": ("int", pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
    "l": ("bigint", pa.int64(), [-(2**63), -1, 0, 7, 2**53 + 1, 2**63 - 1]),
    "d": ("double", pa.float64(), [NAN, -0.0, 0.0, 0.1, 1e300, 5e-324, -math.inf, math.inf]),
    "f": ("float", pa.float32(), [NAN, -0.0, 0.0, 0.5, 0.10000000149011612, math.inf]),
    "m": ("decimal(10,2)", pa.decimal128(10, 2), [Decimal("-1.10"), Decimal("0.00"), Decimal("7.00"), Decimal("9.99")]),
    "w": ("decimal(38,0)", pa.decimal128(38, 0), [Decimal(0), Decimal(-7), Decimal(10**27 - 1), Decimal(10**38 - 1)]),
    "s": ("string", pa.string(), ["", "it's", "a`b", 'x"y', "\\", "é", "\U0001f600", "\ufffd", "a\nb"]),
    "r": ("binary", pa.binary(), [b"", b"\x00", b"\x7f", b"\xff\x00", b"'"]),
    "b": ("boolean", pa.bool_(), [True, False]),
    "day": ("date", pa.date32(), [dt.date(1500, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 3, 31)]),
    "t": (
        "timestamp",
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
            dt.datetime(2024, 3, 31, 1, 0, tzinfo=dt.UTC),
            dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC),  # 02:30 in Berlin, and so is the next
            dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC),
        ],
    ),
    "n": (
        "timestamp_ntz",
        pa.timestamp("us"),
        [dt.datetime(2024, 3, 31, 2, 30), dt.datetime(2024, 10, 27, 2, 30, 0, 1)],  # noqa: DTZ001
    ),
    "odd `name`": ("int", pa.int32(), [1, 2]),
}
SCHEMA = pa.schema({name: kind for name, (_, kind, _) in KINDS.items()})
COMPARE = ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")


def table() -> pa.Table:
    """Every value, in rows of their own, and nulls."""
    most = max(len(values) for _, _, values in KINDS.values())
    columns = [pa.array([*values, *[None] * (most + 1 - len(values))], kind) for _, kind, values in KINDS.values()]
    return pa.Table.from_arrays(columns, schema=SCHEMA).append_column("id", pa.array(range(most + 1), pa.int64()))


# --- each filter, against Spark's rules written down once more ------------------------------


@st.composite
def one_filter(draw: st.DrawFn) -> Any:
    """As Spark makes them."""
    name = draw(st.sampled_from(list(KINDS)))
    value = st.sampled_from(KINDS[name][2])
    kind = draw(st.sampled_from([*COMPARE, "In", "IsNull", "IsNotNull", "StringContains"]))
    if kind in COMPARE:
        pushed_filter = getattr(sql, kind)((name,), draw(value | st.none()))
    elif kind == "In":
        pushed_filter = sql.In((name,), tuple(draw(st.lists(value | st.none(), max_size=3))))
    else:
        pushed_filter = sql.StringContains((name,), "a") if kind == "StringContains" else getattr(sql, kind)((name,))
    return sql.Not(pushed_filter) if draw(st.booleans()) else pushed_filter


def rank(value: Any) -> tuple[int, Any]:
    """Spark's order: NaN is itself, and larger than any number; text goes by its code points."""
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def holds(one: Any, row: dict[str, Any]) -> bool | None:
    """SQL's three truths."""
    name = type(one).__name__
    if name == "Not":
        inner = holds(one.child, row)
        return None if inner is None else not inner
    mine = row[one.attribute[0]]
    if name in ("IsNull", "IsNotNull"):
        return (mine is None) == (name == "IsNull")
    if name == "In":
        among = [holds(sql.EqualTo(one.attribute, value), row) for value in one.value]
        return True if True in among else None if None in among or mine is None else False
    if name == "EqualNullSafe" and (mine is None or one.value is None):
        return mine is one.value
    if mine is None or one.value is None:
        return None
    a, b = rank(mine), rank(one.value)
    return {"EqualTo": a == b, "EqualNullSafe": a == b, "GreaterThan": a > b, "GreaterThanOrEqual": a >= b,
            "LessThan": a < b, "LessThanOrEqual": a <= b}[name]  # fmt: skip


def agrees(wanted: list[Any]) -> None:
    """What is taken of them keeps the rows that Spark would keep."""
    rows = table()
    pushed = PushedFilters(rows.schema, {name: kind for name, (kind, _, _) in KINDS.items()}, "id >= 0")
    back = list(pushed.take(wanted))
    assert not [one for one in back if isinstance(one, sql.IsNull | sql.IsNotNull)], "these can always be taken"
    taken = [one for one in wanted if all(one is not other for other in back)]
    text = pushed.text()
    assert text is not None
    kept = rows.filter(parse_filter(text, rows.schema).expression)

    expected = [row["id"] for row in rows.to_pylist() if all(holds(one, row) is True for one in taken)]
    assert kept["id"].to_pylist() == expected, text


@pytest.mark.parametrize("name", list(KINDS))
def test_each_comparison_keeps_the_rows_that_spark_keeps(name: str) -> None:
    for value in (*KINDS[name][2], None):
        for one in (*(getattr(sql, kind)((name,), value) for kind in COMPARE), sql.In((name,), (value, None))):
            agrees([one])
            agrees([sql.Not(one)])


@given(st.lists(one_filter(), max_size=3))
@settings(max_examples=200)
def test_what_is_taken_keeps_what_spark_would_keep(wanted: list[Any]) -> None:
    agrees(wanted)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (sql.EqualTo(("s",), "it's"), "(`s` = 'it''s')"),
        (sql.Not(sql.EqualTo(("i",), 7)), "(not (`i` = 7))"),
        (sql.EqualTo(("odd `name`",), 1), "(`odd ``name``` = 1)"),
        (sql.GreaterThan(("d",), 0.1), "(`d` > 0.1)"),
        (sql.In(("m",), (Decimal("7.00"), None)), "(`m` in (7.00))"),
        (sql.LessThan(("r",), b"\xff"), "(`r` < x'ff')"),
        (sql.EqualNullSafe(("b",), None), "(`b` is null)"),
        (sql.GreaterThan(("t",), dt.datetime(2024, 7, 1, 2, tzinfo=BERLIN)), "(`t` > '2024-07-01 00:00:00+00:00')"),
    ],
)
def test_what_comes_out_exactly_is_taken(one: Any, text: str) -> None:
    """Else all tests here would pass with nothing taken at all."""
    pushed = PushedFilters(SCHEMA, {name: kind for name, (kind, _, _) in KINDS.items()})
    assert list(pushed.take([one])) == []
    assert f"({pushed.text()})" == text


@pytest.mark.parametrize(
    "one",
    [
        sql.EqualTo(("st", "i"), 1),
        sql.IsNull(("st", "i")),
        sql.EqualTo(("unknown",), 1),
        sql.StringStartsWith(("s",), "a"),
        sql.StringEndsWith(("s",), "a"),
        sql.StringContains(("s",), "a"),
        sql.EqualTo(("d",), NAN),
        sql.LessThan(("d",), math.inf),
        sql.In(("d",), (1.0, NAN)),
        sql.EqualTo(("i",), None),
        sql.In(("i",), ()),
        sql.Not(sql.In(("i",), (1, None))),
        sql.EqualTo(("i",), True),
        sql.EqualTo(("w",), Decimal("1.000000000000000000000000000E+38")),  # what Spark makes of 38 nines
        sql.EqualTo(("t",), dt.datetime(2024, 1, 1)),  # noqa: DTZ001
        sql.EqualTo(("lower",), "a"),
        sql.EqualTo(("s",), "a" * 60_000),
    ],
    ids=lambda one: str(one)[:60],
)
def test_what_doesnt_goes_back(one: Any) -> None:
    kinds = {name: kind for name, (kind, _, _) in KINDS.items()} | {
        "lower": "string collate UTF8_LCASE",
        "st": "struct<i:int>",
    }
    more = [pa.field("lower", pa.string()), pa.field("st", pa.struct({"i": pa.int32()}))]
    pushed = PushedFilters(pa.schema([*SCHEMA, *more]), kinds, "i > 0")
    assert list(pushed.take([one])) == [one]
    assert pushed.text() == "i > 0"


def test_what_would_be_too_much_beside_the_users_own_goes_back() -> None:
    own = " or ".join(f"i = {number}" for number in range(90))
    many = [sql.EqualTo(("i",), number) for number in range(40)]
    pushed = PushedFilters(SCHEMA, {name: kind for name, (kind, _, _) in KINDS.items()}, own)
    back = list(pushed.take(many))
    assert 0 < len(back) < 40
    parse_filter(str(pushed.text()), SCHEMA)


# --- all the way through Spark ---------------------------------------------------------------


@pytest.fixture(scope="module")
def local(spark: SparkSession) -> DataFrame:
    """The rows as Spark has them, with no server."""
    literals = []
    for row in table().to_pylist():
        cells = [f"{literal(name, row[name])} as `{name.replace('`', '``')}`" for name in KINDS]
        literals.append(f"select {', '.join(cells)}, {row['id']}L as id")
    return spark.sql(" union all ".join(literals)).cache()


def literal(name: str, value: Any) -> str:
    """The value in Spark's SQL."""
    kind = KINDS[name][0]
    if value is None:
        return f"cast(null as {kind})"
    if isinstance(value, bytes | str):
        raw = value.hex() if isinstance(value, bytes) else value.encode().hex()
        return f"cast(x'{raw}' as {kind})"
    if isinstance(value, dt.datetime | dt.date):
        return f"{kind}'{value.isoformat(' ') if isinstance(value, dt.datetime) else value.isoformat()}'"
    return f"cast('{value}' as {kind})"


@st.composite
def predicate(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(KINDS)))
    value = st.sampled_from(KINDS[name][2]).map(lambda one: literal(name, one))
    column = f"`{name.replace('`', '``')}`"
    sign = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>", "in", "not in", "is null", "is not null"]))
    if sign.startswith("is"):
        text = f"{column} {sign}"
    elif sign.endswith("in"):
        text = f"{column} {sign} ({', '.join(draw(st.lists(value, min_size=1, max_size=3)))})"
    else:
        text = f"{column} {sign} {draw(value)}"
    return f"not ({text})" if draw(st.booleans()) else text


@pytest.fixture
def server_url(spark: SparkSession, server: PenstockServer, local: DataFrame) -> Iterator[str]:
    """A server that has the same rows."""
    url = str(server.url)
    spark.dataSource.register(penstock.DataSource)
    local.write.format("penstock").mode("append").option("url", url).save("store/kinds")
    yield url
    spark.conf.unset(CONF)


def load(spark: SparkSession, url: str, pushdown: str) -> DataFrame:
    return spark.read.format("penstock").options(url=url, pushdown=pushdown).load("store/kinds")


def judged(frame: DataFrame, wanted: list[str]) -> list[tuple[int, int]]:
    """Which rows each predicate is true of, with nothing that could be pushed."""
    rows = frame.selectExpr("id", *(f"({one}) as p{number}" for number, one in enumerate(wanted))).collect()
    return sorted((number, row.id) for row in rows for number in range(len(wanted)) if row[f"p{number}"])


@given(wanted=st.lists(st.lists(predicate(), min_size=1, max_size=2).map(" and ".join), min_size=6, max_size=6))
@example(wanted=[f"`{name.replace('`', '``')}` = {literal(name, KINDS[name][2][-1])}" for name in KINDS])
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
def test_pushed_or_not_the_rows_are_the_same(
    wanted: list[str], spark: SparkSession, server_url: str, local: DataFrame
) -> None:
    expected = judged(local, wanted)
    spark.conf.set(CONF, "false")
    assert judged(load(spark, server_url, "true"), wanted) == expected

    spark.conf.set(CONF, "true")
    each = [load(spark, server_url, "true").filter(one).selectExpr(f"{at} at", "id") for at, one in enumerate(wanted)]
    assert sorted(tuple(row) for row in reduce(lambda a, b: a.union(b), each).collect()) == expected


def test_what_can_be_is_evaluated_at_the_server(
    spark: SparkSession, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both the conf and the option are on, and only there."""
    filters: list[str] = []
    parse = parse_filter

    def heard(text: str, schema: pa.Schema) -> Filter:
        filters.append(text)
        return parse(text, schema)

    monkeypatch.setattr(selection, "parse_filter", heard)
    for conf, option in (("false", "true"), ("true", "false"), ("true", "true")):
        assert filters == []
        spark.conf.set(CONF, conf)
        rows = load(spark, server_url, option).filter("l >= 7 and s like '%\"%' and i in (7, 8)").collect()
        assert [row.id for row in rows] == [3]

    assert set(filters) == {"(`l` is not null) and (`s` is not null) and (`l` >= 7) and (`i` in (7, 8))"}


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_one_frame_under_several_filters(pushdown: str, spark: SparkSession, server_url: str) -> None:
    """Spark mixes them up where they are pushed: the day that it doesn't, `pushdown` needn't be an option any more."""
    spark.conf.set(CONF, "true")
    rows = table().num_rows
    frame = load(spark, server_url, pushdown)
    counts = [len(frame.filter("id >= 3").collect()), len(frame.collect())]
    both = len(frame.filter("id >= 3").union(frame.filter("id >= 6")).collect())

    right = ([rows - 3, rows], rows - 3 + rows - 6)
    assert ((counts, both) == right) == (pushdown == "false")
