"""LeaseQueue: queues of work, whose messages workers claim in leases.

A message is pending, claimed until its lease ends, and at last done or dead. Its lease ends with ack, release, drop or
forward, or by itself at its deadline; a fencing token tells one lease of a message from the next. Every verb is durable
when it returns, and takes many messages as one change: those of its leases that are over are refused one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.wire.message import QueueMessage
from penstock.wire.queue import Failure, LeaseKey, LeaseOutcome, QueueCounts, QueueRoom, QueueState

LEASE = 30.0
"""Seconds that a lease lasts, from its claim, each `extend`, or the start of the server."""
MOST_TRIES = 5
"""A message that was claimed so often, and not acked, is dead."""
MOST_MESSAGES = 10_000
"""Messages or leases of one call."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be pushed to a queue."""

    queue: str
    """The queue's path."""
    message: QueueMessage
    bytes: int = 0
    """Of its payload."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What was made of leased messages: it counts, and they are acked, in one change or not at all."""

    leases: tuple[LeaseKey, ...]
    outputs: tuple[NewMessage, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A claimed message."""

    key: LeaseKey
    message: QueueMessage
    tries: int
    """This claim included."""
    bytes: int = 0
    part: str | None = None
    """The part that has the payload's bytes, where it is known."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer of `claim`: leases, or why there are none."""

    state: QueueState
    leases: tuple[Lease, ...] = ()
    cause: str | None = None
    """Why the queue has failed."""


class LeaseQueue(Protocol):
    """Queues by path. Outcomes have a state, or the code of an error; other errors refuse the whole call."""

    def push(self, messages: Sequence[NewMessage]) -> int:
        """Make messages pending, and return how many of them are new: a repeated one changes nothing.

        The first push makes a queue. InvalidRequest once clients have finished it.
        """
        ...

    def claim(
        self,
        path: str,
        claim: str,
        *,
        worker: str,
        most: int = 1,
        to: Sequence[str] = (),
        room: QueueRoom | None = None,
    ) -> Claim:
        """Lease the oldest pending messages to a worker; repeated with the same `claim`, return those of its leases
        that it still has.

        The queues of `to` are complete only once this one is; with `room`, no more are leased here than each of them
        has room for. NotFound without a queue at the path.
        """
        ...

    def ack(self, leases: Sequence[LeaseKey]) -> list[LeaseOutcome]:
        """Note the messages as done; repeated, the same outcomes."""
        ...

    def forward(self, forwards: Sequence[Forward]) -> list[LeaseOutcome]:
        """Push the outputs and note the messages as done, for each Forward in one change; repeated, the same outcomes.

        If one of a Forward's leases is over nothing of it happens. An output's queue is complete only once the queues
        of these leases are.
        """
        ...

    def release(
        self, leases: Sequence[LeaseKey], *, delay: float = 0.0, failure: Failure | None = None
    ) -> list[LeaseOutcome]:
        """Give messages back, to be claimed again after `delay` seconds; with a failure, at MOST_TRIES, they are dead.

        Without a failure the claim counts as no try: nobody has worked on the messages, as a worker that stops says.
        """
        ...

    def release_worker(self, path: str, worker: str) -> int:
        """Give back all messages that a worker has claimed, as `release` without a failure; return how many."""
        ...

    def extend(self, leases: Sequence[LeaseKey]) -> list[LeaseOutcome]:
        """Let the leases last for LEASE seconds from now on; nothing revives one that is over."""
        ...

    def drop(self, leases: Sequence[LeaseKey], failure: Failure) -> list[LeaseOutcome]:
        """Set messages aside as dead, with the failure as their cause."""
        ...

    def redrive(self, path: str, message_ids: Sequence[str] = ()) -> int:
        """Make dead messages pending with no tries, all without names; return how many there were."""
        ...

    def finish(self, path: str) -> QueueCounts:
        """Note that clients push no more: the queue is complete once its other upstreams have ended and it is drained.

        Makes a queue that isn't there; repeated, it changes nothing.
        """
        ...

    def counts(self, path: str) -> QueueCounts:
        """Return a queue's state and counts."""
        ...
