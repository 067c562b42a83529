"""Writes to publish/… by the schema of the topic, and what is refused when one is opened."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock.decode.protobuf import ProtobufSchema
from penstock.errors import Denied, InvalidRequest, NotFound, SchemaMismatch, Unavailable
from penstock.wire.actions import OPEN_WRITE, OpenWrite
from tests.kit.pubsub.publishing import Publishing

ORDER = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
AT = datetime(2026, 11, 20, 10, tzinfo=UTC)
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "total": [Decimal("1.50"), Decimal("-2.25")],
        "at": [AT, AT],
        "ordering_key": ["a", "a"],
        "attributes": pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
    }
)
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; }'


def with_schema(publishing: Publishing, definition: str, kind: int = 2, encoding: int = 2) -> str:
    """Make a topic with a schema; return its path."""
    from tests.kit.pubsub import messages as pb

    name = f"t-{uuid.uuid4().hex[:8]}"
    request = pb.CreateSchemaRequest(
        parent="projects/test", schema=pb.Schema(type_=kind, definition=definition), schema_id=name
    )
    publishing.fake.call("CreateSchema", request)
    publishing.topic = f"projects/test/topics/{name}"
    topic = pb.Topic(name=publishing.topic)
    topic.schema_settings.schema, topic.schema_settings.encoding = f"projects/test/schemas/{name}", encoding
    publishing.fake.call("CreateTopic", topic)
    return publishing.path


@pytest.mark.parametrize("encoding", [1, 2])
def test_rows_become_avro_of_the_topics_schema(publishing: Publishing, encoding: int) -> None:
    path = with_schema(publishing, json.dumps(ORDER), encoding=encoding)
    with publishing.publisher():
        publishing.client.put(path, ROWS, encode="avro")
    schema: Any = fastavro.parse_schema(ORDER)
    if encoding == 2:
        rows = [fastavro.schemaless_reader(io.BytesIO(data), schema, None) for data in publishing.data()]
    else:
        rows = [next(iter(fastavro.json_reader(io.StringIO(data.decode()), schema))) for data in publishing.data()]
    assert rows == [
        {"id": 1, "note": None, "total": Decimal("1.50"), "at": AT},
        {"id": 2, "note": None, "total": Decimal("-2.25"), "at": AT},
    ]
    messages = publishing.fake.published(publishing.topic)
    assert [(each.ordering_key, each.attributes["k"]) for each in messages] == [("a", "v"), ("a", "")]


def test_rows_become_protobuf_of_the_topics_schema(publishing: Publishing) -> None:
    path = with_schema(publishing, PROTO, kind=1)
    with publishing.publisher():
        publishing.client.put(path, pa.table({"id": [7], "note": ["n"]}), encode="protobuf")
    columns, _ = ProtobufSchema(PROTO).read(pa.array(publishing.data(), pa.binary()), {"id", "note"})
    assert {name: column.to_pylist() for name, column in columns.items()} == {"id": [7], "note": ["n"]}


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"total": None}, "has the field 'total', which the rows lack, and which is never null"),
        ({"totl": [Decimal(1)] * 2}, "has no field 'totl'; did you mean 'total'"),
        ({"id": ["1", "2"]}, "id is int64, got string"),
        ({"at": [AT.replace(microsecond=1), AT]}, "row 0 of this put is no projects/test/schemas/.*digits that the"),
        ({"id": pa.array([None, 2], pa.int64())}, "row 0 of this put is no projects/test/schemas/"),
    ],
)
def test_what_the_schema_has_no_values_for_is_refused(
    publishing: Publishing, columns: dict[str, Any], why: str
) -> None:
    path = with_schema(publishing, json.dumps(ORDER))
    rows = {name: ROWS[name] for name in ROWS.column_names} | columns
    table = pa.table({name: column for name, column in rows.items() if column is not None})
    with publishing.publisher(), pytest.raises((SchemaMismatch, InvalidRequest), match=why):
        publishing.client.put(path, table, encode="avro")
    assert publishing.data() == []


def test_the_schema_is_looked_up_when_a_write_is_opened(publishing: Publishing) -> None:
    def opened(path: str, encode: str) -> None:
        publishing.client.put(path, ROWS, encode=encode)  # type: ignore[arg-type]

    with pytest.raises(InvalidRequest, match="it has no schema, by which rows could be encoded"):
        opened(publishing.path, "avro")
    path = with_schema(publishing, json.dumps(ORDER))
    with pytest.raises(InvalidRequest, match=r"is avro: pass encode='avro'"):
        opened(path, "protobuf")
    publishing.fake.fail("GetSchema", "PERMISSION_DENIED", times=-1)
    with pytest.raises(Denied, match=r"grant roles/pubsub\.viewer"):
        opened(path, "avro")
    publishing.fake.heal()
    with pytest.raises(NotFound, match=r"projects/test/topics/nonesuch: Pub/Sub says NOT_FOUND.* create it"):
        opened("publish/test/nonesuch", "avro")
    publishing.fake.fail("GetTopic", "PERMISSION_DENIED")
    with pytest.raises(Denied):
        opened(path, "avro")
    assert publishing.client.list("write/") == ()
    publishing.fake.fail("GetTopic", times=-1)
    with pytest.raises(Unavailable, match="injected"):
        opened(path, "avro")


def test_a_run_keeps_the_revision_that_it_began_with(publishing: Publishing) -> None:
    from penstock.wire.publish import PublishOptions
    from tests.kit.pubsub import messages as pb

    path = with_schema(publishing, json.dumps(ORDER))
    options = PublishOptions(encoding="avro")
    first = publishing.client.call(OPEN_WRITE, OpenWrite(path, "error", run="r", publish=options))
    name = publishing.topic.replace("/topics/", "/schemas/")
    other = pb.Schema(name=name, type_=2, definition=json.dumps(ORDER | {"fields": ORDER["fields"][:1]}))
    publishing.fake.call("CommitSchema", pb.CommitSchemaRequest(name=name, schema=other))
    again = publishing.client.call(OPEN_WRITE, OpenWrite(path, "error", run="r", publish=options))
    assert first.write == again.write
    with publishing.publisher():
        publishing.client.put(path, ROWS, encode="avro", run="r")
    assert len(publishing.data()) == 2
