"""Arrow's expressions as filters: a filter keeps all rows that its expression does, and says what it can say."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rows.filter.arrow import columns_of, to_filter
from penstock.rows.filter.parse import parse_filter

NAN = float("nan")
ROWS = pa.table(
    {
        "at": pa.array(range(6), pa.int32()),
        "big": pa.array([0, 1, None, 2**53, 2**53 + 1, -(2**63)], pa.int64()),
        "float": [0.0, -0.0, None, NAN, 0.5, float("inf")],
        "single": pa.array([0.1, 2**24, None, NAN, 0.5, -1.0], pa.float32()),
        "text": ["a", "b'c", None, "", "a\nb", "zz"],
        "yes": [True, False, None, True, False, True],
        "day": pa.array([dt.date(2026, 1, n + 1) for n in range(5)] + [None]),
        "utc": pa.array([*range(0, 500_000_000, 100_000_000), None], pa.timestamp("ms", "UTC")),
        "local": pa.array([*range(0, 500_000, 100_000), None], pa.timestamp("s")),
        "price": pa.array([Decimal(n) / 4 for n in range(5)] + [None], pa.decimal128(10, 2)),
        "raw": [b"\x00\xff", b"", None, b"x", b"y", b"\x00"],
        "odd `name`": [1, 2, 3, None, 5, 6],
        "inner": pa.array([{"v": n} for n in range(5)] + [None]),
    }
)  # fmt: skip
F = pc.field


def kept(text: str | None, rows: pa.Table = ROWS) -> set[int]:
    return set((rows if text is None else parse_filter(text, rows.schema).kept(rows))["at"].to_pylist())


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (F("at") > 3, "`at` > 3"),
        (pc.scalar(3) >= F("at"), "`at` <= 3"),
        (F("text") == "b'c", "`text` = 'b''c'"),
        (F("raw") != b"\x00\xff", "`raw` != x'00ff'"),
        (F("yes") & ~F("yes"), "`yes` and not (`yes`)"),
        (F("odd `name`").is_valid(), "`odd ``name``` is not null"),
        (F("text").is_null() | (F("at") < 2), "(`text` is null or `at` < 2)"),
        (F("text").isin(["a", "zz"]), "`text` in ('a', 'zz')"),
        (F("day") >= dt.date(2026, 1, 3), "`day` >= '2026-01-03'"),
        (F("utc") < dt.datetime(1970, 1, 3, tzinfo=dt.UTC), "`utc` < '1970-01-03 00:00:00.000Z'"),
        (F("local") < pa.scalar(10**11, pa.timestamp("us")), "`local` < '1970-01-02 03:46:40'"),
        (F("price") > Decimal("0.50"), "`price` > 0.50"),
        (F("float") <= 1, "`float` <= 1"),
        (F("float") > 1e-7, "`float` > 1e-07"),
        # The rest is left to whoever pushed it
        ((F("at") + 1 > 3) & (F("at") < 5), "`at` < 5"),
        ((F("at") + 1 > 3) | (F("at") < 5), None),
        (F("at") == F("big"), None),
        (F("inner", "v") == 1, None),
        (F("at") < 1.5, None),  # Arrow rounds large whole numbers
        (F("single") == 0.1, None),
        (F("float") == NAN, None),
        (F("float").is_null(nan_is_null=True), None),
        (F("text").isin(["a", None]), None),
        (~F("text").isin(["a"]), None),
        (~(F("float") > 1.0), None),
        (F("local") < pa.scalar(1, pa.timestamp("ns")), None),
        (F("text") == pa.scalar(None, pa.string()), None),
        (pc.scalar(True), None),
        (reduce(lambda both, n: both | (F("at") == n), range(300), F("at") == -1), None),
    ],
)  # fmt: skip
def test_a_condition_is_written_if_it_has_words(expression: pc.Expression, text: str | None) -> None:
    assert to_filter(expression, ROWS.schema) == text
    assert kept(text) >= set(ROWS.filter(expression)["at"].to_pylist())


def test_conditions_go_as_far_as_the_server_takes_them() -> None:
    """Of 300 comparisons 100 are taken; the rest is evaluated here."""
    text = to_filter(reduce(and_, [F("big") != n for n in range(150)]), ROWS.schema)
    assert text is not None
    assert text.count("and") == 99


def test_columns_that_an_expression_reads() -> None:
    assert columns_of((F("price") > 1) & F("at").isin([1]) & (F("inner", "v") == 1), ROWS.schema) == ROWS.schema.names
    assert columns_of((F("price") + F("big") > 1) & F("at").isin([1]), ROWS.schema) == ["at", "big", "price"]


def test_a_name_with_a_line_end_is_not_misread() -> None:
    rows = pa.table({"at": [1, 2], "x'\nend: 'equal": [1, 2]})
    expression = F("x'\nend: 'equal") == 2
    assert to_filter(expression, rows.schema) is None
    assert columns_of(expression, rows.schema) == rows.schema.names


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "big": st.one_of(st.sampled_from([0, 1, 2**53, 2**53 + 1, -(2**63)]), st.floats(allow_nan=False)),
    "float": st.one_of(st.sampled_from([0, 1, 2**53 + 1, NAN]), st.floats()),
    "single": st.one_of(st.sampled_from([0.1, 2**24, 2**24 + 1, NAN]), st.floats(width=32)),
    "text": st.sampled_from(["", "a", "b'c", "a\nb"]),
    "day": st.dates(dt.date(2025, 12, 30), dt.date(2026, 1, 7)),
    "yes": st.booleans(),
}
SIGNS = st.sampled_from(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(sorted(VALUES)))
    value = draw(VALUES[name])
    field = F(name)
    form = draw(st.integers(0, 4))
    if form == 0:
        return field.is_null(nan_is_null=draw(st.booleans()))
    if form == 1:
        return field.isin(pa.array([value, *draw(st.lists(st.none(), max_size=1))]))
    arguments = [field, pc.scalar(value)]
    call: pc.Expression = pc.Expression._call(draw(SIGNS), arguments if form > 2 else arguments[::-1])
    return call


EXPRESSIONS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(lambda each: ~each),
        st.tuples(inner, inner).map(lambda both: both[0] & both[1]),
        st.tuples(inner, inner).map(lambda both: both[0] | both[1]),
    ),
    max_leaves=5,
)


@given(EXPRESSIONS)
def test_no_row_of_an_expression_is_left_out(expression: pc.Expression) -> None:
    try:
        wanted = set(ROWS.filter(expression)["at"].to_pylist())
    except pa.ArrowInvalid:  # such as a whole number that is none of the other side's type
        return
    assert kept(to_filter(expression, ROWS.schema)) >= wanted
