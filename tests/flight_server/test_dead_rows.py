"""Dead rows: kept once, behind the commits of the consumer whose schema they failed; and redriven, each once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import app
from penstock.client.client import Client, connect
from penstock.decode.decoding import plan_at_server
from penstock.errors import InvalidRequest, NotFound
from penstock.flight_server.dead_rows import DeadRows
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics import journal, revisions
from penstock.queue.topics.retention import retain
from penstock.wire import actions
from penstock.wire.position import Position
from tests.kit.cli import Run
from tests.kit.dead import PAYLOADS, TOPIC, Consumer, looked_at, put, rows
from tests.kit.server import RestartingServer, served
from tests.kit.wait import eventually


def test_what_fails_is_kept_once_it_is_committed(server: PenstockServer, client: Client) -> None:
    put(client, *PAYLOADS)
    consumer = Consumer(client)
    consumer.commit(2)
    looked_at(server)
    error = "it isn't JSON: Expecting value: line 1 column 1 (char 0)"
    first = {
        "_dead_consumer": "c",
        "_dead_shard": 0,
        "_dead_offset": 1,
        "_dead_error": error,
        "data": b"oops",
        "key": "k",
    }
    assert (rows(client), consumer.dead()) == ([first], 1)
    consumer.commit(4)
    consumer.commit(4)
    looked_at(server)
    assert [(row["_dead_offset"], row["data"]) for row in rows(client)] == [(1, b"oops"), (2, b'{"id": "x"}')]
    [state] = client.call("describe", {"path": TOPIC})["consumers"]
    assert (state["dead"], state["position"]) == (2, {"0": 4})
    assert [entry.path for entry in client.list("topic/")] == [TOPIC, f"{TOPIC}/dead"]


def test_each_consumer_has_dead_rows_of_its_own(server: PenstockServer, client: Client) -> None:
    put(client, *PAYLOADS)
    text, fails, plain = (
        Consumer(client, "text", "id string"),
        Consumer(client, "fails", mode="FAILFAST"),
        Consumer(client),
    )
    for consumer in (text, fails, plain):
        consumer.commit(4)
    looked_at(server)
    assert (text.dead(), fails.dead(), plain.dead()) == (1, 0, 2)
    assert len(rows(client)) == 3


def test_redriven_rows_come_once_and_raw(server: PenstockServer, client: Client) -> None:
    put(client, *PAYLOADS)
    consumer = Consumer(client)
    consumer.commit(4)
    looked_at(server)
    request = actions.RedriveRows(TOPIC, "topic/again")
    assert client.call(actions.REDRIVE_ROWS, request) == actions.RedrivenRows("c", 2)
    assert rows(client, "topic/again") == [{"data": b"oops", "key": "k"}, {"data": b'{"id": "x"}', "key": "k"}]
    with pytest.raises(NotFound, match="no dead rows of any consumer"):
        client.call(actions.REDRIVE_ROWS, request)
    put(client, b"more")
    consumer.commit(5)
    looked_at(server)
    assert client.call(actions.REDRIVE_ROWS, actions.RedriveRows(TOPIC, "topic/again", "c")).rows == 1
    assert [row["data"] for row in rows(client, "topic/again")] == [b"oops", b'{"id": "x"}', b"more"]
    assert consumer.dead() == 0


@pytest.mark.usefixtures("unlooked")
def test_another_schema_judges_only_what_it_commits(server: PenstockServer, client: Client) -> None:
    put(client, *PAYLOADS)
    Consumer(client).commit(2)
    Consumer(client, schema="id string").commit(4)
    server.state.journals.dead.catch_up(TOPIC, "c")
    assert [row["_dead_offset"] for row in rows(client)] == [1]


@pytest.fixture
def unlooked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No look, until it is undone."""
    monkeypatch.setattr(DeadRows, "look", lambda self: None)
    return monkeypatch


def test_a_start_looks_at_what_was_left(
    make_server: Callable[..., PenstockServer], tmp_path: Path, unlooked: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "data") as server, connect(server.url) as client:
        put(client, *PAYLOADS)
        Consumer(client).commit(4)
    server = make_server()
    with connect(server.url) as client:
        looked_at(server)
        assert [row["_dead_offset"] for row in rows(client)] == [1, 2]


@pytest.mark.process
@pytest.mark.faults
def test_a_server_that_dies_as_it_looks_keeps_each_once(tmp_path: Path) -> None:
    """It has found them, and kept nothing: the next one looks again."""
    server = RestartingServer(tmp_path / "data", crash_at="dead.found")
    with server.living(), connect(server.url, retry_for=90) as client:
        put(client, *PAYLOADS)
        consumer = Consumer(client)
        consumer.commit(4)
        eventually(lambda: consumer.dead() == 2, within=60)
        assert [row["_dead_offset"] for row in rows(client)] == [1, 2]
    assert server.lives == 2


def test_a_look_that_fails_in_its_transaction_leaves_nothing(
    server: PenstockServer, client: Client, unlooked: pytest.MonkeyPatch
) -> None:
    """Dead rows and how far the look went are one transaction: after a failure each is kept once."""
    put(client, *PAYLOADS)
    consumer = Consumer(client)
    consumer.commit(4)
    keep = journal.keep

    def fail(*_: Any, **__: Any) -> None:
        unlooked.setattr(journal, "keep", keep)
        raise InvalidRequest("planted")

    unlooked.setattr(journal, "keep", fail)
    with pytest.raises(InvalidRequest, match="planted"):
        server.state.journals.dead.catch_up(TOPIC, "c")
    assert consumer.dead() == 0
    server.state.journals.dead.catch_up(TOPIC, "c")
    assert ([row["_dead_offset"] for row in rows(client)], consumer.dead()) == ([1, 2], 2)


def test_a_schema_may_name_the_columns_that_the_server_adds(client: Client) -> None:
    put(client, *PAYLOADS)
    Consumer(client, schema="id long, _offset long, _shard int")
    with pytest.raises(InvalidRequest, match="topic/orders has no column 'message_id': it has data, key"):
        Consumer(client, "d", schema="id long, message_id string")


def test_retention_leaves_rows_until_they_are_looked_at(
    server: PenstockServer, client: Client, unlooked: pytest.MonkeyPatch
) -> None:
    put(client, *PAYLOADS)
    client.create_topic(TOPIC, client.info(TOPIC).schema, keep_seconds=0.001)
    Consumer(client).commit(4)
    time.sleep(0.01)  # longer than rows are kept
    assert retain(server.state.ledger) == 0
    server.state.journals.dead.catch_up(TOPIC, "c")
    assert retain(server.state.ledger) == 4
    assert len(rows(client)) == 2


def test_the_command_line_shows_and_redrives_them(server: PenstockServer, client: Client, here: Run) -> None:
    put(client, *PAYLOADS)
    Consumer(client).commit(4)
    looked_at(server)
    assert "topic/orders/dead" in here("ls", "topic").text
    assert '"c",0,1,' in here("get", f"{TOPIC}/dead", "--format", "csv").text
    typed = here("get", f"{TOPIC}/dead", "--decode", "json", "--schema", "id string")
    assert typed.json[-1] == {"id": "x", "_error": None}
    assert "2 rows of topic/orders that consumer c" in here("redrive", TOPIC, "--to", "topic/again").text
    assert here("redrive", TOPIC).code == app.USAGE
    assert len(rows(client, "topic/again")) == 2


def test_metrics_count_them(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server()
    with connect(server.url) as client:
        put(client, *PAYLOADS)
        Consumer(client).commit(4)
        looked_at(server)
    assert 'penstock_dead_rows{consumer="c",topic="topic/orders"} 2' in server.state.metrics.text(names=True)


def test_only_the_server_writes_dead_rows(server: PenstockServer, client: Client) -> None:
    put(client, *PAYLOADS)
    Consumer(client).commit(4)
    looked_at(server)
    for path in (f"{TOPIC}/dead", "topic/dead/dead"):
        with pytest.raises(InvalidRequest, match="a last name 'dead' is for rows"):
            put(client, b"x", path=path)
    with pytest.raises(InvalidRequest, match="expected topic/"):
        client.call(actions.REDRIVE_ROWS, actions.RedriveRows(TOPIC, "store/x"))


def test_deleting_a_topic_deletes_its_dead_rows(server: PenstockServer, client: Client) -> None:
    put(client, *PAYLOADS)
    consumer = Consumer(client)
    consumer.commit(4)
    looked_at(server)
    client.delete(f"{TOPIC}/dead")
    assert consumer.dead() == 0
    put(client, b"more")
    consumer.commit(5)
    looked_at(server)
    assert len(rows(client)) == 1
    client.delete(TOPIC)
    assert list(client.list("topic/")) == []


def test_dead_rows_keep_the_revisions_that_they_name(server: PenstockServer, client: Client) -> None:
    """So that they decode where they are kept, and where they are redriven to."""
    name, definition = (
        "projects/p/schemas/s@1",
        '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}',
    )
    attributes = [("googclient_schemaname", "projects/p/schemas/s"), ("googclient_schemarevisionid", "1")]
    kinds = pa.schema({"data": pa.binary(), "attributes": pa.map_(pa.string(), pa.string())})
    client.put(TOPIC, pa.table({"data": [b"\2", b"\4\4"], "attributes": [attributes, attributes]}, kinds))
    ledger = server.state.ledger
    ledger.change(lambda t: revisions.note(t, TOPIC, [name], {0: (0, 2)}))
    ledger.change(lambda t: revisions.settle(t, name, "avro", definition, 1.0))
    decoding = plan_at_server(TOPIC, kinds.names, "avro", "id long")
    journal = client.call(actions.ASK_OFFSETS, actions.AskOffsets(TOPIC)).journal
    start = Position({0: 0})
    client.call(
        actions.ATTACH_CONSUMER, actions.AttachConsumer(TOPIC, journal, "c", "s", start, start, decoding=decoding)
    )
    client.call(actions.COMMIT_POSITION, actions.CommitPosition(TOPIC, journal, "c", "s", Position({0: 2})))
    looked_at(server)
    [row] = client.get(f"{TOPIC}/dead", decode="avro", schema="_offset long, id long").read_all().to_pylist()
    assert row["_error"] == "more bytes follow: it was written with another schema"
    client.call(actions.REDRIVE_ROWS, actions.RedriveRows(TOPIC, "topic/again"))
    assert client.get("topic/again", decode="avro").read_all().to_pylist() == [
        {"id": None, "_error": "more bytes follow: it was written with another schema"}
    ]
