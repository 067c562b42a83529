"""Attempts: what one put brought, the receipt for it, and the rejection of another put under its name."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import AlreadyExists
from penstock.ledger.tables import Transaction
from penstock.store.database import Reader
from penstock.store.medium import Part
from penstock.text import counted
from penstock.wire.put import Receipt


@dataclass(frozen=True, slots=True)
class Attempt:
    """One whole attempt, as its put hands it to the ledger."""

    id: str
    schema: pa.Schema
    rows: int
    parts: tuple[Part, ...]
    shards: tuple[int, ...] = ()
    """Of a topic's rows: the shard of each part."""
    journal: str | None = None
    """The journal that has these shards; None where there was no topic yet."""

    def receipt(self, write: str) -> Receipt:
        """Return the answer to its put."""
        digest = digest_of([part.digest for part in self.parts])
        return Receipt(write, self.id, self.rows, sum(part.bytes for part in self.parts), len(self.parts), digest)


def digest_of(words: Sequence[str]) -> str:
    """Return a digest of all of them: of an attempt's parts, of a finish's list."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]


def receipt_of(reader: Reader, write_id: str, attempt: str) -> Receipt | None:
    """Return the receipt of an attempt that is recorded, None for a new one."""
    row = reader.row("SELECT * FROM attempts WHERE id = ?", attempt)
    if row is not None and row["write"] != write_id:
        raise _of_another_write(attempt)
    return _receipt(row) if row is not None else None


def finished_receipt(reader: Reader, write_id: str) -> Receipt:
    """Return a finished write as the one receipt of a put that was a write of its own."""
    rows = reader.rows("SELECT * FROM attempts WHERE write = ? LIMIT 2", write_id)
    if len(rows) == 1:
        return _receipt(rows[0])
    total = reader.rows("SELECT rows, bytes, parts FROM writes WHERE id = ?", write_id)[0]
    return Receipt(write_id, "", total["rows"], total["bytes"], total["parts"], "")  # a run of many attempts


def receipt_of_put(reader: Reader, path: str, run: str | None, attempt: Receipt) -> Receipt | None:
    """Return the receipt of a put that is finished, known by its attempt or its run; None for a new one.

    `attempt` is the receipt that the put would get: the same attempt with other rows is rejected.
    """
    row = reader.row(
        "SELECT writes.id, writes.path, state, attempts.id AS attempt FROM attempts"
        " JOIN writes ON writes.id = attempts.write WHERE attempts.id = ?1"
        " UNION SELECT id, path, state, NULL FROM writes WHERE path = ?2 AND run = ?3"
        " AND state IN ('open', 'finished') ORDER BY attempt DESC",
        attempt.attempt, path, run,
    )  # fmt: skip
    if row is None:
        return None
    if row["path"] != path or (row["attempt"] is not None and row["state"] == "open"):
        raise _of_another_write(attempt.attempt)
    if row["state"] == "open":
        raise AlreadyExists(f"run {run!r} of {path} is being put by another: use another run, or wait for that one")
    known = finished_receipt(reader, row["id"])
    if row["attempt"] is not None:
        check_same_rows(known, attempt)
    return known


def check_same_rows(known: Receipt, repeated: Receipt) -> None:
    """Reject an attempt that comes again with other rows. Its bytes may count otherwise in another medium."""
    same_bytes = not known.digest or known.digest == repeated.digest  # small puts had no digest before format 3
    if (known.rows, known.parts) != (repeated.rows, repeated.parts) or not same_bytes:
        raise AlreadyExists(
            f"attempt {known.attempt} of write/{known.write} is recorded with {counted(known.rows, 'row')} "
            f"({known.bytes:,} bytes); the {counted(repeated.rows, 'row')} ({repeated.bytes:,} bytes) that came now "
            "under its name are others, and were not kept: mint a new UUID for each put"
        )


def add(t: Transaction, new: Receipt, schema: pa.Schema, *, chosen: bool = False) -> None:
    """Add an attempt's row."""
    t.insert(
        "attempts", id=new.attempt, write=new.write, schema=t.schema_id(schema), rows=new.rows, bytes=new.bytes,
        parts=new.parts, digest=new.digest, chosen=chosen,
    )  # fmt: skip


def _receipt(row: sqlite3.Row) -> Receipt:
    return Receipt(row["write"], row["id"], row["rows"], row["bytes"], row["parts"], row["digest"])


def _of_another_write(attempt: str) -> AlreadyExists:
    return AlreadyExists(f"attempt {attempt} belongs to another write: mint a new UUID for each put")
