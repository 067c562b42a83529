"""What a write brings, and how it ends: within a transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock import steps
from penstock.errors import AlreadyExists, Lost, NotFound, WriteEnded
from penstock.ledger import datasets, opening, places
from penstock.ledger.catalog import to_schema
from penstock.ledger.transaction import Transaction
from penstock.ledger.writes import Attempt, Write, check_repeated, digest_of, merged_schema
from penstock.queue.topics import journal
from penstock.wire.actions import Summary
from penstock.wire.put import Receipt, State


def record(t: Transaction, write_id: str, attempt: Attempt) -> Receipt:
    """An attempt and its parts, whole and unseen; the same again gets its first receipt, other rows are refused."""
    write = t.catalog.write(write_id)
    write.must_be_open("a put")
    receipt, known = attempt.receipt(write_id), t.catalog.receipt(write_id, attempt.id)
    if known:
        check_repeated(known, receipt)
        return known
    merged_schema(write, places.schema_at(t, write.path), [attempt.schema])
    schema = t.schema_id(attempt.schema)
    row = (attempt.id, write_id, schema, receipt.rows, receipt.bytes, receipt.parts, receipt.digest)
    t.sql.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, 0)", row)
    t.sql.executemany(
        "INSERT INTO parts(name, attempt, number, rows, bytes, schema, incarnation, state)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 'whole')",
        [
            (p.name, attempt.id, number, p.rows, p.bytes, schema, t.catalog.incarnation)
            for number, p in enumerate(attempt.parts)
        ],
    )
    for part, shard in zip(attempt.parts, attempt.shards, strict=False):
        journal.lay(t, part.name, shard, attempt.journal)
    t.sql.execute(
        "UPDATE writes SET touched = ?, rows = rows + ?, bytes = bytes + ?, parts = parts + ? WHERE id = ?",
        (t.now, receipt.rows, receipt.bytes, receipt.parts, write_id),
    )
    return receipt


def finish(t: Transaction, write_id: str, attempts: Sequence[str], *, run: str | None = None) -> Summary:
    """The four steps of `Ledger.finish`."""
    write = t.catalog.write(write_id)
    attempts = list(dict.fromkeys(attempts))
    chosen = digest_of(sorted(attempts))
    if write.state == "finished":
        if write.chosen != chosen:
            raise WriteEnded(f"write/{write_id} to {write.path} is finished with another list of attempts")
        return t.catalog.summary(write_id)
    if run is not None and run != write.run:
        known = _take_run(t, write, run)
        if known is not None:
            return t.catalog.summary(known)
    write.must_be_open("finish")
    held = places.schema_at(t, write.path)  # 1.
    places.check(t, write, exists=held is not None)
    brought = [_whole_schema(t, write, attempt) for attempt in attempts]
    schema = merged_schema(write, held, brought)
    steps.passed("finish.checked")
    if write.mode == "overwrite" and held is not None:
        datasets.take_away(t, write.path)  # 2.
    places.show(t, write, attempts, schema)  # 3.
    steps.passed("finish.shown")
    end(t, write_id, "finished", chosen)  # 4.
    return t.catalog.summary(write_id)


def _take_run(t: Transaction, write: Write, run: str) -> str | None:
    """Give the write this run's name; where another one has it already, that one's id, and this one is over."""
    known = opening.of_run(t, write.path, run)
    if known is None:
        if write.state == "open":
            t.sql.execute("UPDATE writes SET run = ? WHERE id = ?", (run, write.id))
        return None
    if known["state"] == "open":
        raise AlreadyExists(f"run {run!r} of {write.path} is open as write/{known['id']}: finish that one, or abort it")
    if write.state == "open":
        end(t, write.id, "aborted")
    return str(known["id"])


def end(t: Transaction, write_id: str, state: State, chosen: str | None = None) -> None:
    """The write's last change: what it brought and doesn't show is retired."""
    t.sql.execute(
        "UPDATE parts SET state = 'retired', free_at = ? WHERE state = 'whole'"
        " AND attempt IN (SELECT id FROM attempts WHERE write = ?)",
        (t.now, write_id),
    )
    t.sql.execute("DELETE FROM attempts WHERE write = ? AND NOT chosen", (write_id,))
    t.sql.execute(
        "UPDATE writes SET (rows, bytes, parts) = (SELECT coalesce(sum(rows), 0), coalesce(sum(bytes), 0),"
        " coalesce(sum(parts), 0) FROM attempts WHERE write = ?1), state = ?2, chosen = ?3, touched = ?4"
        " WHERE id = ?1",
        (write_id, state, chosen, t.now),
    )


def _whole_schema(t: Transaction, write: Write, attempt: str) -> pa.Schema:
    row = t.sql.execute(
        "SELECT ipc FROM attempts JOIN schemas ON schemas.id = attempts.schema"
        " WHERE attempts.id = ? AND attempts.write = ?",
        (attempt, write.id),
    ).fetchone()
    if row is None:
        raise NotFound(
            f"write/{write.id} to {write.path} has no whole attempt {attempt[:40]!r}: "
            "list what the receipts say, and only that"
        )
    lost = "SELECT 1 FROM parts WHERE attempt = ? AND incarnation NOT IN ('', ?) LIMIT 1"
    if t.sql.execute(lost, (attempt, t.catalog.incarnation)).fetchone():
        raise Lost(
            f"write/{write.id} to {write.path} can't be finished: rows of its were in the memory of a server that has "
            "ended. Write them again"
        )
    return to_schema(row["ipc"])
