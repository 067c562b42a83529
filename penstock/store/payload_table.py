"""The table of payloads: a key, and its bytes in the row itself or the name of the part that has them.

The one module that writes it. A server's ledger and a store that stands alone in a folder have the same table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from crc32c import crc32c

from penstock.errors import AlreadyExists, Lost
from penstock.rows import slices
from penstock.store.database import Reader, Tables, View

TABLES: Tables = {
    2: """
CREATE TABLE IF NOT EXISTS payloads(
    key TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, incarnation TEXT NOT NULL,
    split_id TEXT NOT NULL, metadata TEXT NOT NULL, stored REAL NOT NULL, expires REAL
) WITHOUT ROWID;
""",
    6: """
ALTER TABLE payloads RENAME TO payloads_before;
CREATE TABLE payloads(
    key TEXT PRIMARY KEY, part TEXT UNIQUE, crc INTEGER, rows INTEGER NOT NULL, bytes INTEGER NOT NULL,
    bound INTEGER NOT NULL DEFAULT 0, stored REAL NOT NULL, expires REAL, split_id TEXT, metadata TEXT,
    digest TEXT, inline BLOB,
    CHECK ((part IS NULL) = (inline IS NOT NULL) AND (crc IS NULL) = (inline IS NULL))
);
INSERT INTO payloads(key, part, rows, bytes, stored, expires, split_id, metadata)
    SELECT key, name, 0, 0, stored, expires, split_id, metadata FROM payloads_before;
DROP TABLE payloads_before;
CREATE INDEX payloads_to_expire ON payloads(expires) WHERE expires IS NOT NULL;
""",
    7: """
CREATE TABLE payload_totals(keys INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO payload_totals(keys, bytes)
    SELECT count(*) - total(bound), total((part IS NULL) * bytes) FROM payloads;
CREATE TRIGGER payload_added AFTER INSERT ON payloads BEGIN
    UPDATE payload_totals SET keys = keys + 1 - new.bound, bytes = bytes + (new.part IS NULL) * new.bytes; END;
CREATE TRIGGER payload_removed AFTER DELETE ON payloads BEGIN
    UPDATE payload_totals SET keys = keys - 1 + old.bound, bytes = bytes - (old.part IS NULL) * old.bytes; END;
CREATE TRIGGER payload_bound AFTER UPDATE OF bound ON payloads WHEN new.bound AND NOT old.bound BEGIN
    UPDATE payload_totals SET keys = keys - 1; END;
""",
}
"""`inline`: an IPC stream, the last column as SQLite reads through all that is before a value; `crc`: its checksum.
`bound`: the payload goes when the last message that names it is done. `split_id`, `metadata`: of rows that were stored
before format 6; the schemas of later ones carry them. `digest`: of the part, which rows of those times lack.
`payload_totals`, one row: the payloads that aren't bound, and the bytes of all that lie in rows."""

INLINE = 32 << 10
"""Bytes of an IPC stream up to which it lies in the row: a file of its own would cost an fsync."""


@dataclass(frozen=True, slots=True)
class PayloadRow:
    """A key's row: either `part` or `inline` is set."""

    key: str
    part: str | None
    inline: bytes | None
    rows: int
    bytes: int
    expires: float | None = None
    stored: float = 0.0
    bound: bool = False
    split_id: str | None = None
    metadata: str | None = None
    schema: pa.Schema | None = None
    """Of a new payload."""
    digest: str | None = None
    """Of the part."""


class InlinePart:
    """An IPC stream that lies in a row or in a ticket, read as a part is."""

    def __init__(self, stream: bytes) -> None:
        self._stream = pa.py_buffer(stream)
        self.bytes = len(stream)
        self._table = pa.ipc.open_stream(self._stream).read_all()
        self.schema: pa.Schema = self._table.schema
        self.rows: int = self._table.num_rows

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return all rows, of these columns in this order."""
        return slices.open_stream(self._stream, columns)

    def descriptor(self) -> None:
        """Return None: there is no file."""


def encode(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Return the IPC stream of a small payload."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


# --- what is known -------------------------------------------------------------------------


def find(reader: Reader, key: str, now: float) -> PayloadRow | None:
    """Return a key's row, None without one or past its time; Lost if its bytes are not those that were written."""
    row = reader.row("SELECT * FROM payloads WHERE key = ? AND (expires IS NULL OR expires > ?)", key, now)
    if row is None:
        return None
    if row["inline"] is not None and crc32c(row["inline"]) != row["crc"]:
        raise Lost(f"the payload {key} is lost: its row has another checksum than at writing")
    return PayloadRow(
        row["key"], row["part"], row["inline"], row["rows"], row["bytes"], row["expires"], row["stored"],
        bool(row["bound"]), row["split_id"], row["metadata"],
        digest=row["digest"],
    )  # fmt: skip


def count(reader: Reader) -> int:
    """Return how many payloads there are, without bound ones."""
    return int(reader.rows("SELECT keys FROM payload_totals")[0]["keys"])


def inline_bytes(reader: Reader) -> int:
    """Return the bytes of all payloads that lie in rows."""
    return int(reader.rows("SELECT bytes FROM payload_totals")[0]["bytes"])


def keys(reader: Reader, prefix: str, now: float, *, after: str = "", most: int = -1) -> list[str]:
    """Return the keys that begin with a prefix, without those of bound payloads, in order."""
    rows = reader.rows(
        "SELECT key FROM payloads WHERE key >= ?1 AND key < ?2 AND key > ?3 AND NOT bound"
        " AND (expires IS NULL OR expires > ?4) ORDER BY key LIMIT ?5",
        prefix, _end_of(prefix), after, now, most,
    )  # fmt: skip
    return [row["key"] for row in rows]


def check_free(reader: Reader, key: str, now: float) -> None:
    """Reject a key above or below another payload's: a path is one thing or a folder, never both."""
    names = key.split("/")
    above = ["/".join(names[:depth]) for depth in range(1, len(names))]
    living = "(expires IS NULL OR expires > ?)"
    for parent in above:
        if reader.row(f"SELECT 1 FROM payloads WHERE key = ? AND {living}", parent, now):  # noqa: S608  # our own text
            raise AlreadyExists(f"store/{key}: store/{parent} is a payload, so nothing can be below it")
    if is_folder(reader, key, now):
        raise AlreadyExists(f"store/{key} is a folder with payloads in it, so it can't be a payload itself")


def is_folder(reader: Reader, key: str, now: float) -> bool:
    """Whether payloads lie below a key."""
    query = "SELECT 1 FROM payloads WHERE key >= ? AND key < ? AND (expires IS NULL OR expires > ?) LIMIT 1"
    return reader.row(query, key + "/", key + "0", now) is not None


def named_parts(reader: Reader) -> list[str]:
    """Return the parts that rows name."""
    return [row["part"] for row in reader.rows("SELECT part FROM payloads WHERE part IS NOT NULL")]


def is_bound(reader: Reader, key: str) -> bool:
    """Whether a payload goes with the last message that names it."""
    return reader.row("SELECT 1 FROM payloads WHERE key = ? AND bound", key) is not None


def expired_keys(reader: Reader, now: float) -> list[str]:
    """Return the keys past their time."""
    return [row["key"] for row in reader.rows("SELECT key FROM payloads WHERE expires <= ?", now)]


def damaged(reader: Reader) -> list[str]:
    """Describe the inline payloads that aren't those that were written: SQLite checks no bytes."""
    rows = reader.rows("SELECT key, inline, crc FROM payloads WHERE inline IS NOT NULL")
    return [
        f"the payload store/{row['key']} has other bytes than were written"
        for row in rows
        if crc32c(row["inline"]) != row["crc"]
    ]


def below(reader: Reader, first: str, end: str, now: float) -> list[sqlite3.Row]:
    """Return key, rows, bytes, part and stored of the payloads of a range of keys, in order, without bound ones."""
    return reader.rows(
        "SELECT key, rows, bytes, part, stored FROM payloads WHERE key >= ? AND key < ? AND NOT bound"
        " AND (expires IS NULL OR expires > ?) ORDER BY key",
        first, end, now,
    )  # fmt: skip


# --- what changes --------------------------------------------------------------------------


def put(t: View, row: PayloadRow, now: float, *, bound: bool = False) -> str | None:
    """Point a key at its bytes; return the part that it pointed at before."""
    before = t.row("DELETE FROM payloads WHERE key = ? RETURNING part", row.key)
    t.sql.execute(
        "INSERT INTO payloads(key, part, inline, crc, rows, bytes, bound, stored, expires, digest)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.key, row.part, row.inline, None if row.inline is None else crc32c(row.inline), row.rows, row.bytes,
            bound, now, row.expires, row.digest,
        ),
    )  # fmt: skip
    return None if before is None else before["part"]


def remove(t: View, key: str) -> sqlite3.Row | None:
    """Remove a key's row, and return it."""
    return t.row("DELETE FROM payloads WHERE key = ? RETURNING *", key)


def remove_below(t: View, prefix: str, most: int) -> list[sqlite3.Row]:
    """Remove the rows whose keys begin with a prefix, not those of bound payloads; return them."""
    return t.rows(
        "DELETE FROM payloads WHERE key IN (SELECT key FROM payloads WHERE key >= ? AND key < ? AND NOT bound LIMIT ?)"
        " RETURNING *",
        prefix, _end_of(prefix), most,
    )  # fmt: skip


def remove_expired(t: View, now: float) -> list[sqlite3.Row]:
    """Remove the rows past their time, and return them."""
    return t.rows("DELETE FROM payloads WHERE expires <= ? RETURNING *", now)


def set_bound(t: View, key: str) -> None:
    """Let a payload go when the last message that names it is done, and no sooner."""
    t.sql.execute("UPDATE payloads SET bound = 1, expires = NULL WHERE key = ?", (key,))


def _end_of(prefix: str) -> str:
    """Return what follows all keys that begin with a prefix: keys are ASCII."""
    return prefix + "\x7f"
