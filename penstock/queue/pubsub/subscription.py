"""The one owner of a subscription: what is new, what is released, which batches wait.

A puller's batch is judged in the committer: messages that are known are duplicates, and get the place that they have;
the others are appended, and the batch is answered once they are durable. Which rows are released is decided by the
consumers' commits (or, under `ack=journal`, by the journal's end); pullers are told after COMMIT has returned, and
ack what lies below.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import steps
from penstock.errors import InvalidRequest, NotFound, PenstockError, StoreFull, Unavailable
from penstock.ledger.ledger import Ledger
from penstock.queue.pubsub import registry
from penstock.queue.pubsub.acks import AckLedger
from penstock.queue.pubsub.dedup import KnownMessages
from penstock.queue.pubsub.index import UNKNOWN, Index
from penstock.queue.pubsub.pulled import PulledBatch, PullerStream, check_messages
from penstock.queue.pubsub.rate import Rate
from penstock.queue.pubsub.redeliveries import Redeliveries
from penstock.queue.pubsub.registry import Record
from penstock.queue.pubsub.window import Arrivals
from penstock.queue.topics.append import Appender, Placed
from penstock.queue.topics.consumers import floors
from penstock.queue.topics.topics import Topics
from penstock.store.payloads import Store
from penstock.text import counted, format_size
from penstock.wire.position import Position

log = logging.getLogger("penstock")
_RUN_ROWS = 4_096
"""Rows without a key that go to one shard before the next one gets some: a group of batches is one part, one fsync."""
_RETRY_FULL = 5.0


@dataclass(frozen=True, slots=True)
class State:
    """A subscription's figures."""

    record: Record
    released: Position
    unreleased_rows: int
    unreleased_bytes: int
    parked_batches: int
    ids: int
    duplicates: Mapping[str, int]
    """By cause, since the server began."""
    bytes_per_second: float
    pullers: tuple[PullerStream, ...]
    error: PenstockError | None


class Subscription:
    """The owner. Its methods are called by many threads; `judge`, `settle` and `failed` by the committer's alone."""

    def __init__(
        self,
        path: str,
        ledger: Ledger,
        topics: Topics,
        store: Store,
        appender: Appender,
        *,
        steady: Callable[[], float] = time.monotonic,
        named: Callable[[], None] = lambda: None,
        **window: Any,
    ) -> None:
        """`named` is called once rows are durable that name revisions of schemas."""
        self.path = path
        self._named = named
        self.known = KnownMessages(path, ledger, topics, store, **window)
        self._ledger, self._topics, self._appender, self._steady = ledger, topics, appender, steady
        self._lock = threading.RLock()  # everything below
        self._changed = threading.Condition(self._lock)
        """Notified when a batch has left the committer."""
        self._record = registry.by_path(ledger.database, path)
        topic = topics.topic(path)
        self.journal = topic.journal
        self._ends = topic.latest()
        self._released = dict(self._record.released)
        self._is_ready = threading.Event()
        self._pending: dict[PulledBatch, Index] = {}
        """What is being appended; the places are row numbers of the batch."""
        self._in_flight: dict[PulledBatch, int] = {}
        """Batches at the committer, and the rows of each."""
        self._parked: list[PulledBatch] = []
        """Batches that wait until something is released, or the disk has room, in their order."""
        self._retry_at = 0.0
        """When the disk is tried again, by the clock of `tick`."""
        self._bytes = 0
        """About the bytes that aren't released."""
        self._streams: list[PullerStream] = []
        self._connections = 0
        self._redeliveries = Redeliveries()
        self._spread, self._run = 0, 0
        self._rate = Rate()
        self._ack_ledger = AckLedger()
        self._arrivals = Arrivals()
        self._pulled_since = 0.0
        """When the first of the pullers connected that are there, by the steady clock."""
        self._warned = ""
        self._error: PenstockError | None = None
        self._closed = False

    # --- its life ---------------------------------------------------------------------------

    def rebuild(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Read back which messages are known; until then no puller is served."""
        if self.known.read_back(stop):
            self._measure()
            self._is_ready.set()

    def close(self, error: PenstockError) -> None:
        """Serve no puller any more, and tell each why."""
        with self._lock:
            self._closed = True
            streams, self._streams, self._parked = self._streams, [], []
        for stream in streams:
            stream.refuse(error)

    # --- pullers ----------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether pullers are served."""
        return self._is_ready.is_set()

    def connect(self, stream: PullerStream, welcome: Callable[[Position], None]) -> None:
        """Begin to serve a puller: `welcome` is called with what is released, before anything else is said."""
        if not self._is_ready.is_set():
            raise Unavailable(f"{self.path}: its index is being read back from the journal", retry_after=1)
        with self._lock:
            self._check_open()
            self._connections += 1
            if not self._streams:
                self._pulled_since = self._steady()
            stream.number = self._connections
            stream.name = f"stream {stream.number}"
            self._streams.append(stream)
            welcome(self._position())

    def disconnect(self, stream: PullerStream) -> None:
        """Serve a puller no more: what it has sent is appended or not, and no one is told."""
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)
            self._parked = [batch for batch in self._parked if batch.stream is not stream]
        self._ack_ledger.left(stream)

    def settled(self, stream: PullerStream, timeout: float) -> None:
        """Wait until the batches of a puller at the committer have their answers; not for those that are parked."""
        with self._changed:
            self._changed.wait_for(lambda: all(each.stream is not stream for each in self._in_flight), timeout)

    def submit(self, stream: PullerStream, number: int, batch: pa.RecordBatch) -> None:
        """Take a puller's batch; it is answered once its rows are durable, or ends the stream."""
        check_messages(self.path, batch)
        pulled = PulledBatch(self, stream, number, batch)
        with self._lock:
            self._check_open()
            self._rate.total += pulled.bytes
            waits = any(each.stream is stream for each in self._parked)
            full = self._fullness()
            if not waits and (full is None or (self.known.find(pulled.keys) != UNKNOWN).all()):
                self._in_flight[pulled] = len(pulled.keys)
            else:
                self._parked.append(pulled)
                self._warn(full)
                return
        self._send(pulled)

    def report(
        self,
        stream: PullerStream,
        *,
        counters: Mapping[str, Any],
        acked: Mapping[int, list[tuple[int, int]]],
        oldest_unacked: float | None = None,
        name: str | None = None,
    ) -> None:
        """Note what a puller says: its counters, and the offsets whose acks it has sent."""
        with self._lock:
            stream.name = name or stream.name
            stream.counters, stream.oldest_unacked = counters, oldest_unacked
            for shard, ranges in acked.items():
                for first, end in ranges:
                    if not 0 <= first < end <= self._released_of(shard):
                        raise InvalidRequest(
                            f"{self.path}: the puller has acknowledged shard {shard}, offsets {first} to {end}: "
                            f"released is up to {self._released_of(shard)}"
                        )
                self.known.report((shard, first, end) for first, end in ranges)

    def _check_open(self) -> None:
        if self._closed:
            raise NotFound(f"{self.path} was detached, or its server is stopping")

    def _send(self, batch: PulledBatch) -> None:
        """Queue a batch at the committer. Not under the lock: that one's thread takes it."""
        try:
            self._appender.submit(batch)
        except PenstockError as error:
            self.failed(batch, error)

    # --- the committer's thread -------------------------------------------------------------

    def judge(self, batch: PulledBatch) -> bool:
        """Say whether a batch has something new; answer it if it hasn't."""
        with self._lock:
            if batch.stream.failed or self._closed:  # an earlier batch was not stored: none may overtake it
                self._in_flight.pop(batch, None)
                return False
            if any(each.stream is batch.stream and each.number < batch.number for each in self._parked):
                self._park(batch)
                return False
            places = self.known.find(batch.keys)
            is_new = (places == UNKNOWN) & (batch.first_rows == np.arange(len(places)))
            in_group = np.zeros(len(places), dtype=np.bool_)
            for pending in self._pending.values():
                in_group |= pending.find(batch.keys) != UNKNOWN
            is_new &= ~in_group
            batch.places, batch.is_new = places, is_new
            rows = np.flatnonzero(is_new)
            is_next = all(each.stream is not batch.stream for each in self._pending)
            if is_next and not len(rows) and not in_group.any():
                self._answer(batch)
                return False
            appended = Index()
            appended.add(batch.keys.take(rows), rows)
            self._pending[batch] = appended
            batch.spread = self._next_spread(len(rows))
        batch.batches = [batch.whole if is_new.all() else batch.whole.filter(pa.array(is_new))]
        return True

    def withdraw(self, batch: PulledBatch) -> None:
        """Forget what `judge` has noted: the batch is judged again."""
        with self._lock:
            self._pending.pop(batch, None)

    def settle(self, batch: PulledBatch, placed: Placed) -> None:
        """Note where the rows are, which are durable now, and answer."""
        steps.passed("pull.committed")
        if batch.revisions:
            self._named()
        with self._lock:
            self._pending.pop(batch, None)
            batch.place(placed)
            new = batch.is_new
            self.known.add(batch.keys.take(np.flatnonzero(new)), batch.places[new])
            for shard, (first, end) in placed.shards.items():
                self._ends[shard] = max(end, self._ends.get(shard, 0))
                self._redeliveries.begin(shard, first, batch.stream.number)
            self._bytes += batch.bytes * int(np.count_nonzero(new)) // max(1, len(new))
            self._answer(batch)
            if self._record.ack == "journal" and new.any():
                for stream in self._streams:
                    stream.push(self._position())

    def failed(self, batch: PulledBatch, error: BaseException) -> None:
        """Keep a batch for later where the disk is full; otherwise end its stream."""
        with self._lock:
            self._pending.pop(batch, None)
            if batch not in self._in_flight:  # it has its answer
                return
            if isinstance(error, StoreFull) and not self._closed:
                self._park(batch)
                self._retry_at = float("inf")
                self._warn(str(error))
                return
            del self._in_flight[batch]
            self._changed.notify_all()
            known, batch.stream.failed = batch.stream.failed, True
        if not known:
            batch.stream.refuse(error if isinstance(error, Exception) else Unavailable("the server is shutting down"))

    def _park(self, batch: PulledBatch) -> None:
        """Put a batch aside, in front of those of its stream that came later."""
        self._in_flight.pop(batch, None)
        if batch.stream not in self._streams:
            return
        later = (
            at for at, each in enumerate(self._parked) if each.stream is batch.stream and each.number > batch.number
        )
        self._parked.insert(next(later, len(self._parked)), batch)

    def _answer(self, batch: PulledBatch) -> None:
        """Answer a batch: the place of each row, old or new."""
        self._in_flight.pop(batch, None)
        self._changed.notify_all()
        missing = batch.places == UNKNOWN
        if missing.any():  # duplicates of this batch, and of others that were appended with it
            batch.places[missing] = self.known.find(batch.keys.take(np.flatnonzero(missing)))
        connected = {stream.number for stream in self._streams}
        self._redeliveries.count(batch.places[~batch.is_new], batch.stream.number, connected, self._position())
        if len(batch.keys):
            self._arrivals.note(int(batch.keys.times.min()), self._steady())
        batch.answer()

    def _next_spread(self, rows: int) -> int:
        """Return the number of the shard for rows without a key: the next one after each run of rows."""
        self._run += rows
        if self._run > _RUN_ROWS:
            self._spread, self._run = self._spread + 1, rows
        return self._spread

    # --- what is released -------------------------------------------------------------------

    def released(self) -> Position:
        """Return the position below which rows are released."""
        with self._lock:
            return self._position()

    def advance(self) -> None:
        """Tell the pullers what the ledger has released: a commit of a consumer has returned, or options changed."""
        record = registry.find(self._ledger.database, self.path)
        if record is None:
            return
        with self._lock:
            before = self._position()
            self._record = record
            for shard, offset in record.released.items():
                self._released[shard] = max(offset, self._released.get(shard, 0))
            position = self._position()
            if position == before:
                return
            steps.passed("release.recorded")
            self._measure()
            self._redeliveries.drop_below(position)
            for stream in self._streams:
                stream.push(position)
        self._unpark()

    def _position(self) -> Position:
        return Position({shard: self._released_of(shard) for shard in self._ends})

    def _released_of(self, shard: int) -> int:
        if self._record.ack == "journal":
            return self._ends.get(shard, 0)
        return self._released.get(shard, 0)

    def _unreleased(self) -> int:
        """Return how many rows aren't released, those included that are being appended."""
        if self._record.ack == "journal":
            return 0
        rows = sum(end - self._released.get(shard, 0) for shard, end in self._ends.items())
        return rows + sum(self._in_flight.values())

    def _fullness(self) -> str | None:
        """Say why nothing more may be appended; None if it may."""
        record, rows = self._record, self._unreleased()
        if self._retry_at:
            return "the disk is full"
        if rows >= record.max_unreleased_rows:
            waiting = counted(rows, "row isn't", "rows aren't")
            return f"{waiting} released, max_unreleased_rows is {record.max_unreleased_rows:,}"
        if self._bytes >= record.max_unreleased_bytes and rows:
            limit = format_size(record.max_unreleased_bytes)
            return f"{format_size(self._bytes)} aren't released, max_unreleased_bytes is {limit}"
        return None

    def _warn(self, full: str | None) -> None:
        """Log, once, that pulling pauses, and what it waits for."""
        if full is None or self._warned:
            return
        self._warned = full
        cure = "it goes on by itself when its consumers commit"
        if self._retry_at:
            cure = "it goes on by itself when there is room"
        elif not floors(self._ledger.database, self.path):
            cure = "no consumer is live, so nothing is released: start the query, or attach with ack=journal"
        log.warning("%s: pulling pauses, %s; %s", self.path, full, cure)

    def _unpark(self) -> None:
        """Send parked batches to the committer, as far as the bounds allow."""
        sent: list[PulledBatch] = []
        with self._lock:
            while self._parked and self._fullness() is None:
                batch = self._parked.pop(0)
                self._in_flight[batch] = len(batch.keys)
                sent.append(batch)
            if self._warned and not self._parked and self._fullness() is None:
                self._warned = ""
                log.info("%s: pulling goes on", self.path)
        for batch in sent:
            self._send(batch)

    def _measure(self) -> None:
        """Measure the bytes that aren't released."""
        topic = self._topics.find(self.path)
        if topic is not None:
            self._bytes = self._topics.behind(topic, self._position()).bytes

    def tick(self, now: float) -> None:
        """Forget what may be forgotten, and try again batches that wait, about once a second: `now` is a clock that
        never jumps.
        """
        if not self._is_ready.is_set():
            return
        with self._lock:
            released, is_connected, retention = self._position(), bool(self._streams), self._record.retention
        self.known.tick(now, released, is_connected=is_connected, retention=retention)
        with self._lock:
            self._rate.look(now)
            if self._retry_at == float("inf"):
                self._retry_at = now + _RETRY_FULL
            elif self._retry_at and now >= self._retry_at:
                self._retry_at = 0.0
        self._unpark()

    # --- what is seen -----------------------------------------------------------------------

    def fail(self, error: PenstockError) -> None:
        """Note why no puller can pull: every query is told."""
        with self._lock:
            was, self._error = self._error, error
        if str(was) != str(error):
            log.error("%s: %s", self.path, error)

    def recover(self) -> None:
        """Note that a puller can pull again."""
        with self._lock:
            was, self._error = self._error, None
        if was is not None:
            log.info("%s: it can be pulled again", self.path)

    def check(self) -> None:
        """Raise why no puller can pull, if none can."""
        with self._lock:
            error = self._error
        if error is not None:
            raise type(error)(str(error))

    def quiet(self, published_before: float) -> float:
        """Return for how many seconds pullers have brought no message that was published before a time; 0 without a
        puller, or while such a message is being appended.
        """
        before = round(published_before * 1e6)
        with self._lock:
            if not self._streams or any(batch.keys.times.min(initial=before) < before for batch in self._in_flight):
                return 0.0
            last = self._arrivals.last_before(before)
            return self._steady() - max(self._pulled_since, last or 0.0)

    def state(self) -> State:
        """Return the figures."""
        with self._lock:
            return State(
                self._record, self._position(), self._unreleased() - sum(self._in_flight.values()), self._bytes,
                len(self._parked), len(self.known),
                self._redeliveries.counts(), self._rate.per_second(), tuple(self._streams),
                self._error,
            )  # fmt: skip

    def acks(self, within: float) -> list[pa.RecordBatch]:
        """Return what the connected pullers know of their leases, rows of ACKS; ask them for so many seconds."""
        with self._lock:
            streams = [*self._streams]
        return self._ack_ledger.gather(streams, within)

    def take_acks(self, stream: PullerStream, request: str, rows: pa.RecordBatch | None) -> None:
        """Take a puller's answer to `acks`; None: that was all."""
        self._ack_ledger.take(stream, request, rows)
