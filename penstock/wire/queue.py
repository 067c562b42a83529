"""The bodies of a queue's actions: messages are claimed in leases, which end with ack, release, drop or forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.wire.body import Body
from penstock.wire.message import QueueMessage

QueueState = Literal["open", "complete", "failed"]
"""complete: every upstream has ended, and every message is done or dead. failed: an upstream has failed."""
MessageState = Literal["pending", "claimed", "done", "dead"]


@dataclass(frozen=True, slots=True)
class LeaseKey(Body):
    """One lease: the message, and the token of the claim that has it."""

    queue: str
    """The queue's path."""
    message_id: str
    token: str


@dataclass(frozen=True, slots=True)
class Failure(Body):
    """Why a worker gives a message back."""

    error: str
    """The class of the error."""
    text: str = ""
    trace: str = ""

    def cut(self) -> Failure:
        """Return it in bounds: without the rest of long words, and without the beginning of an endless trace."""
        return Failure(self.error[:200], self.text[:1_000], self.trace[-8_000:])


@dataclass(frozen=True, slots=True)
class LeaseOutcome(Body):
    """What became of one lease of a request: the message's state, or an error by its code."""

    state: MessageState | None = None
    code: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseOutcomes(Body):
    """The answer of ack, release, extend and drop: one outcome for each lease, in the request's order."""

    outcomes: tuple[LeaseOutcome, ...]


@dataclass(frozen=True, slots=True)
class QueueRoom(Body):
    """How much may wait in a queue, or be at work, before what fills it waits: there is always room for one message."""

    messages: int
    bytes: int
    """Of payloads."""


@dataclass(frozen=True, slots=True)
class ClaimMessages(Body):
    """queue.claim: lease messages to a worker."""

    path: str
    claim: str
    """The caller's id of this claim: repeated, it gets the same messages."""
    worker: str
    """host:pid, or any name that people recognize."""
    most: int = 1
    to: tuple[str, ...] = ()
    """The queues that the worker forwards to: they are complete only after this one."""
    room: QueueRoom | None = None
    """Lease no more than each queue of `to` has room for, if each message brings one."""


@dataclass(frozen=True, slots=True)
class ClaimedMessage(Body):
    """A message and its lease."""

    message: QueueMessage
    token: str
    tries: int
    """This claim included."""
    payload: str | None = None
    """A small payload: its Arrow IPC stream in base64."""
    ticket: str | None = None
    """A read ticket for a larger one."""


@dataclass(frozen=True, slots=True)
class ClaimedMessages(Body):
    """The answer of queue.claim. Without messages: come again after `retry_after`, unless the queue has ended."""

    state: QueueState
    messages: tuple[ClaimedMessage, ...] = ()
    lease_seconds: float = 0.0
    cause: str | None = None
    """Why the queue has failed."""
    retry_after: float | None = None
    local: str | None = None
    """The abstract Unix socket where processes of this host get file descriptors for tickets."""


@dataclass(frozen=True, slots=True)
class AckLeases(Body):
    """queue.ack: the messages are done."""

    leases: tuple[LeaseKey, ...]


@dataclass(frozen=True, slots=True)
class ReleaseLeases(Body):
    """queue.release: the messages are pending again after `delay` seconds; with too many tries they are dead."""

    leases: tuple[LeaseKey, ...]
    delay: float = 0.0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ReleaseWorker(Body):
    """queue.release_worker: the worker has ended, so that all messages that it has claimed are pending again."""

    path: str
    worker: str


@dataclass(frozen=True, slots=True)
class ReleasedMessages(Body):
    """The answer of queue.release_worker."""

    messages: int


@dataclass(frozen=True, slots=True)
class ExtendLeases(Body):
    """queue.extend: the leases last for their full time from now on."""

    leases: tuple[LeaseKey, ...]


@dataclass(frozen=True, slots=True)
class DropLeases(Body):
    """queue.drop: the messages are dead, whatever their tries."""

    leases: tuple[LeaseKey, ...]
    failure: Failure


@dataclass(frozen=True, slots=True)
class RedriveMessages(Body):
    """queue.redrive: dead messages are pending again, with no tries; all of them where none is named."""

    path: str
    message_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedrivenMessages(Body):
    """The answer of queue.redrive."""

    messages: int


@dataclass(frozen=True, slots=True)
class CreateQueue(Body):
    """queue.create: make a queue whose messages are records of a topic. All others are made by their first message."""

    path: str
    topic: str
    """kafka://host:port/topic; without a topic it is named after the path."""


@dataclass(frozen=True, slots=True)
class FinishQueue(Body):
    """queue.finish: clients push no more messages."""

    path: str


@dataclass(frozen=True, slots=True)
class PushDataset(Body):
    """queue.push_dataset: push a message for each part of a dataset, all in one transaction."""

    path: str
    dataset: str
    last: str | None = None
    """The end up to which parts are pushed, as `last` of describe has it; "" for none, by default all are."""


@dataclass(frozen=True, slots=True)
class PushedMessages(Body):
    """The answer of queue.push_dataset: how many messages are new."""

    messages: int


@dataclass(frozen=True, slots=True)
class QueueCounts(Body):
    """A queue's state and counts; the answer of queue.finish."""

    path: str
    state: QueueState
    pushed: int
    """Messages so far, in any state."""
    pending: int
    claimed: int
    done: int
    dead: int
    bytes: int
    """Of the payloads of messages that aren't done."""
    oldest: float | None = None
    """When the first pending message was pushed, in seconds since 1970."""
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Upstream(Body):
    """What fills a queue: write/ID, a queue whose workers forward to this one, or put, all clients that push."""

    upstream: str
    state: QueueState


@dataclass(frozen=True, slots=True)
class QueueDescription(Body):
    """What describe says of a queue."""

    counts: QueueCounts
    done_per_second: float
    """Over the last minute."""
    lag_seconds: float
    """How long what is pending takes at that rate; the age of the oldest of it where nothing was done."""
    upstreams: tuple[Upstream, ...]
