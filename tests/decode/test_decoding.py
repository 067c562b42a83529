"""A typed read by the client and the command line: which columns come from where, and what is refused."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import app
from penstock.client.client import Client
from penstock.decode.ddl import parse_ddl
from penstock.decode.revisions import writer_schema
from penstock.errors import InvalidRequest, SchemaMismatch
from tests.kit.avro import encode
from tests.kit.cli import Run

TOPIC = "topic/orders"
TIME = datetime(2026, 11, 18, 20, tzinfo=UTC)


def put(client: Client, *payloads: bytes | None) -> None:
    client.put(TOPIC, pa.table({"data": pa.array(payloads, pa.binary())}))


def get(client: Client, schema: Any, **arguments: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(TOPIC, decode="json", schema=schema, **arguments).read_all().to_pylist()
    return rows


def test_payloads_become_columns(client: Client) -> None:
    put(client, b'{"id": 1, "more": [2.50]}', b'{"id": "x", "name": "n"}', None, b"{")

    first, second, third, fourth = get(client, "id long, name string, _rest map<string,string>")
    assert first == {"id": 1, "name": None, "_rest": [("more", "[2.50]")], "_error": None}
    assert second == {"id": None, "name": "n", "_rest": [], "_error": "id: 'x' is no int64"}
    assert third == {"id": None, "name": None, "_rest": None, "_error": None}
    assert fourth["_error"].startswith("it isn't JSON: ")


def test_modes_keep_drop_and_fail(client: Client) -> None:
    put(client, b'{"id": 1}', b"", b'{"id": 2.5}', b'{"id": 3}')
    assert [row["id"] for row in get(client, "id int")] == [1, None, None, 3]
    assert get(client, "id int", mode="dropmalformed") == [{"id": 1}, {"id": 3}]
    with pytest.raises(InvalidRequest, match=r"doesn't decode: it is empty\. It is the row with _shard=0, _offset=1$"):
        get(client, "id int", mode="FAILFAST")


def test_metadata_never_comes_from_the_payload(client: Client) -> None:
    rows = {
        "message_id": ["7"], "publish_time": [TIME], "ordering_key": ["k"], "attributes": [[("a", "b")]],
        "delivery_attempt": [None], "data": [b'{"message_id": "forged", "_offset": 99, "attributes": {}, "id": 1}'],
    }  # fmt: skip
    kinds = [pa.string(), pa.timestamp("us", "UTC"), pa.string(), pa.map_(pa.string(), pa.string()), pa.int32()]
    client.put(TOPIC, pa.table(rows, pa.schema(list(zip(rows, [*kinds, pa.binary()], strict=True)))))
    names = "message_id string, publish_time timestamp, ordering_key string, attributes map<string,string>"
    [row] = get(client, f"_offset long, id int, {names}, delivery_attempt int, _shard int", mode="FAILFAST")
    assert row == {
        "_offset": 0, "id": 1, "message_id": "7", "publish_time": TIME, "ordering_key": "k", "attributes": [("a", "b")],
        "delivery_attempt": None, "_shard": 0,
    }  # fmt: skip
    with pytest.raises(SchemaMismatch, match="message_id is string, the schema has int64"):
        get(client, "message_id long")


def test_a_range_and_a_filter_choose_rows(client: Client) -> None:
    put(client, *(b'{"id": %d}' % number for number in range(10)))
    rows = get(client, "id long", start={0: 2}, end={0: 9}, filter="_offset <> 3", limit=4)
    assert [row["id"] for row in rows] == [2, 4, 5, 6]


def test_the_only_column_is_the_payload(client: Client) -> None:
    client.put(TOPIC, pa.table({"value": ['{"id": 1}']}))
    assert get(client, pa.schema({"id": pa.int32()})) == [{"id": 1, "_error": None}]
    client.put("topic/two", pa.table({"a": ["{}"], "b": ["{}"]}))
    with pytest.raises(InvalidRequest, match="reads column 'data', which it lacks: it has a, b"):
        client.get("topic/two", decode="json", schema="id long")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"decode": "jsn", "schema": "id long"}, "decode='jsn': did you mean 'json'"),
        ({"decode": "json"}, "decode='json' needs one, such as 'id long"),
        ({"decode": "json", "schema": "id long", "mode": "PERMISIVE"}, "did you mean 'PERMISSIVE'"),
        ({"decode": "json", "schema": "id long", "columns": ["id"]}, "the schema names the columns"),
        ({"schema": "id long"}, "is for a decoded read: pass decode='json'"),
        ({"decode": "json", "schema": "id long not null"}, "id has NOT NULL"),
        ({"decode": "json", "schema": "a struct<b: int not null>"}, "a has NOT NULL"),
        ({"decode": "json", "schema": "id long, id int"}, "'id' more than once"),
        ({"decode": "json", "schema": "m map<int, int>"}, "a map by int32: JSON's keys are text"),
        ({"decode": "json", "schema": "_error int"}, "_error is int32: it is always string"),
        ({"decode": "json", "schema": pa.schema({"a": pa.uint64()})}, "a is uint64, which JSON has no values for"),
    ],
)
def test_what_cannot_be_read_is_refused(client: Client, arguments: dict[str, Any], why: str) -> None:
    put(client, b"{}")
    with pytest.raises(InvalidRequest, match=why):
        client.get(TOPIC, **arguments)


def test_a_dataset_has_no_payloads(client: Client) -> None:
    client.put("store/x", pa.table({"data": [b"{}"]}))
    with pytest.raises(InvalidRequest, match="store/x is a dataset"):
        client.get("store/x", decode="json", schema="id long")


def test_get_decodes_on_the_command_line(here: Run, client: Client) -> None:
    put(client, b'{"id": 1, "at": "2026-11-18T20:00:00Z"}', b"no")
    options = ("--decode", "json", "--schema", "id long, at timestamp")
    text = here("get", TOPIC, *options, "--mode", "DROPMALFORMED", "--format", "csv").text
    assert text == '"id","at"\n1,2026-11-18 20:00:00.000000Z\n'
    shown = here("get", TOPIC, *options, terminal=True)
    assert (shown.text.split()[:3], "2 of 2 rows" in shown.err) == (["id", "at", "_error"], True)
    assert here("get", "-f", TOPIC, *options).code == app.USAGE


# --- with the schema of a file ---------------------------------------------------------------


AVRO = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}
PROTO = 'syntax = "proto3"; message Row { int64 id = 1; string name = 2; }'


@pytest.fixture
def avsc(tmp_path: Path) -> Path:
    (file := tmp_path / "row.avsc").write_text(json.dumps(AVRO))
    return file


def test_a_file_says_how_payloads_were_written(client: Client, avsc: Path, tmp_path: Path) -> None:
    good, other = encode(AVRO, [{"id": 1, "name": "n"}, {"id": 2, "name": "m"}])
    put(client, good, good[:-1], None, other)
    rows = client.get(TOPIC, decode="avro", writer_schema=avsc).read_all().to_pylist()
    assert rows == [
        {"id": 1, "name": "n", "_error": None}, {"id": None, "name": None, "_error": "it ends too early"},
        {"id": None, "name": None, "_error": None}, {"id": 2, "name": "m", "_error": None},
    ]  # fmt: skip
    typed = client.get(
        TOPIC, decode="avro", writer_schema=avsc, schema="name string, _offset long", mode="DROPMALFORMED"
    )
    assert typed.read_all().to_pylist() == [
        {"name": "n", "_offset": 0}, {"name": None, "_offset": 2}, {"name": "m", "_offset": 3},
    ]  # fmt: skip
    with pytest.raises(
        InvalidRequest, match=r"a payload doesn't decode: it ends too early\. It is the row .*_offset=1"
    ):
        client.get(TOPIC, decode="avro", writer_schema=avsc, mode="FAILFAST").read_all()
    filtered = client.get(TOPIC, decode="avro", writer_schema=avsc, filter="_offset >= 2", limit=1).read_all()
    assert filtered["id"].to_pylist() == [None]
    (proto := tmp_path / "row.proto").write_text(PROTO)
    client.put("topic/proto", pa.table({"value": [b"\x08\x07"]}))
    [row] = client.get("topic/proto", decode="protobuf", writer_schema=proto).read_all().to_pylist()
    assert row == {"id": 7, "name": "", "_error": None}


def test_get_reads_avro_on_the_command_line(here: Run, client: Client, avsc: Path) -> None:
    put(client, *encode(AVRO, [{"id": 1, "name": "n"}]))
    options = ("--decode", "avro", "--writer-schema", str(avsc))
    text = here("get", TOPIC, *options, "--mode", "DROPMALFORMED", "--format", "csv").text
    assert text == '"id","name"\n1,"n"\n'
    assert here("get", "-f", TOPIC, *options).code == app.USAGE


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"decode": "avro"}, "has no column 'attributes', in which messages name their schema: pass writer_schema"),
        (
            {"decode": "avro", "writer_schema": "none.avsc"},
            "expected a file with an Avro or a protobuf schema: No such",
        ),
        ({"decode": "protobuf", "writer_schema": "row.avsc"}, "the schema is no protobuf schema"),
        ({"decode": "json", "schema": "id long", "writer_schema": "row.avsc"}, "is for avro and protobuf"),
        ({"decode": "avro", "writer_schema": "row.avsc", "schema": "_rest map<string,string>"}, "only JSON has fields"),
        ({"decode": "avro", "writer_schema": "row.avsc", "mode": "PERMISIVE"}, "did you mean 'PERMISSIVE'"),
        ({"writer_schema": "row.avsc"}, "writer_schema='row.avsc' is for a decoded read"),
    ],
)
def test_what_no_schema_is_for_is_refused(
    client: Client, avsc: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], why: str
) -> None:
    monkeypatch.chdir(avsc.parent)
    put(client, b"")
    with pytest.raises(InvalidRequest, match=why):
        client.get(TOPIC, **arguments)


def test_the_server_says_what_it_lacks(client: Client, avsc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "penstock.decode.avro", None)
    writer_schema.cache_clear()
    put(client, b"")
    with pytest.raises(InvalidRequest, match=r"the server lacks penstock\.decode\.avro, which avro needs: pip install"):
        client.get(TOPIC, decode="avro", writer_schema=avsc)


# --- schemas as text -----------------------------------------------------------------------


def test_ddl_has_the_types_of_spark() -> None:
    schema = parse_ddl(
        "a boolean, b tinyint, c short, d INT, e: bigint, f float, g double, h decimal, i numeric(5), j dec(38,37), "
        "k string, l varchar(10), m binary, n date, o timestamp, p timestamp_ntz, q time(6), `r ``x` long COMMENT 'it, "
        "is', s array<map<string, struct<t: int, u: array<long>>>>, v int not null"
    )
    assert [str(kind) for kind in schema.types] == [
        "bool", "int8", "int16", "int32", "int64", "float", "double", "decimal128(10, 0)", "decimal128(5, 0)",
        "decimal128(38, 37)", "string", "string", "binary", "date32[day]", "timestamp[us, tz=UTC]", "timestamp[us]",
        "time64[ns]", "int64", "list<element: map<string, struct<t: int32, u: list<element: int64>>>>", "int32",
    ]  # fmt: skip
    assert schema.names[17] == "r `x"
    assert [field.name for field in schema if not field.nullable] == ["v"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the schema is empty"),
        ("id", "it ends too early"),
        ("id lnog", "did you mean 'long'"),
        ("id long name string", "expected ','"),
        ("id long;", "expected a comma"),
        ("id long,", "expected a column's name"),
        ("a decimal(39,2)", "expected a precision of 1 to 38"),
        ("a array<int", "expected '>'"),
        ("a " + "array<" * 200 + "int" + ">" * 200, "deeper than 100"),
    ],
)
def test_ddl_that_is_wrong_says_where(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_ddl(text)
