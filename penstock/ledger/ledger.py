"""The ledger: the one owner of state. What is visible is a row here and nowhere else.

Two facts that must agree change in one transaction. Bytes are durable before the
transaction that names them; a crash in between leaves an orphan, never half a dataset.
What a transaction does is written by area, in functions that take it: `opening`, `finishing`, `datasets`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import AlreadyExists, StoreFull, WriteEnded
from penstock.ledger import datasets, finishing, opening
from penstock.ledger.catalog import Catalog, to_schema
from penstock.ledger.transaction import Transaction
from penstock.ledger.writes import Attempt, Dataset, Laid, Write
from penstock.store.database import Database
from penstock.wire.actions import Summary
from penstock.wire.paths import is_topic
from penstock.wire.put import Mode, Receipt

IDLE = 24 * 3600.0
"""Seconds after which an open write that nobody touches expires."""
REMEMBERED = 30 * 24 * 3600.0
"""Seconds for which a finished write is known, and with it its run: a repeat after that writes anew."""
REPEATED = 3600.0
"""The same for a put to a topic whose run is the client's own, made for trying again: there may be 1,000 a second."""
_FORGOTTEN = 10_000  # such puts in one transaction, which others wait for


class Ledger(Catalog):
    """Writes, attempts, parts and datasets in one SQLite file."""

    def __init__(self, database: Database, *, incarnation: str = "", now: Callable[[], float] = time.time) -> None:
        super().__init__(database, incarnation=incarnation)
        self.now = now

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """All of the block or none of it; durable when the block is left. Not to be nested."""
        with self.database.transaction() as sql:
            yield Transaction(sql, self.now(), self)

    def open_write(
        self,
        path: str,
        *,
        mode: Mode = "error",
        run: str | None = None,
        schema: pa.Schema | None = None,
        own: bool = False,
        most_datasets: int = 1_000_000,
    ) -> Write:
        """Begin a write; with a `run`, join the open write of that run or get its finished one, unless it is lost.

        Nothing is seen of it before `finish`. Joining makes the caller its last opener. An `own` write is one put's,
        and ends with the process that serves it; puts of one run that share it leave its end to the one that finishes.
        """
        with self.transaction() as t:
            known = opening.of_run(t, path, run)
            if known is not None:
                return opening.join(t, known, mode=mode, own=own)
            write = Write(uuid.uuid4().hex, path, mode, run, "open", uuid.uuid4().hex, schema, t.now, t.now, None)
            opening.begin(t, write, own=own, most_datasets=most_datasets)
        return write

    def touch(self, write_id: str) -> Write:
        """An open write that is being put to: it stays open for another IDLE seconds."""
        with self.transaction() as t:
            write = self.write(write_id)
            write.must_be_open("a put")
            t.sql.execute("UPDATE writes SET touched = ? WHERE id = ?", (t.now, write_id))
        return write

    def record(self, write_id: str, attempt: Attempt) -> Receipt:
        """An attempt is whole: it may be named in a finish. Refused once the write has ended."""
        with self.transaction() as t:
            return finishing.record(t, write_id, attempt)

    def finish(self, write_id: str, attempts: Sequence[str], *, run: str | None = None) -> Summary:
        """Make exactly these attempts the dataset, or add them to it.

        The same list again gets the same answer; another list is refused. Where a `run` is named that another write has
        finished, this one ends with nothing to show, and the answer is that one's. In one transaction:
        1. The write is open, the path is free for its mode, the schemas agree.
        2. What an overwrite replaces is retired, with the time until which tickets hold its bytes.
        3. The listed attempts' parts become visible, in the order of the list.
        4. The other attempts' parts are retired; the write is finished.
        """
        with self.transaction() as t:
            return finishing.finish(t, write_id, attempts, run=run)

    def finish_single(self, write_id: str, attempt: Attempt) -> Receipt:
        """`record` and `finish` in one transaction: for a put that is a write of its own."""
        with self.transaction() as t:
            receipt = finishing.record(t, write_id, attempt)
            finishing.finish(t, write_id, [attempt.id])
        return receipt

    def published(self, path: str, run: str | None, attempt: str) -> Receipt | None:
        """The receipt of a put to a topic that is done already, by its attempt or its run."""
        rows = self.database.rows(
            "SELECT writes.id, state FROM attempts JOIN writes ON writes.id = attempts.write WHERE attempts.id = ?1"
            " UNION SELECT id, state FROM writes WHERE path = ?2 AND run = ?3 AND state IN ('open', 'finished')",
            attempt,
            path,
            run,
        )
        if not rows:
            return None
        if rows[0]["state"] == "open":
            raise AlreadyExists(f"run {run!r} of {path} is being put by another: use another run, or wait for that one")
        return self.finished_receipt(self.write(rows[0]["id"]))

    def abort(self, write_id: str, *, opener: str | None = None) -> Summary:
        """End a write with nothing to show for it; again does nothing. With `opener`, only the last one may."""
        with self.transaction() as t:
            write = self.write(write_id)
            if write.state == "finished":
                raise WriteEnded(f"write/{write_id} to {write.path} is finished: it can't be aborted any more")
            if write.state == "open":
                if opener not in (None, write.opener):
                    raise WriteEnded(
                        f"write/{write_id} to {write.path} was joined by a later opener: only that one may abort it"
                    )
                finishing.end(t, write_id, "aborted")
            return self.summary(write_id)

    def expire(self) -> list[str]:
        """End the writes that were idle for too long, and forget finished ones after their time; the expired ids."""
        with self.transaction() as t:
            found = t.sql.execute("SELECT id FROM writes WHERE state = 'open' AND touched < ?", (t.now - IDLE,))
            idle = [row["id"] for row in found.fetchall()]
            for write_id in idle:
                finishing.end(t, write_id, "expired")
            t.sql.execute("DELETE FROM writes WHERE state <> 'open' AND touched < ?", (t.now - REMEMBERED,))
            t.sql.execute(
                "DELETE FROM writes WHERE id IN (SELECT id FROM writes INDEXED BY small_puts WHERE own"
                " AND state = 'finished'"
                " AND path GLOB 'topic/*' AND (run IS NULL OR run GLOB 'put-????????????????????????????????')"
                " AND touched < ? LIMIT ?)",
                (t.now - REPEATED, _FORGOTTEN),
            )
        return idle

    def snapshot(self, path: str, *, ticketed_until: float) -> tuple[Dataset, list[Laid]]:
        """A dataset with its parts, whose bytes stay until that time whatever happens to the path."""
        with self.database.lock:
            dataset = self.dataset(path)
            self.hold(path, ticketed_until)
            parts = self.database.rows(
                "SELECT name, rows, bytes, ipc FROM parts JOIN schemas ON schemas.id = parts.schema "
                "WHERE path = ? AND state = 'visible' ORDER BY seq",
                path,
            )
            return dataset, [Laid(r["name"], r["rows"], r["bytes"], to_schema(r["ipc"]), r["rows"]) for r in parts]

    def hold(self, path: str, until: float) -> None:
        """The bytes at a path stay until then, whatever happens to it. Noted in steps of a minute, as it is an fsync.

        Where the disk has no room for that, this process alone knows it: reading goes on, and after a crash a ticket
        may end before its time, by an error.
        """
        table = "topics" if is_topic(path) else "datasets"
        with self.database.lock:
            noted = self.database.rows(f"SELECT ticketed FROM {table} WHERE path = ?", path)[0]["ticketed"]  # noqa: S608
            if max(noted, self.held.get(path, 0.0)) >= until:
                return
            try:
                with self.transaction() as t:
                    t.sql.execute(f"UPDATE {table} SET ticketed = ? WHERE path = ?", (until + 60, path))  # noqa: S608
                self.held.pop(path, None)
            except StoreFull:
                self.held[path] = until + 60

    def own(self, store: str) -> None:
        """The parts of the store of this name, which has none yet, are this ledger's from now on."""
        with self.transaction() as t:
            t.sql.execute("INSERT INTO stores VALUES (?)", (store,))

    def abort_own(self) -> int:
        """At start: end the writes that were one put's, as the process that served it is gone; how many."""
        with self.transaction() as t:
            left = [row["id"] for row in t.sql.execute("SELECT id FROM writes WHERE state = 'open' AND own")]
            for write_id in left:
                finishing.end(t, write_id, "aborted")
        return len(left)

    def delete(self, path: str) -> Dataset:
        """Take a dataset away; its bytes stay for as long as tickets name them.

        One transaction: the path is free, the parts are retired, and the runs that made the dataset are forgotten,
        as who deletes it and writes it again starts over.
        """
        with self.transaction() as t:
            dataset = self.dataset(path)
            datasets.take_away(t, path)
            datasets.forget_runs(t, path)
        return dataset

    def retired(self) -> list[str]:
        """The names of parts that nothing and nobody reads any more."""
        return [
            row["name"]
            for row in self.database.rows("SELECT name FROM parts WHERE state = 'retired' AND free_at <= ?", self.now())
        ]

    def held_by_tickets(self) -> tuple[int, float]:
        """Bytes of parts that only read tickets hold, and the time by which all of them will be free."""
        found = self.database.rows(
            "SELECT coalesce(sum(bytes), 0) AS bytes, coalesce(max(free_at), 0) AS until FROM parts"
            " WHERE state = 'retired' AND free_at > ?",
            self.now(),
        )[0]
        return found["bytes"], found["until"]

    def forget(self, names: Sequence[str]) -> None:
        """Drop the rows of retired parts, once their bytes are gone."""
        if names:
            with self.transaction() as t:
                t.sql.executemany("DELETE FROM parts WHERE name = ? AND state = 'retired'", [(name,) for name in names])

    def close(self) -> None:
        """Close the file."""
        self.database.close()
