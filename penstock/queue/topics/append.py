"""Appends to journals: those that wait at the same time share one part, one fsync and one transaction."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field

import pyarrow as pa

from penstock import steps
from penstock.errors import PenstockError, StoreFull, TimedOut, Unavailable, WriteEnded
from penstock.ledger import attempts, parts, writes
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.ledger.writes import Write
from penstock.queue.topics import journal, keys
from penstock.queue.topics.topic import Layout
from penstock.rows import slices
from penstock.store import records
from penstock.store.database import Reader, Unsettled
from penstock.store.medium import Part
from penstock.store.payloads import Store
from penstock.text import counted
from penstock.wire.put import Receipt

log = logging.getLogger("penstock")
GROUP_BYTES = 8 << 20
"""About how much one group has at most; what comes meanwhile is the next one's."""
PATIENCE = 60.0
"""Seconds for which a put, or a producer's next batch, waits for the committer: an fsync may never return."""
OnStep = Callable[[str, float, int], None]
"""Called after each step of a group with the step, its seconds, and the number of appends."""


def _ignore_step(step: str, seconds: float, appends: int) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the rows of one append are."""

    shards: dict[int, tuple[int, int]]
    """Shard -> the first offset and the end of its rows there, which follow each other in their order."""
    shard_of_row: pa.Int32Array | None
    """The shard of each row, where there is more than one."""


class Append:
    """Rows that wait for the committer, and who waits for their answer.

    The committer's thread calls `judge` for each append of a group, stores the rows of those that are new, calls
    `record` for each within the one transaction, and after COMMIT `settle`. Where a group fails because of one of them,
    it calls `undo` for all, and each is judged again alone. In the end it has called `settle` or `fail`, unless `judge`
    has answered.
    """

    path: str
    schema: pa.Schema
    batches: list[pa.RecordBatch]
    bytes: int
    marks: frozenset[tuple[str, str]] = frozenset()
    """No two appends of a group have one of these in common: the later one is judged once the other is settled."""
    spread: int = 0
    """This number, modulo the journal's shards, is the shard of the first rows that have no key."""
    unkeyed: str | None = None
    """In one with a key: the value that says that a row has none. Such rows go where `spread` says."""

    def judge(self, database: Reader) -> bool:
        """Return whether this is to be committed; False if it has been answered. May replace the batches."""
        return True

    def undo(self) -> None:
        """Forget what `judge` has noted: the append is judged again."""

    def record(self, t: Transaction, placed: Placed) -> None:
        """Note what belongs to the append, in the transaction of its rows; an error undoes the whole group."""

    def settle(self, placed: Placed) -> None:
        """Answer: the rows are durable and readable."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Answer: the rows are not stored. Does nothing once it is answered."""
        raise NotImplementedError


@dataclass(slots=True)
class SmallPut(Append):
    """A put that came whole and fits into memory: a write of its own, of one attempt."""

    path: str
    run: str | None
    attempt: str
    schema: pa.Schema
    batches: list[pa.RecordBatch]
    rows: int
    bytes: int
    brief: bool = False
    """Whether it is remembered for an hour only: nobody has named it."""
    answer: Future[Receipt] = field(default_factory=Future)
    digest: str = ""
    """Of the rows: the same attempt with others is rejected."""
    write: str = ""
    """The id of its write, once it is recorded."""

    def __post_init__(self) -> None:
        self.digest = records.write(None, self.schema, self.batches).digest
        self.spread = int(self.attempt[:8], 16)
        marks = {("", self.attempt)} if self.run is None else {("", self.attempt), (self.path, self.run)}
        self.marks = frozenset(marks)

    def receipt(self, write: str) -> Receipt:
        """Return the answer to the put; its part is shared with others."""
        return Receipt(write, self.attempt, self.rows, self.bytes, 0, self.digest)

    def judge(self, database: Reader) -> bool:
        """Give a put that is known already its first receipt."""
        try:
            known = attempts.receipt_of_put(database, self.path, self.run, self.receipt(""))
        except PenstockError as rejected:
            self.fail(rejected)
            return False
        if known is not None:
            self.answer.set_result(known)
        return known is None

    def record(self, t: Transaction, placed: Placed) -> None:
        """Make the put a write that was opened, put to and finished at once."""
        write = Write(uuid.uuid4().hex, self.path, "append", self.run, "finished", "", None, t.now, t.now, None)
        writes.add(t, write, own=True, brief=self.brief, rows=self.rows, bytes=self.bytes)
        attempts.add(t, self.receipt(write.id), self.schema, chosen=True)
        self.write = write.id

    def settle(self, placed: Placed) -> None:
        """Give the receipt."""
        self.answer.set_result(self.receipt(self.write))

    def fail(self, error: BaseException) -> None:
        """Give the error."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Appender:
    """One thread that commits the appends that wait, group after group."""

    def __init__(self, ledger: Ledger, store: Store, on_step: OnStep = _ignore_step) -> None:
        self._ledger, self._store, self._on_step = ledger, store, on_step
        self._waiting: queue.SimpleQueue[Append | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # _closed
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-append", daemon=True)

    def start(self) -> None:
        """Start committing."""
        self._thread.start()

    def append(self, put: SmallPut) -> Receipt:
        """Return the put's receipt, once its rows are durable and readable."""
        self.submit(put)
        try:
            return put.answer.result(PATIENCE)
        except Late:
            if put.answer.done():
                raise
            raise TimedOut(
                f"{put.path}: {counted(put.rows, 'row waits', 'rows wait')} for the disk for {PATIENCE:g} s; whether "
                "that will be stored isn't known: put it again as the same run, as penstock's clients do"
            ) from None

    def submit(self, append: Append) -> None:
        """Queue an append, which will be settled or fail."""
        with self._lock:
            if self._closed:  # by a drain that gave up before this came
                raise Unavailable("the server is shutting down: put again in a moment", retry_after=2)
            self._waiting.put(append)

    def close(self) -> None:
        """Commit what waits, and end the thread."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                log.error("appends have waited for the disk for %g s, and are left to it", PATIENCE)

    def _run(self) -> None:
        ended = False
        while not ended:
            group, ended = self._next_group()
            try:
                self.commit(group)
            except BaseException as error:  # nobody may wait for ever for a thread that is gone
                log.exception("a group of appends failed")
                for append in group:
                    append.fail(error)

    def _next_group(self) -> tuple[list[Append], bool]:
        """Wait for at least one append, and return those that wait; True when there will be no more."""
        group: list[Append] = []
        size = 0
        append = self._waiting.get()
        while append is not None:
            group.append(append)
            size += append.bytes
            if size >= GROUP_BYTES:
                return group, False
            try:
                append = self._waiting.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def commit(self, appends: Sequence[Append]) -> None:
        """Answer each append: its rows are durable, or they aren't stored.

        1. Those that are known already get their first answer; of the others, those that don't fit are rejected.
        2. The rows of the others, by journal, shard and schema, are durable and unseen.
        3. One transaction: each append is recorded, and the readable ends move behind its rows.
        4. The answers.
        After a crash at 2 the parts are orphans; at 3 either all of it has happened or nothing.
        """
        first, twins = _first_of_each(appends)
        new = [append for append in first if append.judge(self._ledger.database)]  # 1.
        try:
            placed = self._store_and_record(new) if new else []
        except Exception as error:
            self._commit_again(new, error)
        else:
            if new:
                steps.passed("append.committed")
            for append, places in zip(new, placed, strict=True):  # 4.
                append.settle(places)
        if twins:
            self.commit(twins)

    def _commit_again(self, appends: Sequence[Append], error: Exception) -> None:
        """Commit a group that has failed, or answer it."""
        remade = isinstance(error, WriteEnded)  # a topic was made anew between 2. and 3.: its shards may be others
        busy = isinstance(error, Unavailable) and not isinstance(error, StoreFull)
        if not remade and (busy or len(appends) == 1):
            for append in appends:
                append.fail(error)
            return
        for append in appends:
            append.undo()
        for group in [appends] if remade else [[append] for append in appends]:  # one at fault fails alone
            self.commit(group)

    def _store_and_record(self, appends: Sequence[Append]) -> list[Placed]:
        layouts = {path: journal.layout(self._ledger.database, path) for path in {each.path for each in appends}}
        group, began = uuid.uuid4().hex, time.perf_counter()
        rows_by_part, pieces = _by_part(appends, layouts)
        stored: dict[_PartKey, Part] = {}
        try:
            for number, ((path, shard, schema), batches) in enumerate(rows_by_part.items()):
                rows = list(slices.together(batches))
                part = self._store.write(f"{group}-{number:06}", schema, rows, path=path)  # 2.
                stored[path, shard, schema] = part
            steps.passed("append.durable")
            durable = time.perf_counter()
            placed = self._ledger.change(lambda t: _record(t, appends, stored, pieces, layouts))  # 3.
        except Unsettled:
            raise
        except BaseException:
            self._store.discard(part.name for part in stored.values())
            raise
        self._on_step("fsync", durable - began, len(appends))
        self._on_step("ledger", time.perf_counter() - durable, len(appends))
        return placed


_PartKey = tuple[str, int, pa.Schema]
"""Path, shard and schema: the rows of a group that have them in common become one part."""


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What parts the rows of one append are in: the first row in the part, and how many."""

    parts: dict[_PartKey, tuple[int, int]]
    shard_of_row: pa.Int32Array | None

    def placed(self, firsts: Mapping[_PartKey, int]) -> Placed:
        """Return the offsets, where each part begins at one of `firsts`."""
        shards = {
            key[1]: (firsts[key] + skipped, firsts[key] + skipped + rows) for key, (skipped, rows) in self.parts.items()
        }
        return Placed(shards, self.shard_of_row)


def _first_of_each(appends: Iterable[Append]) -> tuple[list[Append], list[Append]]:
    """Part the appends that have no mark in common with one before them from the rest."""
    seen: set[tuple[str, str]] = set()
    first: list[Append] = []
    rest: list[Append] = []
    for append in appends:
        (rest if append.marks & seen else first).append(append)
        seen |= append.marks
    return first, rest


def _by_part(
    appends: Sequence[Append], layouts: Mapping[str, Layout | None]
) -> tuple[dict[_PartKey, list[pa.RecordBatch]], list[_Pieces]]:
    """Return the rows of each part, and for each append where its rows are in them."""
    batches_of: dict[_PartKey, list[pa.RecordBatch]] = {}
    rows_of: dict[_PartKey, int] = {}
    pieces = []
    for append in appends:
        journal.check_schema(append.path, append.schema)
        by_shard, shard_of_row = keys.split(append.batches, layouts[append.path], append.spread, append.unkeyed)
        parts = {}
        for shard, batches in by_shard.items():
            key = (append.path, shard, append.schema)
            rows, skipped = sum(batch.num_rows for batch in batches), rows_of.get(key, 0)
            batches_of.setdefault(key, []).extend(batches)
            rows_of[key] = skipped + rows
            parts[key] = (skipped, rows)
        pieces.append(_Pieces(parts, shard_of_row))
    return batches_of, pieces


def _record(
    t: Transaction,
    appends: Sequence[Append],
    stored: Mapping[_PartKey, Part],
    pieces: Sequence[_Pieces],
    layouts: Mapping[str, Layout | None],
) -> list[Placed]:
    """Make the rows the ends of their topics, and record each append."""
    for path, schema in dict.fromkeys((append.path, append.schema) for append in appends):
        _make_topic_fit(t, path, schema)
    firsts = {}
    for (path, shard, schema), part in stored.items():
        layout = layouts[path]
        parts.add(t, [part], attempt=f"group-{part.name}", schema=schema)
        journal.reserve(t, part.name, shard, None if layout is None else layout.journal)
        journal.append(t, path, [part.name])
        firsts[path, shard, schema] = journal.first_offset(t, part.name)
    placed = [each.placed(firsts) for each in pieces]
    for append, places in zip(appends, placed, strict=True):
        append.record(t, places)
    return placed


def _make_topic_fit(t: Transaction, path: str, schema: pa.Schema) -> None:
    """Make the topic where there is none, and give it the schema's new columns."""
    current = journal.schema_at(t, path)
    if current is None:
        journal.check_path(t, path)
        writes.check_room(t)
    journal.make_or_widen(t, path, schema if current is None else journal.growth.merge(current, schema, path))
