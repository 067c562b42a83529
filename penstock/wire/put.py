"""What a put sends and is answered: its command, its trailer, its receipt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from penstock.wire.body import Body
from penstock.wire.publish import PublishOptions
from penstock.wire.queue import LeaseKey, LeaseOutcome

Mode = Literal["error", "append", "overwrite"]
Run = Annotated[str, 1_024]
"""A name under which a write happens once, of at most so many bytes."""
State = Literal["open", "finished", "aborted", "expired"]
Release = Literal["finish", "partition"]
"""When a queue gets the splits of a write: all at its finish, or those of each partition once that is whole."""


@dataclass(frozen=True, slots=True)
class TopicOptions(Body):
    """How a topic is made; of a topic that exists, what it keeps is changed."""

    key: str | None = None
    """The column whose equal values stay in one shard, in order."""
    shards: int | None = None
    """By default 4 with a key and 1 without."""
    keep_seconds: float | None = None
    """The age at which rows are removed, read or not; by default 24 hours."""
    keep_bytes: int | None = None
    """The size above which the oldest rows are removed."""
    keep_absent: bool | None = None
    """Whether that waits for consumers that nobody has seen for ten minutes, too; by default it does."""


@dataclass(frozen=True, slots=True)
class DatasetOptions(Body):
    """Of a write to a dataset: which rows of it these are, and how long it is kept."""

    partition: Annotated[str, 1_024] | None = None
    """The name of a part of its rows, such as 2026-11-20: an overwrite replaces the rows that were written under it."""
    ttl: float | None = None
    """Seconds after its last write for which it is kept; None: as before, at first for ever."""


@dataclass(frozen=True, slots=True)
class SparkTask(Body):
    """The task of Spark that makes a put, as TaskContext names it."""

    stage: int
    partition: int
    attempt: int
    """No other task of the application has this number."""


@dataclass(frozen=True, slots=True)
class PutCommand(Body):
    """A descriptor's command for do_put: one attempt of an open write (`ticket`), or a write of its own (`path`)."""

    attempt: str
    ticket: str | None = None
    path: str | None = None
    mode: Mode | None = None
    run: Run | None = None
    brief: bool | None = None
    """The client has minted the run, so that it can send a put again whose answer is lost: a topic remembers it for an
    hour."""
    ready: bool | None = None
    """The sender waits for the server's word `{"v":1}`, which admits this put, before it sends the first batch."""
    create: TopicOptions | None = None
    """Make the topic at `path`, with the stream's schema; the stream has no rows."""
    publish: PublishOptions | None = None
    """Of a put to publish/…."""
    dataset: DatasetOptions | None = None
    """Of a put to store/…."""
    task: SparkTask | None = None
    """Of an attempt of a write that releases each partition."""
    forward: tuple[LeaseKey, ...] | None = None
    """Of a put to a queue: the leases whose messages the stream was made of. They are acked in its transaction."""
    each: bool | None = None
    """Each lease of `forward` is acked with its own outputs, whose notes name it, or refused, whatever becomes of the
    others: the receipt has an outcome for each."""


@dataclass(frozen=True, slots=True)
class Trailer(Body):
    """The sender's word that its stream is whole. (A checksum over buffers differs for a slice at the two ends.)"""

    batches: int
    rows: int


@dataclass(frozen=True, slots=True)
class Receipt(Body):
    """The server's word that an attempt is whole and durable. The list of receipts is what a write commits."""

    write: str
    """Empty if the put made a topic."""
    attempt: str
    rows: int
    bytes: int
    parts: int
    digest: str
    outcomes: tuple[LeaseOutcome, ...] | None = None
    """Of a put with `each`."""
