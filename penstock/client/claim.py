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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any, Literal

import pyarrow as pa

from penstock.client.connection import Connection
from penstock.client.get import read_table
from penstock.client.heartbeats import Heartbeats
from penstock.client.local import LocalParts
from penstock.client.push import Output, settle, to_outputs
from penstock.client.settings import LONG_RETRY_FOR
from penstock.client.settling import Settleable, Settler, settle_blocks
from penstock.errors import (
    Expired,
    InvalidRequest,
    LeaseLost,
    Lost,
    NotFound,
    PenstockError,
    WriteEnded,
    of_code,
)  # fmt: skip
from penstock.rows import slices
from penstock.rows.payload import SplitPayload
from penstock.wire import actions as wire
from penstock.wire.message import QueueMessage
from penstock.wire.queue import (
    ClaimedMessage,
    ClaimedMessages,
    ClaimMessages,
    DropLeases,
    Failure,
    LeaseKey,
    LeaseOutcome,
    LeaseOutcomes,
    QueueRoom,
    ReleaseLeases,
)  # fmt: skip

log = logging.getLogger("penstock")
_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 1.0, 60.0
"""Seconds before a message whose worker failed is pending again: twice as long at each try."""
_LOST_TRIES = 2
"""A message whose payload is lost is dead at this try: the first may have met a server that was just put back."""
_AHEAD, _MOST_AHEAD = 0.1, 64
"""Seconds of work, and messages, that are loaded ahead of a worker that is quick: a claim costs as much as an ack."""
_BATCH_BYTES = 8 << 20
"""Of the payloads that a worker takes at once, unless one is larger."""
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
            _release(self._leases)

    def fail(self, error: Exception) -> None:
        """Give the messages back."""
        for lease in self._leases:
            lease.settled(None)
            lease.fail(error)


@dataclass(frozen=True, slots=True)
class _Queue:
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


class Claims:
    """The messages of a queue as one worker gets them: iterate over it, once.

    Ends when the queue is complete, or at `stop`; raises WriteEnded with the cause if the queue has failed. SIGTERM
    lets the present block finish and ack, releases what was loaded ahead, and raises SystemExit(143), unless the
    program has a handler of its own.
    """

    def __init__(
        self,
        connection: Connection,
        heartbeats: Heartbeats,
        path: str,
        *,
        prefetch: int,
        to: Sequence[str],
        wait: float,
        room: QueueRoom | None,
        worker: str | None,
    ) -> None:
        if prefetch < 0:
            raise InvalidRequest(f"prefetch={prefetch}: expected a number from 0")
        if isinstance(to, str):
            raise InvalidRequest(f"to={to!r:.80}: expected a list of queues: to=[{to!r:.80}]")
        settler = Settler(connection, is_ended=not prefetch)
        request = ClaimMessages(path, "", worker or f"{socket.gethostname()}:{os.getpid()}", 0, tuple(to), room)
        self._loader = _Loader(_Queue(path, connection, heartbeats, settler), prefetch, request, wait)
        self._terminated = False

    def stop(self) -> None:
        """End the loop behind the present block, from any thread or a signal's handler."""
        self._loader.stopping = True  # a bare flag: a handler must not take a lock

    def set_room(self, room: tuple[int, int] | None) -> None:
        """Let the next claims have this bound of the queues of `to`, from any thread."""
        self._loader.set_room(room)

    def __iter__(self) -> Iterator[Lease]:
        with closing(self.batches(1)) as batches:
            for [lease] in batches:
                yield lease

    def batches(self, most: int, *, linger: float = 0.0) -> Generator[list[Lease]]:
        """Iterate over all leases that are loaded, so many at once or 8 MiB, in place of one after the other.

        With `linger`, fewer come only after so many seconds.
        """
        with self._sigterm():
            self._loader.start(most)
            try:
                while leases := self._loader.take(most, linger):
                    yield leases
                self._loader.settle_rest()
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

    def __init__(self, queue: _Queue, prefetch: int, request: ClaimMessages, wait: float) -> None:
        self.stopping = False
        self._wait = wait
        self._give_up: float | None = None
        """When to wait no longer for a queue that nobody has made; 0 once it was there."""
        self._queue = queue
        self._prefetch = prefetch
        self._request = request
        """What each claim asks for, but for its own id and number."""
        self._changed = queue.settler.changed  # all that follows
        self._ready: deque[Lease] = deque()
        self._waits, self._takes = False, 0
        """Whether the worker waits for a lease, and how many it has asked for."""
        self._batch = 1
        """How many leases the worker takes at once."""
        self._taken, self._pace, self._size = time.monotonic(), _AHEAD, float(_BATCH_BYTES)
        """When the worker took its last lease; the seconds that it needs for one, and the bytes of one, of late."""
        self._ended = False
        self._error: BaseException | None = None
        self._parts: LocalParts | None = None
        self._local: str | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-claim", daemon=True)

    def start(self, batch: int) -> None:
        """Start the thread for a worker that takes so many leases at once."""
        if self._thread.ident is not None:
            raise InvalidRequest(f"the claim of {self._queue.path} was iterated over already: claim again")
        self._batch = batch
        self._thread.start()

    def set_room(self, room: tuple[int, int] | None) -> None:
        """Ask for no more than these queues have room for, from the next claim on."""
        self._request = replace(self._request, room=None if room is None else QueueRoom(*room))

    def take(self, most: int, linger: float) -> list[Lease]:
        """Return the next leases with their payloads; none at the end."""
        with self._changed:
            self._waits = True
            self._takes += 1
            self._changed.notify_all()
            try:
                while not (self._has_ready() or self._has_ended()):
                    self._changed.wait(_STOP_CHECK)
                if linger:
                    self._changed.wait_for(
                        lambda: len(self._ready) >= most or self._loaded() >= _BATCH_BYTES or self._has_ended(), linger
                    )
            finally:
                self._waits = False
            self._check_settled()
            if self._has_ready() and not self.stopping:
                leases = self._pop(most)
                now = time.monotonic()
                self._taken, self._pace = now, (self._pace + (now - self._taken) / len(leases)) / 2
                self._changed.notify_all()
                return leases
            if self._error is not None and not self.stopping:
                raise self._error
            return []

    def _loaded(self) -> int:
        """Return the bytes of what is loaded and not taken."""
        return sum(lease.bytes for lease in self._ready)

    def _has_ended(self) -> bool:
        """Whether no further lease will be loaded."""
        return bool(self._ended or self.stopping or self._queue.settler.error)

    def _pop(self, most: int) -> list[Lease]:
        """Take leases that are loaded: the first one, and others while their payloads are small."""
        leases = [self._ready.popleft()]
        size = leases[0].bytes
        while len(leases) < most and self._has_ready() and (size := size + self._ready[0].bytes) <= _BATCH_BYTES:
            leases.append(self._ready.popleft())
        return leases

    def _has_ready(self) -> bool:
        """Whether a lease is loaded; one that was lost meanwhile is passed over."""
        while self._ready and self._ready[0].lost:
            self._ready.popleft()
        return bool(self._ready)

    def _check_settled(self) -> None:
        """Raise what has ended the settling, once."""
        settler = self._queue.settler
        error, settler.error = settler.error, None
        if error is not None:
            raise error

    def settle_rest(self) -> None:
        """Wait until the server has answered for each block that has ended."""
        self._queue.settler.close()
        self._check_settled()

    def close(self) -> None:
        """Stop the thread, which releases what was loaded and not taken, and end as `settle_rest` does."""
        self.stopping = True
        with self._changed:
            self._changed.notify_all()
        try:
            self.settle_rest()
        except PenstockError as error:  # behind a break, where nobody would hear of it
            log.warning(
                "%s: blocks that have ended are not acked, so their messages come again: %s", self._queue.path, error
            )
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
                batches = 0 if self._batch == 1 else min(2 * self._batch, int(2 * _BATCH_BYTES / self._size))
                ahead = self._prefetch and max(self._prefetch, quick, batches)
                room = ahead + self._waits - len(self._ready) - len(self._queue.settler)
                if room > (ahead - self._prefetch) // 2:
                    return room
                self._changed.wait(_STOP_CHECK)
            return 0

    def _claim(self, room: int) -> None:
        """Claim messages and load them one by one; wait if there are none."""
        connection = self._queue.connection
        takes, settler = self._takes, self._queue.settler
        answers = settler.answers
        request = replace(self._request, claim=uuid.uuid4().hex, most=room)
        retry_for = connection.settings.retry_seconds(LONG_RETRY_FOR)
        try:
            answer = connection.call(wire.CLAIM_MESSAGES, request, retry_for=retry_for, waits_for_room=True)
        except NotFound as missing:
            self._wait_for_queue(missing)
            return
        self._give_up = 0.0
        claimed = [(Lease(self._queue, each), each) for each in answer.messages]
        for lease, _ in claimed:
            self._queue.heartbeats.watch(lease, answer.lease_seconds)
        for number, (lease, each) in enumerate(claimed):
            self._wait_for_bytes()
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
                # A worker that asks once more may have completed the queue since, if all of its blocks are acked
                self._changed.wait_for(
                    lambda: (
                        self.stopping
                        or (self._waits and not settler and (self._takes, settler.answers) != (takes, answers))
                    ),
                    answer.retry_after,
                )

    def _wait_for_bytes(self) -> None:
        """Wait while more is loaded than two takes of the worker: payloads may be far larger than those before them."""
        with self._changed:
            while len(self._ready) >= self._prefetch + 1 and self._loaded() > 2 * _BATCH_BYTES and not self.stopping:
                self._changed.wait(_STOP_CHECK)

    def _wait_for_queue(self, missing: NotFound) -> None:
        """Wait for a queue that nobody has made yet; raise the error once that is too long, or if it was there."""
        now = time.monotonic()
        is_first, self._give_up = self._give_up is None, now + self._wait if self._give_up is None else self._give_up
        if now >= self._give_up:
            raise missing
        if is_first:
            log.warning("%s isn't there yet; waiting for it for up to %g s", self._queue.path, self._wait)
        with self._changed:
            self._changed.wait_for(lambda: self.stopping, min(missing.retry_after or 1.0, self._give_up - now))

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
        lease.bytes = 0 if payload is None else slices.size_of_table(payload.data)
        with self._changed:
            self._size = max(1.0, (self._size + lease.bytes) / 2)
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
        connection = self._queue.connection
        return read_table(connection, ticket, retry_for=connection.settings.retry_seconds(LONG_RETRY_FOR))

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
    return Failure(name, str(error), "".join(traceback.format_exception(error))).cut()
