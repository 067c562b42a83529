"""The bodies of actions. Apart from `wire`, so that who only puts and gets doesn't wait for them at import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.wire.body import Body
from penstock.wire.put import Mode, State

SchemaJson = tuple[dict[str, Any], ...]
"""A list of {name, type, nullable}; `penstock.rows.schemas` turns it into an Arrow schema and back."""


@dataclass(frozen=True, slots=True)
class OpenWrite(Body):
    """write.open: begin a write, or join the open one of the same `run`."""

    path: str
    mode: Mode = "error"
    schema: SchemaJson | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Summary(Body):
    """A write as it stands; a finished one's never changes."""

    write: str
    path: str
    mode: Mode
    state: State
    attempts: int = 0
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    run: str | None = None
    opened: float | None = None
    touched: float | None = None


@dataclass(frozen=True, slots=True)
class OpenedWrite(Body):
    """write.open's answer. A state of `finished` means that this run is done: put nothing."""

    write: str
    ticket: str
    state: State
    summary: dict[str, Any]
    location: str | None = None
    """Where others than the opener reach the server, as it was told by --advertise."""


@dataclass(frozen=True, slots=True)
class FinishWrite(Body):
    """write.finish: exactly these attempts become the dataset."""

    ticket: str
    attempts: tuple[str, ...]
    run: str | None = None
    """A name for this that wasn't known at write.open: if it is written already, nothing is added."""


@dataclass(frozen=True, slots=True)
class AbortWrite(Body):
    """write.abort: nothing of this write will ever be seen."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Target(Body):
    """describe, delete: the thing that a path names."""

    path: str


@dataclass(frozen=True, slots=True)
class CreateTopic(Body):
    """topic.create: an empty topic; where it is there already, the `keep_…` that are given are its own from now on."""

    path: str
    schema: SchemaJson
    key: str | None = None
    """The column whose rows of one value keep their order, in one shard."""
    shards: int | None = None
    """How many; 4 with a key and 1 without if nothing is said."""
    keep_seconds: float | None = None
    """For how long rows stay, read or not; 24 hours if nothing is said."""
    keep_bytes: int | None = None
    """And how many bytes of them at most."""


@dataclass(frozen=True, slots=True)
class AskOffsets(Body):
    """consumer.offsets: where a topic begins and ends, and where a batch of a size from `start` on would."""

    path: str
    journal: str | None = None
    start: dict[str, Any] | None = None
    since: float | None = None
    """In place of `start`: what was appended at this time or later, in seconds since 1970."""
    max_rows: int | None = None
    max_bytes: int | None = None
    until: dict[str, Any] | None = None
    """Where the batch ends at the latest."""
    consumer: str | None = None
    session: str | None = None
    """Who asks: it is alive, and is told if another session has taken its place."""


@dataclass(frozen=True, slots=True)
class AttachConsumer(Body):
    """consumer.attach: this session speaks for the consumer from now on."""

    path: str
    journal: str
    consumer: str
    session: str
    initial: dict[str, Any] | None = None
    position: dict[str, Any] | None = None
    """Where it stands, if the server doesn't know it: not beyond the topic's end."""
    known: dict[str, Any] | None = None
    """The furthest place that it has on record: one who has committed more was put back, and is refused."""


@dataclass(frozen=True, slots=True)
class Consuming(Body):
    """consumer.commit, consumer.detach: what lies below `position` is done for good; the consumer won't come again."""

    path: str
    journal: str
    consumer: str
    session: str
    position: dict[str, Any] | None = None
