"""Rows are cast to the types that are stored where nothing is lost; else the error names the column."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows.fitting import fit_batches
from penstock.rows.schemas import DATASET
from tests.kit import rows

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
WORDS = ["a", None, "more than the twelve bytes of a view"]


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    (fitted,) = fit_batches([pa.record_batch({"x": column})], pa.schema([("x", kind)]))
    fitted.validate(full=True)
    assert fitted.column(0).type == kind
    return fitted.column(0)


KEPT: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array(WORDS, pa.string_view()), pa.string()),
    (pa.array(WORDS, pa.large_string()), pa.string()),
    (pa.array(WORDS).dictionary_encode(), pa.large_string()),
    (pa.array(WORDS, pa.string_view()), pa.dictionary(pa.int8(), pa.string())),
    (pa.array(WORDS).dictionary_encode(), pa.dictionary(pa.int8(), pa.large_string())),
    (pa.array([b"abc", None], pa.binary(3)), pa.binary()),
    (pa.array([1, None, -5], pa.int8()), pa.int64()),
    (pa.array([127, None, -128]), pa.int8()),
    (pa.array([1.0, None, -(2.0**53)]), pa.int64()),
    (pa.array([2**53, None]), pa.float64()),
    (pa.array([0.5, None, math.inf]), pa.float32()),
    (pa.array([1, None, -2**63]), pa.decimal128(38, 2)),
    (pa.array([Decimal("1.50"), None]), pa.decimal128(10, 1)),
    (pa.array([Decimal("7.00"), None]), pa.int32()),
    (pa.array([NOON, None], pa.timestamp("ns", "Europe/Oslo")), pa.timestamp("s", "UTC")),
    (pa.array([date(2026, 1, 31), None], pa.date64()), pa.date32()),
    (pa.array([None, None]), pa.list_(pa.int64())),
    (pa.array([["a"], None, []], pa.large_list_view(pa.string_view())), pa.list_(pa.string())),
    (pa.array([["a"], None, []], pa.list_view(pa.string_view())), pa.large_list(pa.string())),
    (pa.array([{"b": 1, "a": "x"}, None]), pa.struct({"a": pa.large_string(), "b": pa.int8()})),
]  # fmt: skip


@pytest.mark.parametrize(("column", "kind"), KEPT, ids=lambda each: str(getattr(each, "type", each)))
def test_values_are_cast_where_nothing_is_lost(column: pa.Array, kind: pa.DataType) -> None:
    for each in (column, column.slice(1), column.slice(0, 0)):
        assert cast(each, kind).to_pylist() == each.to_pylist()


LOST: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1, 128]), pa.int8()),
    (pa.array([-1]), pa.uint64()),
    (pa.array([2**53 + 1]), pa.float64()),
    (pa.array([1.5]), pa.int64()),
    (pa.array([math.nan]), pa.int64()),
    (pa.array([1e300]), pa.int64()),
    (pa.array([0.1]), pa.float32()),
    (pa.array([1e300]), pa.float32()),
    (pa.array([1000]), pa.decimal128(4, 2)),
    (pa.array([Decimal("1.55")]), pa.decimal128(10, 1)),
    (pa.array([Decimal("1.5")]), pa.int64()),
    (pa.array([1_001], pa.timestamp("us", "UTC")), pa.timestamp("ms", "UTC")),
    (pa.array([1_001], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([1], pa.date64()), pa.date32()),
    (pa.array([b"abcd"]), pa.binary(3)),
    (pa.array([str(number) for number in range(200)]), pa.dictionary(pa.int8(), pa.string())),
    (pa.array([{"a": 1, "b": 2}]), pa.struct({"a": pa.int64()})),
]


@pytest.mark.parametrize(("column", "kind"), LOST, ids=lambda each: str(getattr(each, "type", each)))
def test_a_value_that_would_lose_something_is_refused(column: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"column x|the values of x"):
        cast(column, kind)


def test_views_beneath_nulls_are_not_followed() -> None:
    """Arrow doesn't validate them: of 2,000 damaged streams some ended the server."""
    astray = struct.pack("<i4sii", 1 << 30, b"xxxx", 7, 1 << 30)
    text = struct.pack("<i12s", 1, b"a")
    views = pa.py_buffer(astray + text + astray + astray)
    column = pa.Array.from_buffers(pa.string_view(), 4, [pa.array([0b0010], pa.uint8()).buffers()[1], views])
    column.validate(full=True)
    for each in (column, column.slice(1), column.slice(2)):
        assert cast(each, pa.string()).to_pylist() == [None, "a", None, None][4 - len(each) :]


def test_nan_stays_nan() -> None:
    assert math.isnan(cast(pa.array([math.nan]), pa.float32())[0].as_py())


@pytest.mark.parametrize("sent", [pa.struct({}), pa.struct({"b": pa.int64()}), pa.struct({"c": pa.int64()})], ids=str)
def test_a_reader_gets_the_fields_that_it_knows(sent: Any) -> None:
    """Fields that were added later are left out, those that older rows lack are null."""
    column = pa.array([{field.name: 1 for field in sent}, None], sent)
    schema = pa.schema([("x", pa.struct({"a": pa.int64(), "b": pa.int64()}))])
    (fitted,) = fit_batches([pa.record_batch({"x": column})], schema, reading=True)
    assert fitted.to_pylist() == [{"x": {"a": None, "b": 1 if "b" in sent.names else None}}, {"x": None}]


def test_a_reader_planned_without_a_type_gets_nulls() -> None:
    """A put that brought the column's first values doesn't end its query."""
    schema = pa.schema([("x", pa.null()), ("l", pa.list_(pa.null()))])
    batch = pa.record_batch({"x": ["new", None], "l": [["new"], []]})
    (fitted,) = fit_batches([batch], schema, reading=True)
    assert fitted.to_pydict() == {"x": [None, None], "l": [[None], []]}
    with pytest.raises(SchemaMismatch, match="column x is string, and can't be cast to null"):
        list(fit_batches([batch], schema))


def test_a_null_is_refused_where_there_may_be_none() -> None:
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    with pytest.raises(InvalidRequest, match="column x has a null where its schema allows none"):
        list(fit_batches([pa.record_batch({"x": pa.array([1, None], pa.int8())})], strict))


@given(rows.tables(), st.data())
def test_any_rows_are_stored_with_the_same_values(table: pa.Table, data: st.DataObject) -> None:
    """Whatever type a column has: nothing of it is a view afterwards, and nothing else changes."""
    names = data.draw(st.permutations(table.schema.names))
    stored = DATASET.fit(DATASET.fit(None, table.schema, "store/a"), table.select(names).schema, "store/a")
    batches = list(fit_batches(table.select(names).to_batches(), stored))
    fitted = pa.Table.from_batches(batches, stored)
    fitted.validate(full=True)
    assert fitted.to_pylist() == table.to_pylist()
    assert "view" not in str(fitted.schema)
