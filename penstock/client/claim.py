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
import signal
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from types import FrameType

import pyarrow as pa

from penstock.client.connection import Connection
from penstock.client.get import read_table
from penstock.client.heartbeats import Heartbeats
from penstock.client.lease import ClaimedQueue, Lease, Split, release_all
from penstock.client.local import LocalParts
from penstock.client.settings import LONG_RETRY_FOR
from penstock.client.settling import Settler
from penstock.errors import Expired, InvalidRequest, Lost, NotFound, PenstockError, WriteEnded
from penstock.rows import slices
from penstock.rows.payload import SplitPayload
from penstock.wire import actions as wire
from penstock.wire.queue import ClaimedMessage, ClaimedMessages, ClaimMessages, QueueRoom

log = logging.getLogger("penstock")
_AHEAD, _MOST_AHEAD = 0.1, 64
"""Seconds of work, and messages, that are loaded ahead of a worker that is quick: a claim costs as much as an ack."""
_BATCH_BYTES = 8 << 20
"""Of the payloads that a worker takes at once, unless one is larger."""
_STOP_CHECK = 0.2
"""Seconds between two looks at `stop` while the worker waits for a lease."""
_LEAVE = 10.0
"""Seconds that the loading thread has to release what it has loaded when the loop ends."""


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
        self._loader = _Loader(ClaimedQueue(path, connection, heartbeats, settler), prefetch, request, wait)
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

    def __init__(self, queue: ClaimedQueue, prefetch: int, request: ClaimMessages, wait: float) -> None:
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
                release_all(rest for rest, _ in claimed[number:])
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
        streams, _ = ([], 0) if self._parts is None else self._parts.open(ticket)
        if streams:
            return pa.concat_tables(slices.open_stream(each, None).read_all() for each in streams)
        connection = self._queue.connection
        return read_table(connection, ticket, retry_for=connection.settings.retry_seconds(LONG_RETRY_FOR))

    def _release_rest(self) -> None:
        """Release what was loaded ahead and will not be taken."""
        with self._changed:
            rest, self._ready = self._ready, deque()
        release_all(rest)
