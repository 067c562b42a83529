"""Tokens with rights: who may do what where, and that every verb, action and ticket asks."""

from __future__ import annotations

import dataclasses
import hmac
import json
import logging
import os
import re
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import connect
from penstock.errors import Denied, InvalidRequest
from penstock.flight_server import kinds
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.http import HttpDoor
from penstock.flight_server.server import PenstockServer
from penstock.flight_server.tokens import Tokens
from penstock.wire import actions, job, payloads, publish, queue
from penstock.wire.body import Body
from penstock.wire.paths import parse_folder
from penstock.wire.position import Position
from tests.kit.cli import LIMIT
from tests.kit.cli import serving as serving_process
from tests.kit.pages import blocks
from tests.kit.server import ANY_PORT, TOKEN, bearer, served, token_file, token_of, tokens_file
from tests.kit.wait import eventually
from tests.kit.wire import (
    at,
    attempt_of,
    call,
    fetch,
    new_attempt,
    put,
    refused,
    trailer,
    trips,
    wide_trips,
)  # fmt: skip

ADMIN, MINE, READER, WRITER, NOBODY = (bearer(token_of(name)) for name in ("ops", "mine", "reader", "writer", "nobody"))
CALLERS: dict[str, dict[str, list[str]]] = {
    "ops": {"admin": ["/"]},
    "mine": {"admin": ["store/mine", "topic/mine", "queue/mine"]},
    "reader": {"read": ["store/a", "topic/a", "queue/a"]},
    "writer": {"write": ["store/a", "topic/a", "queue/a"]},
    "nobody": {},
}


@pytest.fixture
def granted(make_server: Callable[..., PenstockServer], tmp_path: Path) -> PenstockServer:
    """A server that knows CALLERS."""
    return make_server(tokens=tokens_file(tmp_path, **CALLERS))


@pytest.fixture
def there(granted: PenstockServer) -> Iterator[flight.FlightClient]:
    with flight.connect(granted.url) as client:
        yield client


def names(client: flight.FlightClient, who: flight.FlightCallOptions, criteria: bytes = b"") -> list[str]:
    """Return the paths that a caller is listed."""
    return [json.loads(each.app_metadata)["path"] for each in client.list_flights(criteria, who)]


def denied(client: flight.FlightClient, who: flight.FlightCallOptions, action: str, **body: Any) -> None:
    """Expect an action to be refused for want of a right."""
    with refused("denied", " may not "):
        call(client, action, who, **body)


# --- every action and kind -----------------------------------------------------------------------

LEASES = (queue.LeaseKey("queue/q", "m", "t"), queue.LeaseKey("queue/r", "m", "t"))
NEEDS: dict[str, tuple[Body, Sequence[tuple[str, str]]]] = {
    "write.open": (actions.OpenWrite("store/x", queue="queue/q"), [("write", "store/x"), ("write", "queue/q")]),
    "delete": (actions.DeleteTarget("job/j"), [("admin", "job/j"), ("admin", "queue/j")]),
    "undelete": (actions.Target("store/x"), [("admin", "store/x")]),
    "topic.alter": (actions.AlterTopic("topic/x"), [("admin", "topic/x")]),
    "describe": (actions.Target("store/x"), [("read", "store/x")]),
    "consumer.attach": (actions.AttachConsumer("topic/x", "j", "c", "s"), [("read", "topic/x")]),
    "consumer.offsets": (actions.AskOffsets("topic/x"), [("read", "topic/x")]),
    "consumer.commit": (
        actions.CommitPosition("topic/x", "j", "c", "s", Position({})), [("read", "topic/x")],
    ),
    "consumer.detach": (actions.DetachConsumer("topic/x", "j", "c", "s"), [("read", "topic/x")]),
    "consumer.share": (actions.ShareShards("topic/x", "c", "s", Position({})), [("read", "topic/x")]),
    "consumer.redrive": (actions.RedriveRows("topic/x", "topic/y"), [("read", "topic/x"), ("write", "topic/y")]),
    "subscription.attach": (actions.AttachSubscription("subscription/p/s", pullers=2), [("admin", "subscription/p/s")]),
    "subscription.quiet": (actions.AskQuiet("subscription/p/s", 1.0), [("read", "subscription/p/s")]),
    "queue.claim": (
        queue.ClaimMessages("queue/q", "c", "w", to=("queue/r",)),
        [("read", "queue/q"), ("write", "queue/q"), ("write", "queue/r")],
    ),
    "queue.ack": (queue.AckLeases(LEASES), [("write", "queue/q"), ("write", "queue/r")]),
    "queue.release": (queue.ReleaseLeases(LEASES), [("write", "queue/q"), ("write", "queue/r")]),
    "queue.extend": (queue.ExtendLeases(LEASES), [("write", "queue/q"), ("write", "queue/r")]),
    "queue.drop": (queue.DropLeases(LEASES, queue.Failure("E")), [("write", "queue/q"), ("write", "queue/r")]),
    "queue.release_worker": (queue.ReleaseWorker("queue/q", "w"), [("write", "queue/q")]),
    "queue.redrive": (queue.RedriveMessages("queue/q"), [("write", "queue/q")]),
    "queue.create": (queue.CreateQueue("queue/q", "kafka://h:1/t"), [("admin", "queue/q")]),
    "queue.finish": (queue.FinishQueue("queue/q"), [("write", "queue/q")]),
    "queue.push_dataset": (queue.PushDataset("queue/q", "store/x"), [("write", "queue/q"), ("read", "store/x")]),
    "job.start": (job.StartJob("job/j", ()), [("write", "job/j"), ("write", "queue/j")]),
    "job.note": (job.NoteJob("job/j", "d"), [("write", "job/j")]),
    "job.end": (job.EndJob("job/j", "done"), [("write", "job/j")]),
    "publish.next": (publish.AskParts("publish/p/t", "w1"), [("admin", "publish/p/t"), ("admin", "write/w1")]),
    "publish.note": (publish.NotePublished("w1", ()), [("admin", "write/w1")]),
    "payload.find": (payloads.FindPayloads(("a", "b/c")), [("read", "store/a"), ("read", "store/b/c")]),
    "payload.keys": (payloads.ListPayloads("a/b"), [("read", "store/a")]),
    "payload.clear": (payloads.ClearPayloads("b"), [("admin", "store/")]),
}  # fmt: skip
"""What a request of each action needs; an action that is missing here has had no thought given to its rights."""
TICKET = {"write.finish", "write.touch", "write.abort"}


def test_every_action_has_its_rights_in_this_table() -> None:
    by_token = {name for name, action in actions.ACTIONS.items() if callable(action.access)}
    by_ticket = {name for name, action in actions.ACTIONS.items() if action.access == "ticket"}
    assert (by_token, by_ticket) == (set(NEEDS), TICKET)
    assert set(actions.ACTIONS) - by_token - by_ticket == {"health"}


@pytest.mark.parametrize("name", NEEDS)
def test_a_request_needs_what_the_table_says(name: str) -> None:
    request, needs = NEEDS[name]
    access = actions.ACTIONS[name].access
    assert callable(access)
    assert sorted(access(request)) == sorted(needs)


def test_a_request_may_need_less_or_other_rights() -> None:
    def needs(name: str, request: Body) -> list[tuple[str, str]]:
        access = actions.ACTIONS[name].access
        assert callable(access)
        return list(access(request))

    assert needs("describe", actions.Target("write/w")) == [("write", "write/w")]
    assert needs("delete", actions.DeleteTarget("store/x", delete=True)) == [("admin", "store/x")]
    assert needs("delete", actions.DeleteTarget("write/w")) == [("write", "write/w")]
    plain = actions.AttachSubscription("subscription/p/s")
    assert needs("subscription.attach", plain) == [("read", "subscription/p/s")]
    for field in dataclasses.fields(plain)[1:]:
        values: dict[str, Any] = {field.name: "journal"}
        said = dataclasses.replace(plain, **values)
        assert needs("subscription.attach", said) == [("admin", "subscription/p/s")], field.name


@pytest.mark.parametrize("kind", [kind.name for kind in kinds.KINDS])
def test_every_verb_of_every_kind_asks(there: flight.FlightClient, kind: str) -> None:
    """Whether or not the kind has the verb, and whether or not the thing exists."""
    path = f"{kind}/p/theirs"
    if kind == "write":
        path = f"write/{call(there, 'write.open', ADMIN, path='store/theirs')['write']}"
    for who in (NOBODY, MINE, READER, WRITER):
        with refused("denied", " may not read "):
            there.get_flight_info(at(path), who)
        with refused("denied", " may not read "):
            there.get_flight_info(at(path, columns=["id"]), who)
        with pytest.raises(pa.ArrowException, match="may not read"):
            there.get_schema(at(path), who)
        with refused("denied", " may not write "):
            put(there, at(path), [trips(1)], options=who)
        with refused("denied", " may not write "):
            put(there, at(path, attempt=new_attempt()), [trips(1)], options=who)
        with refused("denied", " may not write "):
            begin_exchange(there, path, who)
        with refused("denied", " may not write " if kind == "write" else " may not read "):
            list(there.list_flights(path.encode(), who))
        denied(there, who, "describe", path=path)
        denied(there, who, "delete", path=path)
        assert names(there, who, f"{kind}/".encode()) == []


def begin_exchange(client: flight.FlightClient, path: str, who: flight.FlightCallOptions) -> Any:
    """Open a producer's stream; return its writer and its reader once it is welcome."""
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(*path.split("/")), who)
    try:
        writer.write_metadata(b'{"v":1,"type":"hello"}')
        assert b"welcome" in reader.read_chunk().app_metadata.to_pybytes()
    except BaseException:
        reader.cancel()
        with suppress(flight.FlightError, pa.ArrowException):
            writer.close()
        raise
    return writer, reader


def test_strangers_are_told_that_a_token_is_needed(there: flight.FlightClient) -> None:
    with refused("denied", "needs the server's token"):
        there.get_flight_info(at("store/a"))
    with refused("denied", "the token is wrong"):
        there.get_flight_info(at("store/a"), bearer("another-0123456789abcdef"))


# --- what a right is -----------------------------------------------------------------------------


def test_reading_is_not_writing(there: flight.FlightClient) -> None:
    for path in ("store/a", "topic/a"):
        put(there, at(path), [trips(1)], options=WRITER)
        rows = fetch(there, there.get_flight_info(at(path), READER))
        assert rows["id"].to_pylist() == [1]
        with refused(
            "denied", f"reader may not write {path}: grant it in the server's --tokens file, write = ", "SIGHUP"
        ):
            put(there, at(path, attempt=new_attempt(), mode="append"), [trips(2)], options=READER)
        with refused("denied", f"writer may not read {path}"):
            there.get_flight_info(at(path), WRITER)
    denied(there, READER, "write.open", path="store/a", mode="append")
    denied(there, READER, "delete", path="store/a")
    with refused("denied", "writer may not administer store/a"):
        call(there, "delete", WRITER, path="store/a")
    with refused("denied", "writer may not administer topic/a"):
        put(there, at("topic/a", attempt=new_attempt(), create={"keep_seconds": 1.0}), [], schema=trips().schema,
            options=WRITER)  # fmt: skip
    assert call(there, "describe", READER, path="store/a")["rows"] == 1


def test_admin_reads_writes_and_deletes(there: flight.FlightClient) -> None:
    put(there, at("store/mine/x"), [trips(1)], options=MINE)
    assert there.get_flight_info(at("store/mine/x"), MINE).total_records == 1
    assert call(there, "delete", MINE, path="store/mine/x")["rows"] == 1


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("store/a", True), ("store/a/", True), ("store/a/b", True), ("store/a/b/c", True), ("store/ab", False),
        ("store/a.b", False), ("store/", False), ("store/b/a", False), ("topic/a", False), ("store/a%2fb", False),
    ],
)  # fmt: skip
def test_a_grant_covers_a_path_and_what_is_below(tmp_path: Path, path: str, covered: bool) -> None:
    tokens = Tokens(None, tokens_file(tmp_path, x={"read": ["store/a"]}), "own", ["store"])
    principal = tokens.of(tokens.identify(token_of("x")))
    assert principal.may("read", parse_folder(path)) is covered


def test_a_grant_of_a_kind_covers_that_kind_alone(tmp_path: Path) -> None:
    file = tokens_file(tmp_path, one={"read": ["store/"]}, bare={"read": ["store"]}, all={"admin": ["/"]})
    tokens = Tokens(None, file, "own", ["store"])
    may = {name: tokens.of(tokens.identify(token_of(name))).may for name in ("one", "bare", "all")}
    for name in ("one", "bare"):
        assert may[name]("read", parse_folder("store/x"))
        assert not may[name]("read", parse_folder("topic/x"))
        assert not may[name]("write", parse_folder("store/x"))
    assert all(may["all"](right, parse_folder(path)) for right in ("read", "write") for path in ("store/", "job/x"))


def test_the_servers_children_may_publish_and_pull(tmp_path: Path) -> None:
    config = ServerConfig(tokens=tokens_file(tmp_path))
    tokens = Tokens(config.token, config.tokens, config.own_token, ["store"])
    own = tokens.of(tokens.identify(config.child_token))
    assert own.may("write", parse_folder("subscription/p/s"))
    assert own.may("admin", parse_folder("publish/p/t"))
    assert not own.may("read", parse_folder("store/x"))
    assert config.own_token not in repr(config)
    assert ServerConfig(token_file=token_file(tmp_path)).child_token == TOKEN


def test_a_token_is_compared_with_every_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the time of an answer doesn't tell which one it is like."""
    tokens = Tokens(None, tokens_file(tmp_path, **CALLERS), "own", [kind.name for kind in kinds.KINDS])
    compared, compare = list[int](), hmac.compare_digest

    def count(one: bytes, other: bytes) -> bool:
        compared.append(len(one) + len(other))
        return compare(one, other)

    monkeypatch.setattr("penstock.flight_server.tokens.hmac.compare_digest", count)
    tokens.identify(token_of("ops"))
    with pytest.raises(Denied):
        tokens.identify("x")
    assert compared == [64] * 2 * (len(CALLERS) + 1)


def test_a_login_answers_the_callers_own_token(there: flight.FlightClient) -> None:
    header = there.authenticate_basic_token("anybody", token_of("reader"))
    assert header == (b"authorization", f"Bearer {token_of('reader')}".encode())


# --- what is seen --------------------------------------------------------------------------------


def test_a_listing_has_what_the_caller_may_read(there: flight.FlightClient) -> None:
    for path in ("store/a/x", "store/a/y/z", "store/ab", "store/mine/deep/x", "topic/a", "topic/b", "queue/a"):
        put(there, at(path), [trips(1)], options=ADMIN)
    write = call(there, "write.open", ADMIN, path="store/a/w")["write"]
    call(there, "write.open", ADMIN, path="store/b/w")

    assert names(there, READER) == ["store/a/x", "store/a/y/z", "topic/a", "queue/a"]
    assert names(there, WRITER) == [f"write/{write}"]
    assert call(there, "describe", WRITER, path=f"write/{write}")["path"] == "store/a/w"
    assert names(there, NOBODY) == []
    assert {"store/ab", "topic/b", f"write/{write}"} <= set(names(there, ADMIN))
    for path in ("topic/a", "topic/b"):
        journal = call(there, "describe", ADMIN, path=path)["journal"]
        call(there, "consumer.attach", ADMIN, path=path, journal=journal, consumer=f"c{path[-1]}", session="s")
    assert names(there, READER, b"consumer/") == names(there, READER, b"consumer/topic/a") == ["consumer/topic/a/ca"]
    denied(there, READER, "describe", path="consumer/topic/b/cb")
    denied(there, READER, "delete", path="consumer/topic/a/ca")
    assert names(there, READER, b"store/") == ["store/a/x", "store/a/y/z"]
    assert names(there, READER, b"store/a/y") == ["store/a/y/z"]
    with refused("denied", "reader may not read store/ab"):
        names(there, READER, b"store/ab")


def test_rights_below_a_path_are_none_at_writes_and_consumers(
    there: flight.FlightClient, granted: PenstockServer, tmp_path: Path
) -> None:
    """topic/a/b is another topic than topic/a, whose consumer b is consumer/topic/a/b."""
    tokens_file(tmp_path, **CALLERS, below={"admin": ["topic/a/b", "store/a/b"]})
    granted.state.tokens.reload()
    below = bearer(token_of("below"))
    put(there, at("topic/a"), [trips(1)], options=ADMIN)
    journal = call(there, "describe", ADMIN, path="topic/a")["journal"]
    call(there, "consumer.attach", ADMIN, path="topic/a", journal=journal, consumer="b", session="s")
    call(there, "write.open", ADMIN, path="store/a")

    for kind in (b"consumer/", b"consumer/topic", b"write/"):
        assert names(there, below, kind) == []
    denied(there, below, "describe", path="consumer/topic/a/b")
    denied(there, below, "delete", path="consumer/topic/a/b")


def test_a_folder_that_is_read_in_part_has_no_sums(make_server: Callable[..., PenstockServer], tmp_path: Path) -> None:
    file = tokens_file(tmp_path, ops={"admin": ["/"]}, some={"read": ["store/a/b"]})
    with flight.connect(make_server(tokens=file).url) as there:
        for path in ("store/a/b/x", "store/a/c/x", "store/c/x"):
            put(there, at(path), [trips(1, 2)], options=ADMIN)
        some, command = bearer(token_of("some")), json.dumps({"v": 1, "path": "store/", "folders": True}).encode()
        (folder,) = there.list_flights(command, some)
        assert json.loads(folder.app_metadata) == {
            "v": 1, "path": "store/a/", "kind": "folder", "rows": 0, "bytes": 0, "parts": 0,
        }  # fmt: skip
        below = json.dumps({"v": 1, "path": "store/a", "folders": True}).encode()
        (folder,) = there.list_flights(below, some)
        assert (json.loads(folder.app_metadata)["path"], folder.total_records) == ("store/a/b/", 2)


def test_metrics_name_nothing_on_loopback_where_rights_decide(
    make_server: Callable[..., PenstockServer], tmp_path: Path
) -> None:
    server = make_server(
        tokens=tokens_file(tmp_path, **CALLERS), http="127.0.0.1:0", http_token_file=token_file(tmp_path)
    )
    with flight.connect(server.url) as there:
        put(there, at("topic/secret"), [trips(1)], options=ADMIN)
    door = HttpDoor("127.0.0.1", 0, server.state)
    door.start()
    try:
        page = f"http://127.0.0.1:{door.port}/metrics"
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert "secret" not in answer.read().decode()
        asked = urllib.request.Request(page, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert 'topic="topic/secret"' in answer.read().decode()
    finally:
        door.close()


# --- queues and payloads -------------------------------------------------------------------------


def claim(client: flight.FlightClient, path: str, who: flight.FlightCallOptions) -> dict[str, Any]:
    answer = call(client, "queue.claim", who, path=path, claim=new_attempt(), worker="w")
    (message,) = answer["messages"]
    return dict(message)


def test_to_claim_takes_both_rights_and_no_others(
    there: flight.FlightClient, granted: PenstockServer, tmp_path: Path
) -> None:
    """Whoever pushes may not read what others have pushed; the worker reads payloads of its queue alone."""
    put(there, at("queue/a"), wide_trips(1), options=WRITER)
    for who in (READER, WRITER, NOBODY, MINE):
        denied(there, who, "queue.claim", path="queue/a", claim="c", worker="w")
    worker = bearer(token_of("worker"))
    tokens_file(tmp_path, **CALLERS, worker={"read": ["queue/a"], "write": ["queue/a"]})
    granted.state.tokens.reload()

    denied(there, worker, "queue.claim", path="queue/a", claim="c", worker="w", to=["queue/b"])
    message = claim(there, "queue/a", worker)
    assert there.do_get(flight.Ticket(message["ticket"])).read_all()["id"].to_pylist() == [1]
    denied(there, worker, "payload.find", keys=[message["message"]["payload_key"]])
    lease = {"queue": "queue/a", "message_id": message["message"]["message_id"], "token": message["token"]}
    for action in ("queue.ack", "queue.release", "queue.extend"):
        denied(there, READER, action, leases=[lease])
    denied(there, READER, "queue.drop", leases=[lease], failure={"error": "E"})
    with refused("denied", "worker may not write queue/b"):
        put(there, at("queue/b", attempt=new_attempt(), forward=[lease]), [trips(1)], options=worker)
    assert call(there, "queue.ack", worker, leases=[lease]) == {"outcomes": [{"state": "done"}]}


def test_a_push_names_no_payload_or_queue_of_others(there: flight.FlightClient) -> None:
    """Who claims a message gets the bytes that it names: naming them is reading them."""
    put_payload(there, "theirs", ADMIN)
    for note, words in (
        ({"payload_key": "theirs"}, "mine may not read store/theirs"),
        ({"payload_key": "theirs", "adopt": True}, "mine may not read store/theirs"),
        ({"queue": "queue/theirs"}, "mine may not write queue/theirs"),
    ):
        rows = trips() if "payload_key" in note else trips(1)
        with refused("denied", words):
            send(there, at("queue/mine", attempt=new_attempt()), rows, note, MINE)
    denied(there, MINE, "queue.push_dataset", path="queue/mine", dataset="store/theirs")
    denied(there, MINE, "write.open", path="store/mine/x", queue="queue/theirs")


def test_who_only_writes_adopts_no_payload(there: flight.FlightClient, granted: PenstockServer, tmp_path: Path) -> None:
    """Its message's payload comes to whoever claims it: both rights are needed, but for what its queue has staged."""
    rights = {"read": ["queue/a"], "write": ["queue/a", "store/a"]}
    tokens_file(tmp_path, **CALLERS, worker=rights, taker={"read": ["store/a"], "write": ["queue/a"]})
    granted.state.tokens.reload()
    put_payload(there, "a/x", ADMIN)
    for name, key, words in (
        ("worker", "a/x", "worker may not read store/a/x"),
        ("taker", "a/x", "taker may not write store/a/x"),
        ("worker", "queue/mine/x", "worker may not read store/queue/mine/x"),
        ("worker", f"queue/a/d@{new_attempt().replace('-', '')}-0", "worker may not read store/queue/a/d"),
    ):
        with refused("denied", words):
            note = {"payload_key": key, "adopt": True}
            send(there, at("queue/a", attempt=new_attempt()), trips(), note, bearer(token_of(name)))


def test_a_worker_forwards_rows_of_two_schemas(
    there: flight.FlightClient, granted: PenstockServer, tmp_path: Path
) -> None:
    """One stream has one schema: the others' payloads are stored before, by the right to write to the queue."""
    worker = {"read": ["queue/in"], "write": ["queue/in", "queue/out"]}
    tokens_file(tmp_path, **CALLERS, worker=worker)
    granted.state.tokens.reload()
    with connect(granted.url, token=token_of("worker"), retry_for=1) as client:
        client.push("queue/in", trips(1), finish=True)
        for message in client.claim("queue/in"):
            with message:
                message.forward("queue/out", [pa.table({"a": [1]}), pa.table({"b": ["x"]})])
    assert call(there, "describe", ADMIN, path="queue/out")["rows"] == 2
    with refused("denied", "worker may not write queue/mine"):
        put_payload(there, "queue/mine/x", bearer(token_of("worker")))


def put_payload(client: flight.FlightClient, key: str, who: flight.FlightCallOptions) -> None:
    send(client, at("store"), trips(1), {"key": key}, who)


def send(
    client: flight.FlightClient,
    descriptor: flight.FlightDescriptor,
    batch: pa.RecordBatch,
    note: dict[str, Any],
    who: flight.FlightCallOptions,
) -> None:
    """Put one batch with its note."""
    writer, reader = client.do_put(descriptor, batch.schema, who)
    with suppress(flight.FlightError, pa.ArrowException):  # the reason comes with close
        writer.write_with_metadata(batch, json.dumps({"v": 1, **note}).encode())
        writer.write_metadata(trailer(1, batch.num_rows))
        writer.done_writing()
        reader.read()
    writer.close()


def test_each_payload_of_a_stream_is_checked(there: flight.FlightClient) -> None:
    put_payload(there, "mine/a", MINE)
    with refused("denied", "mine may not write store/theirs"):
        put_payload(there, "theirs", MINE)
    put_payload(there, "mined", ADMIN)

    assert len(call(there, "payload.find", MINE, keys=["mine/a"])["payloads"]) == 1
    denied(there, MINE, "payload.find", keys=["mine/a", "mined"])
    assert call(there, "payload.keys", MINE, prefix="mine/")["keys"] == ["mine/a"]
    for prefix in ("", "mine", "m"):
        denied(there, MINE, "payload.keys", prefix=prefix)
        denied(there, MINE, "payload.clear", prefix=prefix)
    denied(there, READER, "payload.clear", prefix="a/")
    assert call(there, "payload.clear", MINE, prefix="mine/") == {"payloads": 1}


def test_receipts_of_a_queue_of_others_finish_no_write(there: flight.FlightClient) -> None:
    """Also for a caller who shows the ticket alone."""
    put(there, at("queue/theirs"), [trips(1)], options=ADMIN)
    ticket = call(there, "write.open", MINE, path="store/mine/x")["ticket"]
    for who in (MINE, None, ADMIN):
        with refused("denied", "mine may not read queue/theirs"):
            call(there, "write.finish", who, ticket=ticket, attempts=[], receipts="queue/theirs")


# --- tickets and reloads -------------------------------------------------------------------------


@pytest.fixture
def tickets(there: flight.FlightClient) -> tuple[flight.Ticket, str]:
    """A read ticket and a write's ticket of `mine`."""
    put(there, at("store/mine/x"), [trips(1, 2)], options=MINE)
    (endpoint,) = there.get_flight_info(at("store/mine/x"), MINE).endpoints
    return endpoint.ticket, call(there, "write.open", MINE, path="store/mine/x", mode="append")["ticket"]


@pytest.mark.parametrize("change", ["removed", "moved", "rotated"])
def test_a_ticket_is_good_while_its_caller_has_the_right(
    there: flight.FlightClient,
    granted: PenstockServer,
    tickets: tuple[flight.Ticket, str],
    tmp_path: Path,
    change: str,
) -> None:
    read, write = tickets
    assert there.do_get(read).read_all().num_rows == 2
    put(there, attempt_of(write, new_attempt()), [trips(3)])

    others = {name: rights for name, rights in CALLERS.items() if name != "mine"}
    moved = {"mine": {"admin": ["store/elsewhere"]}} if change == "moved" else {}
    file = tokens_file(tmp_path, **others, **moved)
    if change == "rotated":
        digest = "ab" * 32
        file.write_text(f'{file.read_text()}\n[mine]\nsha256 = "{digest}"\nadmin = ["store/mine"]\n')
    granted.state.tokens.reload()

    said = "may not" if change == "moved" else "was removed"
    for who in (None, ADMIN):  # a ticket is its own caller's, whoever shows it
        with refused("denied", said):
            there.do_get(read, who).read_all()
        with refused("denied", said):
            put(there, attempt_of(write, new_attempt()), [trips(4)], options=who)
        for action in ("write.touch", "write.abort"):
            with refused("denied", said):
                call(there, action, who, ticket=write)
        with refused("denied", said):
            call(there, "write.finish", who, ticket=write, attempts=[])
    assert mapped(granted, read.ticket) == 0
    with refused("denied", "may not" if change == "moved" else "token is wrong"):
        there.get_flight_info(at("store/mine/x"), MINE)
    assert call(there, "describe", ADMIN, path="store/mine/x")["rows"] == 2


def mapped(server: PenstockServer, ticket: bytes) -> int:
    """Return how many descriptors the local door gives for a ticket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(LIMIT)
        peer.connect(f"\0{server.state.local}")
        peer.send(ticket)
        _, descriptors, _, _ = socket.recv_fds(peer, 65_536, 8)
    for descriptor in descriptors:
        os.close(descriptor)
    return len(descriptors)


def test_the_local_door_maps_what_a_valid_ticket_names(
    granted: PenstockServer, tickets: tuple[flight.Ticket, str]
) -> None:
    assert mapped(granted, tickets[0].ticket) == 1


def test_an_open_stream_ends_with_its_callers_right(
    there: flight.FlightClient, granted: PenstockServer, tmp_path: Path
) -> None:
    writer, reader = begin_exchange(there, "topic/mine", MINE)
    try:
        tokens_file(tmp_path, ops=CALLERS["ops"])
        granted.state.tokens.reload()
        writer.write_metadata(b'{"v":1,"type":"beat","acked":0}')
        with refused("denied", "was removed"):
            while True:
                reader.read_chunk()
    finally:
        with suppress(flight.FlightError, pa.ArrowException):
            writer.close()


def test_tickets_of_before_the_tokens_are_expired(tmp_path: Path) -> None:
    with served(tmp_path / "data") as before, flight.connect(before.url) as there:
        put(there, at("store/a"), [trips(1)])
        (endpoint,) = there.get_flight_info(at("store/a")).endpoints
        write = call(there, "write.open", path="store/b")["ticket"]
    with (
        served(tmp_path / "data", tokens=tokens_file(tmp_path, **CALLERS)) as after,
        flight.connect(after.url) as there,
    ):
        with refused("expired", "from before the server had --tokens: get a new one"):
            there.do_get(endpoint.ticket, ADMIN).read_all()
        with refused("expired", "from before the server had --tokens"):
            put(there, attempt_of(write, new_attempt()), [trips(1)], options=ADMIN)
    with served(tmp_path / "data") as without, flight.connect(without.url) as there:
        assert there.do_get(endpoint.ticket).read_all().num_rows == 1


def test_a_file_that_cannot_be_read_changes_nothing(
    there: flight.FlightClient, granted: PenstockServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens.toml"
    with caplog.at_level(logging.DEBUG):
        for text in ("[ops", "[ops]\nsha256 = 'short'", ""):
            file.write_text(text)
            if not text:
                file.unlink()
            granted.state.tokens.reload()
        assert names(there, ADMIN) == []
        tokens_file(tmp_path, new={"read": ["store/"]})
        granted.state.tokens.reload()
        assert names(there, bearer(token_of("new"))) == []
        with refused("denied", "token is wrong"):
            names(there, ADMIN)
    assert [record.levelname for record in caplog.records if "the tokens stay as they were" in record.message] == (
        ["ERROR"] * 3
    )


def test_no_token_reaches_the_log(
    there: flight.FlightClient, granted: PenstockServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        put(there, at("store/a"), [trips(1)], options=WRITER)
        denied(there, READER, "delete", path="store/a")
        granted.state.tokens.reload()
        wrong = "canary-of-a-wrong-token"
        with refused("denied"):
            names(there, bearer(wrong))
        with suppress(flight.FlightError):
            there.authenticate_basic_token("anybody", wrong)
    assert "reader may not administer store/a" in caplog.text
    assert "canary" not in caplog.text
    assert granted.state.config.own_token not in caplog.text


# --- the file ------------------------------------------------------------------------------------

DIGEST = f'sha256 = "{"0" * 64}"\n'
MISTAKES = [
    ("[x", "is not TOML"),
    ("x = 1", "expected a table for each caller"),
    ('["a b"]\n' + DIGEST, "1 to 80 characters"),
    ("[x]\n", "64 characters of 0-9 a-f, what printf %s TOKEN | sha256sum prints"),
    (f'[x]\nsha256 = "{"A" * 64}"', "64 characters of 0-9 a-f"),
    ("[x]\nsha256 = 5", "64 characters of 0-9 a-f"),
    ('[x]\ntoken = "canary"', "has no field 'token'"),
    (f'[x]\n{DIGEST}reads = ["store/"]', "did you mean 'read'?"),
    (f'[x]\n{DIGEST}read = "store/"', 'has to be a list of paths, such as read = ["store/demo"]'),
    (f"[x]\n{DIGEST}read = [5]", "expected a kind and a key"),
    (f'[x]\n{DIGEST}read = ["store//x"]', "must not be empty"),
    (f'[x]\n{DIGEST}read = ["*"]', 'or "/" for everything'),
    (f'[x]\n{DIGEST}read = ["stroe/x"]', "did you mean 'store'?"),
    (f'[x]\n{DIGEST}write = ["write/x"]', "those at the path that the write leads to"),
    (f'[x]\n{DIGEST}read = ["consumer/topic/x"]', "at the consumer's topic or subscription"),
    (f"[x]\n{DIGEST}[y]\n{DIGEST}", "two callers have one token"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_in_the_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tokens_file(tmp_path)
    file.write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        Tokens(None, file, "own", [kind.name for kind in kinds.KINDS])
    assert message in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_file_that_others_can_change_is_refused(tmp_path: Path) -> None:
    file = tokens_file(tmp_path)
    file.chmod(0o620)
    with pytest.raises(InvalidRequest, match=r"can be changed by others.*chmod 600"):
        Tokens(None, file)


def test_one_token_and_a_file_of_tokens_exclude_each_other(tmp_path: Path) -> None:
    both = ServerConfig(tokens=tokens_file(tmp_path), token_file=token_file(tmp_path))
    with pytest.raises(InvalidRequest, match="takes the place of --token-file"):
        both.check()


def test_the_page_s_example_grants_what_it_says(tmp_path: Path) -> None:
    (text,) = blocks("docs/operating.md", "toml")
    file = tokens_file(tmp_path)
    file.write_text(re.sub(r'"([0-9a-f]{10})…"', lambda match: f'"{match[1]:0<64}"', text))
    tokens = Tokens(None, file, "own", [kind.name for kind in kinds.KINDS])
    digests = re.findall(r'"([0-9a-f]{10})…"', text)
    spark, reports, operator = (tokens.of(f"{digest:0<16}") for digest in digests)
    assert spark.may("write", parse_folder("store/orders/2026"))
    assert not spark.may("write", parse_folder("store/orders2"))
    assert reports.may("read", parse_folder("store/prices/eu"))
    assert not reports.may("read", parse_folder("store/prices/us"))
    assert operator.may("write", parse_folder("queue/x"))


# --- SIGHUP --------------------------------------------------------------------------------------


@pytest.fixture
def hung_up() -> Iterator[None]:
    """Let children end at SIGHUP, also where nohup has started this process."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.process
@pytest.mark.usefixtures("hung_up")
def test_sighup_has_the_tokens_read_again(tmp_path: Path) -> None:
    """Sent to the supervisor, or to the server itself; a server that comes back reads them, too."""
    file = tokens_file(tmp_path, ops=CALLERS["ops"])
    flags = ("--listen", ANY_PORT, "--http", "off", "--data", str(tmp_path / "data"), "--tokens", str(file))
    with serving_process(tmp_path / "log", *flags) as running, flight.connect(running.url) as there:

        def is_known(name: str) -> bool:
            try:
                names(there, bearer(token_of(name), timeout=LIMIT))
            except flight.FlightUnauthenticatedError:
                return False
            except flight.FlightUnavailableError:  # it is coming back
                return is_known(name)
            return True

        assert (is_known("ops"), is_known("new")) == (True, False)
        tokens_file(tmp_path, new=CALLERS["ops"])
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: is_known("new"))
        assert not is_known("ops")
        tokens_file(tmp_path, ops=CALLERS["ops"])
        os.kill(running.server() or 0, signal.SIGHUP)
        eventually(lambda: is_known("ops"))
        tokens_file(tmp_path, third=CALLERS["ops"])
        running.kill_server()
        eventually(lambda: is_known("third"))
    assert "canary" not in running.log


@pytest.mark.process
@pytest.mark.usefixtures("hung_up")
def test_sighup_ends_a_server_without_tokens(tmp_path: Path) -> None:
    flags = ("--listen", ANY_PORT, "--http", "off", "--data", str(tmp_path / "data"))
    with serving_process(tmp_path / "log", *flags) as running:
        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(LIMIT) == 128 + signal.SIGHUP
