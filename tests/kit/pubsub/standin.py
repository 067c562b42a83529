"""A stand-in for the server that a puller brings messages to: it stores, deduplicates, answers and releases."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import PenstockError, Unavailable
from penstock.queue.pubsub.registry import MESSAGES
from penstock.wire.exchange import Acks, Answer, Report, Welcome
from penstock.wire.position import Position

if TYPE_CHECKING:
    from penstock.queue.pubsub.pull import Puller, PullOptions

SHARDS = 2


@dataclass
class StandIn:
    """The server's side. Rows go to two shards by turns."""

    releases: bool = True
    """Whether rows are released as soon as they are stored."""
    answers: bool = True
    """Whether batches are answered; if not, they are stored all the same."""
    opens: PenstockError | None = None
    """Why no exchange can be opened."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    duplicates: int = 0
    exchanges: list[StandInExchange] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    places: dict[tuple[str, Any], tuple[int, int]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    tries: int = 0

    def connect(self, listener: Puller) -> StandInExchange:
        with self.lock:
            self.tries += 1
            if self.opens is not None:
                raise self.opens
            exchange = StandInExchange(self, listener)
            self.exchanges.append(exchange)
            return exchange

    @property
    def position(self) -> Position:
        """The end of each shard."""
        ends = [0] * SHARDS
        for shard, _ in self.places.values():
            ends[shard] += 1
        return Position(dict(enumerate(ends)))

    def release(self) -> None:
        """Release all that is stored."""
        with self.lock:
            self.exchanges[-1].tell(self.position)

    def end(self, error: PenstockError | None = None) -> None:
        """End the open exchange."""
        self.exchanges[-1].ended(error or Unavailable("the server was stopped"))

    def acked(self) -> dict[int, set[int]]:
        """Return the offsets whose acks were reported, by shard."""
        offsets: dict[int, set[int]] = {shard: set() for shard in range(SHARDS)}
        for report in list(self.reports):
            for shard, ranges in report.acked.items():
                offsets[int(shard)] |= {offset for first, end in ranges for offset in range(first, end)}
        return offsets

    def store(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Store what is new; return the place of each row."""
        assert batch.schema.equals(MESSAGES)
        batch.validate(full=True)
        places = []
        ends = dict(self.position)
        for row in batch.to_pylist():
            key = (row["message_id"], row["publish_time"])
            duplicate = key in self.places
            if duplicate:
                self.duplicates += 1
            else:
                shard = len(self.rows) % SHARDS
                self.places[key] = (shard, ends[shard])
                ends[shard] += 1
                self.rows.append(row)
            places.append((*self.places[key], duplicate))
        shards, offsets, duplicates = zip(*places, strict=True)
        arrays = [pa.array(shards, pa.int32()), pa.array(offsets, pa.int64()), pa.array(duplicates)]
        return pa.RecordBatch.from_arrays(arrays, ["shard", "offset", "duplicate"])


class StandInExchange:
    """The client's end, and the thread that would read it."""

    def __init__(self, server: StandIn, listener: Puller) -> None:
        self._server, self._listener = server, listener
        self.welcome = Welcome("p", 0, 60.0, released=server.position if server.releases else None)
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="stand-in", daemon=True)
        self._thread.start()

    def send(self, batch: pa.RecordBatch) -> int:
        self._check_open()
        self.sent += 1
        self._tasks.put((self.sent, batch))
        return self.sent

    def report(self, report: Report | Acks, rows: pa.RecordBatch | None = None) -> None:
        self._check_open()
        assert isinstance(report, Report)
        self._server.reports.append(Report.decode(report.encode().replace(b'"type":"report",', b"")))

    def finish(self) -> None:
        self.ended(None)

    def close(self, timeout: float = 30.0) -> None:
        self.ended(None)
        self._thread.join(timeout)

    def abandon(self) -> None:
        self.ended(None)

    def tell(self, position: Position) -> None:
        """Push what is released."""
        self._tasks.put(position)

    def drain(self) -> None:
        self._tasks.put("drain")

    def ended(self, error: PenstockError | None) -> None:
        """End the stream, without an answer to what is under way."""
        self._over.set()
        self._tasks.put(("end", error))

    def _check_open(self) -> None:
        if self._over.is_set():
            raise Unavailable("the exchange has ended")

    def _run(self) -> None:
        while True:
            match self._tasks.get():
                case Position() as position:
                    self._listener.released(position)
                case "drain":
                    self._listener.draining()
                case ("end", error):
                    self._listener.ended(error)
                    return
                case (int() as n, pa.RecordBatch() as batch):
                    if not self._over.is_set():
                        self._answer(n, batch)

    def _answer(self, n: int, batch: pa.RecordBatch) -> None:
        with self._server.lock:
            places = self._server.store(batch)
            answers, position = self._server.answers, self._server.position if self._server.releases else None
        if answers:
            self._listener.answered(Answer(n), places)
        if position is not None:
            self._listener.released(position)


@dataclass
class Pulling:
    """A puller that runs in a thread."""

    puller: Puller
    thread: threading.Thread
    stop: threading.Event
    errors: list[BaseException]

    def end(self, within: float = 30.0) -> None:
        """Tell it to stop, and raise its error."""
        self.stop.set()
        self.thread.join(within)
        assert not self.thread.is_alive(), "the puller did not end"
        if self.errors:
            raise self.errors[0]


@contextmanager
def pulling(server: StandIn, address: str, subscription: str, options: PullOptions | None = None) -> Iterator[Pulling]:
    """Run a puller of the fake or the emulator at this address, and stop it at the end."""
    from penstock.queue.pubsub import pull, transport

    pubsub = transport.PubSub(transport.Access(endpoint=address, allow_emulator=True), subscription)
    puller: pull.Puller = pull.Puller(pubsub, lambda: server.connect(puller), options or pull.PullOptions())
    stop, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            puller.run(stop.is_set)
        except BaseException as error:  # `end` raises it
            errors.append(error)

    thread = threading.Thread(target=run, name="test-puller", daemon=True)
    thread.start()
    try:
        yield Pulling(puller, thread, stop, errors)
    finally:
        stop.set()
        thread.join(30)
