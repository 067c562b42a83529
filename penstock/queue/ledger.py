"""The ledger: the one owner of state. What is visible is a row here and nowhere else.

Two facts that must agree change in one transaction. Bytes are durable before the
transaction that names them; a crash in between leaves an orphan, never half a dataset.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock import paths, steps
from penstock.bodies import Summary
from penstock.errors import AlreadyExists, InvalidRequest, LimitExceeded, Lost, NotFound, WriteEnded
from penstock.queue.catalog import Catalog, below, schema_id, to_schema
from penstock.queue.writes import Attempt, Dataset, HeldPart, Write, check_place, merged_schema
from penstock.store.database import Database
from penstock.wire import Mode, Receipt

IDLE = 24 * 3600.0
"""Seconds after which an open write that nobody touches expires."""
REMEMBERED = 30 * 24 * 3600.0
"""Seconds for which a finished write is known, and with it its run: a repeat after that writes anew."""


class Ledger(Catalog):
    """Writes, attempts, parts and datasets in one SQLite file."""

    def __init__(self, database: Database, *, incarnation: str = "", now: Callable[[], float] = time.time) -> None:
        super().__init__(database, incarnation=incarnation)
        self._now = now

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
        """Begin a write; with a `run`, join the open write of that run or get its finished one.

        Nothing is seen of it before `finish`. Joining makes the caller its last opener. An `own` write is one put's,
        and ends with the process that serves it; puts of one run that share it leave its end to the one that finishes.
        """
        now, opener = self._now(), uuid.uuid4().hex
        with self.database.transaction() as t:
            known = t.execute(
                "SELECT * FROM writes WHERE path = ? AND run = ? AND state IN ('open', 'finished')", (path, run)
            ).fetchone()
            if known:
                return self._join(t, known, mode, own, opener)
            write = Write(uuid.uuid4().hex, path, mode, run, "open", opener, schema, now, now, None)
            held = self._held_schema(t, path)
            self._check_place(t, write, held is not None)
            if held is None and self.totals()["datasets"] >= most_datasets:
                raise LimitExceeded(f"the server has {most_datasets:,} datasets, its most (serve --limit datasets=…)")
            if schema is not None:
                merged_schema(write, held, ())
            columns = (write.id, path, mode, run, "open", opener, schema_id(t, schema), now, now, own)
            t.execute(
                "INSERT INTO writes(id, path, mode, run, state, opener, schema, opened, touched, own)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                columns,
            )
        return write

    def _join(self, t: sqlite3.Connection, known: sqlite3.Row, mode: Mode, own: bool, opener: str) -> Write:
        if known["mode"] != mode:
            raise InvalidRequest(
                f"run {known['run']!r} of {known['path']} was opened with mode {known['mode']!r}, now with {mode!r}: "
                "use that mode, or another run"
            )
        if known["state"] == "open" and bool(known["own"]) != own:
            kind = ("a write of many attempts", "one put")[known["own"]]
            raise AlreadyExists(f"run {known['run']!r} of {known['path']} is open as {kind}: use another run")
        t.execute(
            "UPDATE writes SET opener = ?, touched = ? WHERE id = ? AND state = 'open'",
            (opener, self._now(), known["id"]),
        )
        write = self.write(known["id"])
        return replace(write, opener="") if own else write

    def touch(self, write_id: str) -> Write:
        """An open write that is being put to: it stays open for another IDLE seconds."""
        with self.database.transaction() as t:
            write = self.write(write_id)
            write.must_be_open("a put")
            t.execute("UPDATE writes SET touched = ? WHERE id = ?", (self._now(), write_id))
        return write

    def record(self, write_id: str, attempt: Attempt) -> Receipt:
        """An attempt is whole: it may be named in a finish. Refused once the write has ended."""
        with self.database.transaction() as t:
            return self._record(t, write_id, attempt)

    def finish(self, write_id: str, attempts: Sequence[str]) -> Summary:
        """Make exactly these attempts the dataset, or add them to it.

        The same list again gets the same answer; another list is refused. In one transaction:
        1. The write is open, the path is free for its mode, the schemas agree.
        2. What an overwrite replaces is retired, with the time until which tickets hold its bytes.
        3. The listed attempts' parts become visible, in the order of the list.
        4. The other attempts' parts are retired; the write is finished.
        """
        with self.database.transaction() as t:
            return self._finish(t, write_id, attempts)

    def finish_single(self, write_id: str, attempt: Attempt) -> Receipt:
        """`record` and `finish` in one transaction: for a put that is a write of its own."""
        with self.database.transaction() as t:
            receipt = self._record(t, write_id, attempt)
            self._finish(t, write_id, [attempt.id])
        return receipt

    def abort(self, write_id: str, *, opener: str | None = None) -> Summary:
        """End a write with nothing to show for it; again does nothing. With `opener`, only the last one may."""
        with self.database.transaction() as t:
            write = self.write(write_id)
            if write.state == "finished":
                raise WriteEnded(f"write/{write_id} to {write.path} is finished: it can't be aborted any more")
            if write.state == "open":
                if opener not in (None, write.opener):
                    raise WriteEnded(
                        f"write/{write_id} to {write.path} was joined by a later opener: only that one may abort it"
                    )
                self._end(t, write_id, "aborted")
            return self.summary(write_id)

    def expire(self) -> list[str]:
        """End the writes that were idle for too long, and forget finished ones after a month; the expired ids."""
        now = self._now()
        with self.database.transaction() as t:
            idle = [
                row["id"]
                for row in t.execute("SELECT id FROM writes WHERE state = 'open' AND touched < ?", (now - IDLE,))
            ]
            for write_id in idle:
                self._end(t, write_id, "expired")
            t.execute("DELETE FROM writes WHERE state <> 'open' AND touched < ?", (now - REMEMBERED,))
        return idle

    def snapshot(self, path: str, *, ticketed_until: float) -> tuple[Dataset, list[HeldPart]]:
        """A dataset with its parts, whose bytes stay until that time whatever happens to the path."""
        with self.database.lock:
            dataset = self.dataset(path)
            rows = self.database.rows("SELECT ticketed FROM datasets WHERE path = ?", path)
            if rows[0]["ticketed"] < ticketed_until:  # in steps of a minute, so that reading doesn't write each time
                with self.database.transaction() as t:
                    t.execute("UPDATE datasets SET ticketed = ? WHERE path = ?", (ticketed_until + 60, path))
            parts = self.database.rows(
                "SELECT name, rows, bytes, ipc FROM parts JOIN schemas ON schemas.id = parts.schema "
                "WHERE path = ? AND state = 'visible' ORDER BY seq",
                path,
            )
            return dataset, [HeldPart(r["name"], r["rows"], r["bytes"], to_schema(r["ipc"])) for r in parts]

    def abort_own(self) -> int:
        """At start: end the writes that were one put's, as the process that served it is gone; how many."""
        with self.database.transaction() as t:
            left = [row["id"] for row in t.execute("SELECT id FROM writes WHERE state = 'open' AND own")]
            for write_id in left:
                self._end(t, write_id, "aborted")
        return len(left)

    def delete(self, path: str) -> Dataset:
        """Take a dataset away; its bytes stay for as long as tickets name them.

        One transaction: the parts are retired and the path is free.
        """
        with self.database.transaction() as t:
            dataset = self.dataset(path)
            self._retire_dataset(t, path)
            t.execute("DELETE FROM datasets WHERE path = ?", (path,))
        return dataset

    def retired(self) -> list[str]:
        """The names of parts that nothing and nobody reads any more."""
        return [
            row["name"]
            for row in self.database.rows(
                "SELECT name FROM parts WHERE state = 'retired' AND free_at <= ?", self._now()
            )
        ]

    def forget(self, names: Sequence[str]) -> None:
        """Drop the rows of retired parts, once their bytes are gone."""
        if names:
            with self.database.transaction() as t:
                t.executemany("DELETE FROM parts WHERE name = ? AND state = 'retired'", [(name,) for name in names])

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    # --- within a transaction ---------------------------------------------------------------

    def _record(self, t: sqlite3.Connection, write_id: str, attempt: Attempt) -> Receipt:
        write = self.write(write_id)
        write.must_be_open("a put")
        known = self.receipt(write_id, attempt.id)
        if known:
            return known
        merged_schema(write, self._held_schema(t, write.path), [attempt.schema])
        schema, size = schema_id(t, attempt.schema), sum(part.bytes for part in attempt.parts)
        digest = _digest([part.digest for part in attempt.parts])
        row = (attempt.id, write_id, schema, attempt.rows, size, len(attempt.parts), digest)
        t.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, 0)", row)
        t.executemany(
            "INSERT INTO parts(name, attempt, number, rows, bytes, schema, incarnation, state)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 'whole')",
            [
                (p.name, attempt.id, number, p.rows, p.bytes, schema, self._incarnation)
                for number, p in enumerate(attempt.parts)
            ],
        )
        t.execute("UPDATE writes SET touched = ? WHERE id = ?", (self._now(), write_id))
        return Receipt(write_id, attempt.id, attempt.rows, size, len(attempt.parts), digest)

    def _finish(self, t: sqlite3.Connection, write_id: str, attempts: Sequence[str]) -> Summary:
        write = self.write(write_id)
        attempts = list(dict.fromkeys(attempts))
        chosen = _digest(sorted(attempts))
        if write.state == "finished":
            if write.chosen != chosen:
                raise WriteEnded(f"write/{write_id} to {write.path} is finished with another list of attempts")
            return self.summary(write_id)
        write.must_be_open("finish")
        held = self._held_schema(t, write.path)  # 1.
        self._check_place(t, write, held is not None)
        brought = [self._whole_schema(t, write, attempt) for attempt in attempts]
        schema = merged_schema(write, held, brought)
        steps.passed("finish.checked")
        if write.mode == "overwrite" and held is not None:
            self._retire_dataset(t, write.path)  # 2.
            t.execute("DELETE FROM datasets WHERE path = ?", (write.path,))
        self._show(t, write.path, attempts, schema)  # 3.
        steps.passed("finish.shown")
        self._end(t, write_id, "finished", chosen)  # 4.
        return self.summary(write_id)

    def _whole_schema(self, t: sqlite3.Connection, write: Write, attempt: str) -> pa.Schema:
        row = t.execute(
            "SELECT ipc FROM attempts JOIN schemas ON schemas.id = attempts.schema"
            " WHERE attempts.id = ? AND attempts.write = ?",
            (attempt, write.id),
        ).fetchone()
        if row is None:
            raise NotFound(
                f"write/{write.id} to {write.path} has no whole attempt {attempt[:40]!r}: "
                "list what the receipts say, and only that"
            )
        return to_schema(row["ipc"])

    def _show(self, t: sqlite3.Connection, path: str, attempts: Sequence[str], schema: pa.Schema) -> None:
        """The parts of these attempts become the end of the dataset."""
        t.execute(
            "INSERT INTO datasets(path, schema, rows, bytes, parts, next_seq, changed) VALUES (?, ?, 0, 0, 0, 0, ?)"
            " ON CONFLICT(path) DO UPDATE SET schema = excluded.schema, changed = excluded.changed",
            (path, schema_id(t, schema), self._now()),
        )
        for attempt in attempts:
            t.execute(
                "UPDATE parts SET state = 'visible', path = ?1,"
                " seq = number + (SELECT next_seq FROM datasets WHERE path = ?1) WHERE attempt = ?2",
                (path, attempt),
            )
            t.execute(
                "UPDATE datasets SET rows = datasets.rows + a.rows, bytes = datasets.bytes + a.bytes,"
                " parts = datasets.parts + a.parts, next_seq = next_seq + a.parts"
                " FROM (SELECT rows, bytes, parts FROM attempts WHERE id = ?2) AS a WHERE path = ?1",
                (path, attempt),
            )
            t.execute("UPDATE attempts SET chosen = 1 WHERE id = ?", (attempt,))

    def _end(self, t: sqlite3.Connection, write_id: str, state: str, chosen: str | None = None) -> None:
        """The write's last change: what it brought and doesn't show is retired."""
        t.execute(
            "UPDATE parts SET state = 'retired', free_at = ? WHERE state = 'whole'"
            " AND attempt IN (SELECT id FROM attempts WHERE write = ?)",
            (self._now(), write_id),
        )
        t.execute("DELETE FROM attempts WHERE write = ? AND NOT chosen", (write_id,))
        t.execute(
            "UPDATE writes SET (rows, bytes, parts) = (SELECT coalesce(sum(rows), 0), coalesce(sum(bytes), 0),"
            " coalesce(sum(parts), 0) FROM attempts WHERE write = ?1), state = ?2, chosen = ?3, touched = ?4"
            " WHERE id = ?1",
            (write_id, state, chosen, self._now()),
        )

    def _retire_dataset(self, t: sqlite3.Connection, path: str) -> None:
        t.execute(
            "UPDATE parts SET state = 'retired', path = NULL, seq = NULL,"
            " free_at = max(?1, (SELECT ticketed FROM datasets WHERE path = ?2)) WHERE path = ?2 AND state = 'visible'",
            (self._now(), path),
        )

    def _check_place(self, t: sqlite3.Connection, write: Write, exists: bool) -> None:
        above = [f"store/{key}" for key in paths.parse(write.path).parents]
        found = [path for path in above if self._held_schema(t, path) is not None]
        if exists and write.mode == "append" and self.dataset(write.path).lost:
            raise Lost(f"{write.path} can't be appended to, its rows are lost: write it again with mode 'overwrite'")
        first, end = below(write.path)
        in_it = t.execute("SELECT 1 FROM datasets WHERE path >= ? AND path < ? LIMIT 1", (first, end)).fetchone()
        check_place(write, exists, found, in_it is not None)

    def _held_schema(self, t: sqlite3.Connection, path: str) -> pa.Schema | None:
        row = t.execute(
            "SELECT ipc FROM datasets JOIN schemas ON schemas.id = datasets.schema WHERE path = ?", (path,)
        ).fetchone()
        return to_schema(row["ipc"]) if row else None


def _digest(words: Sequence[str]) -> str:
    """Stands for all of them: an attempt's bytes, a finish's list."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]
