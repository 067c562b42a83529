"""A lease: a queue's message that a worker holds until it is acked, released or dropped."""

from __future__ import annotations

import logging
import random
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from penstock.client.connection import Connection
from penstock.client.heartbeats import Heartbeats
from penstock.client.push import Output, settle, to_outputs
from penstock.client.settings import LONG_RETRY_FOR
from penstock.client.settling import Settleable, Settler, settle_blocks
from penstock.errors import InvalidRequest, LeaseLost, Lost, PenstockError, of_code
from penstock.rows.payload import SplitPayload
from penstock.wire import actions as wire
from penstock.wire.message import QueueMessage
from penstock.wire.queue import (
    ClaimedMessage,
    DropLeases,
    Failure,
    LeaseKey,
    LeaseOutcome,
    LeaseOutcomes,
    ReleaseLeases,
)  # fmt: skip

log = logging.getLogger("penstock")
_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 1.0, 60.0
"""Seconds before a message whose worker failed is pending again: twice as long at each try."""
_LOST_TRIES = 2
"""A message whose payload is lost is dead at this try: the first may have met a server that was just put back."""


@dataclass(frozen=True, slots=True)
class Split:
    """One unit of work: a message and its payload."""

    message: QueueMessage
    loaded: SplitPayload | None

    @property
    def payload(self) -> SplitPayload:
        """The message's payload; InvalidRequest for a source message, which has none."""
        if self.loaded is None:
            raise InvalidRequest(
                f"message {self.message.message_id} has no payload (payload_key is empty): read its split from the "
                "source, by split.message"
            )
        return self.loaded


class Lease:
    """A claimed message. As a context manager it gives the Split, and settles the message at the end of the block.

    Leaving normally acks it, together with what was forwarded, in one transaction. An exception (of class Exception)
    releases it with a growing delay, and ends there: it is logged, kept with the message, and after five tries the
    message is dead. So one bad message stops no worker. Ctrl-C and SystemExit release it at once and are raised.
    """

    def __init__(self, queue: ClaimedQueue, claimed: ClaimedMessage) -> None:
        self.split = Split(claimed.message, None)
        self.key = LeaseKey(queue.path, claimed.message.message_id, claimed.token)
        self.tries = claimed.tries
        """How often the message was claimed, this time included."""
        self.bytes = 0
        """Of the payload."""
        self.outputs: list[Output] = []
        """What was forwarded."""
        self._queue = queue
        self._state: Literal["held", "ended", "lost"] = "held"
        self._settling = False
        """Whether a call is under way, or waits, that ends the lease: its answer says what became of it."""
        self._answered: threading.Event | None = None
        """Set once what the end of the block began has its answer."""

    def __repr__(self) -> str:
        return f"Lease({self.key.queue!r}, {self.key.message_id!r}, {self._state}, try {self.tries})"

    @property
    def keys(self) -> tuple[LeaseKey, ...]:
        """The lease's own key, for what settles it."""
        return (self.key,)

    @property
    def lost(self) -> bool:
        """Whether the server has said that the lease is over: another worker may have the message.

        Behind the block this and `ended` wait for the server's answer.
        """
        return self._known_state() == "lost"

    @property
    def ended(self) -> bool:
        """Whether the message was acked, released or dropped."""
        return self._known_state() == "ended"

    def _known_state(self) -> str:
        if self._answered is not None:
            self._answered.wait()
        return self._state

    def forward(self, queue: str, payloads: Any) -> None:
        """Push a payload, or a list of them, to another queue when this message is acked: all or nothing.

        A payload is a SplitPayload or a table. May be called several times, also for several queues: everything goes
        in one transaction with the ack, at the end of the block.
        """
        self._check()
        self.outputs += to_outputs(queue, payloads)

    def ack(self) -> None:
        """Note the message as done, and push what was forwarded, before this returns; LeaseLost if the lease is over.

        The end of a block needs no such call: it has the same done while the worker goes on.
        """
        self._check()
        self._end(lambda retry_for: settle(self._queue.connection, [(self.key, self.outputs)], retry_for=retry_for))

    def release(self, delay: float = 0.0, failure: Failure | None = None) -> None:
        """Give the message back, to be claimed again after `delay` seconds; at its fifth try with a failure it is dead.

        Without a failure this claim counts as no try.
        """
        self._check()
        self._call(wire.RELEASE_LEASES, ReleaseLeases((self.key,), delay, failure))

    def drop(self, reason: str | Failure) -> None:
        """Set the message aside as dead, with the reason; `penstock redrive` makes it pending again."""
        self._check()
        failure = reason if isinstance(reason, Failure) else Failure("Dropped", reason)
        self._call(wire.DROP_LEASES, DropLeases((self.key,), failure))

    def end_by_server(self, text: str) -> bool:
        """Note that the server says that the lease is over; False while the client itself is about to end it."""
        if self._settling or self._state == "ended":
            return False
        log.warning("%s", text)
        self._state = "lost"
        return True

    def __enter__(self) -> Split:
        return self.split  # of a lost lease, too: the block's first call says so, and the loop goes on

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self.ended:  # within the block
            return isinstance(error, Exception) and self._log_late(error)
        if error is None:
            self._settle()
        elif isinstance(error, Exception):
            self.fail(error)
        else:
            with suppress(PenstockError):
                self.release()
            return False
        return True

    def _settle(self) -> None:
        """Have the lease acked soon, or ack it where no loop goes on."""
        if self._state == "lost":
            log.warning("%s", self._over())
            return
        self.begin_settling()
        self._queue.settle(self)

    def end_with(self, others: Sequence[Lease]) -> None:
        """Have the lease and others of its claim acked soon, with what was forwarded of each, in one transaction.

        All of that or nothing: if one of the leases is over by then, the others are given back.
        """
        leases = (self, *others)
        for lease in leases:
            lease.begin_settling()
        self._queue.settle(_Together(leases))

    def begin_settling(self) -> None:
        """Note that what ends the lease is under way: `settled` tells the end."""
        self._settling, self._answered = True, threading.Event()

    def settled(self, outcome: LeaseOutcome | None) -> None:
        """Note what became of the lease; None: the server has not answered, so nobody knows."""
        if outcome is not None:
            self._state = "lost" if outcome.code else "ended"
            self.outputs = []
            self._queue.heartbeats.forget(self)
        self._settling = False
        if self._answered is not None:
            self._answered.set()

    def fail(self, error: Exception) -> None:
        """Release the message with the error's class and trace, or set it aside if its payload is lost again."""
        if isinstance(error, LeaseLost) and self._state == "lost":
            log.warning("%s", error)
            return
        key = self.key
        log.warning("%s: message %s failed at try %d", key.queue, key.message_id, self.tries, exc_info=error)
        failure = failure_of(error)
        try:
            if isinstance(error, Lost) and self.tries >= _LOST_TRIES:
                self._call(wire.DROP_LEASES, DropLeases((key,), failure))
            else:
                self._call(wire.RELEASE_LEASES, ReleaseLeases((key,), backoff(self.tries), failure))
        except LeaseLost as lost:
            log.warning("%s", lost)

    def _log_late(self, error: Exception) -> bool:
        log.warning("%s: an error after message %s was settled", self.key.queue, self.key.message_id, exc_info=error)
        return True

    def _call(self, action: wire.Action[Any, LeaseOutcomes], request: Any) -> None:
        def call(retry_for: float) -> Sequence[LeaseOutcome]:
            return self._queue.connection.call(action, request, retry_for=retry_for, waits_for_room=True).outcomes

        self._end(call)

    def _end(self, call: Callable[[float], Sequence[LeaseOutcome]]) -> None:
        """End the lease by a call; LeaseLost if it is over."""
        self._settling = True
        try:
            [outcome] = call(self._queue.connection.settings.retry_seconds(LONG_RETRY_FOR))
        except BaseException:
            self._settling = False
            raise
        self.settled(outcome)
        if outcome.code is not None:
            raise of_code(outcome.code, outcome.text or "")

    def _check(self) -> None:
        if self.lost:
            raise self._over()
        if self.ended:
            raise InvalidRequest(f"{self.key.queue}: message {self.key.message_id} was settled already: claim another")

    def _over(self) -> LeaseLost:
        return LeaseLost(
            f"{self.key.queue}: the lease of message {self.key.message_id} is over, and another worker may have the "
            "message: what was made of it doesn't count"
        )


class _Together:
    """Leases that end together, or not at all."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.keys = tuple(lease.key for lease in leases)
        self.outputs = [output for lease in leases for output in lease.outputs]
        self._leases = leases

    def settled(self, outcome: LeaseOutcome | None) -> None:
        """Note what became of the leases; those of which others are over are given back."""
        is_lost = outcome is not None and outcome.code is not None
        for lease in self._leases:
            lease.settled(None if is_lost else outcome)
        if is_lost:
            release_all(self._leases)

    def fail(self, error: Exception) -> None:
        """Give the messages back."""
        for lease in self._leases:
            lease.settled(None)
            lease.fail(error)


@dataclass(frozen=True, slots=True)
class ClaimedQueue:
    """What the leases of one claim share."""

    path: str
    connection: Connection
    heartbeats: Heartbeats
    settler: Settler

    def settle(self, block: Settleable) -> None:
        """Have a block acked soon, or ack it where no loop goes on."""
        if not self.settler.add(block):
            try:
                settle_blocks(self.connection, [block])
            finally:
                block.settled(None)


def release_all(leases: Iterable[Lease]) -> None:
    """Give messages back that nobody has worked on."""
    for lease in leases:
        with suppress(PenstockError):  # the lease is over, or ends by itself
            lease.release()


def backoff(tries: int) -> float:
    """Return the seconds before the next try, spread so that those that failed together don't come together."""
    return float(min(_SHORTEST_BACKOFF * 2 ** (tries - 1), _LONGEST_BACKOFF)) * (0.5 + random.random())  # noqa: S311  # no secret


def failure_of(error: BaseException) -> Failure:
    """Return an error as what a message keeps of it."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(name, str(error), "".join(traceback.format_exception(error))).cut()
