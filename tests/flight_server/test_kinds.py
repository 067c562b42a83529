"""A kind is a file: one more is registered by one line, and touches no other's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.errors import NotFound
from penstock.flight_server import endpoints, kinds
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.kind import Handler, Handlers, Kind
from penstock.flight_server.selection import select
from penstock.flight_server.server import PenstockServer
from penstock.flight_server.state import State
from penstock.flight_server.upload import Admit
from penstock.ledger.parts import Slice
from penstock.wire.actions import ACTIONS, Action, Deleted, Description
from penstock.wire.body import Body
from penstock.wire.paths import Path
from penstock.wire.put import PutCommand, Receipt
from penstock.wire.read import Entry, ReadCommand
from tests.kit.wire import TRIPS, at, attempt_of, call, ids, info, list_paths, new_attempt, put, refused, trips


@dataclass(frozen=True, slots=True)
class AskRows(Body):
    at_least: int


@dataclass(frozen=True, slots=True)
class Paths(Body):
    paths: tuple[str, ...]


LARGE = Action(
    "shelf.large", "The paths of so many rows: {at_least} -> {paths}.", AskRows, Paths, lambda request: iter(())
)


class ShelfKind(Kind):
    """shelf/…: one part at each path, known to this process alone."""

    name = "shelf"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.parts: dict[str, Slice] = {}
        self.running = False

    def start(self) -> None:
        self.running = True

    def close(self) -> None:
        self.running = False

    def actions(self) -> Handlers:
        yield Handler(LARGE, self.large)

    def large(self, call: Call, request: AskRows) -> Paths:
        return Paths(tuple(path for path, part in self.parts.items() if part.rows >= request.at_least))

    def info(
        self, call: Call, path: Path, command: ReadCommand, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        part = self.part(path)
        selection = select(command, str(path), part.schema)
        expires = self.state.ticket_expiry()
        return endpoints.readable(self.state, call, descriptor, selection, [part], self.entry(str(path)), expires)

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        return (endpoints.listed(self.entry(path), part.schema) for path, part in self.parts.items())

    def describe(self, path: Path) -> Description:
        return Description("shelf", str(path), self.part(path).rows)

    def delete(self, path: Path) -> Deleted:
        part = self.part(path)
        del self.parts[str(path)]
        return Deleted(str(path), part.rows, part.bytes, 1)

    def put(self, path: Path, command: PutCommand, admit: Admit) -> Receipt:
        with admit() as upload:
            batches = [batch for part in upload.parts() for batch in part]
            upload.check_whole()
        part = self.state.store.write(upload.attempt, upload.schema, batches, path=str(path))
        self.parts[str(path)] = Slice(part.name, part.rows, part.bytes, upload.schema, part.rows)
        return Receipt("", upload.attempt, part.rows, part.bytes, 1, part.digest)

    def part(self, path: Path) -> Slice:
        if str(path) not in self.parts:
            raise NotFound(f"the shelf has no {path}")
        return self.parts[str(path)]

    def entry(self, path: str) -> Entry:
        return Entry(path, "shelf", self.parts[path].rows, self.parts[path].bytes, 1)


@pytest.fixture
def shelf(make_server: Callable[..., PenstockServer], monkeypatch: pytest.MonkeyPatch) -> PenstockServer:
    """A server that has shelves, too."""
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, ShelfKind))
    return make_server()


@pytest.fixture
def client(shelf: PenstockServer) -> Iterator[flight.FlightClient]:
    with flight.connect(shelf.url) as connected:
        yield connected


def test_a_new_kind_answers_every_verb_that_it_has(client: flight.FlightClient) -> None:
    receipt = put(client, at("shelf/a"), [trips(1, 2), trips(3)])
    put(client, at("shelf/b"), [trips(4)])

    assert (receipt["rows"], receipt["parts"]) == (3, 1)
    assert ids(client, "shelf/a") == [1, 2, 3]
    assert info(client, "shelf/a", columns=["city"]).schema == pa.schema([TRIPS.field("city")])
    assert list_paths(client, b"shelf/") == ["shelf/a", "shelf/b"]
    assert call(client, "describe", path="shelf/b") == {
        "kind": "shelf", "path": "shelf/b", "rows": 1, "bytes": 0, "parts": 0,
    }  # fmt: skip
    assert call(client, "shelf.large", at_least=2) == {"paths": ["shelf/a"]}
    assert call(client, "delete", path="shelf/a")["rows"] == 3
    with refused("not-found", "the shelf has no shelf/a"):
        info(client, "shelf/a")
    assert list_paths(client) == list_paths(client, b"topic/") == []


def test_an_action_of_a_kind_is_checked_like_any(client: flight.FlightClient) -> None:
    with refused("invalid", "AskRows lacks the field 'at_least'"):
        call(client, "shelf.large")
    assert "shelf.large" in {action.type for action in client.list_actions()}


def test_a_kind_starts_and_closes_with_its_server(shelf: PenstockServer) -> None:
    kind = shelf.state.kinds["shelf"]
    assert isinstance(kind, ShelfKind)
    assert kind.running
    shelf.close(1)
    assert not kind.running


def test_a_verb_that_a_kind_lacks_names_the_kinds_with_it(client: flight.FlightClient) -> None:
    with refused("invalid", "shelf/a can't be written: expected store/… or topic/…"):
        call(client, "write.open", path="shelf/a")
    with refused("invalid", "write/a can't be written: expected store/… or topic/… or queue/… or publish/… or shelf/…"):
        put(client, at("write/a"), [trips(1)])
    with refused(
        "invalid", "write/a can't be read: expected store/… or topic/… or subscription/… or queue/… or shelf/…"
    ):
        info(client, "write/a")
    with pytest.raises(pa.ArrowException, match="shelf/a can't be read: expected store/… or topic/…"):
        client.get_schema(at("shelf/a"))


ASKED: dict[str, Callable[[flight.FlightClient], object]] = {
    "get_flight_info": lambda client: info(client, "bucket/a"),
    "list_flights": lambda client: list_paths(client, b"bucket/"),
    "do_put": lambda client: put(client, at("bucket/a"), [trips(1)]),
    "describe": lambda client: call(client, "describe", path="bucket/a"),
    "delete": lambda client: call(client, "delete", path="bucket/a"),
    "write.open": lambda client: call(client, "write.open", path="bucket/a"),
}


@pytest.mark.parametrize("verb", ASKED)
def test_a_path_of_an_unknown_kind_is_refused_with_the_known(verb: str, bare: flight.FlightClient) -> None:
    with refused(
        "invalid",
        "path 'bucket/",
        "expected one that begins with store/ or topic/ or subscription/ or consumer/ or queue/ or job/ or publish/ or "
        "write/",
    ):
        ASKED[verb](bare)


def test_a_server_has_every_action_of_the_wire(bare: flight.FlightClient) -> None:
    told = {action.type: action.description for action in bare.list_actions()}
    assert told == {name: action.sentence for name, action in ACTIONS.items()}


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name in ACTIONS
        if not name.startswith(("subscription.", "publish.", "queue.create", "consumer.redrive"))
    ),
)
def test_an_answer_is_what_the_registry_says(name: str, bare: flight.FlightClient) -> None:
    """Each answer decodes as the type clients take it for; those of Pub/Sub, Kafka and dead rows need these, too."""
    put(bare, at("topic/x"), [trips(1, 2)])
    journal = call(bare, "describe", path="topic/x")["journal"]
    reader = {"path": "topic/x", "journal": journal, "consumer": "c", "session": "s"}
    attached = call(bare, "consumer.attach", **reader)
    opened = call(bare, "write.open", path="store/x", mode="append")
    attempt = put(bare, attempt_of(opened["ticket"], new_attempt()), [trips(1)])["attempt"]
    put(bare, at("queue/x"), [trips(1), trips(2)])
    claimed = call(bare, "queue.claim", path="queue/x", claim="c1", worker="w")["messages"][0]
    leases = [{"queue": "queue/x", "message_id": claimed["message"]["message_id"], "token": claimed["token"]}]
    for path in ("store/z", "store/deleted"):
        put(bare, at(path), [trips(1)])
    call(bare, "delete", path="store/deleted")
    planned = [{"stage": "in", "role": "source", "what": "?"}]
    job = {"path": "job/x", "stages": [*planned, {"stage": "a", "role": "operator", "what": "?", "after": ["in"]}]}
    call(bare, "job.start", **job)
    bodies = {
        "write.open": {"path": "store/y"},
        "write.finish": {"ticket": opened["ticket"], "attempts": [attempt]},
        "write.touch": {"ticket": opened["ticket"]},
        "write.abort": {"ticket": opened["ticket"]},
        "consumer.offsets": {"path": "topic/x"},
        "consumer.commit": {**reader, "position": attached["position"]},
        "consumer.share": {"path": "topic/x", "consumer": "g", "session": "s", "held": {}},
        "describe": {"path": "topic/x"},
        "delete": {"path": "topic/x"},
        "topic.alter": {"path": "topic/x", "shards": 2},
        "undelete": {"path": "store/deleted"},
        "health": {},
        "payload.find": {"keys": ["x", "none"]},
        "payload.keys": {},
        "payload.clear": {"prefix": "none/"},
        "queue.claim": {"path": "queue/x", "claim": "c2", "worker": "w"},
        "queue.release_worker": {"path": "queue/x", "worker": "w"},
        "job.note": {"path": "job/x", "driver": "host:1"},
        "queue.release": {"leases": leases, "failure": {"error": "E"}},
        "queue.drop": {"leases": leases, "failure": {"error": "E"}},
        "queue.redrive": {"path": "queue/x"},
        "queue.finish": {"path": "queue/x"},
        "queue.ack": {"leases": leases},
        "queue.extend": {"leases": leases},
        "queue.push_dataset": {"path": "queue/y", "dataset": "store/z"},
        "job.start": job,
        "job.end": {"path": "job/x", "state": "done"},
    }
    answer = call(bare, name, **bodies.get(name, reader))
    assert ACTIONS[name].answer.from_json(answer).to_json() == answer
