"""Compaction: small parts of a topic that follow each other become one, with the same rows, order, offsets and times.

The one part holds each row's time in a column of its own behind the topic's, `_time`, which its ledger row doesn't
speak of: to a reader that doesn't ask for it, the part is as the small ones were.
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock import steps
from penstock.errors import Lost, Unavailable
from penstock.ledger.ledger import Ledger
from penstock.ledger.transaction import Transaction
from penstock.queue.topics import journal
from penstock.rows import slices
from penstock.store.database import Unsettled
from penstock.store.medium import OpenPart, Part
from penstock.store.payloads import SplitPayloadStore

log = logging.getLogger("penstock")
SMALL = 1 << 20
"""Bytes below which a part is worth writing again with its neighbours."""
MANY = 16
"""Small ones in a row that are worth it, whatever they weigh; fewer are once they make up a part."""
MOST = 256
"""Parts that are written again at a time: all of them are open meanwhile."""
_TIME = journal.META.field("_time")


@dataclass(frozen=True, slots=True)
class _Small:
    """A part as its row in the journal has it."""

    part: str
    first: int
    rows: int
    bytes: int
    since: float
    until: float
    schema: int
    incarnation: str

    def follows(self, other: _Small) -> bool:
        """Whether it lies behind the other one, and could be of one piece with it."""
        same = (self.schema, self.incarnation) == (other.schema, other.incarnation)
        return same and self.first == other.first + other.rows


class Compactor:
    """Rewrites runs of small parts. Remembers which parts it couldn't read, to say so once."""

    def __init__(self, ledger: Ledger, store: SplitPayloadStore) -> None:
        self._ledger, self._store = ledger, store
        self._unreadable: set[str] = set()

    def compact(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Rewrite what is worth it in every topic; how many parts have become fewer."""
        shards = self._ledger.database.rows("SELECT path, shard FROM shards ORDER BY path, shard")
        parts = 0
        for row in shards:
            for run in list(_runs(self._readable(row["path"], row["shard"]))):
                if stop():
                    return parts
                try:
                    parts += len(run) if self._rewrite(row["path"], row["shard"], run) else 0
                except Unavailable as failed:  # the next shard's may go well
                    log.warning("%s: parts of shard %d stay small for now: %s", row["path"], row["shard"], failed)
                    break
        return parts

    def _readable(self, path: str, shard: int) -> Iterator[_Small]:
        query = (
            "SELECT part, first, journal.rows, journal.bytes, since, until, schema, incarnation FROM journal"
            " JOIN parts ON parts.name = part WHERE journal.path = ? AND shard = ? AND journal.bytes < ? ORDER BY first"
        )
        for row in self._ledger.database.rows(query, path, shard, SMALL):
            if row["part"] not in self._unreadable:
                yield _Small(**dict(row))

    def _rewrite(self, path: str, shard: int, run: Sequence[_Small]) -> bool:
        """Put one part in the place of a run; False if that can't be.

        1. The new part is durable, and unseen. 2. One transaction: these very parts are still there, the new one takes
        their offsets, and their bytes stay for as long as tickets may name them. A crash in between leaves an orphan.
        """
        batches = self._read(path, run)
        if not batches:
            return False
        whole = list(slices.together(batches))
        part = self._store.write(f"{uuid.uuid4().hex}-000000", whole[0].schema, whole)  # 1.
        steps.passed("compact.durable")
        try:
            with self._ledger.transaction() as t:  # 2.
                done = _replace(t, path, shard, run, part)
                steps.passed("compact.shown")
        except Unsettled:
            raise
        except BaseException:
            self._store.discard([part.name])
            raise
        if not done:
            self._store.discard([part.name])
        return done

    def _read(self, path: str, run: Sequence[_Small]) -> list[pa.RecordBatch]:
        """The rows of a run with their times; none if some of them can't be read, or have no columns."""
        found: list[pa.RecordBatch] = []
        for each in run:
            try:
                found += _timed(self._store.open(each.part), each.since)
            except Lost as lost:
                if self._ledger.database.rows("SELECT 1 FROM journal WHERE part = ?", each.part):
                    self._unreadable.add(each.part)
                    log.warning(
                        "%s: its offsets %d up to %d can't be read and stay as they are: %s",
                        path, each.first, each.first + each.rows, lost,
                    )  # fmt: skip
                return []
        return found if len(found[0].schema) > 1 else []


def _runs(parts: Iterable[_Small]) -> Iterator[list[_Small]]:
    """What is worth writing again: small parts without a gap that make up a large one, or are many."""
    run: list[_Small] = []
    size = 0
    for part in parts:
        if run and (size > slices.PART_BYTES or len(run) == MOST or not part.follows(run[-1])):
            if size > slices.PART_BYTES or len(run) >= MANY:
                yield run
            run, size = [], 0
        run.append(part)
        size += part.bytes
    if size > slices.PART_BYTES or len(run) >= MANY:
        yield run


def _timed(part: OpenPart, since: float) -> Iterator[pa.RecordBatch]:
    names = [name for name in part.schema.names if name != _TIME.name]
    whole = part.schema.get_field_index(_TIME.name) >= 0
    schema = slices.select(part.schema, names).append(_TIME)
    for batch in part.reader([*names, _TIME.name] if whole else names):
        columns = batch.columns
        if not whole:
            columns = [*columns, pa.repeat(pa.scalar(round(since * 1e6), _TIME.type), batch.num_rows)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _replace(t: Transaction, path: str, shard: int, run: Sequence[_Small], part: Part) -> bool:
    first, end = run[0].first, run[-1].first + run[-1].rows
    held: list[sqlite3.Row] = t.sql.execute(
        "SELECT part FROM journal WHERE path = ? AND shard = ? AND first >= ? AND first < ? ORDER BY first",
        (path, shard, first, end),
    ).fetchall()
    if [row["part"] for row in held] != [each.part for each in run] or part.rows != end - first:
        return False
    journal.take_away(t, [each.part for each in run], path)
    t.sql.execute(
        "INSERT INTO parts(name, attempt, number, rows, bytes, schema, incarnation, state)"
        " VALUES (?, ?, 0, ?, ?, ?, ?, 'visible')",
        (part.name, f"group-{part.name}", part.rows, part.bytes, run[0].schema, t.catalog.incarnation),
    )
    t.sql.execute(
        "INSERT INTO journal(part, shard, path, first, rows, bytes, since, until) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            part.name, shard, path, first, part.rows, part.bytes,
            min(each.since for each in run), max(each.until for each in run),
        ),
    )  # fmt: skip
    return True
