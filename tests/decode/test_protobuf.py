"""Protobuf payloads: read field by field as the library parses them; and a bad one is bad for itself."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.decode.protobuf import ProtobufSchema
from penstock.errors import InvalidRequest

ORDER = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  message Line { string name = 1; repeated sint32 counts = 2; }
  enum Kind { UNKNOWN = 0; RETAIL = 1; }
  int64 id = 1;
  optional string note = 2;
  Kind kind = 3;
  repeated Line lines = 4;
  map<string, double> prices = 5;
  google.protobuf.Timestamp at = 6;
  bytes raw = 7;
  uint64 large = 8;
  Line first = 9;
  bool paid = 10;
}
"""
_LINES = st.fixed_dictionaries(
    {"name": st.text(max_size=5), "counts": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)}
)
_ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "note": st.none() | st.text(max_size=5),
        "kind": st.sampled_from(["UNKNOWN", "RETAIL"]),
        "lines": st.lists(_LINES, max_size=3),
        "prices": st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3).map(
            lambda prices: sorted(prices.items())
        ),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "raw": st.binary(max_size=5),
        "large": st.integers(0, 2**64 - 1).map(Decimal),
        "first": st.none() | _LINES,
        "paid": st.booleans(),
    }
)


@pytest.fixture(scope="module")
def order() -> ProtobufSchema:
    return ProtobufSchema(ORDER)


def read(schema: ProtobufSchema, payloads: list[bytes], **how: Any) -> tuple[list[dict[str, Any]], list[str | None]]:
    columns, errors = schema.read(pa.array(payloads, pa.binary()), schema.schema.names, **how)
    for name, array in columns.items():
        array.validate(full=True)
        assert (len(array), array.type) == (len(payloads), schema.schema.field(name).type)
    rows = [{name: columns[name][row].as_py() for name in schema.schema.names} for row in range(len(payloads))]
    return [{**row, "prices": row["prices"] and sorted(row["prices"])} for row in rows], errors


@given(st.lists(_ROWS, min_size=1, max_size=5), st.booleans())
def test_rows_are_read_as_they_were_written(order: ProtobufSchema, rows: list[dict[str, Any]], as_json: bool) -> None:
    """The constructors of the library's own classes are what rows are written with."""
    decoded, errors = read(order, order.write(rows, as_json=as_json), as_json=as_json)
    assert errors == [None] * len(rows)
    assert [{**row, "prices": [*row["prices"]]} for row in decoded] == [
        {**row, "prices": [*row["prices"]]} for row in rows
    ]


def test_a_broken_payload_changes_no_other_row(order: ProtobufSchema) -> None:
    [good] = order.write([{"id": 7, "paid": True}])
    for as_json, broken in ((False, good[:-1]), (False, b"\xff"), (True, b"{"), (True, b"\xff")):
        one = order.write([{"id": 7}], as_json=as_json)[0]
        decoded, errors = read(order, [one, broken, one], as_json=as_json)
        assert ([row["id"] for row in decoded], errors[0], errors[2]) == ([7, None, 7], None, None)
        assert str(errors[1]).startswith("it doesn't decode: ")


def test_what_is_not_there_is_its_default_or_null(order: ProtobufSchema) -> None:
    [row], _ = read(order, [b""])
    assert row == {
        "id": 0, "note": None, "kind": "UNKNOWN", "lines": [], "prices": [], "at": None, "raw": b"",
        "large": Decimal(0), "first": None, "paid": False,
    }  # fmt: skip


def test_a_recursive_message_is_named() -> None:
    schema = ProtobufSchema('syntax = "proto3"; message Node { int32 id = 1; Node next = 2; }')
    assert schema.unreadable == {"next": "Node is recursive"}
    columns, errors = schema.read(pa.array([b"\x08\x05\x12\x02\x08\x06"]), {"id"})
    assert (columns["id"].to_pylist(), errors) == ([5], [None])


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("message\n", r"the schema is no protobuf schema: schema\.proto:2:1: Expected message name"),
        ('syntax = "proto3"; message A {} message B {}', "has 2 top-level messages: expected one"),
        ('syntax = "proto3"; import "other.proto"; message A {}', "other.proto"),
    ],
)
def test_what_is_no_schema_of_rows_is_refused(definition: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        ProtobufSchema(definition)
