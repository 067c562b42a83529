"""The option `filter` keeps the rows that Spark's own filter keeps, and a frame may be used under many filters."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock
from penstock.flight_server.server import PenstockServer
from penstock.rows.filter.parse import parse_filter

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONF = "spark.sql.python.filterPushdown.enabled"
NAN = math.nan
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
SIGNS = ("=", "!=", "<", "<=", ">", ">=")


def table() -> pa.Table:
    """Every value, in rows of their own, and nulls; each column begins elsewhere, so that few rows are alike."""
    most = max(len(values) for _, _, values in KINDS.values()) + 1
    columns = {}
    for shift, (name, (_, kind, values)) in enumerate(KINDS.items()):
        cells = [*values, *[None] * (most - len(values))]
        columns[name] = pa.array([*cells[shift % most :], *cells[: shift % most]], kind)
    return pa.table({**columns, "id": pa.array(range(most), pa.int64())})


# --- predicates, in both languages and in three truths -------------------------------------


@dataclass(frozen=True)
class Predicate:
    """A predicate as the server's filter says it, as Spark does, and what it is of a row."""

    ours: str
    sparks: str
    truths: tuple[bool | None, ...]
    """Of each row of the table."""


ROWS = table().to_pylist()


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def literal(name: str, value: Any) -> str:
    """The value in the server's words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, dt.datetime | dt.date):
        return f"'{value.isoformat(' ') if isinstance(value, dt.datetime) else value.isoformat()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return format(value, "f") if isinstance(value, Decimal) else repr(value)


def sparks_literal(name: str, value: Any) -> str:
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


def rank(value: Any) -> tuple[int, Any]:
    """Spark's order: NaN is itself, and larger than any number; text goes by its code points."""
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def compared(mine: Any, sign: str, value: Any) -> bool | None:
    if mine is None:
        return None
    a, b = rank(mine), rank(value)
    return {"=": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]


def any_of(truths: list[bool | None]) -> bool | None:
    return True if True in truths else None if None in truths else False


def negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def comparison(name: str, sign: str, value: Any) -> Predicate:
    own = quoted(name)
    truths = tuple(compared(row[name], sign, value) for row in ROWS)
    return Predicate(f"{own} {sign} {literal(name, value)}", f"{own} {sign} {sparks_literal(name, value)}", truths)


def among(name: str, values: list[Any]) -> Predicate:
    ours, sparks = (", ".join(write(name, value) for value in values) for write in (literal, sparks_literal))
    truths = tuple(any_of([compared(row[name], "=", value) for value in values]) for row in ROWS)
    return Predicate(f"{quoted(name)} in ({ours})", f"{quoted(name)} in ({sparks})", truths)


def is_null(name: str) -> Predicate:
    text = f"{quoted(name)} is null"
    return Predicate(text, text, tuple(row[name] is None for row in ROWS))


def no(inner: Predicate) -> Predicate:
    return Predicate(f"not ({inner.ours})", f"not ({inner.sparks})", tuple(map(negated, inner.truths)))


def both(a: Predicate, b: Predicate) -> Predicate:
    truths = tuple(negated(any_of([negated(x), negated(y)])) for x, y in zip(a.truths, b.truths, strict=True))
    return Predicate(f"({a.ours}) and ({b.ours})", f"({a.sparks}) and ({b.sparks})", truths)


def either(a: Predicate, b: Predicate) -> Predicate:
    truths = tuple(any_of([x, y]) for x, y in zip(a.truths, b.truths, strict=True))
    return Predicate(f"({a.ours}) or ({b.ours})", f"({a.sparks}) or ({b.sparks})", truths)


def finite(name: str) -> list[Any]:
    """The values that the server's filter can name."""
    return [value for value in KINDS[name][2] if not isinstance(value, float) or math.isfinite(value)]


def leaves() -> st.SearchStrategy[Predicate]:
    def of(name: str) -> st.SearchStrategy[Predicate]:
        value = st.sampled_from(finite(name))
        return st.one_of(
            st.builds(comparison, st.just(name), st.sampled_from(SIGNS), value),
            st.builds(among, st.just(name), st.lists(value, min_size=1, max_size=3)),
            st.just(is_null(name)),
        )

    return st.sampled_from(list(KINDS)).flatmap(of)


def predicates() -> st.SearchStrategy[Predicate]:
    return st.recursive(
        leaves(),
        lambda inner: st.one_of(st.builds(either, inner, inner), st.builds(both, inner, inner), st.builds(no, inner)),
        max_leaves=5,
    )


def kept(predicate: Predicate) -> list[int]:
    return [row["id"] for row, truth in zip(ROWS, predicate.truths, strict=True) if truth is True]


@given(predicates())
@settings(max_examples=200)
def test_the_filter_keeps_what_sql_is_true_of(predicate: Predicate) -> None:
    rows = table()
    assert parse_filter(predicate.ours, rows.schema).kept(rows)["id"].to_pylist() == kept(predicate), predicate.ours


@pytest.mark.parametrize("name", list(KINDS))
def test_each_comparison_keeps_the_rows_that_spark_keeps(name: str) -> None:
    rows = table()
    null = is_null("i")
    for one in (among(name, finite(name)[:2]), *(comparison(name, sign, v) for sign in SIGNS for v in finite(name))):
        for predicate in (one, no(one), either(one, null), either(no(one), null), no(either(one, null))):
            assert parse_filter(predicate.ours, rows.schema).kept(rows)["id"].to_pylist() == kept(predicate)


# --- all the way through Spark ---------------------------------------------------------------


@pytest.fixture(scope="module")
def local(spark: SparkSession) -> DataFrame:
    """The rows as Spark has them, with no server."""
    literals = []
    for row in ROWS:
        cells = [f"{sparks_literal(name, row[name])} as {quoted(name)}" for name in KINDS]
        literals.append(f"select {', '.join(cells)}, {row['id']}L as id")
    return spark.sql(" union all ".join(literals)).cache()


@pytest.fixture
def server_url(spark: SparkSession, server: PenstockServer, local: DataFrame) -> Iterator[str]:
    """A server that has the same rows, and a session that offers its filters to Python's data sources."""
    url = str(server.url)
    spark.dataSource.register(penstock.DataSource)
    local.write.format("penstock").mode("append").option("url", url).save("store/kinds")
    spark.conf.set(CONF, "true")
    yield url
    spark.conf.unset(CONF)


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(url=url, **options).load("store/kinds")


@pytest.mark.spark
@given(wanted=st.lists(predicates(), min_size=6, max_size=6))
@example(wanted=[either(comparison(name, "=", finite(name)[-1]), is_null("b")) for name in KINDS])
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
def test_the_server_keeps_the_rows_that_spark_keeps(
    wanted: list[Predicate], spark: SparkSession, server_url: str, local: DataFrame
) -> None:
    judged = local.selectExpr("id", *(f"({one.sparks}) as p{at}" for at, one in enumerate(wanted))).collect()
    expected = sorted((at, row.id) for row in judged for at in range(len(wanted)) if row[f"p{at}"])
    assert expected == sorted((at, row) for at, one in enumerate(wanted) for row in kept(one)), "the oracle is Spark's"

    each = [load(spark, server_url, filter=one.ours).selectExpr(f"{at} at", "id") for at, one in enumerate(wanted)]
    assert sorted(tuple(row) for row in reduce(lambda a, b: a.union(b), each).collect()) == expected


@pytest.mark.spark
@pytest.mark.parametrize("options", [{}, {"filter": "id >= 1 or i is null"}], ids=["all", "filtered"])
def test_one_frame_under_several_filters(options: dict[str, str], spark: SparkSession, server_url: str) -> None:
    """Spark 4.1 to 4.3 keep what a data source has taken over of one query's filters for all others of its frame."""
    frame, rows = load(spark, server_url, **options), len(ROWS) - len(options)
    counts = [frame.filter("id >= 3").count(), frame.count(), frame.filter("id >= 6 or id = 3").count()]
    assert counts == [len(ROWS) - 3, rows, len(ROWS) - 5]
    union = frame.filter("id >= 3").union(frame.filter("id >= 6"))
    ids = sorted(row.id for row in union.select("id").collect())
    assert ids == sorted([*range(3, len(ROWS)), *range(6, len(ROWS))])
    assert frame.filter("id >= 6").select("id").join(frame.select("id"), "id").count() == len(ROWS) - 6
    assert frame.filter("id >= 6").select("id").crossJoin(frame.select("i")).count() == (len(ROWS) - 6) * rows
