"""Compaction: small parts of a topic that follow each other become one, with the same rows, order, offsets and times.

The one part holds each row's time in a column of its own behind the topic's, `_time`, which its ledger row doesn't
name: a reader that doesn't ask for it sees the same columns as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from penstock.errors import Unavailable
from penstock.ledger import merging
from penstock.ledger.ledger import Ledger
from penstock.ledger.merging import Merger
from penstock.ledger.tables import Transaction
from penstock.queue.topics import journal
from penstock.queue.topics.journal import PlacedPart
from penstock.rows import slices
from penstock.store.medium import OpenPart, Part
from penstock.store.payloads import Store

log = logging.getLogger("penstock")
_TIME = journal.ADDED.field("_time")


class Compactor:
    """Rewrites runs of small parts."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger = ledger
        self._merger = Merger(ledger, store)

    def compact(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Rewrite what is worth it in every topic; return how many parts were replaced."""
        replaced = 0
        for path, shard in journal.all_shards(self._ledger.database):
            for run in list(merging.runs(self._small_parts(path, shard), _follows)):
                if stop():
                    return replaced
                try:
                    replaced += len(run) if self._merge(path, run) else 0
                except Unavailable as failed:  # the next shard's may succeed
                    log.warning("%s: parts of shard %d stay small for now: %s", path, shard, failed)
                    break
        return replaced

    def _small_parts(self, path: str, shard: int) -> Iterator[PlacedPart]:
        small = journal.placed_parts(self._ledger.database, path, shard, below_bytes=merging.SMALL)
        return (part for part in small if part.name not in self._merger.unreadable)

    def _merge(self, path: str, run: Sequence[PlacedPart]) -> bool:
        def swap(t: Transaction, part: Part) -> bool:
            return journal.replace(t, path, run, part)

        def is_there(name: str) -> bool:
            return journal.is_placed(self._ledger.database, name)

        return self._merger.merge(path, run, _with_times, is_there=is_there, swap=swap)


def _follows(part: PlacedPart, other: PlacedPart) -> bool:
    same = (part.schema_id, part.incarnation) == (other.schema_id, other.incarnation)
    return same and part.first == other.end


def _with_times(opened: OpenPart, part: PlacedPart) -> pa.Table:
    names = [name for name in opened.schema.names if name != _TIME.name]
    compacted = opened.schema.get_field_index(_TIME.name) >= 0
    schema = slices.select(opened.schema, names).append(_TIME)
    table = opened.reader([*names, _TIME.name] if compacted else names).read_all()
    columns = table.columns
    if not compacted:
        columns = [
            *columns,
            pa.chunked_array([pa.repeat(pa.scalar(round(part.since * 1e6), _TIME.type), table.num_rows)]),
        ]
    return pa.Table.from_arrays(columns, schema=schema)
