"""Compaction: small parts of a topic that follow each other become one, with the same rows, order, offsets and times.

The one part holds each row's time in a column of its own behind the topic's, `_time`, which its ledger row doesn't
name: a reader that doesn't ask for it sees the same columns as before.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from penstock import steps
from penstock.errors import Lost, Unavailable
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.topics import journal
from penstock.queue.topics.journal import PlacedPart
from penstock.rows import slices
from penstock.store.database import Unsettled
from penstock.store.medium import OpenPart
from penstock.store.payloads import Store

log = logging.getLogger("penstock")
SMALL = 1 << 20
"""Bytes below which a part is worth writing again with its neighbours."""
MANY = 16
"""Small parts in a row that are worth it, whatever their size; fewer are once they fill a part."""
MOST = 256
"""Parts that are written again at a time: all of them are open meanwhile."""
_TIME = journal.ADDED.field("_time")


class Compactor:
    """Rewrites runs of small parts. Remembers the parts that it couldn't read, to log each once."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger, self._store = ledger, store
        self._unreadable: set[str] = set()

    def compact(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Rewrite what is worth it in every topic; return how many parts were replaced."""
        replaced = 0
        for path, shard in journal.all_shards(self._ledger.database):
            for run in list(_runs(self._small_parts(path, shard))):
                if stop():
                    return replaced
                try:
                    replaced += len(run) if self._rewrite(path, run) else 0
                except Unavailable as failed:  # the next shard's may succeed
                    log.warning("%s: parts of shard %d stay small for now: %s", path, shard, failed)
                    break
        return replaced

    def _small_parts(self, path: str, shard: int) -> Iterator[PlacedPart]:
        small = journal.placed_parts(self._ledger.database, path, shard, below_bytes=SMALL)
        return (part for part in small if part.name not in self._unreadable)

    def _rewrite(self, path: str, run: Sequence[PlacedPart]) -> bool:
        """Put one part in the place of a run; False if that can't be.

        1. The new part is durable, and unseen. 2. One transaction: these very parts are still there, the new one takes
        their offsets, and their bytes stay for as long as tickets may name them. A crash in between leaves an orphan.
        """
        batches = self._read(path, run)
        if not batches:
            return False
        whole = list(slices.together(batches))
        part = self._store.write(f"{uuid.uuid4().hex}-000000", whole[0].schema, whole, path=path)  # 1.
        steps.passed("compact.durable")

        def replace(t: Transaction) -> bool:  # 2.
            replaced = journal.replace(t, path, run, part)
            steps.passed("compact.shown")
            return replaced

        try:
            replaced = self._ledger.change(replace)
        except Unsettled:
            raise
        except BaseException:
            self._store.discard([part.name])
            raise
        if not replaced:
            self._store.discard([part.name])
        return replaced

    def _read(self, path: str, run: Sequence[PlacedPart]) -> list[pa.RecordBatch]:
        """Return the rows of a run with their times; none if some can't be read, or have no columns."""
        batches: list[pa.RecordBatch] = []
        for part in run:
            try:
                opened = self._store.open(part.name, path=path, rows=part.rows, digest=part.digest)
                batches += _with_times(opened, part.since)
            except Lost as lost:
                if journal.is_placed(self._ledger.database, part.name):
                    self._unreadable.add(part.name)
                    log.warning(
                        "%s: the offsets %d up to %d can't be read and stay as they are: %s",
                        path, part.first, part.end, lost,
                    )  # fmt: skip
                return []
        return batches if len(batches[0].schema) > 1 else []


def _follows(part: PlacedPart, other: PlacedPart) -> bool:
    """Whether a part is right behind the other one, and could be one part with it."""
    same = (part.schema_id, part.incarnation) == (other.schema_id, other.incarnation)
    return same and part.first == other.end


def _runs(parts: Iterable[PlacedPart]) -> Iterator[list[PlacedPart]]:
    """Give the runs worth writing again: small parts without a gap that fill a part, or are many."""
    run: list[PlacedPart] = []
    size = 0
    for part in parts:
        if run and (size > slices.PART_BYTES or len(run) == MOST or not _follows(part, run[-1])):
            if size > slices.PART_BYTES or len(run) >= MANY:
                yield run
            run, size = [], 0
        run.append(part)
        size += part.bytes
    if size > slices.PART_BYTES or len(run) >= MANY:
        yield run


def _with_times(part: OpenPart, since: float) -> Iterator[pa.RecordBatch]:
    names = [name for name in part.schema.names if name != _TIME.name]
    compacted = part.schema.get_field_index(_TIME.name) >= 0
    schema = slices.select(part.schema, names).append(_TIME)
    for batch in part.reader([*names, _TIME.name] if compacted else names):
        columns = batch.columns
        if not compacted:
            columns = [*columns, pa.repeat(pa.scalar(round(since * 1e6), _TIME.type), batch.num_rows)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
