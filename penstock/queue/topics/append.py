"""Small puts to topics: those that come at the same time share one fsync and one transaction."""

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
from penstock.errors import AlreadyExists, PenstockError, StoreFull, Unavailable, WriteEnded
from penstock.ledger import opening
from penstock.ledger.ledger import Ledger
from penstock.ledger.transaction import Transaction
from penstock.ledger.writes import Write, merged_schema
from penstock.queue.topics import journal, keys
from penstock.queue.topics.journal import check_schema
from penstock.queue.topics.topic import Layout
from penstock.queue.topics.topics import Topics
from penstock.rows import slices
from penstock.store.database import Unsettled
from penstock.store.medium import Part
from penstock.store.payloads import SplitPayloadStore
from penstock.wire.put import Receipt

log = logging.getLogger("penstock")
GROUP_BYTES = 8 << 20
"""About how much one group has at most; what comes meanwhile is the next one's."""


Took = Callable[[str, float, int], None]
"""Told of each step of a group how long it took, and for how many puts."""


def _untold(step: str, seconds: float, puts: int) -> None:
    """Nobody counts."""


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
    answer: Future[Receipt] = field(default_factory=Future)


def commit(
    ledger: Ledger,
    store: SplitPayloadStore,
    puts: Sequence[SmallPut],
    took: Took = _untold,
    most_datasets: int = 1_000_000,
) -> None:
    """Answer each put: all of them are durable, or that one isn't.

    1. Puts that are known already get their first receipt; of the others, those that don't fit are refused.
    2. The rows of the others, by topic, shard and schema, are durable and unseen.
    3. One transaction: each put is a finished write, and the readable ends move behind its rows.
    4. The answers.
    After a crash at 2 the parts are orphans; at 3 either all of it has happened or nothing.
    """
    fresh = [put for put in puts if _is_fresh(ledger, put)]  # 1.
    fresh, twins = _first_of_each(fresh)
    try:
        if fresh:
            receipts = _keep(ledger, store, fresh, took, most_datasets)
            steps.passed("append.committed")
            for put, receipt in zip(fresh, receipts, strict=True):  # 4.
                put.answer.set_result(receipt)
    except WriteEnded:  # a topic was made anew between 2. and 3.: its shards may be others
        commit(ledger, store, fresh, took, most_datasets)
    except Exception as error:
        if len(fresh) == 1 or (isinstance(error, Unavailable) and not isinstance(error, StoreFull)):
            for put in fresh:
                put.answer.set_exception(error)
        else:  # one of them is at fault, and the others aren't to pay for it
            for put in fresh:
                commit(ledger, store, [put], took, most_datasets)
    if twins:
        commit(ledger, store, twins, took, most_datasets)


def _is_fresh(ledger: Ledger, put: SmallPut) -> bool:
    try:
        known = ledger.published(put.path, put.run, put.attempt)
        if known is not None and known.attempt == put.attempt:
            check_again(ledger, known, put.path, put.rows)
    except PenstockError as refused:
        put.answer.set_exception(refused)
        return False
    if known is not None:
        put.answer.set_result(known)
    return known is None


def check_again(ledger: Ledger, known: Receipt, path: str, rows: int) -> None:
    """Refuse an attempt that comes again and is another one."""
    if ledger.write(known.write).path != path:
        raise AlreadyExists(f"attempt {known.attempt} belongs to another write: mint a new UUID for each put")
    if known.rows != rows:
        raise AlreadyExists(
            f"attempt {known.attempt} is recorded with {known.rows:,} rows; the {rows:,} rows that came now under "
            "its name are others, and weren't kept: mint a new UUID for each put"
        )


def _first_of_each(puts: Iterable[SmallPut]) -> tuple[list[SmallPut], list[SmallPut]]:
    """The puts whose run and attempt nobody has before them in the group, and the rest."""
    seen: set[tuple[str, str]] = set()
    first: list[SmallPut] = []
    rest: list[SmallPut] = []
    for put in puts:
        marks = {("", put.attempt)} if put.run is None else {("", put.attempt), (put.path, put.run)}
        (rest if marks & seen else first).append(put)
        seen |= marks
    return first, rest


def _keep(
    ledger: Ledger, store: SplitPayloadStore, puts: Sequence[SmallPut], took: Took, most_datasets: int
) -> list[Receipt]:
    topics = Topics(ledger)
    layouts: dict[str, Layout | None] = {path: topics.layout(path) for path in {put.path for put in puts}}
    rows: dict[tuple[str, int, pa.Schema], list[pa.RecordBatch]] = {}
    for put in puts:
        check_schema(put.path, put.schema)
        full = [batch for batch in put.batches if batch.num_rows]
        for shard, batches in keys.sharded([full] if full else [], layouts[put.path], put.attempt):
            rows.setdefault((put.path, shard, put.schema), []).extend(batches)
    group, began = uuid.uuid4().hex, time.perf_counter()
    laid: list[tuple[str, int, pa.Schema, Part]] = []
    try:
        for number, ((path, shard, schema), batches) in enumerate(rows.items()):
            part = store.write(f"{group}-{number:06}", schema, list(slices.together(batches)))  # 2.
            laid.append((path, shard, schema, part))
        steps.passed("append.durable")
        durable = time.perf_counter()
        with ledger.transaction() as t:  # 3.
            receipts = [_finished(t, put, most_datasets) for put in puts]
            for path, shard, schema, part in laid:
                found = layouts[path]
                _show(t, path, shard, schema, part, None if found is None else found.journal)
    except Unsettled:
        raise
    except BaseException:
        store.discard(part.name for *_, part in laid)
        raise
    took("fsync", durable - began, len(puts))
    took("ledger", time.perf_counter() - durable, len(puts))
    return receipts


def _finished(t: Transaction, put: SmallPut, most_datasets: int) -> Receipt:
    """The put as a write that was opened, put to and finished at once."""
    write = Write(uuid.uuid4().hex, put.path, "append", put.run, "finished", "", put.schema, t.now, t.now, None)
    held = journal.schema_at(t, put.path)
    merged = merged_schema(write, held, ())
    if held is None:
        journal.check_path(t, put.path)
        opening.check_room(t, most_datasets)
        journal.create(t, put.path, merged)
    elif not held.equals(merged):
        journal.widen(t, put.path, merged)
    t.sql.execute(
        "INSERT INTO writes(id, path, mode, run, state, opener, opened, touched, own, rows, bytes, parts)"
        " VALUES (?, ?, 'append', ?, 'finished', '', ?, ?, 1, ?, ?, 0)",
        (write.id, put.path, put.run, t.now, t.now, put.rows, put.bytes),
    )
    row = (put.attempt, write.id, t.schema_id(put.schema), put.rows, put.bytes, 0, "", 1)
    t.sql.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    return Receipt(write.id, put.attempt, put.rows, put.bytes, 0, "")


def _show(t: Transaction, path: str, shard: int, schema: pa.Schema, part: Part, topic: str | None) -> None:
    t.sql.execute(
        "INSERT INTO parts(name, attempt, number, rows, bytes, schema, incarnation, state)"
        " VALUES (?, ?, 0, ?, ?, ?, ?, 'whole')",
        (part.name, f"group-{part.name}", part.rows, part.bytes, t.schema_id(schema), t.catalog.incarnation),
    )
    journal.lay(t, part.name, shard, topic)
    journal.append(t, path, [part.name])


class Appender:
    """One thread that commits what waits, group after group."""

    def __init__(
        self, ledger: Ledger, store: SplitPayloadStore, took: Took = _untold, most_datasets: int = 1_000_000
    ) -> None:
        self._ledger, self._store, self._took, self._most_datasets = ledger, store, took, most_datasets
        self._waiting: queue.SimpleQueue[SmallPut | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="penstock-append", daemon=True)

    def start(self) -> None:
        """Begin to take puts."""
        self._thread.start()

    def append(self, put: SmallPut) -> Receipt:
        """The put's receipt, once its rows are durable and can be read."""
        self._waiting.put(put)
        return put.answer.result()

    def close(self) -> None:
        """Commit what waits, and end the thread."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            group, ended = self._group()
            try:
                commit(self._ledger, self._store, group, self._took, self._most_datasets)
            except BaseException as error:  # nobody may wait for ever for a thread that is gone
                log.exception("a group of puts failed")
                for put in group:
                    if not put.answer.done():
                        put.answer.set_exception(error)

    def _group(self) -> tuple[list[SmallPut], bool]:
        """What waits, at least one put; True when there will be no more."""
        group: list[SmallPut] = []
        size = 0
        found = self._waiting.get()
        while found is not None:
            group.append(found)
            size += found.bytes
            if size >= GROUP_BYTES:
                return group, False
            try:
                found = self._waiting.get_nowait()
            except queue.Empty:
                return group, False
        return group, True
