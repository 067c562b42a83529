"""A subscription's owner without a server: pullers that speak to it as an exchange does, consumers, and a journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.ledger.sweep import recover
from penstock.queue.pubsub import registry
from penstock.queue.pubsub.pulled import PullerStream
from penstock.queue.pubsub.registry import MESSAGES, Options
from penstock.queue.pubsub.subscription import Subscription
from penstock.queue.topics.append import Append, Appender
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.retention import drop_lost
from penstock.store.medium import Medium
from penstock.wire.position import Position
from tests.kit.clock import Clock
from tests.kit.topics import Reach

PATH = "subscription/p/s"
Key = tuple[str, int]
"""A message's id, and its publish time in microseconds."""
Place = tuple[int, int]


def messages(keys: Sequence[Key], ordering: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return messages as a puller sends them; the data says which one it is."""
    columns: list[Any] = [
        pa.array([message for message, _ in keys], pa.string()),
        pa.array([time for _, time in keys], pa.timestamp("us", "UTC")),
        pa.array(ordering or [""] * len(keys), pa.string()),
        pa.array([[("n", "1")] for _ in keys], MESSAGES.field("attributes").type),
        pa.nulls(len(keys), pa.int32()),
        pa.array([f"{message}@{time}".encode() for message, time in keys], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


class GatheringAppender(Appender):
    """Commits what has come when it is told to, as one group."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.waiting: list[Append] = []

    def submit(self, append: Append) -> None:
        self.waiting.append(append)

    def flush(self) -> None:
        while self.waiting:
            group, self.waiting = self.waiting, []
            self.commit(group)


@dataclass
class Puller:
    """One puller's end of an exchange."""

    stream: PullerStream = field(init=False)
    sent: dict[int, list[Key]] = field(default_factory=dict)
    answers: dict[int, list[tuple[Place, bool]]] = field(default_factory=dict)
    """Batch -> the place of each row, and whether it is a duplicate."""
    refusals: list[Exception] = field(default_factory=list)
    pushed: list[Position] = field(default_factory=list)
    welcomed: list[Position] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Requests for its leases."""

    def __post_init__(self) -> None:
        self.stream = PullerStream(self.answered, self.refusals.append, self.pushed.append, self.asked.append)

    def answered(self, number: int, places: pa.RecordBatch) -> None:
        assert number not in self.answers
        assert all(number > before for before in self.answers)
        shard, offset, duplicate = (column.to_pylist() for column in places.columns)
        self.answers[number] = list(zip(zip(shard, offset, strict=True), duplicate, strict=True))


class Owned:
    """A subscription at PATH; `restart` opens all of it anew."""

    def __init__(self, folder: Path, clock: Clock, medium: Medium | None = None, **window: Any) -> None:
        self.reach, self.clock, self.window, self.medium = Reach(folder, clock, medium), clock, window, medium
        self.steady = 0.0

    def attach(self, *, ordered: bool = False, retention: float = 7 * 86400.0, **options: Any) -> None:
        """Attach the subscription, or change its options."""
        chosen = Options(**options)
        self.reach.ledger.change(
            lambda t: registry.attach(t, PATH, chosen, ack="commit", is_ordered=ordered, retention=retention)
        )
        if not hasattr(self, "owner"):
            self.open()
        self.owner.advance()

    def open(self) -> None:
        reach = self.reach
        self.appender = GatheringAppender(reach.ledger, reach.store)
        self.consumers = Consumers(reach.ledger, reach.topics, changed=registry.release, steady=self.clock.now)
        self.owner = Subscription(PATH, reach.ledger, reach.topics, reach.store, self.appender, **self.window)
        self.owner.rebuild()

    def restart(self, medium: Medium | None = None) -> None:
        self.reach.close()
        self.reach.start(medium or self.medium or type(self.reach.store.medium)(self.reach.folder))  # type: ignore[call-arg]
        drop_lost(self.reach.ledger)
        recover(self.reach.ledger, self.reach.store)
        self.open()

    def close(self) -> None:
        self.reach.close()

    # --- pullers ----------------------------------------------------------------------------

    def puller(self) -> Puller:
        puller = Puller()
        self.owner.connect(puller.stream, puller.welcomed.append)
        return puller

    def send(self, puller: Puller, keys: Sequence[Key], ordering: Sequence[str] | None = None) -> int:
        """Send a batch, and return its number."""
        number = len(puller.sent) + 1
        puller.sent[number] = list(keys)
        self.owner.submit(puller.stream, number, messages(keys, ordering))
        return number

    def pull(self, puller: Puller, *keys: Key, ordering: Sequence[str] | None = None) -> list[tuple[Place, bool]]:
        """Send a batch, have it committed, and return its answer."""
        number = self.send(puller, keys, ordering)
        self.appender.flush()
        return puller.answers[number]

    def acked(self, puller: Puller, places: Iterable[Place]) -> None:
        """Report that the acks of these rows were sent."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for shard, offset in places:
            ranges.setdefault(shard, []).append((offset, offset + 1))
        self.owner.report(puller.stream, counters={}, acked=ranges)

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        self.steady += seconds
        self.clock.advance(seconds)
        self.owner.tick(self.steady)

    # --- consumers --------------------------------------------------------------------------

    def consume(self, consumer: str, position: Mapping[int, int]) -> None:
        """Attach a consumer at a position."""
        topic = self.reach.topic(PATH)
        self.consumers.attach(topic, consumer, "s", initial=position, position=position)
        self.owner.advance()

    def commit(self, consumer: str, position: Mapping[int, int]) -> None:
        """Commit a position."""
        self.consumers.commit(self.reach.topic(PATH), consumer, "s", position)
        self.owner.advance()

    def detach(self, consumer: str) -> None:
        self.consumers.detach(self.reach.topic(PATH), consumer, "s")
        self.owner.advance()

    # --- the journal ------------------------------------------------------------------------

    def rows(self) -> dict[Place, Key]:
        """Return the message of each readable row."""
        rows: dict[Place, Key] = {}
        topic = self.reach.topic(PATH)
        for piece in self.reach.topics.range(topic, {}, {}, ticketed_until=0):
            assert piece.shard is not None
            table = self.reach.store.open(piece.part).reader().read_all().slice(piece.skip, piece.rows)
            times = table["publish_time"].cast(pa.int64()).to_pylist()
            for number, key in enumerate(zip(table["message_id"].to_pylist(), times, strict=True)):
                place = (piece.shard, piece.first + piece.skip + number)
                rows[place] = key
                assert table["data"][number].as_py() == f"{key[0]}@{key[1]}".encode()
        return rows

    def ends(self) -> dict[int, int]:
        return self.reach.topic(PATH).latest()
