"""Messages of a topic with a schema: each is decoded by the revision that it names, however often it is read."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import InvalidRequest, Unavailable
from penstock.flight_server import revisions as fetching
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics import revisions
from penstock.wire import actions
from tests.kit.avro import encode
from tests.kit.pubsub.emulator import Names
from tests.kit.pubsub.fixtures import open_broker
from tests.kit.server import served as serving
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from tests.kit.pubsub.client import PubSub
    from tests.kit.pubsub.fake import FakePubSub

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
FIELDS = [{"name": "id", "type": "long"}]
MORE = [{"name": "name", "type": "string"}, *FIELDS]
MOST = [*MORE, {"name": "total", "type": ["null", "double"]}]


@dataclass
class Site:
    """A topic with a schema at a fake, its subscription, and the server that pulls it."""

    pubsub: PubSub
    fake: FakePubSub | None
    address: str
    names: Names
    data: Path

    @property
    def schema(self) -> str:
        return self.names.topic.replace("/topics/", "/schemas/")

    def create(self, fields: Any, encoding: int = 2) -> str:
        """Create the schema, the topic and the subscription; return the revision's name."""
        from tests.kit.pubsub import messages as pb

        parent, _, name = self.schema.rpartition("/schemas/")
        schema = pb.Schema(type_=2, definition=record(fields))
        made = self.pubsub.call(pb.CreateSchemaRequest(parent=parent, schema=schema, schema_id=name))
        topic = pb.Topic(name=self.names.topic)
        topic.schema_settings.schema, topic.schema_settings.encoding = self.schema, encoding
        self.pubsub.call(topic)
        self.pubsub.create_subscription(self.names.subscription, self.names.topic)
        return f"{self.schema}@{made.revision_id}"

    def commit(self, fields: Any) -> None:
        from tests.kit.pubsub import messages as pb

        schema = pb.Schema(name=self.schema, type_=2, definition=record(fields))
        self.pubsub.call(pb.CommitSchemaRequest(name=self.schema, schema=schema))

    def delete_schema(self) -> None:
        from tests.kit.pubsub import messages as pb

        self.pubsub.call(pb.DeleteSchemaRequest(name=self.schema))

    def publish(self, fields: Any, rows: list[dict[str, Any]]) -> None:
        self.pubsub.publish(self.names.topic, encode(json.loads(record(fields)), rows))

    @contextmanager
    def served(self) -> Iterator[tuple[PenstockServer, Client]]:
        """Serve its data folder, and attach the subscription, so that no bound on unreleased rows stops it."""
        settings: dict[str, Any] = {"allow_emulator": True, "pubsub_endpoint": self.address, "pubsub_lease": 10}
        with serving(self.data, **settings) as server, penstock.connect(server.url, retry_for=10) as client:
            client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(self.names.path, ack="journal"))
            yield server, client

    def wait_for(self, client: Client, rows: int) -> None:
        eventually(lambda: client.call("describe", {"path": self.names.path})["rows"] == rows, within=200)


def record(fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


@pytest.fixture(params=["fake"])
def site(request: pytest.FixtureRequest, pubsub_names: Names, tmp_path: Path) -> Iterator[Site]:
    """At the fake; or at Google's emulator, which has schemas as well."""
    with open_broker(request, pubsub_names) as broker:
        yield Site(broker.client, broker.fake, broker.address, pubsub_names, tmp_path / "data")


def decoded(client: Client, site: Site, **how: Any) -> pa.Table:
    how.setdefault("schema", "_shard int, _offset long, id long, name string, total double, _error string")
    return client.get(site.names.path, decode="avro", **how).read_all()


def bytes_of(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return file.getvalue()


def by_id(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"], row["total"], row["_error"]) for row in table.to_pylist())


@pytest.mark.parametrize("site", ["fake", "emulator"], indirect=True)
@pytest.mark.parametrize("rows", [200, pytest.param(333_334, marks=pytest.mark.soak)])
def test_a_replay_equals_the_first_reading(site: Site, rows: int) -> None:
    """Over three revisions, of which the schema is deleted after the first reading, and a restart; bit by bit."""
    site.create(FIELDS)
    with site.served() as (_, client):
        site.publish(FIELDS, [{"id": number} for number in range(rows)])
        site.wait_for(client, rows)
        site.commit(MORE)
        site.publish(MORE, [{"id": rows + number, "name": f"n{number}"} for number in range(rows)])
        site.commit(MOST)
        site.publish(MOST, [{"id": 2 * rows + number, "name": "", "total": number / 2} for number in range(rows)])
        site.wait_for(client, 3 * rows)
        first = decoded(client, site)
        assert by_id(first) == [
            *((number, None, None, None) for number in range(rows)),
            *((rows + number, f"n{number}", None, None) for number in range(rows)),
            *((2 * rows + number, "", number / 2, None) for number in range(rows)),
        ]
        newest = decoded(client, site, schema=None)
        assert newest.schema.names == ["name", "id", "total", "_error"]
        site.delete_schema()
        assert bytes_of(decoded(client, site)) == bytes_of(first)
    with site.served() as (_, client):
        assert bytes_of(decoded(client, site)) == bytes_of(first)
        assert bytes_of(decoded(client, site, schema=None)) == bytes_of(newest)
        places = [(row["_shard"], row["_offset"]) for row in first.to_pylist()]
        middle = {shard: offset // 2 for shard, offset in sorted(places)}  # the last one of each shard stays
        ranges = [decoded(client, site, start={}, end=middle), decoded(client, site, start=middle)]
        places = [(row["_shard"], row["_offset"]) for table in ranges for row in table.to_pylist()]
        assert len(places) == len({*places}) == 3 * rows
    assert site.fake is None or site.fake.requests()["GetSchema"]["calls"] == 3


def test_a_revision_that_does_not_exist_is_pinned(site: Site) -> None:
    site.create(FIELDS)
    site.publish(FIELDS, [{"id": 1}])
    site.delete_schema()
    with site.served() as (server, client):
        site.wait_for(client, 1)
        [row] = decoded(client, site).to_pylist()
        assert row["id"] is None
        assert row["_error"].startswith(f"its schema {site.schema}@")
        assert "is missing" in row["_error"]
        assert "NOT_FOUND" in row["_error"]
        assert decoded(client, site, mode="DROPMALFORMED").num_rows == 0
        with pytest.raises(InvalidRequest, match=r"a payload doesn't decode: its schema .* is missing"):
            decoded(client, site, mode="FAILFAST")
        assert not revisions.wanted(server.state.ledger.database)


def test_a_revision_that_can_not_be_had_now_is_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_RETRY", 0.2)
    site.create(FIELDS)
    assert site.fake is not None
    site.fake.fail("GetSchema", "PERMISSION_DENIED", times=-1)
    site.publish(FIELDS, [{"id": 1}])
    with site.served() as (server, client):
        site.wait_for(client, 1)
        with (
            penstock.connect(server.url, retry_for=1) as hasty,
            pytest.raises(Unavailable, match=r"is waited for: .*PERMISSION_DENIED.*grant roles/pubsub\.viewer"),
        ):
            eventually(lambda: decoded(hasty, site))
        assert decoded(client, site, end=dict.fromkeys(range(4), 0)).num_rows == 0  # rows before it are read
        site.fake.heal()
        assert by_id(decoded(client, site)) == [(1, None, None, None)]


def test_json_payloads_of_a_schema_are_decoded(site: Site) -> None:
    site.create(MOST, encoding=1)
    site.pubsub.publish(site.names.topic, [b'{"id": 1, "name": "n", "total": {"double": 2.5}}', b'{"id": "x"}'])
    with site.served() as (_, client):
        site.wait_for(client, 2)
        rows = decoded(client, site).to_pylist()
        assert sorted((row["id"], row["total"]) for row in rows if row["id"]) == [(1, 2.5)]
        assert sum(row["_error"] is not None for row in rows) == 1


def test_revisions_go_with_their_journal(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once tickets have expired that read its rows."""
    site.create(FIELDS)
    site.publish(FIELDS, [{"id": 1}])
    with site.served() as (server, client):
        site.wait_for(client, 1)
        info = client.info(site.names.path)
        reader = client.get(site.names.path, decode="avro", schema="id long")
        client.delete(site.names.path)
        kind = server.state.kinds["subscription"]
        kind.tend(lambda: False)
        assert reader.read_all()["id"].to_pylist() == [1]
        assert info.rows == 1
        monkeypatch.setattr("penstock.flight_server.kinds.subscription.time.time", lambda: 4e9)
        kind.tend(lambda: False)
        database = server.state.ledger.database
        assert database.rows("SELECT count(*) FROM revisions")[0][0] == 0
