"""encode="json": what is encoded reads back as it was, and json reads the same; columns without JSON are refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.decode.json import JsonDecoder
from penstock.errors import SchemaMismatch
from penstock.rows.to_json import JsonEncoding

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ENCODING = JsonEncoding("publish/p/t")
FIRST, LAST = datetime.fromisoformat("0001-01-02"), datetime.fromisoformat("9999-12-30")
NUMBERS = st.integers(-(2**63), 2**63 - 1)
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), NUMBERS),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=9)),
    (pa.decimal128(20, 6), st.decimals("-99999999999999", "99999999999999", places=6)),
    (pa.timestamp("us", "UTC"), st.datetimes(FIRST, LAST, timezones=st.just(UTC))),
    (pa.timestamp("us"), st.datetimes(FIRST, LAST)),
    (pa.date32(), st.dates()),
]


def kinds(depth: int = 2) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """Return types with strategies of their values, which may be null anywhere."""
    plain = st.sampled_from([(kind, st.none() | values) for kind, values in PLAIN])
    if not depth:
        return plain
    inner = kinds(depth - 1)
    lists = inner.map(lambda each: (pa.list_(each[0]), st.none() | st.lists(each[1], max_size=3)))
    structs = st.dictionaries(TEXT, inner, min_size=1, max_size=3).map(
        lambda fields: (
            pa.struct([(name, kind) for name, (kind, _) in fields.items()]),
            st.none() | st.fixed_dictionaries({name: values for name, (_, values) in fields.items()}),
        )
    )
    maps = inner.map(
        lambda each: (
            pa.map_(pa.string(), each[0]),
            st.none() | st.dictionaries(TEXT, each[1], max_size=3).map(lambda entries: [*entries.items()]),
        )
    )
    return plain | lists | structs | maps


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    columns = draw(st.dictionaries(TEXT.map(lambda name: f"c{name}"), kinds(), min_size=1, max_size=4))
    rows = draw(st.integers(1, 5))
    return pa.table({
        name: pa.array([draw(values) for _ in range(rows)], kind) for name, (kind, values) in columns.items()
    })  # fmt: skip


def encoded(table: pa.Table) -> pa.Array:
    [batch] = ENCODING.batches([table.combine_chunks()], ENCODING.schema(table.schema))
    return batch.column("data")


@given(tables(), st.integers(0, 2))
def test_what_is_encoded_reads_back_as_it_was(table: pa.Table, skip: int) -> None:
    """Of a slice, too, whose buffers hold other rows."""
    table = table.slice(min(skip, len(table) - 1))
    columns, errors = JsonDecoder(table.schema, None).decode(encoded(table))
    assert errors.null_count == len(errors), errors
    assert pa.table(columns, table.schema.names).to_pylist() == table.to_pylist()


@given(tables())
def test_each_row_is_an_object_of_its_columns(table: pa.Table) -> None:
    """As Python's own reader has it."""
    for text, row in zip(encoded(table).to_pylist(), table.to_pylist(), strict=True):
        value = json.loads(text, parse_float=Decimal)
        assert list(value) == list(row)
        for name, kind in zip(table.schema.names, table.schema.types, strict=True):
            if kind in (pa.int64(), pa.string(), pa.bool_()):
                assert value[name] == row[name]


def test_values_are_written_as_the_page_says() -> None:
    table = pa.table(
        {
            "when": pa.array([datetime(2026, 11, 18, 20, tzinfo=UTC)], pa.timestamp("us", "Europe/Oslo")),
            "total": pa.array([Decimal("12.50")], pa.decimal128(10, 2)),
            "raw": pa.array([b"\x00\xff"]),
            "day": pa.array([date(2026, 11, 18)]),
            "clock": pa.array([time(1, 2, 3)], pa.time64("us")),
            "none": pa.nulls(1),
            "rates": pa.array([[float("nan"), float("inf"), float("-inf"), 0.5]], pa.list_(pa.float32())),
            "kind": pa.array(['a\n"b"\\']).dictionary_encode(),
        }
    )
    [text] = encoded(table).to_pylist()
    assert text == (
        b'{"when":"2026-11-18T20:00:00.000000Z","total":12.50,"raw":"AP8=","day":"2026-11-18","clock":"01:02:03.000000",'
        b'"none":null,"rates":["NaN","Infinity","-Infinity",0.5],"kind":"a\\n\\"b\\"\\\\"}'
    )


def test_attributes_and_key_stay_beside_the_payload() -> None:
    table = pa.table({"id": [1], "attributes": [{"a": "b"}], "ordering_key": ["k"]})
    [batch] = ENCODING.batches([table], ENCODING.schema(table.schema))
    assert batch.to_pylist() == [{"data": b'{"id":1}', "attributes": {"a": "b"}, "ordering_key": "k"}]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"message_id": ["1"]}), "a reader fills the column 'message_id' by itself"),
        (pa.table({"id": [1], "_error": ["1"]}), "a reader fills the column '_error' by itself"),
        (pa.table([[1], [2]], ["id", "id"]), "two columns are called 'id'"),
        (pa.table({"ordering_key": ["1"]}), "no column that could be encoded"),
        (pa.table({"age": pa.array([1], pa.duration("us"))}), "'age' is duration.us., which JSON has no value for"),
        (pa.table({"m": pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64()))}), "keys of int64: expected text"),
    ],
    ids=["own", "error", "twice", "none", "duration", "keys"],
)
def test_a_column_without_json_is_refused(table: pa.Table, reason: str) -> None:
    with pytest.raises(SchemaMismatch, match=reason):
        ENCODING.schema(table.schema)
