"""Producer: appends to a topic, pipelined, each of them durable once it is answered, and none of them twice."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.client.block import SendingBlock
from penstock.client.connection import Connection
from penstock.client.exchange import Exchange, Listener
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import InvalidRequest, LimitExceeded, Lost, PenstockError, SchemaMismatch, TimedOut, Unavailable
from penstock.rows import slices
from penstock.rows.fitting import fit_batches
from penstock.wire.exchange import MOST_BYTES, MOST_UNACKED, Answer, Welcome

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 3.0
"""Seconds before a stream is opened again; longer each time, until a batch is answered."""
_LEAVE = 5.0
"""Seconds that a producer has to say bye when its block is left by an exception."""


@dataclass(slots=True)
class _Sent:
    """A batch without an answer."""

    n: int
    batch: pa.RecordBatch
    answer: Future[Answer] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.answer.set_running_or_notify_cancel()  # it can't be cancelled: the batch is on its way


class Producer(SendingBlock, Listener):
    """Sends batches to a topic. Safe to share between threads.

    A context manager: leaving waits for all answers; leaving by exception sends nothing more. A server that is away is
    waited for, and gets only the batches that it hasn't stored.
    """

    def __init__(self, connection: Connection, path: str, *, max_in_flight: int = 64) -> None:
        if not 1 <= max_in_flight <= MOST_UNACKED:
            raise InvalidRequest(f"max_in_flight={max_in_flight}: expected 1 to {MOST_UNACKED:,} batches")
        self._connection, self._path, self._most = connection, path, max_in_flight
        self._retry_for = connection.settings.retry_seconds(LONG_RETRY_FOR)
        self._opening = threading.Lock()  # one stream is opened at a time
        self._sending = threading.Lock()
        """Held while batches are written to the stream, so that they go in their order."""
        self._changed = threading.Condition()  # all that follows
        self._unanswered: deque[_Sent] = deque()
        self._reserved = 0
        """Places of the window that callers have who wait for their turn to send."""
        self._number = self._written = self._acked = 0
        """The last batch that was taken, that went to this stream, and that is answered with all before it."""
        self._error: PenstockError | None = None
        self._closed, self._stop = False, threading.Event()
        self._called_back = threading.local()
        """Whether this thread gives answers, and so runs callbacks: it would wait for itself."""
        self._draining = False
        self._failing_since: float | None = None
        self._pause = _SHORTEST_PAUSE
        self._exchange: Exchange | None = None
        self.id: str | None = None
        self._schema: pa.Schema | None = None
        self._open(connection.settings.retry_seconds())

    def send(self, rows: pa.RecordBatch | pa.Table) -> Future[Answer]:
        """Send rows as one batch; the future has its answer, `shards`: the first offset and the end in each shard.

        Rows go in the types of the first batch; rows with other columns, or that lose something by that, are refused.
        Waits while `max_in_flight` batches are without an answer. Raises the error of an earlier batch: nothing behind
        that one is stored.
        """
        batch = self._fitted(_one_batch(rows))
        self._reserve()
        try:
            with self._sending:
                with self._changed:
                    self._reserved -= 1
                    self._check_open()
                    self._number += 1
                    sent = _Sent(self._number, batch)
                    self._unanswered.append(sent)
                    exchange = None if self._draining else self._exchange
                    if exchange is not None:
                        self._written = sent.n
                if exchange is not None:
                    _write(exchange, sent.batch)
        finally:
            with self._changed:
                self._changed.notify_all()
        return sent.answer

    def flush(self) -> None:
        """Wait until everything that was sent is durable, or raise why it isn't."""
        if self._is_called_back():
            raise InvalidRequest("flush and close wait for answers: an answer's callback can't call them")
        with self._changed:
            while self._unanswered and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Wait for all answers, and end; a second time does nothing."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Send no more, and say bye; what has no answer by then fails."""
        with self._changed:
            self._closed = True
            exchange = self._exchange
        self._stop.set()
        if exchange is not None:
            exchange.close(_LEAVE)
        self._fail(Unavailable(f"the producer of {self._path} was closed before the answer came"))

    def _reserve(self) -> None:
        """Wait for a place in the window."""
        with self._changed:
            self._check_open()
            while len(self._unanswered) + self._reserved >= self._most and not self._is_called_back():
                self._changed.wait()
                self._check_open()
            self._reserved += 1

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the schema of the first batch, as a stream has one alone."""
        with self._changed:
            schema = self._schema = self._schema or batch.schema
        try:
            [fitted] = fit_batches([batch], schema)
        except SchemaMismatch as other:
            difference = str(other).partition(". ")[0]
            raise SchemaMismatch(
                f"the producer of {self._path} has sent rows with other columns: {difference}. Cast these, or open "
                "another producer"
            ) from other
        return fitted

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise InvalidRequest(f"the producer of {self._path} is closed: open another one")

    # --- what the exchange tells ------------------------------------------------------------

    def answered(self, answer: Answer, places: pa.RecordBatch | None) -> None:
        """Give a batch its answer."""
        with self._changed:
            self._failing_since, self._pause = None, _SHORTEST_PAUSE
            if self._closed and not self._unanswered:  # left before this came
                return
            answered = self._take(answer)
        self._give([(answered, answer)])
        self._end_drained()

    def draining(self) -> None:
        """Send no more on this stream, and end it once everything is answered."""
        with self._changed:
            self._draining = True
        self._end_drained()

    def ended(self, error: PenstockError | None) -> None:
        """Open another stream, or give up."""
        with self._changed:
            self._exchange = None
            self._failing_since = self._failing_since or time.monotonic()
            left = self._failing_since + self._retry_for - time.monotonic()
            pause = max(self._pause, (error and error.retry_after) or 0)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        try:
            if error is not None and not isinstance(error, Unavailable | TimedOut):
                raise error
            if left <= 0:
                raise Unavailable(f"{self._path} took no batch for {self._retry_for:g} s: {error}")
            if not self._stop.wait(min(pause, left)):
                self._open(left)
        except PenstockError as final:
            self._fail(final)

    # --- streams ----------------------------------------------------------------------------

    def _open(self, retry_for: float) -> None:
        """Open a stream, and send what the server hasn't stored; meanwhile `send` fills the window."""
        with self._opening:
            with self._changed:
                self._draining = False
            settings = self._connection.settings
            exchange = self._connection.retry(
                lambda: Exchange(settings, self._path, self, producer=self.id, acked=self._acked),
                retry_for=retry_for, waits_for_room=True,
            )  # fmt: skip
            self.id = exchange.welcome.producer
            with self._sending:
                with self._changed:
                    self._exchange = exchange
                    answers = self._take_welcome(exchange.welcome)
                    unsent = list(self._unanswered)
                    self._written = self._number
                    if not unsent:
                        self._failing_since = None
                for sent in unsent:
                    _write(exchange, sent.batch)
        self._give(answers)
        if self._stop.is_set():  # closed meanwhile
            exchange.close(_LEAVE)
        self._end_drained()

    def _give(self, answers: list[tuple[Future[Answer], Answer]]) -> None:
        """Give batches their answers; what is called back may send, without a wait for a place in the window."""
        self._called_back.now = True
        try:
            for waiting, answer in answers:
                waiting.set_result(answer)
        finally:
            self._called_back.now = False

    def _is_called_back(self) -> bool:
        return getattr(self._called_back, "now", False)

    def _end_drained(self) -> None:
        with self._changed:
            exchange = self._exchange if self._draining and self._acked >= self._written else None
        if exchange is not None:
            exchange.finish()

    def _take_welcome(self, welcome: Welcome) -> list[tuple[Future[Answer], Answer]]:
        """Return the batches that turn out to be stored, with their answers."""
        stored = {answer.n: answer for answer in welcome.answers}
        answers = []
        while self._unanswered and self._unanswered[0].n <= welcome.last:
            answer = stored.get(self._unanswered[0].n)
            if answer is None:
                raise Lost(f"{self._path}: the server has batch {self._unanswered[0].n} and not where its rows are")
            answers.append((self._take(answer), answer))
        if welcome.last != self._acked:
            raise Lost(f"{self._path}: the server has {welcome.last} batches of this producer, expected {self._acked}")
        return answers

    def _take(self, answer: Answer) -> Future[Answer]:
        """Take the oldest batch out of the window: it is answered."""
        sent = self._unanswered.popleft()
        if sent.n != answer.n:
            raise Lost(f"{self._path}: expected the answer to batch {sent.n}, got that to {answer.n}")
        self._acked = sent.n
        self._changed.notify_all()
        return sent.answer

    def _fail(self, error: PenstockError) -> None:
        """Give the error to every batch without an answer, and to the next call."""
        with self._changed:
            if not self._closed:
                self._error = self._error or error
            unanswered, self._unanswered = self._unanswered, deque()
            self._changed.notify_all()
        for sent in unanswered:
            sent.answer.set_exception(error)


def _write(exchange: Exchange, batch: pa.RecordBatch) -> None:
    """Send a batch; where the stream has ended, the next one gets it."""
    with suppress(Unavailable):
        exchange.send(batch)


def _one_batch(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return rows as one batch, without metadata: topics keep none, and pandas notes another index in each."""
    if isinstance(rows, pa.Table):
        [rows] = rows.unify_dictionaries().combine_chunks().to_batches() or [_empty(rows.schema)]
    if not isinstance(rows, pa.RecordBatch):
        raise InvalidRequest(f"{type(rows).__name__} can't be sent: expected a pyarrow.RecordBatch or Table")
    if (size := slices.size_of(rows)) > MOST_BYTES:
        raise LimitExceeded(f"a batch of {size:,} bytes can't be sent: at most {MOST_BYTES:,}, so slice it, or put it")
    return rows.replace_schema_metadata()


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)
