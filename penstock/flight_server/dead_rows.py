"""Dead rows are found once, behind the commits: a thread decodes what consumers have committed, with their schemas."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock import steps
from penstock.errors import Lost, Unavailable, WriteEnded
from penstock.flight_server.cut import Cut
from penstock.flight_server.revisions import Revisions
from penstock.flight_server.selection import with_meta
from penstock.ledger import publications
from penstock.ledger.ledger import Ledger
from penstock.ledger.parts import Slice
from penstock.ledger.tables import Transaction
from penstock.queue.topics import dead, journal, revisions
from penstock.queue.topics.append import PATIENCE, Append, Appender, Placed
from penstock.queue.topics.dead import Looked
from penstock.queue.topics.topic import Topic
from penstock.queue.topics.topics import Topics
from penstock.rows.fitting import fit_batches
from penstock.rows.messages import check_columns, unpublishable, without_googles
from penstock.rows.slices import size_of
from penstock.store.payloads import Store
from penstock.text import counted
from penstock.wire.actions import RedrivenRows, Summary
from penstock.wire.paths import DEAD

log = logging.getLogger("penstock")
_ROWS = 64 << 10
"""Rows that are looked at between two transactions."""
_READABLE = 600.0
"""Seconds for which these rows stay while they are looked at."""
_RETRY = 60.0
"""Seconds after which a look that failed is tried again."""
_TURN = 30.0
"""Seconds for which a redrive waits until another one has ended."""
_CATCH_UP = 30.0
"""Seconds for which a session with another schema waits until rows of the one before were looked at."""


class DeadRows:
    """Finds and keeps the dead rows of all consumers, and puts them back."""

    def __init__(self, ledger: Ledger, store: Store, topics: Topics, appender: Appender, revisions: Revisions) -> None:
        self._ledger, self._store, self._topics, self._appender = ledger, store, topics, appender
        self._revisions = revisions
        self._looking = threading.Lock()  # one look at a time, by the thread or by a session that attaches
        self._redriving = threading.Lock()  # one redrive at a time
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-dead", daemon=True)

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; what it has not looked at waits for the next start."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    def look(self) -> None:
        """Look at what was committed since, soon."""
        self._wake.set()

    def catch_up(self, path: str, consumer: str) -> None:
        """Look at all that a consumer has committed, before it gets another schema."""
        deadline = time.monotonic() + _CATCH_UP
        while self._look_once(path, consumer):
            if time.monotonic() > deadline:
                raise Unavailable(f"{path}: rows of consumer {consumer[:40]} are still looked at", retry_after=5)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            failed = False
            while not (self._stopped.is_set() or failed) and (some := dead.pending(self._ledger.database)):
                for each in some:
                    try:
                        self._look_once(each.path, each.consumer)
                    except Exception:  # of one consumer: the others' rows are looked at
                        failed = True
                        log.exception(
                            "%s: dead rows of consumer %s can't be looked for; this is tried again in %g s",
                            each.path, each.consumer, _RETRY,
                        )  # fmt: skip
            if failed:
                self._stopped.wait(_RETRY)
            else:
                self._wake.wait()

    def _look_once(self, path: str, consumer: str) -> bool:
        """Look at some rows of a consumer; False if all that it has committed was looked at."""
        with self._looking:
            some = dead.pending(self._ledger.database, path, consumer)
            for each in some:
                self._look_at(each)
        return bool(some)

    def _look_at(self, looked: Looked) -> None:
        """Decode some rows that a consumer has committed, and keep those that fail.

        1. Rows from where the last look ended, up to what is committed; they are decoded as the consumer did.
        2. One transaction: the dead ones are in the dead journal, counted, and the look ends behind all of them. So
        each is kept once, whatever crashes. Until then retention leaves the rows alone.
        """
        topic = self._topics.find(looked.path)
        if topic is None or topic.journal != looked.journal:
            return
        first = topic.earliest()
        start = {shard: max(looked.position.get(shard, 0), first[shard]) for shard in first}
        end = self._topics.ahead(topic, start, looked.committed, rows=_ROWS)
        end = {shard: max(at, looked.position.get(shard, 0)) for shard, at in end.items()}
        rows: list[pa.RecordBatch] = []
        try:
            columns = with_meta(topic.schema)
            decoding = self._revisions.decoding(looked.path, topic.journal, columns, looked.decoding)
            for batch in self._batches(topic, start, end, columns):  # 1.
                errors = decoding.errors_of(batch)
                if errors.null_count < len(errors):
                    rows.append(dead.about(looked.consumer, batch, errors, topic.schema.names))
        except Lost as lost:
            log.warning(
                "%s: rows that consumer %s has committed can't be looked at: %s", looked.path, looked.consumer, lost
            )
        steps.passed("dead.found")
        note = partial(dead.advance, looked=looked, position=end, rows=sum(batch.num_rows for batch in rows))
        if rows:
            log.warning(
                "%s: %s that consumer %s has committed could not be decoded, and kept in %s", looked.path,
                counted(sum(batch.num_rows for batch in rows), "row"), looked.consumer, dead.journal_of(looked.path),
            )  # fmt: skip
            schema = dead.schema_of(topic.schema)
            self._append(dead.journal_of(looked.path), schema, rows, note, topic.journal)  # 2.
        else:
            self._ledger.change(note)

    def redrive(self, path: str, consumer: str | None, to: str, redrive: str | None = None) -> RedrivenRows:
        """Append a consumer's dead rows, as they came, to another topic; return whose they were, and how many.

        1. A piece of the dead journal from where the last redrive ended. 2. One transaction: its rows are in the topic,
        and the next redrive begins behind them. So each is redriven once, whatever crashes.
        """
        with self._alone(path):
            total = 0
            if (before := dead.answered(self._ledger.database, path, redrive)) is not None:
                answer, is_all = before
                if is_all:
                    return answer
                total, consumer = answer.rows, answer.consumer
            consumer, start = dead.waiting(self._ledger.database, path, consumer)
            topic = self._topics.topic(dead.journal_of(path))
            if (begun := self._begun(topic, consumer, start)) is not None:
                raise _is_being_published(path, consumer, begun)
            answer = RedrivenRows(consumer, total, notes=self._published_before(topic, consumer, start))
            schema = self._ledger.fit_schema(to, dead.own_schema(topic.schema))
            start, last = max(start, topic.earliest()[0]), topic.latest()[0]
            for begin in range(start, last, _ROWS):
                end = min(last, begin + _ROWS)
                own = (each.select(schema.names) for each in self._own_rows(topic, consumer, begin, end))
                rows = list(fit_batches(own, schema))  # 1.
                count = sum(batch.num_rows for batch in rows)
                answer = replace(answer, rows=answer.rows + count)
                note = partial(
                    dead.redriven, path=path, redrive=redrive, answer=answer, end=end, until=last, rows=count
                )
                if rows:
                    self._append(to, schema, rows, note, topic.journal)  # 2.
                else:
                    self._ledger.change(note)
        return answer

    def publish(
        self, path: str, consumer: str | None, to: str, put: Callable[[str, Iterator[pa.RecordBatch]], Summary],
        redrive: str | None = None,
    ) -> RedrivenRows:  # fmt: skip
        """Publish a consumer's dead rows, as they came, by `put`; return whose they are, and the write, if any.

        1. The rows behind the last redrive are one run, whose name says up to where: however often this is called, they
        are published once. It has no rows that Pub/Sub would refuse. 2. Once they are published, one transaction: those
        it would refuse are dead rows behind the others, and the next redrive begins with them. A crash in between finds
        the run finished, and notes that alone.
        """
        with self._alone(path):
            if (before := dead.answered(self._ledger.database, path, redrive)) is not None:
                return before[0]
            consumer, start = dead.waiting(self._ledger.database, path, consumer)
            topic = self._topics.topic(dead.journal_of(path))
            check_columns(dead.own_schema(topic.schema), to)
            begin, end = max(start, topic.earliest()[0]), topic.latest()[0]
            begun = self._begun(topic, consumer, start)
            if begun is None:
                refused = self._refused(topic, consumer, begin, end)
                if refused.others == 0:
                    return RedrivenRows(consumer, 0, notes=refused.notes)
                run = _run_of(topic, consumer, start, end)
            elif begun["path"] != to:
                raise _is_being_published(path, consumer, begun)
            else:
                run = str(begun["run"])
            end = int(run.rpartition("-")[2])
            write = put(run, self._messages(topic, consumer, begin, end))  # 1.
            steps.passed("redrive.published")
            answer = RedrivenRows(consumer, write.rows, write)
            if write.state == "finished":
                refused = self._refused(topic, consumer, begin, end)
                notes = (*refused.notes, *self._published_before(topic, consumer, start))
                answer = replace(answer, notes=notes)
                note = partial(
                    dead.redriven, path=path, redrive=redrive, answer=answer, end=end, until=end, rows=write.rows
                )
                if refused.rows:
                    self._append(topic.path, topic.schema, refused.rows, note, topic.journal)  # 2.
                else:
                    self._ledger.change(note)
        return answer

    @contextmanager
    def _alone(self, path: str) -> Iterator[None]:
        """Redrive while nobody else does."""
        if not self._redriving.acquire(timeout=_TURN):
            raise Unavailable(f"{path}: other dead rows are still being redriven: try again", retry_after=5)
        try:
            yield
        finally:
            self._redriving.release()

    def _begun(self, topic: Topic, consumer: str, start: int) -> sqlite3.Row | None:
        """Return the write by which the dead rows from an offset on are published, or were.

        One up to the same offset had no rows: folders of earlier servers have such, which must not hide later rows.
        """
        empty = _run_of(topic, consumer, start, start)
        prefix = empty.removesuffix(str(start))
        return publications.of_run(self._ledger.database, prefix, other_than=empty)

    def _published_before(self, topic: Topic, consumer: str, start: int) -> tuple[str, ...]:
        """Return which of the dead rows from an offset on are published, by redrives that were given up."""
        prefix = _run_of(topic, consumer, start, start).removesuffix(str(start))
        return tuple(
            f"{each['rows']:,} of these rows were published before, by write/{each['id']} to {each['path']} that was "
            "given up"
            for each in publications.given_up(self._ledger.database, prefix)
        )

    def _refused(self, topic: Topic, consumer: str, begin: int, end: int) -> _Refused:
        """Return a consumer's rows that Pub/Sub would refuse for good."""
        names = dead.own_schema(topic.schema).names
        rows, others, first = list[pa.RecordBatch](), 0, ""
        for own in self._own_rows(topic, consumer, begin, end):
            wrong, reason = unpublishable(own.select(names))
            refused = own.filter(wrong)
            others += own.num_rows - refused.num_rows
            if refused.num_rows:
                shard, offset = (refused.column(name)[0] for name in ("_dead_shard", "_dead_offset"))
                first = first or f"the one with _dead_shard {shard} and _dead_offset {offset}: {reason}"
                rows.append(refused)
        return _Refused(rows, others, first)

    def _messages(self, topic: Topic, consumer: str, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield a consumer's rows of a dead journal that Pub/Sub takes, as a put would have them."""
        names = dead.own_schema(topic.schema).names
        for own in self._own_rows(topic, consumer, begin, end):
            messages = own.select(names)
            yield without_googles(messages.filter(pc.invert(unpublishable(messages)[0])))

    def _own_rows(self, topic: Topic, consumer: str, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield a consumer's rows of a dead journal."""
        for batch in self._batches(topic, {0: begin}, {0: end}, topic.schema):
            own = batch.filter(pc.equal(batch.column("_dead_consumer"), consumer))
            if own.num_rows:
                yield own

    def _batches(
        self, topic: Topic, start: Mapping[int, int], end: Mapping[int, int], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for piece in self._topics.range(topic, start, end, ticketed_until=time.time() + _READABLE):
            yield from self._cut(topic.path, piece).batches(schema)

    def _cut(self, path: str, piece: Slice) -> Cut:
        part = self._store.open(piece.part, path=path, rows=piece.part_rows, digest=piece.digest)
        return Cut(part, piece.skip, piece.rows, piece.shard, piece.first + piece.skip, piece.since)

    def _append(
        self, path: str, schema: pa.Schema, batches: list[pa.RecordBatch], record: Callable[[Transaction], None],
        journal: str,
    ) -> None:  # fmt: skip
        append = KeptRows(path, schema, list(fit_batches(batches, schema)), record, journal)
        self._appender.submit(append)
        append.answer.result(PATIENCE)


@dataclass(frozen=True, slots=True)
class _Refused:
    """Dead rows that Pub/Sub would refuse for good."""

    rows: list[pa.RecordBatch]
    others: int
    """How many it takes."""
    first: str
    """How a user finds the first one, and why it is refused."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the answer of a redrive says of them."""
        if not self.rows:
            return ()
        number = sum(batch.num_rows for batch in self.rows)
        return (f"Pub/Sub can't take {number:,} of the rows, which stay dead (--to topic/… takes all): {self.first}",)


def _run_of(topic: Topic, consumer: str, start: int, end: int) -> str:
    """Return the run by which dead rows between two offsets are published."""
    return f"redrive:{topic.journal}:{consumer}:{start}-{end}"


def _is_being_published(path: str, consumer: str, begun: sqlite3.Row) -> WriteEnded:
    return WriteEnded(
        f"{path}: the dead rows of consumer {consumer[:40]} are being published to {begun['path']}: redrive them to "
        f"that, or give up those that aren't published: penstock rm write/{begun['id']}, after which a redrive has all "
        "of them again, those that are published, too"
    )


class KeptRows(Append):
    """Rows that the server itself appends, and what is noted with them."""

    def __init__(
        self, path: str, schema: pa.Schema, batches: list[pa.RecordBatch], note: Callable[[Transaction], None],
        source: str,
    ) -> None:  # fmt: skip
        """`source` is the journal that the rows come from."""
        self.path, self.schema, self.batches, self._note, self._source = path, schema, batches, note, source
        self.bytes = sum(map(size_of, batches))
        self.answer: Future[None] = Future()

    def record(self, t: Transaction, placed: Placed) -> None:
        """Note it, in the transaction of the rows; dead rows stay longer than a topic's."""
        self._note(t)
        revisions.copy(t, self._source, self.path)
        if self.path.endswith(f"/{DEAD}"):
            journal.keep(t, self.path, keep_seconds=dead.KEEP, keep_bytes=None)

    def settle(self, placed: Placed) -> None:
        """Say that the rows are durable."""
        self.answer.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Say that they aren't."""
        if not self.answer.done():
            self.answer.set_exception(error)
