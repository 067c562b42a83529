"""Which messages of a subscription are known, and when they are forgotten.

An id leaves the index when all of this is true:

1. its row is released,
2. a puller has reported that its ack was sent, which the ledger keeps,
3. since then a window has passed: an hour in which a puller was connected, or as many ids as the window has.

Or when the message is older than Pub/Sub keeps it: it is never redelivered then.
Retention takes no row whose id is in the index, so that a start reads the index back from the journal.

A puller or server that is killed never reports some acks that it has sent. Ids that were released a window ago without
such a report are stragglers: the ledger itself keeps them, until 2. and 3. or their age, and retention may have their
rows.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from penstock import steps
from penstock.errors import Lost
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.pubsub import registry
from penstock.queue.pubsub.index import UNKNOWN, Index, Integers, Keys, Mask, keys_of, offsets_of, place_of, shards_of
from penstock.queue.pubsub.registry import Straggler
from penstock.queue.pubsub.window import Mark, Ranges, Window
from penstock.queue.topics import journal
from penstock.queue.topics.topics import Topics
from penstock.rows import slices
from penstock.store.payloads import Store

log = logging.getLogger("penstock")
WINDOW_SECONDS = 3600.0
WINDOW_IDS = 10_000_000
MOST_STRAGGLERS = 200_000
"""Stragglers of a subscription: some 60,000 are left by a puller that is killed at 50,000 messages a second. Beyond it
retention keeps rows for them."""
_REBUILD = 3600.0
"""Seconds for which parts stay that are being read back, whatever compaction does."""
_REBUILT_AT_ONCE = 1 << 20
"""Ids that are read from the journal before they are added to the index."""


class KnownMessages:
    """The ids of a subscription's messages, with the places of their rows. Any thread may call, but `read_back` and
    `tick` are for one each.
    """

    def __init__(
        self,
        path: str,
        ledger: Ledger,
        topics: Topics,
        store: Store,
        *,
        window_ids: int = WINDOW_IDS,
        window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        self.window_ids = window_ids
        self._path, self._ledger, self._topics, self._store = path, ledger, topics, store
        self._lock = threading.Lock()  # all that follows
        self._index = Index()
        self._stragglers = Index()
        self._acked = Ranges(registry.acked(ledger.database, path))
        self._reported: list[tuple[int, int, int]] = []
        """Acks that were reported and aren't in the ledger yet."""
        self._window = Window(window_seconds)
        self._held = journal.held(ledger.database, path)

    def __len__(self) -> int:
        with self._lock:
            return len(self._index) + len(self._stragglers)

    def find(self, keys: Keys) -> Integers:
        """Return the place of each message, UNKNOWN for a new one."""
        with self._lock:
            return self._find(keys)

    def _find(self, keys: Keys) -> Integers:
        places = self._index.find(keys)
        if len(self._stragglers):
            places = np.where(places == UNKNOWN, self._stragglers.find(keys), places)
        return places

    def add(self, keys: Keys, places: Integers) -> None:
        """Add messages that are new, and differ from each other: their rows are durable."""
        with self._lock:
            self._index.add(keys, places)

    def report(self, acked: Iterable[tuple[int, int, int]]) -> None:
        """Take the ranges of rows whose acks a puller has sent; they count once `tick` has them in the ledger."""
        with self._lock:
            self._reported += acked

    # --- the start --------------------------------------------------------------------------

    def read_back(self, stop: Callable[[], bool]) -> bool:
        """Read the index back from the journal; return False if it was stopped."""
        stragglers = registry.stragglers(self._ledger.database, self._path)
        self._stragglers.add(*_keys_and_places(stragglers))
        waiting: list[tuple[Keys, Integers]] = []
        ids = 0
        for keys, places in self._journaled():
            if stop():
                return False
            waiting.append((keys, places))
            ids += len(keys)
            if ids >= _REBUILT_AT_ONCE:
                self._add_unknown(waiting)
                waiting, ids = [], 0
        self._add_unknown(waiting)
        return True

    def _journaled(self) -> Iterator[tuple[Keys, Integers]]:
        """Give the ids of the journal's rows that may not be forgotten, with their places."""
        topic = self._topics.topic(self._path)
        start = {shard.number: max(shard.first, self._held.get(shard.number, 0)) for shard in topic.shards}
        for part in self._topics.range(topic, start, topic.latest(), ticketed_until=self._ledger.now() + _REBUILD):
            assert part.shard is not None
            try:
                opened = self._store.open(part.part, path=self._path, rows=part.part_rows, digest=part.digest)
                rows = opened.reader(["message_id", "publish_time"])
            except Lost as lost:
                log.warning(
                    "%s: the ids of lost rows aren't known: if they come again they are new rows: %s", self._path, lost
                )
                continue
            offset = part.first + part.skip
            for batch in slices.first_rows(rows, part.rows, skip=part.skip):
                first = place_of(part.shard, offset)
                places = np.arange(first, first + batch.num_rows, dtype=np.int64)
                yield keys_of(batch.column(0), batch.column(1)), places
                offset += batch.num_rows

    def _add_unknown(self, messages: list[tuple[Keys, Integers]]) -> None:
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
            new = (self._find(together) == UNKNOWN) & (together.first_rows() == np.arange(rows))
            if new.all():
                self._index.add(together, places)
            else:
                chosen = np.flatnonzero(new)
                self._index.add(together.take(chosen), places[chosen])

    # --- forgetting -------------------------------------------------------------------------

    def tick(self, now: float, released: Mapping[int, int], *, is_connected: bool, retention: float) -> None:
        """Let time pass, about once a second: `now` is a clock that never jumps.

        1. Reported acks are in the ledger. 2. Ids whose window has passed are forgotten, or stragglers. 3. Retention
        may have their rows, once the ledger knows: what is read back after a crash is in the index again.
        """
        self._note_acked()  # 1.
        with self._lock:
            mark = self._window.passed(now, self._acked, released, is_connected=is_connected, ids=self.window_ids)
        if mark is not None:
            gone = self._forget(mark, oldest=round((self._ledger.now() - retention) * 1e6))  # 2.
            self._let_go(released, gone)  # 3.

    def _note_acked(self) -> None:
        with self._lock:
            reported, self._reported = self._reported, []
        if not reported:
            return
        merged = Ranges(reported)
        try:
            self._ledger.change(lambda t: registry.note_acked(t, self._path, list(merged)))
        except BaseException:
            with self._lock:
                self._reported = [*reported, *self._reported]
            raise
        steps.passed("ack.recorded")
        with self._lock:
            for shard, first, end in merged:
                self._acked.add(shard, first, end)

    def _forget(self, mark: Mark, *, oldest: int) -> Integers:
        """Forget the ids that were acked at a mark, and of those released then the ones that are too old to come again,
        or make them stragglers if their acks aren't known. Return the places of stragglers that are forgotten.
        """
        released = np.zeros(max(mark.released, default=0) + 1, dtype=np.int64)
        for shard, offset in mark.released.items():
            released[shard] = offset

        def is_released(places: Integers) -> Mask:
            below: Mask = offsets_of(places) < released[shards_of(places)]
            return below

        def is_past(times: Integers, places: Integers) -> Mask:
            return is_released(places) & (_lie_within(places, mark.acked) | (times < oldest))

        with self._lock:
            self._index.forget(is_past)
            _, gone = self._stragglers.select(is_past)
            self._stragglers.forget(is_past)
            acked = self._acked.bounds()
            keys, places = self._index.select(lambda _, places: is_released(places) & ~_lie_within(places, acked))
            room = MOST_STRAGGLERS - len(self._stragglers)
            keys, places = keys.take(np.arange(min(room, len(keys)))), places[:room]
        if len(keys):
            stragglers = _stragglers_of(keys, places)
            self._ledger.change(lambda t: registry.add_stragglers(t, self._path, stragglers))
            with self._lock:
                self._stragglers.add(keys, places)
                self._index.forget(lambda _, each: np.isin(each, places))
        return gone

    def _let_go(self, released: Mapping[int, int], gone: Integers) -> None:
        """Let retention have the rows below the lowest id in the index; drop stragglers that are forgotten."""
        with self._lock:
            lowest, stragglers = self._index.lowest(), self._stragglers.lowest()
        held = {shard: lowest.get(shard, offset) for shard, offset in released.items()}
        if held == self._held and not len(gone):
            return
        acks = {shard: min(offset, stragglers.get(shard, offset)) for shard, offset in held.items()}
        dropped = list(zip(shards_of(gone).tolist(), offsets_of(gone).tolist(), strict=True))

        def change(t: Transaction) -> None:
            registry.drop_stragglers(t, self._path, dropped)
            registry.forget_acked(t, self._path, acks)
            journal.hold(t, self._path, held)

        self._ledger.change(change)
        with self._lock:
            self._held = held
            for shard, offset in acks.items():
                self._acked.drop_below(shard, offset)


def _lie_within(places: Integers, bounds: Integers) -> Mask:
    """Tell which places lie within ranges, by the bounds of `Ranges`."""
    within: Mask = np.searchsorted(bounds, places, side="right") % 2 == 1
    return within


def _stragglers_of(keys: Keys, places: Integers) -> list[Straggler]:
    texts = [keys.texts.get(row, str(number)) for row, number in enumerate(keys.ids.tolist())]
    columns = shards_of(places).tolist(), offsets_of(places).tolist(), texts, keys.times.tolist()
    return list(itertools.starmap(Straggler, zip(*columns, strict=True)))


def _keys_and_places(stragglers: list[Straggler]) -> tuple[Keys, Integers]:
    ids = pa.array([each.message_id for each in stragglers], pa.string())
    times = pa.array([each.publish_time for each in stragglers], pa.timestamp("us"))
    places = np.array([place_of(each.shard, each.offset) for each in stragglers], dtype=np.int64)
    return keys_of(ids, times), places
