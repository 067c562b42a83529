"""Compaction: small parts that follow each other become one, with the same rows in the same order.

What datasets and topics share; `Compactor` is that of datasets, that of topics is in `queue/topics/compaction.py`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from penstock import steps
from penstock.errors import Lost, PenstockError
from penstock.ledger import datasets, parts
from penstock.ledger.datasets import SmallPart
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.rows import slices
from penstock.store.database import Unsettled
from penstock.store.medium import OpenPart, Part
from penstock.store.payloads import Store

log = logging.getLogger("penstock")
SMALL = datasets.SMALL
"""Bytes below which a part is worth writing again with its neighbours."""
MANY = 16
"""Small parts in a row that are worth it, whatever their size; fewer are once they fill a part."""
MOST = 256
"""Parts that are written again at a time: all of them are open meanwhile."""
_TINY = 64 << 10
"""Bytes that may always be written again. A larger part is once as much follows it: so each row is written again about
as often as its part doubles, four times up to SMALL, and the small parts that stay are few."""
_SPARE = 8
"""How many times the bytes of the parts there has to be room for: tickets may hold these for long."""


class Mergeable(Protocol):
    """A visible part in its order; its text says which rows it has."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def digest(self) -> str | None: ...


_P = TypeVar("_P", bound=Mergeable)


def runs(parts: Iterable[_P], follows: Callable[[_P, _P], bool]) -> Iterator[list[_P]]:
    """Give the runs worth writing again: small parts without a gap that fill a part, or are many.

    `follows` says whether a part is right behind the other one, and could be one part with it.
    """
    run: list[_P] = []
    size = 0
    for part in parts:
        if run and (size > slices.PART_BYTES or len(run) == MOST or not follows(part, run[-1])):
            yield from _if_worth(run, size)
            run, size = [], 0
        run.append(part)
        size += part.bytes
    yield from _if_worth(run, size)


def _if_worth(run: list[_P], size: int) -> Iterator[list[_P]]:
    skipped = 0
    for part in run:
        if part.bytes <= max(_TINY, size - part.bytes):
            break
        size -= part.bytes
        skipped += 1
    run = run[skipped:]
    if len(run) >= MANY or (len(run) > 1 and size > slices.PART_BYTES):
        yield run


class Merger:
    """Puts one part in the place of many. Remembers the parts that it couldn't read, to log each once."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger, self._store = ledger, store
        self.unreadable: set[str] = set()

    def merge(
        self,
        path: str,
        run: Sequence[_P],
        read: Callable[[OpenPart, _P], pa.Table],
        *,
        is_there: Callable[[str], bool],
        swap: Callable[[Transaction, Part], bool],
    ) -> bool:
        """Put one part in the place of a run; False if that can't be.

        1. The new part is durable, and unseen. 2. One transaction: these very parts are still there, the new one takes
        their place, and their bytes stay for as long as tickets may name them. A crash in between leaves an orphan.
        """
        tables = self._read(path, run, read, is_there)
        if tables is None:
            return False
        self._store.check_room(_SPARE * sum(part.bytes for part in run))
        batches = [batch for table in tables for batch in table.to_batches()]
        try:
            whole = list(slices.together(batches)) if batches else []
            part = self._store.write(f"{uuid.uuid4().hex}-000000", tables[0].schema, whole, path=path)  # 1.
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as failed:  # such as dictionaries within dictionaries
            self.unreadable.update(each.name for each in run)
            log.warning("%s: %d parts stay small, as Arrow can't write them as one: %s", path, len(run), failed)
            return False
        steps.passed("compact.durable")

        def replace(t: Transaction) -> bool:  # 2.
            replaced = swap(t, part)
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

    def _read(
        self,
        path: str,
        run: Sequence[_P],
        read: Callable[[OpenPart, _P], pa.Table],
        is_there: Callable[[str], bool],
    ) -> list[pa.Table] | None:
        """Return the rows of each part; None if some can't be read, or have no columns."""
        tables: list[pa.Table] = []
        for part in run:
            try:
                opened = self._store.open(part.name, path=path, rows=part.rows, digest=part.digest)
                if not opened.schema.names:
                    self.unreadable.add(part.name)
                    return None
                tables.append(read(opened, part))
            except Lost as lost:
                if is_there(part.name):
                    self.unreadable.add(part.name)
                    log.warning("%s: %s can't be read, and no other part is made of that: %s", path, part, lost)
                return None
        return tables


class Compactor:
    """Keeps the parts of datasets few, however many appends there are."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger = ledger
        self._merger = Merger(ledger, store)

    def compact(self, stop: Callable[[], bool] = lambda: False, *, everywhere: bool = True) -> int:
        """Rewrite what is worth it in every dataset, or in those that have grown; return how many parts were replaced.

        A dataset in which something was replaced counts as grown: the merged parts may be worth it, too.
        """
        paths = self._ledger.take_grown()
        if everywhere:
            paths.update(datasets.paths_of_small_parts(self._ledger.database, many=slices.PART_BYTES // SMALL))
        replaced = 0
        for path in sorted(paths):
            try:
                for run in list(runs(self._small_parts(path), _follows)):
                    if stop():
                        return replaced
                    if self._merge(path, run):
                        replaced += len(run)
                        self._ledger.note_grown(path)
            except PenstockError as failed:  # the next dataset's may succeed
                log.warning("%s: its parts stay small for now: %s", path, failed)
        return replaced

    def _small_parts(self, path: str) -> Iterator[SmallPart]:
        small = datasets.small_parts(self._ledger.database, path, self._ledger.incarnation)
        return (part for part in small if part.bytes < SMALL and part.name not in self._merger.unreadable)

    def _merge(self, path: str, run: Sequence[SmallPart]) -> bool:
        def swap(t: Transaction, part: Part) -> bool:
            return datasets.replace(t, path, run, part)

        def is_there(name: str) -> bool:
            return parts.is_visible(self._ledger.database, name)

        return self._merger.merge(path, run, _rows, is_there=is_there, swap=swap)


def _rows(opened: OpenPart, part: SmallPart) -> pa.Table:
    return opened.reader().read_all()


def _follows(part: SmallPart, other: SmallPart) -> bool:
    return (part.schema_id, part.partition, part.seq) == (other.schema_id, other.partition, other.end)
