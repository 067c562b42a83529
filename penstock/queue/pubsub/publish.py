"""A publisher: the staged parts of writes to a penstock server, as messages to a topic of Pub/Sub's.

server ──parts──▶ requests ──▶ Pub/Sub
       ◀──cursor── answers ◀──
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc
import pyarrow as pa

from penstock import steps
from penstock.errors import Expired, Lost, NotFound, PenstockError, WriteEnded
from penstock.queue.pubsub.requests import Request, requests_of
from penstock.queue.pubsub.transport import Topic, is_retried, translate_publish
from penstock.rows.messages import MESSAGES
from penstock.wire.publish import AskParts, NotePublished, PartsToPublish, PublishOptions, StagedPart

_log = logging.getLogger(__name__)

MOST_REQUESTS = 32
"""Requests that are sent and not noted yet: what may be published twice."""
_MOST_BYTES = 64 << 20
"""Of these requests; and of those that wait for one of their key."""
_REQUEST_BYTES = 500
"""Bytes of a request's object, besides its body."""
_NOTED, _NOTED_WITHIN = 8, 0.05
"""Answers that are noted together, and the seconds for which they wait for others: a note is a call and an fsync, which
cost more than the requests themselves when each was noted alone."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
"""Seconds until a request is sent again."""
_ENDING = 5.0
"""Seconds for which a publisher that is told to stop waits for answers."""
_SAID_AGAIN = 30.0
"""Seconds between two lines of the log that tell why Pub/Sub takes nothing."""


class Server(Protocol):
    """What a publisher calls at its server: with a client of it in the command line."""

    def next_parts(self, request: AskParts) -> PartsToPublish:
        """Return parts, after a few seconds none."""
        ...

    def note(self, request: NotePublished) -> None:
        """Have rows noted as published."""
        ...

    def read(self, part: StagedPart, local: str | None) -> Iterable[pa.RecordBatch]:
        """Return a part's rows."""
        ...


class Publisher:
    """Publishes one topic's writes, one after the other, until it is told to stop. It has nothing to lose."""

    def __init__(self, path: str, topic: Topic, server: Server) -> None:
        self._path, self._topic, self._server = path, topic, server

    def run(self, stopped: Callable[[], bool]) -> None:
        """Publish what comes until `stopped` says so; raise what ends it before."""
        _log.info("%s: publishes to %s", self._path, self._topic.name)
        while not stopped():
            work = self._server.next_parts(AskParts(self._path))
            if work.write is not None and work.parts:
                try:
                    _Publication(self._path, self._topic, self._server, work, stopped).run()
                except (WriteEnded, NotFound) as ended:
                    _log.warning("%s: write/%s: %s", self._path, work.write, ended)


@dataclass(slots=True)
class _Sent:
    """A request that isn't answered for good."""

    request: Request
    tries: int = 0


class _Publication:
    """One write's way to Pub/Sub. One thread does it all; gRPC's threads only hand over answers.

    1. Its parts become requests (`_requests`), in order; some wait for a request of their key to be answered, 64 MiB at
    most, while others overtake them.
    2. A request is sent (`_send`). One that Pub/Sub doesn't take now is sent again, while its key waits.
    3. Pub/Sub has answered: the server notes it (`_note`). A publisher that dies between 2. and 3. has its successor
       publish these rows again: at most `MOST_REQUESTS` requests, as no further one is sent before answers are noted.
    4. Where Pub/Sub refuses for good, nothing more is sent; what is answered is noted, with the reason.
    """

    def __init__(
        self, path: str, topic: Topic, server: Server, work: PartsToPublish, stopped: Callable[[], bool]
    ) -> None:
        assert work.write is not None
        self._path, self._topic, self._server, self._stopped = path, topic, server, stopped
        self._write = work.write
        self._options = work.options or PublishOptions()
        self._pending = self._requests(work)
        self._held = self._bytes = 0
        """Requests, and their bytes, that were sent and aren't noted."""
        self._flying = 0
        self._behind: dict[str, deque[Request]] = {}
        """The keys that have a request on its way, with those that wait for it."""
        self._next: deque[Request] = deque()
        """Requests whose keys wait no longer."""
        self._waiting = 0
        """Bytes in `_behind` and `_next`."""
        self._retries: list[tuple[float, int, _Sent]] = []
        self._numbers = itertools.count()
        self._answers: queue.SimpleQueue[tuple[_Sent, Any]] = queue.SimpleQueue()
        self._unnoted: list[Request] = []
        self._unnoted_since = 0.0
        self._sent_again = 0  # since the last note
        self._error: PenstockError | None = None
        self._said = 0.0

    def run(self) -> None:
        """Publish until all of it is noted, or until an error, or until it is told to stop."""
        stop_at: float | None = None
        while True:
            if stop_at is None and (self._error is not None or self._stopped()):
                stop_at = time.monotonic() + _ENDING
                self._retries.clear()
            if self._unnoted and (stop_at is not None or self._is_note_due()):
                self._note()
            if stop_at is None:
                self._fill()
            if not self._flying and (stop_at is not None or not self._held):
                break
            if stop_at is not None and time.monotonic() > stop_at:
                break
            self._take_answers()
        if self._error is not None:
            self._note(self._error)

    # --- 1. ---------------------------------------------------------------------------------

    def _requests(self, work: PartsToPublish) -> Iterator[Request]:
        ids = self._write if self._options.id_attribute else None
        while work.parts:
            after = work.parts[0].number - 1
            for part in work.parts:
                try:
                    batches = list(self._server.read(part, work.local))
                except Expired:  # its ticket: so much was published before it
                    break
                after = part.number
                rows = pa.Table.from_batches(batches, MESSAGES).combine_chunks().to_batches()
                published = [(first, end) for first, end in part.published]
                for each in rows:
                    yield from requests_of(self._topic.name, part.number, each, published, id_prefix=ids)
            work = self._server.next_parts(AskParts(self._path, self._write, after))

    def _fill(self) -> None:
        """Send requests while there is room."""
        while self._held < MOST_REQUESTS and self._bytes < _MOST_BYTES and (request := self._take_next()) is not None:
            self._held, self._bytes = self._held + 1, self._bytes + len(request.body)
            self._send(_Sent(request))

    def _take_next(self) -> Request | None:
        """Return a request whose key has none on its way; None if there is none, or too many wait for such a key."""
        if self._next:
            waited = self._next.popleft()
            self._waiting -= len(waited.body) + _REQUEST_BYTES
            return waited
        while self._waiting < _MOST_BYTES:
            try:
                request = next(self._pending, None)
            except Lost as lost:
                self._error = lost
                return None
            if request is None:
                return None
            if request.key not in self._behind:
                if request.key:
                    self._behind[request.key] = deque()
                return request
            self._behind[request.key].append(request)
            self._waiting += len(request.body) + _REQUEST_BYTES
        return None

    # --- 2. ---------------------------------------------------------------------------------

    def _send(self, sent: _Sent) -> None:
        self._flying += 1
        future = self._topic.publish(sent.request.body, compressed=self._options.compression is not None)
        future.add_done_callback(partial(self._answered, sent))
        steps.passed("publisher.sent")

    def _answered(self, sent: _Sent, future: Any) -> None:
        self._answers.put((sent, future))

    def _take_answers(self) -> None:
        """Wait for an answer, or until a request is due to be sent again, for a moment at most."""
        wait = _NOTED_WITHIN if self._unnoted else 0.2
        if self._retries:
            wait = min(wait, max(0.0, self._retries[0][0] - time.monotonic()))
        try:
            self._take(*self._answers.get(timeout=wait) if wait else self._answers.get_nowait())
            while True:
                self._take(*self._answers.get_nowait())
        except queue.Empty:
            pass
        while self._retries and self._retries[0][0] <= time.monotonic():
            self._send(heapq.heappop(self._retries)[2])

    def _take(self, sent: _Sent, future: Any) -> None:
        self._flying -= 1
        error = grpc.FutureCancelledError() if future.cancelled() else future.exception()
        if error is None:
            steps.passed("publisher.answered")
            self._unnoted.append(sent.request)
            if len(self._unnoted) == 1:
                self._unnoted_since = time.monotonic()
            self._release(sent.request.key)
        elif isinstance(error, grpc.RpcError) and (is_retried(error) or error.code() == grpc.StatusCode.CANCELLED):
            self._send_later(sent, error)
        elif isinstance(error, grpc.RpcError):
            request = sent.request
            refused = translate_publish(error, self._topic.name)
            where = f"rows {request.first:,} to {request.end - 1:,} of part {request.part}"
            key = f", ordering key {request.key[:80]!r}" if request.key else ""
            self._error = self._error or type(refused)(f"{refused} (write/{self._write}, {where}{key})")
        else:
            raise error

    def _release(self, key: str) -> None:
        """Have the request sent that waits for one of this key."""
        if not key:
            return
        if waiting := self._behind[key]:
            self._next.append(waiting.popleft())
        else:
            del self._behind[key]

    def _send_later(self, sent: _Sent, error: grpc.RpcError) -> None:
        pause = min(_SHORTEST_PAUSE * 2**sent.tries, _LONGEST_PAUSE) * (1 + os.urandom(1)[0] / 256) / 2
        sent.tries += 1
        self._sent_again += 1
        heapq.heappush(self._retries, (time.monotonic() + pause, next(self._numbers), sent))
        if time.monotonic() - self._said > _SAID_AGAIN:
            self._said = time.monotonic()
            _log.warning("%s; it is tried again", translate_publish(error, self._topic.name))

    # --- 3. ---------------------------------------------------------------------------------

    def _is_note_due(self) -> bool:
        """Whether what is unnoted is enough, has waited, or waits for nothing."""
        waited = time.monotonic() - self._unnoted_since
        return len(self._unnoted) >= _NOTED or not self._flying or waited > _NOTED_WITHIN

    def _note(self, error: PenstockError | None = None) -> None:
        """Tell the server what Pub/Sub has."""
        requests, self._unnoted = self._unnoted, []
        ranges = tuple((each.part, each.first, each.end) for each in requests)
        code, text = (None, None) if error is None else (error.code, str(error))
        size = sum(len(each.body) for each in requests)
        self._server.note(NotePublished(self._write, ranges, code, text, size, self._sent_again))
        self._held, self._bytes, self._sent_again = self._held - len(requests), self._bytes - size, 0
        steps.passed("publisher.noted")
