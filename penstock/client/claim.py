"""Claims: the messages of a queue with their payloads, each leased to this worker until it is acked.

for lease in c.claim("queue/j/in"):                     # ends once the queue is complete and drained
    with lease as split:                                # leaving acks; an exception releases
        lease.forward("queue/j/out", score(split.payload))

One thread of a claim claims and loads ahead, one thread of a client extends all its leases.
"""

from __future__ import annotations

import base64
import logging
import os
import random
import signal
import socket
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import pyarrow as pa

from penstock.client.connection import Connection
from penstock.client.get import read_table
from penstock.client.heartbeats import Heartbeats
from penstock.client.local import LocalParts
from penstock.client.push import Output, forward, to_outputs
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import (
    Denied,
    Expired,
    InvalidRequest,
    LeaseLost,
    Lost,
    NotFound,
    PenstockError,
    TimedOut,
    Unavailable,
    WriteEnded,
    of_code,
)  # fmt: skip
from penstock.rows import slices
from penstock.rows.payload import SplitPayload
from penstock.wire import actions as wire
from penstock.wire.message import QueueMessage
from penstock.wire.queue import (
    AckLeases,
    ClaimedMessage,
    ClaimedMessages,
    ClaimMessages,
    DropLeases,
    Failure,
    LeaseKey,
    LeaseOutcomes,
    ReleaseLeases,
)  # fmt: skip

log = logging.getLogger("penstock")
_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 1.0, 60.0
"""Seconds before a message whose worker failed is pending again: twice as long at each try."""
_MOST_TRACE = 8_000
"""Characters of a failure's trace, its end."""
_LOST_TRIES = 2
"""A message whose payload is lost is dead at this try: the first may have met a server that was just put back."""
_AHEAD, _MOST_AHEAD = 0.1, 64
"""Seconds of work, and messages, that are loaded ahead of a worker that is quick: a claim costs as much as an ack."""
_STOP_CHECK = 0.2
"""Seconds between two looks at `stop` while the worker waits for a lease."""
_LEAVE = 10.0
"""Seconds that the loading thread has to release what it has loaded when the loop ends."""


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

    def __init__(self, queue: _Queue, claimed: ClaimedMessage) -> None:
        self.split = Split(claimed.message, None)
        self.key = LeaseKey(queue.path, claimed.message.message_id, claimed.token)
        self.tries = claimed.tries
        """How often the message was claimed, this time included."""
        self.lost = False
        """Whether the server has said that the lease is over: another worker may have the message."""
        self.ended = False
        """Whether the message was acked, released or dropped."""
        self._queue = queue
        self._outputs: list[Output] = []
        self._settling = False
        """Whether a call is under way that ends the lease: its answer says what became of it."""

    def __repr__(self) -> str:
        state = "lost" if self.lost else "ended" if self.ended else "held"
        return f"Lease({self.key.queue!r}, {self.key.message_id!r}, {state}, try {self.tries})"

    def forward(self, queue: str, payloads: Any) -> None:
        """Push a payload, or a list of them, to another queue when this message is acked: all or nothing.

        A payload is a SplitPayload or a table. May be called several times, also for several queues: everything goes
        in one transaction with the ack, at the end of the block.
        """
        self._check()
        self._outputs += to_outputs(queue, payloads)

    def ack(self) -> None:
        """Note the message as done, and push what was forwarded; LeaseLost if the lease is over."""
        if not self._outputs:
            self._settle(wire.ACK_LEASES, AckLeases((self.key,)))
            return
        with self._ending():
            connection = self._queue.connection
            forward(connection, self._outputs, (self.key,), connection.settings.retry_seconds(LONG_RETRY_FOR))

    def release(self, delay: float = 0.0, failure: Failure | None = None) -> None:
        """Give the message back, to be claimed again after `delay` seconds; at its fifth try it is dead."""
        self._settle(wire.RELEASE_LEASES, ReleaseLeases((self.key,), delay, failure))

    def drop(self, reason: str | Failure) -> None:
        """Set the message aside as dead, with the reason; `penstock redrive` makes it pending again."""
        failure = reason if isinstance(reason, Failure) else Failure("Dropped", reason)
        self._settle(wire.DROP_LEASES, DropLeases((self.key,), failure))

    def end_by_server(self, text: str) -> bool:
        """Note that the server says that the lease is over; False while a call is under way that ends it."""
        if self._settling or self.ended:
            return False
        log.warning("%s", text)
        self.lost = True
        return True

    def __enter__(self) -> Split:
        return self.split  # of a lost lease, too: the block's first call says so, and the loop goes on

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self.ended:  # within the block
            return isinstance(error, Exception) and self._log_late(error)
        if error is not None and not isinstance(error, Exception):
            with suppress(PenstockError):
                self.release()
            return False
        try:
            if error is None:
                self._ack_or_fail()
            else:
                self.fail(error)
        except LeaseLost as lost:
            log.warning("%s", lost)
        return True

    def _ack_or_fail(self) -> None:
        try:
            self.ack()
        except (LeaseLost, Unavailable, TimedOut, Denied):
            raise
        except Exception as refused:  # what was forwarded can't be stored: the worker's mistake, as any other
            self.fail(refused)

    def fail(self, error: Exception) -> None:
        """Release the message with the error's class and trace, or set it aside if its payload is lost again."""
        if isinstance(error, LeaseLost) and self.lost:
            raise error
        delay = backoff(self.tries)
        key = self.key
        log.warning("%s: message %s failed at try %d", key.queue, key.message_id, self.tries, exc_info=error)
        failure = failure_of(error)
        if isinstance(error, Lost) and self.tries >= _LOST_TRIES:
            self.drop(failure)
        else:
            self.release(delay, failure)

    def _log_late(self, error: Exception) -> bool:
        log.warning("%s: an error after message %s was settled", self.key.queue, self.key.message_id, exc_info=error)
        return True

    def _settle(self, action: wire.Action[Any, LeaseOutcomes], request: Any) -> None:
        with self._ending():
            connection = self._queue.connection
            retry_for = connection.settings.retry_seconds(LONG_RETRY_FOR)
            [outcome] = connection.call(action, request, retry_for=retry_for).outcomes
            if outcome.code is not None:
                raise of_code(outcome.code, outcome.text or "")

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the lease with the block, or note that it is over."""
        self._check()
        self._settling = True
        try:
            yield
        except LeaseLost:
            self.lost = True
            self._queue.heartbeats.forget(self)
            raise
        finally:
            self._settling = False
        self.ended = True
        self._outputs = []
        self._queue.heartbeats.forget(self)

    def _check(self) -> None:
        if self.lost:
            raise LeaseLost(
                f"{self.key.queue}: the lease of message {self.key.message_id} is over, and another worker may have "
                "the message: what was made of it doesn't count"
            )
        if self.ended:
            raise InvalidRequest(f"{self.key.queue}: message {self.key.message_id} was settled already: claim another")


@dataclass(frozen=True, slots=True)
class _Queue:
    """What the leases of one claim share."""

    path: str
    connection: Connection
    heartbeats: Heartbeats


class Claims:
    """The messages of a queue as one worker gets them: iterate over it, once.

    Ends when the queue is complete, or at `stop`; raises WriteEnded with the cause if the queue has failed. SIGTERM
    lets the present block finish and ack, releases what was loaded ahead, and raises SystemExit(143), unless the
    program has a handler of its own.
    """

    def __init__(
        self, connection: Connection, heartbeats: Heartbeats, path: str, *, prefetch: int, to: Sequence[str]
    ) -> None:
        if prefetch < 0:
            raise InvalidRequest(f"prefetch={prefetch}: expected a number from 0")
        if isinstance(to, str):
            raise InvalidRequest(f"to={to!r:.80}: expected a list of queues: to=[{to!r:.80}]")
        self._loader = _Loader(_Queue(path, connection, heartbeats), prefetch, tuple(to))
        self._terminated = False

    def stop(self) -> None:
        """End the loop behind the present block, from any thread or a signal's handler."""
        self._loader.stopping = True  # a bare flag: a handler must not take a lock

    def __iter__(self) -> Iterator[Lease]:
        with self._sigterm():
            self._loader.start()
            try:
                while (lease := self._loader.take()) is not None:
                    yield lease
            finally:
                self._loader.close()
        if self._terminated:
            raise SystemExit(128 + signal.SIGTERM)

    @contextmanager
    def _sigterm(self) -> Iterator[None]:
        """Stop at SIGTERM, where Python can hear it and the program doesn't."""
        is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if threading.current_thread() is not threading.main_thread() or not is_free:
            yield
            return

        def terminate(number: int, frame: FrameType | None) -> None:
            self._terminated = True
            self.stop()

        signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Loader:
    """A thread that claims messages and loads their payloads, `prefetch` ahead of the worker."""

    def __init__(self, queue: _Queue, prefetch: int, to: tuple[str, ...]) -> None:
        self.stopping = False
        self._queue = queue
        self._prefetch = prefetch
        self._to = to
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._changed = threading.Condition()  # all that follows
        self._ready: deque[Lease] = deque()
        self._waits, self._takes = False, 0
        """Whether the worker waits for a lease, and how many it has asked for."""
        self._taken, self._pace = time.monotonic(), _AHEAD
        """When the worker took its last lease, and the seconds that it needs for one, of late."""
        self._ended = False
        self._error: BaseException | None = None
        self._parts: LocalParts | None = None
        self._local: str | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-claim", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._thread.ident is not None:
            raise InvalidRequest(f"the claim of {self._queue.path} was iterated over already: claim again")
        self._thread.start()

    def take(self) -> Lease | None:
        """Return the next lease with its payload; None at the end."""
        with self._changed:
            self._waits = True
            self._takes += 1
            self._changed.notify_all()
            try:
                while not (self._has_ready() or self._ended or self.stopping):
                    self._changed.wait(_STOP_CHECK)
            finally:
                self._waits = False
            if self._ready and not self.stopping:
                now = time.monotonic()
                self._taken, self._pace = now, (self._pace + now - self._taken) / 2
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None and not self.stopping:
                raise self._error
            return None

    def _has_ready(self) -> bool:
        """Whether a lease is loaded; one that was lost meanwhile is passed over."""
        while self._ready and self._ready[0].lost:
            self._ready.popleft()
        return bool(self._ready)

    def close(self) -> None:
        """Stop the thread, which releases what was loaded and not taken."""
        self.stopping = True
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_LEAVE)
        if not self._thread.is_alive():
            self._release_rest()

    def _run(self) -> None:
        try:
            while room := self._wait_for_room():
                self._claim(room)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            if self.stopping:  # nobody may wait any more for this thread, which was in a long call
                self._release_rest()
            if self._parts is not None:
                self._parts.close()

    def _wait_for_room(self) -> int:
        """Return how many leases to claim; 0 at the end."""
        with self._changed:
            while not (self.stopping or self._ended):
                quick = int(_AHEAD / max(self._pace, _AHEAD / _MOST_AHEAD))
                ahead = self._prefetch and max(self._prefetch, quick)
                room = ahead + self._waits - len(self._ready)
                if room > (ahead - self._prefetch) // 2:
                    return room
                self._changed.wait(_STOP_CHECK)
            return 0

    def _claim(self, room: int) -> None:
        """Claim messages and load them one by one; wait if there are none."""
        connection = self._queue.connection
        takes = self._takes
        request = ClaimMessages(self._queue.path, uuid.uuid4().hex, self._worker, room, self._to)
        answer = connection.call(
            wire.CLAIM_MESSAGES, request, retry_for=connection.settings.retry_seconds(LONG_RETRY_FOR)
        )
        claimed = [(Lease(self._queue, each), each) for each in answer.messages]
        for lease, _ in claimed:
            self._queue.heartbeats.watch(lease, answer.lease_seconds)
        for number, (lease, each) in enumerate(claimed):
            if self.stopping:
                _release(rest for rest, _ in claimed[number:])
                return
            self._load(lease, each, answer)
        if claimed:
            return
        if answer.state == "failed":
            raise WriteEnded(f"{self._queue.path} has failed: {answer.cause}")
        with self._changed:
            if answer.state == "complete":
                self._ended = True
            else:
                # A worker that asks once more has acked since, by which it may have completed the queue
                self._changed.wait_for(
                    lambda: self.stopping or (self._waits and self._takes > takes), answer.retry_after
                )

    def _load(self, lease: Lease, claimed: ClaimedMessage, answer: ClaimedMessages) -> None:
        """Load a payload, and hand the lease to the worker; a message whose payload is lost is given back."""
        try:
            payload = self._payload(claimed, answer.local)
        except (Lost, NotFound, Expired) as gone:
            lost = gone if isinstance(gone, Lost) else Lost(str(gone))
            with suppress(PenstockError):  # the lease is over, or ends by itself
                lease.fail(lost)
            return
        lease.split = Split(claimed.message, payload)
        with self._changed:
            self._ready.append(lease)
            self._changed.notify_all()

    def _payload(self, claimed: ClaimedMessage, local: str | None) -> SplitPayload | None:
        message = claimed.message
        if message.is_source:
            return None
        if claimed.payload is not None:
            return SplitPayload.from_ipc(base64.b64decode(claimed.payload), message.split_id)
        if claimed.ticket is None:
            raise Lost(f"the payload {message.payload_key} of message {message.message_id} is gone")
        return SplitPayload.from_arrow(self._read(claimed.ticket.encode(), local), message.split_id)

    def _read(self, ticket: bytes, local: str | None) -> pa.Table:
        """Read a ticket's rows: mapped on the server's host, else by do_get."""
        if local is not None and local != self._local:  # the server's first one, or it was started again
            self._local, self._parts = local, LocalParts(local)
        streams = [] if self._parts is None else self._parts.open(ticket)
        if streams:
            return pa.concat_tables(slices.open_stream(each, None).read_all() for each in streams)
        return read_table(self._queue.connection, ticket)

    def _release_rest(self) -> None:
        """Release what was loaded ahead and will not be taken."""
        with self._changed:
            rest, self._ready = self._ready, deque()
        _release(rest)


def _release(leases: Iterable[Lease]) -> None:
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
    trace = "".join(traceback.format_exception(error))
    return Failure(name, str(error)[:1_000], trace[-_MOST_TRACE:])
