"""Avro payloads: read as fastavro reads them, all rows of a field at once; and a bad one is bad for itself."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.decode.avro import AvroSchema
from penstock.errors import InvalidRequest
from tests.kit.avro import encode, normal, records


def read(schema: AvroSchema, payloads: list[bytes], **how: Any) -> tuple[list[dict[str, Any]], list[str | None]]:
    columns, errors = schema.read(pa.array(payloads, pa.binary()), schema.schema.names, **how)
    for name, array in columns.items():
        array.validate(full=True)
        assert (len(array), array.type) == (len(payloads), schema.schema.field(name).type)
    rows = [{name: columns[name][row].as_py() for name in schema.schema.names} for row in range(len(payloads))]
    return rows, errors


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Row", "fields": [{"name": name, "type": kind} for name, kind in fields]}


@given(records())
def test_rows_are_as_fastavro_reads_them(case: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    schema, rows = case
    avro = AvroSchema(json.dumps(schema))
    assert not avro.unreadable
    decoded, errors = read(avro, encode(schema, rows))
    assert errors == [None] * len(rows)
    assert [normal(row) for row in decoded] == [normal(row) for row in rows]


@given(records(), st.data())
def test_a_broken_payload_changes_no_other_row(
    case: tuple[dict[str, Any], list[dict[str, Any]]], data: st.DataObject
) -> None:
    """And the way of all rows at once says the same as the way of one row after the other."""
    schema, rows = case
    payloads = encode(schema, rows)
    at = data.draw(st.integers(0, len(payloads) - 1))
    broken = payloads[at]
    cut = data.draw(st.integers(0, len(broken)))
    broken = data.draw(
        st.sampled_from([broken[:cut], broken + b"\0", broken[:cut] + data.draw(st.binary(max_size=30))])
    )
    payloads[at] = broken
    avro = AvroSchema(json.dumps(schema))
    decoded, errors = read(avro, payloads)
    columns, one_by_one = avro._read_rows(pa.array(payloads, pa.binary()), avro.schema.names)
    for row in range(len(rows)):
        assert (errors[row] is None) == (one_by_one[row] is None), (errors[row], one_by_one[row], payloads[row])
        if row != at:
            assert normal(decoded[row]) == normal(rows[row])
        elif errors[row] is None:
            assert decoded[row] == {name: columns[name][row].as_py() for name in columns}


def test_some_columns_are_read_and_the_others_skipped() -> None:
    schema = record(("a", "string"), ("b", {"type": "array", "items": "long"}), ("c", ["null", "double"]), ("d", "int"))
    rows = [{"a": "x" * row, "b": [*range(row)], "c": None if row % 2 else 1.5, "d": row} for row in range(5)]
    columns, errors = AvroSchema(json.dumps(schema)).read(pa.array(encode(schema, rows)), {"d"})
    assert (columns["d"].to_pylist(), errors) == ([0, 1, 2, 3, 4], [None] * 5)


def test_a_long_list_is_read_alone() -> None:
    schema = record(("a", {"type": "array", "items": "int"}), ("b", "string"))
    rows = [{"a": [*range(size)], "b": str(size)} for size in (0, 3, 5_000, 1)]
    assert read(AvroSchema(json.dumps(schema)), encode(schema, rows)) == (rows, [None] * 4)


def test_what_no_column_can_hold_is_named() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    schema = record(("id", "long"), ("any", ["int", "string"]), ("tree", node))
    avro = AvroSchema(json.dumps(schema))
    assert avro.unreadable == {
        "any": "a union of 2 types: only null and one other are read",
        "tree": "Node is recursive",
    }
    [payload] = encode(schema, [{"id": 7, "any": "x", "tree": {"next": {"next": None}}}])
    columns, errors = avro.read(pa.array([payload]), {"id"})
    assert (columns["id"].to_pylist(), errors) == ([7], [None])


def test_json_encoded_payloads_are_read() -> None:
    schema = record(("id", "long"), ("name", ["null", "string"]), ("raw", "bytes"))
    payloads = [b'{"id": 1,\n "name": {"string": "n"}, "raw": "\\u00ff"}', b'{"id": 2, "name": null, "raw": ""}', b"{"]
    rows, errors = read(AvroSchema(json.dumps(schema)), payloads, as_json=True)
    assert rows[:2] == [{"id": 1, "name": "n", "raw": b"\xff"}, {"id": 2, "name": None, "raw": b""}]
    assert errors[:2] == [None, None]
    assert str(errors[2]).startswith("it doesn't decode: ")


@pytest.mark.parametrize("definition", ["", "{", '"string"', '{"type": "record", "name": "R"}', '{"type": "nonesuch"}'])
def test_what_is_no_schema_of_rows_is_refused(definition: str) -> None:
    with pytest.raises(InvalidRequest, match="Avro"):
        AvroSchema(definition)


@given(records())
def test_rows_are_written_as_they_are_read(case: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    schema, rows = case
    avro = AvroSchema(json.dumps(schema))
    for as_json in (False, True):
        columns, _ = avro.read(pa.array(encode(schema, rows), pa.binary()), avro.schema.names)
        table = pa.table(columns, schema=avro.schema)
        payloads = avro.write(table.to_pylist(), as_json=as_json)
        again, errors = avro.read(pa.array(payloads, pa.binary()), avro.schema.names, as_json=as_json)
        assert (errors, pa.table(again, schema=avro.schema)) == ([None] * len(rows), table)


@pytest.mark.parametrize("most", [1, 8, 9, 15])
def test_decimals_of_each_number_of_bytes_are_read(most: int) -> None:
    """Side by side, down to none; in up to eight bytes they are read another way."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}
    ends = [2 ** (8 * size - 1) for size in range(1, most + 1)]
    numbers = [0, *(number for end in ends for number in (end - 1, -end)), -1]
    stored = [b"", *(number.to_bytes(-(-(number.bit_length() + 1) // 8), "big", signed=True) for number in numbers)]
    payloads = [bytes([2 * len(each)]) + each for each in stored]
    rows, errors = read(AvroSchema(json.dumps(record(("d", kind)))), payloads)
    assert (rows, errors) == ([{"d": Decimal(number)} for number in (0, *numbers)], [None] * len(payloads))


def test_decimals_of_any_width_keep_their_digits() -> None:
    kind = {"type": "fixed", "name": "D", "size": 20, "logicalType": "decimal", "precision": 38, "scale": 2}
    rows = [{"d": Decimal(text)} for text in ("0.00", "-0.01", "999999999999999999999999999999999999.99")]
    assert read(AvroSchema(json.dumps(record(("d", kind)))), encode(record(("d", kind)), rows))[0] == rows
    assert fastavro.__version__
