"""Rows of several revisions of a schema in the columns of a reader: each is decoded by the one that it names."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.decode.ddl import parse_ddl
from penstock.decode.revisions import Revision, SchemaDecoder, writer_schema
from penstock.errors import Unavailable
from tests.kit.avro import encode, normal, records

SCHEMA = "projects/p/schemas/order"


def avro(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in fields]}


FIRST = avro(("id", "long"))
SECOND = avro(("id", "long"), ("name", "string"))
THIRD = avro(("name", "string"), ("total", ["null", "double"]), ("id", "int"))


def named(revision: str | None, encoding: str = "BINARY") -> list[tuple[str, str]]:
    if revision is None:
        return [("other", "x")]
    return [
        ("a", "b"), ("googclient_schemaname", SCHEMA), ("googclient_schemarevisionid", revision),
        ("googclient_schemaencoding", encoding),
    ]  # fmt: skip


def decode(
    schema: str,
    revisions: dict[str, Revision],
    messages: list[tuple[list[tuple[str, str]] | None, bytes | None]],
    format: str = "avro",
) -> tuple[list[dict[str, Any]], list[str | None]]:
    def find(name: str) -> Revision:
        return revisions[name.partition("@")[2]]

    wanted = parse_ddl(schema)
    attributes, payloads = zip(*messages, strict=True)
    kind = pa.map_(pa.string(), pa.string())
    both = pa.array(payloads, pa.binary()), pa.array(attributes, kind)
    columns, errors = SchemaDecoder(wanted, format, None, find).decode(*both)
    sliced = [each.slice(1) for each in both]
    again, _ = SchemaDecoder(wanted, format, None, find).decode(*sliced)
    for column, rest, field in zip(columns, again, wanted, strict=True):
        column.validate(full=True)
        assert (column.type, column.slice(1)) == (field.type, rest)
    return pa.Table.from_arrays(columns, wanted.names).to_pylist(), errors.to_pylist()


def known(format: str = "avro", **definitions: Any) -> dict[str, Revision]:
    return {
        name: Revision(f"{SCHEMA}@{name}", format, text if isinstance(text, str) else json.dumps(text))
        for name, text in definitions.items()
    }


def test_each_row_is_decoded_by_the_revision_it_names() -> None:
    one, two, three = (
        encode(FIRST, [{"id": 1}])[0], encode(SECOND, [{"id": 2, "name": "n"}])[0],
        encode(THIRD, [{"name": "m", "total": 1.5, "id": 3}])[0],
    )  # fmt: skip
    messages: list[Any] = [
        (named("r3"), three), (named("r1"), one), (named("r2"), two), (named("r1"), None), (None, three),
        (named("gone"), one), (named("r3"), three), (named("r2", "JSON"), b'{"id": 4, "name": "j"}'),
    ]  # fmt: skip
    missing = Revision("", None, None, "it does not exist at Pub/Sub")
    revisions = known(r1=FIRST, r2=SECOND, r3=THIRD) | {"gone": missing}
    rows, errors = decode("id long, name string, total double", revisions, messages)
    assert [tuple(row.values()) for row in rows] == [
        (3, "m", 1.5), (1, None, None), (2, "n", None), (None, None, None), (None, None, None), (None, None, None),
        (3, "m", 1.5), (4, "j", None),
    ]  # fmt: skip
    assert [error and error[:40].rstrip() for error in errors] == [
        None, None, None, None, "its message names no schema: pass writer", f"its schema {SCHEMA}@gone", None, None,
    ]  # fmt: skip
    assert str(errors[5]) == f"its schema {SCHEMA}@gone is missing: it does not exist at Pub/Sub"


def test_a_revision_that_is_not_known_yet_is_waited_for() -> None:
    def find(name: str) -> Revision:
        raise Unavailable(name)

    attributes = pa.array([named("r1")], pa.map_(pa.string(), pa.string()))
    with pytest.raises(Unavailable, match="order@r1"):
        SchemaDecoder(parse_ddl("id long"), "avro", None, find).decode(pa.array([b"\2"]), attributes)


def test_a_revision_that_can_not_be_read_fails_its_rows_alone() -> None:
    [good] = encode(FIRST, [{"id": 1}])
    revisions = known(r1=FIRST, bad='"long"') | known("protobuf", proto='syntax = "proto3"; message A {}')
    rows, errors = decode("id long", revisions, [(named(each), good) for each in ("bad", "r1", "proto")])
    assert [row["id"] for row in rows] == [None, 1, None]
    assert "the Avro schema is no record" in str(errors[0])
    assert str(errors[2]).endswith("is protobuf: pass decode='protobuf'")


def test_values_become_the_readers_types_exactly_or_not_at_all() -> None:
    schema = avro(
        ("a", "long"), ("b", "int"), ("c", "float"), ("d", {"type": "array", "items": "long"}),
        ("e", {"type": "map", "values": "int"}), ("f", "string"), ("g", "bytes"),
        ("h", ["null", FIRST | {"name": "Inner"}]),
    )  # fmt: skip
    good = {"a": 7, "b": 8, "c": 0.5, "d": [1, 2], "e": {"k": 3}, "f": "t", "g": b"u", "h": {"id": 9}}
    large = good | {"a": 2**40, "d": [1, 2**40], "g": b"\xff"}
    messages: list[Any] = [(named("r"), each) for each in encode(schema, [good, large])]
    ddl = "a int, b decimal(10,2), c double, d array<int>, e map<string,bigint>, f binary, g string, "
    ddl += "h struct<id: int, x: int>"
    rows, errors = decode(ddl, known(r=schema), messages)
    expected = {
        "a": 7, "b": Decimal(8), "c": 0.5, "d": [1, 2], "e": [("k", 3)], "f": b"t", "g": "u", "h": {"id": 9, "x": None},
    }  # fmt: skip
    assert rows == [expected, expected | {"a": None, "d": [1, None], "g": None}]
    assert errors == [None, "a: a value is no int32"]
    rows, errors = decode("f bigint, d string, h struct<id: string>", known(r=schema), messages[:1])
    assert (rows, errors) == (
        [{"f": None, "d": None, "h": {"id": None}}], ["f: it was written as string, the schema has int64"],
    )  # fmt: skip


@given(st.lists(records(6), min_size=3, max_size=3), st.randoms(use_true_random=False))
def test_three_revisions_of_anything_are_told_apart(
    cases: list[tuple[dict[str, Any], list[dict[str, Any]]]], random: Any
) -> None:
    """Each revision's columns have names of their own, so that a row decoded by another one would show."""
    revisions, messages, schema = {}, [], []
    for number, (case, rows) in enumerate(cases):
        fields = [{**field, "name": f"{field['name']}r{number}"} for field in case["fields"]]
        definition = {**case, "fields": fields}
        own = [{f"{name}r{number}": value for name, value in row.items()} for row in rows]
        revisions[f"r{number}"] = Revision("", "avro", json.dumps(definition))
        messages += [
            (named(f"r{number}"), payload, row) for payload, row in zip(encode(definition, own), own, strict=True)
        ]
        schema += [*writer_schema("avro", json.dumps(definition)).schema]
    random.shuffle(messages)

    def find(name: str) -> Revision:
        return revisions[name.partition("@")[2]]

    attributes = pa.array([each for each, _, _ in messages], pa.map_(pa.string(), pa.string()))
    payloads = pa.array([payload for _, payload, _ in messages], pa.binary())
    columns, errors = SchemaDecoder(pa.schema(schema), "avro", None, find).decode(payloads, attributes)
    assert errors.null_count == len(messages)
    for row, (_, _, expected) in enumerate(messages):
        decoded = {field.name: column[row].as_py() for field, column in zip(schema, columns, strict=True)}
        assert normal({name: decoded.pop(name) for name in expected}) == normal(expected)
        assert not any(value is not None for value in decoded.values())


def test_protobuf_has_revisions_too() -> None:
    first = 'syntax = "proto3"; message Order { int64 id = 1; }'
    second = 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; }'
    revisions = known("protobuf", r1=first, r2=second)
    messages: list[Any] = [(named("r2"), b"\x08\x02\x12\x01n"), (named("r1"), b"\x08\x01"), (named("r2"), b"\x08")]
    rows, errors = decode("id int, name string", revisions, messages, "protobuf")
    assert rows == [{"id": 2, "name": "n"}, {"id": 1, "name": None}, {"id": None, "name": None}]
    assert (errors[:2], str(errors[2])[:18]) == ([None, None], "it doesn't decode:")
