"""Small puts to topics: those that wait at the same time share one part, one fsync and one transaction."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from penstock import steps
from penstock.errors import PenstockError, StoreFull, Unavailable, WriteEnded
from penstock.ledger import attempts, parts, writes
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.ledger.writes import Write
from penstock.queue.topics import journal, keys
from penstock.queue.topics.topic import Layout
from penstock.rows import slices
from penstock.store import records
from penstock.store.database import Unsettled
from penstock.store.medium import Part
from penstock.store.payloads import SplitPayloadStore
from penstock.wire.put import Receipt

log = logging.getLogger("penstock")
_LOOK = 1.0
"""Seconds between looks whether the thread that a put waits for is still there."""
GROUP_BYTES = 8 << 20
"""About how much one group has at most; what comes meanwhile is the next one's."""
Took = Callable[[str, float, int], None]
"""Told of each step of a group how long it took, and for how many puts."""


def _untold(step: str, seconds: float, puts: int) -> None:
    """Count nothing."""


@dataclass(slots=True)
class SmallPut:
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

    def __post_init__(self) -> None:
        self.digest = records.write(None, self.schema, self.batches).digest

    def receipt(self, write: str) -> Receipt:
        """Return the answer to the put; its part is shared with others."""
        return Receipt(write, self.attempt, self.rows, self.bytes, 0, self.digest)


class Appender:
    """One thread that commits the puts that wait, group after group."""

    def __init__(self, ledger: Ledger, store: SplitPayloadStore, took: Took = _untold) -> None:
        self._ledger, self._store, self._took = ledger, store, took
        self._waiting: queue.SimpleQueue[SmallPut | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="penstock-append", daemon=True)

    def start(self) -> None:
        """Start committing."""
        self._thread.start()

    def append(self, put: SmallPut) -> Receipt:
        """Return the put's receipt, once its rows are durable and readable."""
        self._waiting.put(put)
        while True:
            try:
                return put.answer.result(_LOOK)
            except TimeoutError:
                if not self._thread.is_alive():  # a drain that gave up has closed it before this put came
                    raise Unavailable("the server is shutting down: put again in a moment", retry_after=2) from None

    def close(self) -> None:
        """Commit what waits, and end the thread."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            group, ended = self._next_group()
            try:
                self.commit(group)
            except BaseException as error:  # nobody may wait for ever for a thread that is gone
                log.exception("a group of puts failed")
                for put in group:
                    if not put.answer.done():
                        put.answer.set_exception(error)

    def _next_group(self) -> tuple[list[SmallPut], bool]:
        """Wait for at least one put, and return those that wait; True when there will be no more."""
        group: list[SmallPut] = []
        size = 0
        put = self._waiting.get()
        while put is not None:
            group.append(put)
            size += put.bytes
            if size >= GROUP_BYTES:
                return group, False
            try:
                put = self._waiting.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def commit(self, puts: Sequence[SmallPut]) -> None:
        """Answer each put: all of them are durable, or that one isn't.

        1. Puts that are known already get their first receipt; of the others, those that don't fit are rejected.
        2. The rows of the others, by topic, shard and schema, are durable and unseen.
        3. One transaction: each put is a finished write, and the readable ends move behind its rows.
        4. The answers.
        After a crash at 2 the parts are orphans; at 3 either all of it has happened or nothing.
        """
        new, twins = _first_of_each([put for put in puts if self._is_new(put)])  # 1.
        try:
            if new:
                receipts = self._store_and_record(new)
                steps.passed("append.committed")
                for put, receipt in zip(new, receipts, strict=True):  # 4.
                    put.answer.set_result(receipt)
        except WriteEnded:  # a topic was made anew between 2. and 3.: its shards may be others
            self.commit(new)
        except Exception as error:
            if len(new) == 1 or (isinstance(error, Unavailable) and not isinstance(error, StoreFull)):
                for put in new:
                    put.answer.set_exception(error)
            else:  # one of them is at fault, and the others are not to fail with it
                for put in new:
                    self.commit([put])
        if twins:
            self.commit(twins)

    def _is_new(self, put: SmallPut) -> bool:
        try:
            known = attempts.receipt_of_put(self._ledger.database, put.path, put.run, put.receipt(""))
        except PenstockError as rejected:
            put.answer.set_exception(rejected)
            return False
        if known is not None:
            put.answer.set_result(known)
        return known is None

    def _store_and_record(self, puts: Sequence[SmallPut]) -> list[Receipt]:
        layouts = {path: journal.layout(self._ledger.database, path) for path in {put.path for put in puts}}
        group, began = uuid.uuid4().hex, time.perf_counter()
        stored: list[_StoredRows] = []
        try:
            for number, ((path, shard, schema), batches) in enumerate(_by_shard(puts, layouts).items()):
                rows = list(slices.together(batches))
                part = self._store.write(f"{group}-{number:06}", schema, rows, path=path)  # 2.
                stored.append(_StoredRows(path, shard, schema, part, layouts[path]))
            steps.passed("append.durable")
            durable = time.perf_counter()
            receipts = self._ledger.change(lambda t: _record(t, puts, stored))  # 3.
        except Unsettled:
            raise
        except BaseException:
            self._store.discard(rows.part.name for rows in stored)
            raise
        self._took("fsync", durable - began, len(puts))
        self._took("ledger", time.perf_counter() - durable, len(puts))
        return receipts


@dataclass(frozen=True, slots=True)
class _StoredRows:
    """The rows of a group for one shard, durable and unseen."""

    path: str
    shard: int
    schema: pa.Schema
    part: Part
    layout: Layout | None


def _first_of_each(puts: Iterable[SmallPut]) -> tuple[list[SmallPut], list[SmallPut]]:
    """Part the puts whose run and attempt no other before them has from the rest."""
    seen: set[tuple[str, str]] = set()
    first: list[SmallPut] = []
    rest: list[SmallPut] = []
    for put in puts:
        marks = {("", put.attempt)} if put.run is None else {("", put.attempt), (put.path, put.run)}
        (rest if marks & seen else first).append(put)
        seen |= marks
    return first, rest


def _by_shard(
    puts: Sequence[SmallPut], layouts: dict[str, Layout | None]
) -> dict[tuple[str, int, pa.Schema], list[pa.RecordBatch]]:
    """Return the rows of all puts by topic, shard and schema: each will be one part."""
    rows: dict[tuple[str, int, pa.Schema], list[pa.RecordBatch]] = {}
    for put in puts:
        journal.check_schema(put.path, put.schema)
        filled = [batch for batch in put.batches if batch.num_rows]
        for shard, batches in keys.sharded([filled] if filled else [], layouts[put.path], put.attempt):
            rows.setdefault((put.path, shard, put.schema), []).extend(batches)
    return rows


def _record(t: Transaction, puts: Sequence[SmallPut], stored: Sequence[_StoredRows]) -> list[Receipt]:
    """Make each put a finished write, and its rows the end of its topic."""
    for path, schema in dict.fromkeys((put.path, put.schema) for put in puts):
        _make_topic_fit(t, path, schema)
    receipts = [_finish(t, put) for put in puts]
    for rows in stored:
        parts.add(t, [rows.part], attempt=f"group-{rows.part.name}", schema=rows.schema)
        journal.reserve(t, rows.part.name, rows.shard, None if rows.layout is None else rows.layout.journal)
        journal.append(t, rows.path, [rows.part.name])
    return receipts


def _make_topic_fit(t: Transaction, path: str, schema: pa.Schema) -> None:
    """Make the topic where there is none, and give it the schema's new columns."""
    current = journal.schema_at(t, path)
    if current is None:
        journal.check_path(t, path)
        writes.check_room(t)
    journal.make_or_widen(t, path, schema if current is None else journal.growth.merge(current, schema, path))


def _finish(t: Transaction, put: SmallPut) -> Receipt:
    """Make a put a write that was opened, put to and finished at once."""
    write = Write(uuid.uuid4().hex, put.path, "append", put.run, "finished", "", None, t.now, t.now, None)
    writes.add(t, write, own=True, brief=put.brief, rows=put.rows, bytes=put.bytes)
    receipt = put.receipt(write.id)
    attempts.add(t, receipt, put.schema, chosen=True)
    return receipt
