"""The one owner of a subscription: what is new, what is released, what may be forgotten.

A puller's batch is judged in the committer: rows that the index knows are duplicates, and get the place that they have;
the others are appended, and the batch is answered once they are durable. Which rows are released is decided by the
consumers' commits (or, under `ack=journal`, by the journal's end); pullers are told after COMMIT has returned, and
ack what lies below. An id leaves the index when all of this is true:

1. its row is released,
2. a puller has reported that its ack was sent, which the ledger keeps,
3. since then a window has passed: an hour in which a puller was connected, or as many ids as the window has.

Or when the message is older than Pub/Sub keeps it: it is never redelivered then. (Its puller died before it reported.)
Retention takes no row whose id is in the index, so that a start reads the index back from the journal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock import steps
from penstock.errors import InvalidRequest, Lost, NotFound, PenstockError, StoreFull, Unavailable
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.pubsub import registry
from penstock.queue.pubsub.acks import AckLedger
from penstock.queue.pubsub.index import UNKNOWN, Index, Integers, Keys, Mask, keys_of, offsets_of, place_of, shards_of
from penstock.queue.pubsub.rate import Rate
from penstock.queue.pubsub.registry import MESSAGES, Record
from penstock.queue.pubsub.window import Arrivals, Deliveries, Mark, Ranges, Window
from penstock.queue.topics import journal
from penstock.queue.topics.append import Append, Appender, Placed
from penstock.queue.topics.consumers import floors
from penstock.queue.topics.topics import Topics
from penstock.rows import slices
from penstock.store.database import Reader
from penstock.store.payloads import SplitPayloadStore
from penstock.text import format_size
from penstock.wire.position import Position

log = logging.getLogger("penstock")
WINDOW_SECONDS = 3600.0
WINDOW_IDS = 10_000_000
_RUN_ROWS = 4_096
"""Rows without a key that go to one shard before the next one gets some: a group of batches is one part, one fsync."""
_RETRY_FULL = 5.0
_REBUILD = 3600.0
"""Seconds for which parts stay that are being read back, whatever compaction does."""
_REBUILT_AT_ONCE = 1 << 20
"""Ids that are read from the journal before they are added to the index."""
PLACES = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("duplicate", pa.bool_(), nullable=False),
    ]
)
Cause = Literal["released", "lease lapsed", "other puller", "restart of puller", "restart of server"]
CAUSES: tuple[Cause, ...] = ("released", "lease lapsed", "other puller", "restart of puller", "restart of server")


@dataclass(eq=False, slots=True)
class PullerStream:
    """One puller's connection, from its hello to its end."""

    answer: Callable[[int, pa.RecordBatch], None]
    """Called with a batch's number and the place of each of its rows, in the order of the numbers."""
    refuse: Callable[[Exception], None]
    """Called once: a batch was not stored, and no later one will be."""
    push: Callable[[Position], None]
    """Called with what is released, whenever that has moved."""
    ask: Callable[[str], None]
    """Called with a request's id when somebody looks at the ack ledger. None of the four may wait, or raise."""
    name: str = ""
    """host:pid, once it has reported."""
    counters: Mapping[str, Any] = field(default_factory=dict)
    """What it has reported last."""
    oldest_unacked: float | None = None
    failed: bool = False
    number: int = 0
    """Tells it from the others since the server's start."""


@dataclass(frozen=True, slots=True)
class State:
    """A subscription's figures."""

    record: Record
    released: Position
    unreleased_rows: int
    unreleased_bytes: int
    parked_batches: int
    ids: int
    id_bytes: int
    duplicates: Mapping[str, int]
    """By cause, since the server began."""
    bytes_per_second: float
    pullers: tuple[PullerStream, ...]
    error: PenstockError | None


class PulledBatch(Append):
    """A puller's batch, from its arrival to its answer."""

    unkeyed = ""  # Pub/Sub's word for no ordering key

    def __init__(self, owner: Subscription, stream: PullerStream, number: int, batch: pa.RecordBatch) -> None:
        self.path, self.schema = owner.path, MESSAGES
        self.stream, self.number, self.whole = stream, number, batch
        self.keys = keys_of(batch.column("message_id"), batch.column("publish_time"))
        self.bytes = slices.size_of(batch)
        self.batches = [batch]
        self.first_rows = self.keys.first_rows()
        self.places: Integers = np.full(len(self.keys), UNKNOWN, dtype=np.int64)
        """Of duplicates, as far as they were known when the batch was judged."""
        self.is_new: Mask = np.ones(len(self.keys), dtype=np.bool_)
        self._owner = owner

    def judge(self, database: Reader) -> bool:
        """Tell duplicates from what is new; answer a batch that has nothing new."""
        return self._owner.judge(self)

    def undo(self) -> None:
        """Forget that these messages are being appended."""
        self._owner.withdraw(self)

    def record(self, t: Transaction, placed: Placed) -> None:
        """Reject rows of a subscription that was detached meanwhile, and perhaps attached again."""
        layout = journal.layout(t, self.path)
        if registry.find(t, self.path) is None or layout is None or layout.journal != self._owner.journal:
            raise NotFound(f"{self.path} was detached")

    def settle(self, placed: Placed) -> None:
        """Answer with the place of each row."""
        self._owner.settle(self, placed)

    def fail(self, error: BaseException) -> None:
        """Try again later where the disk is full; otherwise end the puller's stream."""
        self._owner.failed(self, error)


class Subscription:
    """The owner. Its methods are called by many threads; `judge`, `settle` and `failed` by the committer's alone."""

    def __init__(
        self,
        path: str,
        ledger: Ledger,
        topics: Topics,
        store: SplitPayloadStore,
        appender: Appender,
        *,
        window_ids: int = WINDOW_IDS,
        window_seconds: float = WINDOW_SECONDS,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._ledger, self._topics, self._store, self._appender = ledger, topics, store, appender
        self.window_ids, self._steady = window_ids, steady
        self._lock = threading.RLock()  # everything below
        self._changed = threading.Condition(self._lock)
        """Notified when a batch has left the committer."""
        self._record = registry.by_path(ledger.database, path)
        topic = topics.topic(path)
        self.journal = topic.journal
        self._ends = topic.latest()
        self._released = dict(self._record.released)
        self._index = Index()
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
        self._deliveries: dict[int, Deliveries] = {shard: Deliveries() for shard in self._ends}
        self._acked = Ranges(registry.acked(ledger.database, path))
        self._reported: list[tuple[int, int, int]] = []
        """Acks that were reported and aren't in the ledger yet."""
        self._window = Window(window_seconds)
        self._spread, self._run = 0, 0
        self._rate = Rate()
        self._ack_ledger = AckLedger()
        self._held = journal.held(ledger.database, path)
        self._duplicates: Counter[str] = Counter()
        self._arrivals = Arrivals()
        self._pulled_since = 0.0
        """When the first of the pullers connected that are there, by the steady clock."""
        self._warned = ""
        self._error: PenstockError | None = None
        self._closed = False

    # --- its life ---------------------------------------------------------------------------

    def rebuild(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Read the index back from the journal; until then no puller is served."""
        waiting: list[tuple[Keys, Integers]] = []
        ids = 0
        for keys, places in self._messages():
            if stop():
                return
            waiting.append((keys, places))
            ids += len(keys)
            if ids >= _REBUILT_AT_ONCE:
                self._add(waiting)
                waiting, ids = [], 0
        self._add(waiting)
        self._measure()
        self._is_ready.set()

    def _messages(self) -> Iterator[tuple[Keys, Integers]]:
        """Give the ids of the journal's rows that may not be forgotten, with their places."""
        topic = self._topics.topic(self.path)
        start = {shard.number: max(shard.first, self._held.get(shard.number, 0)) for shard in topic.shards}
        for part in self._topics.range(topic, start, topic.latest(), ticketed_until=self._ledger.now() + _REBUILD):
            assert part.shard is not None
            try:
                rows = self._store.open(part.part).reader(["message_id", "publish_time"])
            except Lost as lost:
                log.warning(
                    "%s: the ids of lost rows aren't known: if they come again they are new rows: %s", self.path, lost
                )
                continue
            offset, skip, left = part.first + part.skip, part.skip, part.rows
            for batch in slices.first_rows(rows, left, skip=skip):
                first = place_of(part.shard, offset)
                places = np.arange(first, first + batch.num_rows, dtype=np.int64)
                yield keys_of(batch.column(0), batch.column(1)), places
                offset += batch.num_rows

    def _add(self, messages: list[tuple[Keys, Integers]]) -> None:
        """Add what isn't known: a journal never has a message twice, unless its id was forgotten in between."""
        if not messages:
            return
        texts, rows = {}, 0
        for keys, _ in messages:
            texts.update({rows + row: text for row, text in keys.texts.items()})
            rows += len(keys)
        together = Keys(
            np.concatenate([keys.ids for keys, _ in messages]),
            np.concatenate([keys.times for keys, _ in messages]),
            texts,
        )
        places = np.concatenate([places for _, places in messages])
        with self._lock:
            new = (self._index.find(together) == UNKNOWN) & (together.first_rows() == np.arange(rows))
            if new.all():
                self._index.add(together, places)
            else:
                chosen = np.flatnonzero(new)
                self._index.add(together.take(chosen), places[chosen])

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
        _check_batch(self.path, batch)
        pulled = PulledBatch(self, stream, number, batch)
        with self._lock:
            self._check_open()
            self._rate.total += pulled.bytes
            waits = any(each.stream is stream for each in self._parked)
            full = self._fullness()
            if not waits and (full is None or (self._index.find(pulled.keys) != UNKNOWN).all()):
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
                    self._reported.append((shard, first, end))

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
            places = self._index.find(batch.keys)
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
        with self._lock:
            self._pending.pop(batch, None)
            rows = np.flatnonzero(batch.is_new)
            new = _places(placed, len(rows))
            self._index.add(batch.keys.take(rows), new)
            batch.places[rows] = new
            for shard, (first, end) in placed.shards.items():
                self._ends[shard] = max(end, self._ends.get(shard, 0))
                self._deliveries.setdefault(shard, Deliveries()).note(first, batch.stream.number)
            self._bytes += batch.bytes * len(rows) // max(1, len(batch.keys))
            self._answer(batch)
            if self._record.ack == "journal" and len(rows):
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
            batch.places[missing] = self._index.find(batch.keys.take(np.flatnonzero(missing)))
        for place in batch.places[~batch.is_new].tolist():
            self._duplicates[self._cause(place, batch.stream)] += 1
        columns = [
            pa.array(shards_of(batch.places).astype(np.int32)),
            pa.array(offsets_of(batch.places)),
            pa.array(~batch.is_new),
        ]
        if len(batch.keys):
            self._arrivals.note(int(batch.keys.times.min()), self._steady())
        batch.stream.answer(batch.number, pa.RecordBatch.from_arrays(columns, schema=PLACES))

    def _cause(self, place: int, stream: PullerStream) -> Cause:
        """Infer why a message came again, from where its row is and which puller brought it first.

        `released`: its row was released already, so its ack was late, lost, or undone by a seek. Otherwise it was
        leased, and the first puller that brought it says why it is no longer: this one, whose lease lapsed; another one
        that is still connected; one that has ended; or one from before the server's start.
        """
        shard, offset = place >> 48, place & ((1 << 48) - 1)
        if offset < self._released_of(shard):
            return "released"
        first = self._deliveries[shard].at(offset)
        if not first:
            return "restart of server"
        if first == stream.number:
            return "lease lapsed"
        return "other puller" if any(each.number == first for each in self._streams) else "restart of puller"

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
            for shard, offset in position.items():
                self._deliveries[shard].drop_below(offset)
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
            return f"{rows:,} rows aren't released, max_unreleased_rows is {record.max_unreleased_rows:,}"
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

    # --- what is forgotten ------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do the regular work, about once a second: `now` is a clock that never jumps.

        1. Reported acks are in the ledger. 2. Ids whose window has passed are forgotten. 3. Retention may have their
        rows, once the ledger knows. 4. Batches that wait are tried again.
        """
        if not self._is_ready.is_set():
            return
        self._note_acked()  # 1.
        with self._lock:
            mark = self._window.passed(
                now, self._acked, self._position(), is_connected=bool(self._streams), ids=self.window_ids
            )
        if mark is not None:
            self._forget(mark)  # 2., 3.
        with self._lock:
            self._rate.look(now)
            if self._retry_at == float("inf"):
                self._retry_at = now + _RETRY_FULL
            elif self._retry_at and now >= self._retry_at:
                self._retry_at = 0.0
        self._unpark()  # 4.

    def _note_acked(self) -> None:
        with self._lock:
            reported, self._reported = self._reported, []
        if not reported:
            return
        merged = Ranges(reported)
        try:
            self._ledger.change(lambda t: registry.note_acked(t, self.path, list(merged)))
        except BaseException:
            with self._lock:
                self._reported = [*reported, *self._reported]
            raise
        steps.passed("ack.recorded")
        with self._lock:
            for shard, first, end in merged:
                self._acked.add(shard, first, end)

    def _forget(self, mark: Mark) -> None:
        """Forget the ids that were acked at a mark, and those released then that are too old to come again.

        The ledger knows last that retention may have their rows: what is read back after a crash is in the index again.
        """
        oldest = round((self._ledger.now() - self._record.retention) * 1e6)
        released = np.zeros(max(mark.released, default=0) + 1, dtype=np.int64)
        for shard, offset in mark.released.items():
            released[shard] = offset

        def is_past(times: Integers, places: Integers) -> Mask:
            is_acked: Mask = np.searchsorted(mark.acked, places, side="right") % 2 == 1
            is_released: Mask = offsets_of(places) < released[shards_of(places)]
            return is_released & (is_acked | (times < oldest))

        with self._lock:
            self._index.forget(is_past)
            lowest = self._index.lowest()
            held = {shard: lowest.get(shard, self._released_of(shard)) for shard in self._ends}
            if held == self._held:
                return
        self._ledger.change(lambda t: registry.forget_acked(t, self.path, held))
        with self._lock:
            self._held = held
            for shard, offset in held.items():
                self._acked.drop_below(shard, offset)

    # --- what is seen -----------------------------------------------------------------------

    def fail(self, error: PenstockError) -> None:
        """Note why no puller can pull: every query is told."""
        with self._lock:
            self._error = error
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
                len(self._parked), len(self._index), self._index.nbytes,
                {cause: self._duplicates[cause] for cause in CAUSES}, self._rate.per_second(), tuple(self._streams),
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


def _check_batch(path: str, batch: pa.RecordBatch) -> None:
    """Reject rows that aren't messages."""
    if not batch.schema.equals(MESSAGES):
        raise InvalidRequest(
            f"{path}: expected the columns {MESSAGES.to_string()}, got {batch.schema.to_string()}"[:900]
        )
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and not batch.schema.field(name).nullable:
            raise InvalidRequest(f"{path}: {column.null_count:,} rows have no {name}, which every message has")


def _places(placed: Placed, rows: int) -> Integers:
    """Return the place of each appended row."""
    if placed.shard_of_row is None:
        for shard, (first, _) in placed.shards.items():
            return np.arange(place_of(shard, first), place_of(shard, first) + rows, dtype=np.int64)
        return np.empty(0, dtype=np.int64)
    shard_of_row = np.asarray(placed.shard_of_row)
    places = np.empty(rows, dtype=np.int64)
    for shard, (first, end) in placed.shards.items():
        places[shard_of_row == shard] = np.arange(place_of(shard, first), place_of(shard, end), dtype=np.int64)
    return places
