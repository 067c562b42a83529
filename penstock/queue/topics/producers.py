"""Producers of topics: numbered appends, each answered once it is durable, of which a repeat adds nothing.

The number of a producer's last batch, and the answers that it may not have got, change in the transaction of the rows.
A client that comes back learns both, and sends only what is missing. Of two sessions of a producer the newer one goes
on.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.errors import Expired, Fenced, InvalidRequest, LimitExceeded, Lost, SchemaMismatch, TimedOut, Unavailable
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.topics import append, journal, keys
from penstock.queue.topics.append import Append, Appender, Placed
from penstock.store.database import Reader, Tables
from penstock.wire.exchange import MOST_UNACKED, Answer, Hello, Welcome

log = logging.getLogger("penstock")
TABLES: Tables = {
    5: """
CREATE TABLE producers(
    id TEXT PRIMARY KEY, path TEXT NOT NULL, session TEXT NOT NULL, last INTEGER NOT NULL, seen REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX producers_of_topic ON producers(path);
CREATE TABLE answers(
    producer TEXT NOT NULL REFERENCES producers ON DELETE CASCADE, number INTEGER NOT NULL, shards TEXT NOT NULL,
    PRIMARY KEY (producer, number)
) WITHOUT ROWID;
"""
}
"""`producers.last`: the number of the last batch that is stored. `answers`: those that the client hasn't acked yet."""
UNSEEN = 7 * 24 * 3600.0
"""Seconds after which a producer without a stream expires: it can't come back."""
MOST = 10_000
"""Producers that a server remembers."""
_UNSETTLED_BYTES = 16 << 20
"""Bytes of one producer's batches that may wait for the committer before the next one is read."""


class Producers:
    """The producers of a ledger's topics."""

    def __init__(self, ledger: Ledger, appender: Appender) -> None:
        self.ledger, self.appender = ledger, appender
        self._lock = threading.Lock()  # _live
        self._live: dict[str, Session] = {}
        """By the producer's id: the newest session of each that has a stream."""
        self._opened = 0
        """Sessions that were opened; changes in the ledger's thread alone."""

    def open(
        self,
        path: str,
        hello: Hello,
        *,
        answer: Callable[[Answer, ProducedBatch], None],
        refuse: Callable[[Exception], None],
    ) -> Session:
        """Make a stream the one that speaks for its producer, and fence the one before.

        `answer` is called in the committer's thread for each batch, in order; `refuse` at most once, behind them, for
        the first batch that isn't stored.
        """

        def attach(t: Transaction) -> Session:
            self._opened += 1
            producer, last, session = hello.producer, 0, uuid.uuid4().hex[:16]
            if producer is None:
                _check_room(t)
                producer = uuid.uuid4().hex
                t.insert("producers", id=producer, path=path, session=session, last=last, seen=t.now)
            else:
                last = _check_known(t, path, producer, hello.acked)["last"]
                _drop_answers(t, producer, hello.acked)
                t.execute("UPDATE producers SET session = ?, seen = ? WHERE id = ?", session, t.now, producer)
            answers = tuple(_answers(t, producer))
            return Session(self, path, producer, session, self._opened, last, answers, answer, refuse)

        session = self.ledger.change(attach)
        with self._lock:
            other = self._live.get(session.producer)
            newest = other is None or other.order < session.order
            if newest:
                self._live[session.producer] = session
        older = other if newest else session
        if older is not None:
            older.end(fenced(session.producer, path))
        return session

    def live(self) -> int:
        """Return how many producers have a stream."""
        with self._lock:
            return len(self._live)

    def expire(self) -> list[str]:
        """Expire the producers that have had no stream for UNSEEN seconds; return their ids."""
        with self._lock:
            live = json.dumps(list(self._live))

        def expire(t: Transaction) -> list[sqlite3.Row]:
            t.execute("UPDATE producers SET seen = ? WHERE id IN (SELECT value FROM json_each(?))", t.now, live)
            return t.rows("DELETE FROM producers WHERE seen < ? RETURNING id, path, last", t.now - UNSEEN)

        expired = self.ledger.change(expire)
        for row in expired:
            log.warning(
                "producer %s of %s was not seen for %g days and is forgotten, after %s batches: it is told so if it "
                "returns", row["id"], row["path"], UNSEEN / 86400, f"{row['last']:,}",
            )  # fmt: skip
        return [row["id"] for row in expired]

    def leave(self, session: Session) -> None:
        """Note that a session's stream has ended."""
        with self._lock:
            if self._live.get(session.producer) is session:
                del self._live[session.producer]


@dataclass(slots=True, eq=False)
class Session:
    """One stream of a producer. A context manager: leaving waits until all of its batches are settled."""

    producers: Producers
    path: str
    producer: str
    id: str
    order: int
    """Of two sessions the newer one has the larger number."""
    last: int
    answers: tuple[Answer, ...]
    answer: Callable[[Answer, ProducedBatch], None]
    refuse: Callable[[Exception], None]
    error: Exception | None = None
    """Why the stream ends: nothing behind the last answer is stored."""
    _next: int = 0
    _unsettled: int = 0
    _bytes: int = 0
    _rows: int = 0
    """Rows that came by this stream."""
    _changed: threading.Condition = field(default_factory=threading.Condition)  # error, _unsettled, _bytes

    def __post_init__(self) -> None:
        self._next = self.last + 1

    def welcome(self, silence: float) -> Welcome:
        """Return the answer to Hello."""
        layout = journal.layout(self.producers.ledger.database, self.path)
        return Welcome(self.producer, self.last, silence, self.answers, layout.journal if layout else None)

    def append(self, n: int, acked: int, schema: pa.Schema, batches: list[pa.RecordBatch], size: int) -> None:
        """Queue the next batch; waits while too many bytes of this producer are queued."""
        if n != self._next:
            raise InvalidRequest(f"producer {self.producer} of {self.path}: expected batch {self._next}, got {n}")
        if not n - MOST_UNACKED <= acked < n:
            raise InvalidRequest(
                f"producer {self.producer} of {self.path}: batch {n} says that the answers up to {acked} have come; "
                f"expected at most {n - 1}, and at least {n - MOST_UNACKED}: read the answers, and say so (acked)"
            )
        with self._changed:
            self._wait_until(
                lambda: not self._unsettled or self._bytes + size <= _UNSETTLED_BYTES or self.error is not None
            )
            if self.error is not None:
                raise self.error
            self._unsettled += 1
            self._bytes += size
        self._next += 1
        batch = ProducedBatch(self, n, acked, schema, batches, size)
        try:
            self.producers.appender.submit(batch)
        except Unavailable as closed:
            batch.fail(closed)
            raise

    def next_spread(self, rows: int) -> int:
        """Return the number of the shard for rows without a key: the next one after each run of rows."""
        turn, self._rows = self._rows // keys.RUN_ROWS, self._rows + rows
        return int(self.producer[:8], 16) + turn

    def forget(self) -> None:
        """Forget the producer: it said that it won't come back."""
        self.wait()
        self.producers.ledger.change(
            lambda t: t.execute("DELETE FROM producers WHERE id = ? AND session = ?", self.producer, self.id)
        )

    def wait(self) -> None:
        """Wait until each batch is stored, or not."""
        with self._changed:
            self._wait_until(lambda: not self._unsettled)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, append.PATIENCE):
            raise TimedOut(
                f"{self.path}: {self._unsettled} batches of producer {self.producer} wait for the disk for "
                f"{append.PATIENCE:g} s, and whether they will be stored isn't known: come back with the same id"
            )

    def settled(self, batch: ProducedBatch, placed: Placed) -> None:
        """Answer a batch."""
        self.answer(Answer(batch.n, placed.shards), batch)
        self._note_settled(batch)

    def failed(self, batch: ProducedBatch, error: Exception) -> None:
        """End the stream: a batch isn't stored."""
        self.end(error)
        self._note_settled(batch)

    def end(self, error: Exception) -> None:
        """End the stream; what isn't in the committer's hands yet is not stored."""
        with self._changed:
            first, self.error = self.error is None, self.error or error
            self._changed.notify_all()
        if first:
            self.refuse(error)

    def _note_settled(self, batch: ProducedBatch) -> None:
        with self._changed:
            self._unsettled -= 1
            self._bytes -= batch.bytes
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        finally:
            self.producers.leave(self)


@dataclass(slots=True, eq=False)
class ProducedBatch(Append):
    """A batch of a producer: its rows, its number and its answer are stored together."""

    session: Session
    n: int
    acked: int
    schema: pa.Schema
    batches: list[pa.RecordBatch]
    bytes: int
    answered: bool = False

    def __post_init__(self) -> None:
        self.path = self.session.path
        self.spread = self.session.next_spread(self.rows)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(batch.num_rows for batch in self.batches)

    def judge(self, database: Reader) -> bool:
        """Reject a batch behind one that isn't stored."""
        if self.session.error is not None:
            self.fail(self.session.error)
            return False
        return True

    def record(self, t: Transaction, placed: Placed) -> None:
        """Note the number and the answer, if this session still speaks for its producer."""
        session = self.session
        taken = t.execute(
            "UPDATE producers SET last = ?1, seen = ?2 WHERE id = ?3 AND session = ?4 AND last = ?1 - 1",
            self.n, t.now, session.producer, session.id,
        )  # fmt: skip
        if taken != 1:
            _check_known(t, self.path, session.producer, self.acked)
            raise fenced(session.producer, self.path)
        _drop_answers(t, session.producer, self.acked)
        t.insert("answers", producer=session.producer, number=self.n, shards=json.dumps(placed.shards))

    def settle(self, placed: Placed) -> None:
        """Answer."""
        self.answered = True
        self.session.settled(self, placed)

    def fail(self, error: BaseException) -> None:
        """End the session."""
        if self.answered:
            return
        self.answered = True
        if isinstance(error, SchemaMismatch):  # the rows were cast to what the topic's types were
            error = Unavailable(f"{self.path} got other types while these rows came: send them again", retry_after=0.1)
        self.session.failed(self, error if isinstance(error, Exception) else RuntimeError(str(error)))


def forget(t: Transaction, path: str) -> None:
    """Forget the producers of a topic that is deleted."""
    t.execute("DELETE FROM producers WHERE path = ?", path)


def fenced(producer: str, path: str) -> Fenced:
    """Return the error of an older session."""
    return Fenced(f"another session of producer {producer} appends to {path}: this one is the older of them")


def _check_known(reader: Reader, path: str, producer: str, acked: int) -> sqlite3.Row:
    row = reader.row("SELECT last FROM producers WHERE id = ? AND path = ?", producer, path)
    if row is None:
        raise Expired(
            f"{path} has no producer {producer[:40]}: it had no stream for {UNSEEN / 86400:g} days, or the topic was "
            "deleted. What was answered is stored; whether the rest is can't be known: look, and open a new producer"
        )
    if acked > row["last"]:
        raise Lost(
            f"{path}: producer {producer} has the answers up to batch {acked}, the server has {row['last']}: its data "
            "folder was put back to an older state, and rows that were answered are gone"
        )
    return row


def _check_room(t: Transaction) -> None:
    count = t.rows("SELECT count(*) AS n FROM producers")[0]["n"]
    if count >= MOST:
        raise LimitExceeded(
            f"the server knows {count:,} producers, its most: end those that are done (bye), or wait until the ones "
            f"expire that nobody has seen for {UNSEEN / 86400:g} days"
        )


def _drop_answers(t: Transaction, producer: str, acked: int) -> None:
    t.execute("DELETE FROM answers WHERE producer = ? AND number <= ?", producer, acked)


def _answers(reader: Reader, producer: str) -> list[Answer]:
    rows = reader.rows("SELECT number, shards FROM answers WHERE producer = ? ORDER BY number", producer)
    return [Answer.from_json({"n": row["number"], "shards": json.loads(row["shards"])}) for row in rows]
