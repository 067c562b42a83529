"""Producers: sessions without a server, and the messages of do_exchange as plain JSON."""

from __future__ import annotations

import json
import queue
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from penstock.queue.topics.append import Append, Appender
from penstock.queue.topics.producers import ProducedBatch, Producers, Session
from penstock.wire.exchange import Answer, Hello
from tests.kit.topics import TOPIC, Reach
from tests.kit.wire import at, trips


@dataclass
class Told:
    """A session, and what its client was told."""

    answers: list[Answer] = field(default_factory=list)
    refusals: list[Exception] = field(default_factory=list)
    session: Session = field(init=False)

    def append(self, n: int, *ids: int, acked: int = 0, rows: pa.RecordBatch | None = None) -> None:
        """Queue a batch of trips, or of other rows."""
        batch = trips(*ids) if rows is None else rows
        self.session.append(n, acked, batch.schema, [batch], batch.nbytes)

    def numbers(self) -> list[int]:
        return [answer.n for answer in self.answers]


class ProducerRig:
    """The producers of a ledger, and a committer that works when a test says so."""

    def __init__(self, reach: Reach) -> None:
        self.appender = Appender(reach.ledger, reach.store)
        self.producers = Producers(reach.ledger, self.appender)

    def hello(self, producer: str | None = None, acked: int = 0, path: str = TOPIC) -> Told:
        """Open a session."""
        told = Told()

        def answer(answer: Answer, batch: ProducedBatch) -> None:
            told.answers.append(answer)

        told.session = self.producers.open(path, Hello(producer, acked), answer=answer, refuse=told.refusals.append)
        return told

    def waiting(self) -> list[Append]:
        """Take what waits for the committer."""
        group: list[Append] = []
        while True:
            try:
                append = self.appender._waiting.get_nowait()
            except queue.Empty:
                return group
            assert append is not None
            group.append(append)

    def commit(self) -> None:
        """Commit what waits, as one group."""
        self.appender.commit(self.waiting())


class BareExchange:
    """A stream of do_exchange in plain pyarrow."""

    def __init__(self, client: flight.FlightClient, path: str = TOPIC) -> None:
        self.writer, self.reader = client.do_exchange(at(path))
        self._begun = False

    def say(self, type: str, **fields: Any) -> None:
        """Send a message."""
        self.writer.write_metadata(json.dumps({"v": 1, "type": type, **fields}).encode())

    def send(self, n: int, batch: pa.RecordBatch, acked: int = 0) -> None:
        """Send a batch beside its number."""
        if not self._begun:
            self.writer.begin(batch.schema)
            self._begun = True
        self.writer.write_with_metadata(batch, json.dumps({"v": 1, "type": "batch", "n": n, "acked": acked}).encode())

    def read(self, *, beats: bool = False) -> dict[str, Any]:
        """Return the next message, beats only on request; an error if the stream has ended by one."""
        while True:
            message: dict[str, Any] = json.loads(self.reader.read_chunk().app_metadata.to_pybytes())
            if message["type"] != "beat" or beats:
                return message

    def hello(self, producer: str | None = None, acked: int = 0) -> dict[str, Any]:
        """Say hello, and return the welcome."""
        self.say("hello", producer=producer, acked=acked)
        welcome = self.read()
        assert welcome["type"] == "welcome"
        return welcome

    def end(self) -> list[dict[str, Any]]:
        """End the stream, and return the messages that come until its end."""
        self.writer.done_writing()
        rest = []
        while True:
            try:
                rest.append(self.read())
            except StopIteration:
                return rest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.cancel()
