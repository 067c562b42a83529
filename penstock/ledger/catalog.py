"""The ledger's tables, and what may be asked of them without changing anything."""

from __future__ import annotations

import sqlite3
from functools import lru_cache

import pyarrow as pa

from penstock.errors import AlreadyExists, NotFound
from penstock.ledger.writes import Dataset, Folder, Write, summary
from penstock.store.database import Database
from penstock.wire.actions import Summary
from penstock.wire.put import Receipt

TABLES = """
CREATE TABLE IF NOT EXISTS schemas(id INTEGER PRIMARY KEY, ipc BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS writes(
    id TEXT PRIMARY KEY, path TEXT NOT NULL, mode TEXT NOT NULL, run TEXT, state TEXT NOT NULL, opener TEXT NOT NULL,
    schema INTEGER REFERENCES schemas, opened REAL NOT NULL, touched REAL NOT NULL, chosen TEXT,
    own INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, parts INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS runs ON writes(path, run) WHERE run IS NOT NULL AND state IN ('open', 'finished');
CREATE INDEX IF NOT EXISTS writes_by_state ON writes(state, touched);
CREATE INDEX IF NOT EXISTS small_puts ON writes(touched) WHERE own AND state = 'finished' AND path GLOB 'topic/*'
    AND (run IS NULL OR run GLOB 'put-????????????????????????????????');
CREATE TABLE IF NOT EXISTS attempts(
    id TEXT PRIMARY KEY, write TEXT NOT NULL REFERENCES writes ON DELETE CASCADE,
    schema INTEGER NOT NULL REFERENCES schemas, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, parts INTEGER NOT NULL,
    digest TEXT NOT NULL, chosen INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS attempts_of_write ON attempts(write);
CREATE TABLE IF NOT EXISTS parts(
    name TEXT PRIMARY KEY, attempt TEXT NOT NULL, number INTEGER NOT NULL, rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL, schema INTEGER NOT NULL REFERENCES schemas, incarnation TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('whole', 'visible', 'retired')), path TEXT, seq INTEGER, free_at REAL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_of_attempt ON parts(attempt, number);
CREATE UNIQUE INDEX IF NOT EXISTS parts_of_dataset ON parts(path, seq) WHERE state = 'visible';
CREATE INDEX IF NOT EXISTS parts_to_free ON parts(free_at) WHERE state = 'retired';
CREATE TABLE IF NOT EXISTS datasets(
    path TEXT PRIMARY KEY, schema INTEGER NOT NULL REFERENCES schemas, rows INTEGER NOT NULL, bytes INTEGER NOT NULL,
    parts INTEGER NOT NULL, next_seq INTEGER NOT NULL, changed REAL NOT NULL, ticketed REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topics(
    path TEXT PRIMARY KEY, journal TEXT NOT NULL, epoch INTEGER NOT NULL, schema INTEGER NOT NULL REFERENCES schemas,
    key TEXT, keep_seconds REAL NOT NULL, keep_bytes INTEGER, changed REAL NOT NULL, ticketed REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shards(
    path TEXT NOT NULL REFERENCES topics ON DELETE CASCADE, shard INTEGER NOT NULL, first INTEGER NOT NULL,
    next INTEGER NOT NULL, lost INTEGER NOT NULL DEFAULT 0,
    parts INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (path, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal(
    part TEXT PRIMARY KEY REFERENCES parts(name) ON DELETE CASCADE, shard INTEGER NOT NULL,
    laid TEXT, path TEXT, first INTEGER, rows INTEGER, bytes INTEGER, since REAL, until REAL
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS journal_in_order ON journal(path, shard, first) WHERE path IS NOT NULL;
CREATE TRIGGER IF NOT EXISTS part_placed AFTER UPDATE OF path ON journal WHEN new.path IS NOT NULL BEGIN
    UPDATE shards SET parts = parts + 1, bytes = bytes + new.bytes WHERE path = new.path AND shard = new.shard; END;
CREATE TRIGGER IF NOT EXISTS part_added AFTER INSERT ON journal WHEN new.path IS NOT NULL BEGIN
    UPDATE shards SET parts = parts + 1, bytes = bytes + new.bytes WHERE path = new.path AND shard = new.shard; END;
CREATE TRIGGER IF NOT EXISTS part_left AFTER DELETE ON journal WHEN old.path IS NOT NULL BEGIN
    UPDATE shards SET parts = parts - 1, bytes = bytes - old.bytes WHERE path = old.path AND shard = old.shard; END;
CREATE TABLE IF NOT EXISTS stores(name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS consumers(
    id TEXT PRIMARY KEY, path TEXT NOT NULL, journal TEXT NOT NULL, session TEXT NOT NULL, initial TEXT NOT NULL,
    position TEXT NOT NULL, registered REAL NOT NULL, seen REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('live', 'expired', 'detached'))
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS consumers_of_topic ON consumers(path, journal);
CREATE VIEW IF NOT EXISTS summaries AS SELECT id AS write, path, mode, state, run, opened, touched, rows, bytes, parts,
    (SELECT count(*) FROM attempts WHERE attempts.write = writes.id) AS attempts FROM writes;
"""


class Catalog:
    """The reading half of the ledger. Its queries see what is committed, or what the running transaction has done."""

    def __init__(self, database: Database, *, incarnation: str = "") -> None:
        self.database = database
        self.incarnation = incarnation
        self.held: dict[str, float] = {}  # under database.lock
        """Until when tickets name the bytes at a path, where there was no room on the disk to note it."""

    def write(self, write_id: str) -> Write:
        """A write by id."""
        query = "SELECT writes.*, ipc FROM writes LEFT JOIN schemas ON schemas.id = writes.schema WHERE writes.id = ?"
        rows = self.database.rows(query, write_id)
        if not rows:
            raise _no_write(write_id)
        row = rows[0]
        schema = to_schema(row["ipc"]) if row["ipc"] else None
        return Write(
            row["id"], row["path"], row["mode"], row["run"], row["state"], row["opener"], schema,
            row["opened"], row["touched"], row["chosen"],
        )  # fmt: skip

    def receipt(self, write_id: str, attempt: str) -> Receipt | None:
        """The receipt of an attempt that is recorded already."""
        rows = self.database.rows("SELECT * FROM attempts WHERE id = ?", attempt)
        if rows and rows[0]["write"] != write_id:
            raise AlreadyExists(f"attempt {attempt} belongs to another write: mint a new UUID for each put")
        return _receipt(rows[0]) if rows else None

    def finished_receipt(self, write: Write) -> Receipt:
        """A finished write as the one receipt of a put that was a write of its own."""
        rows = self.database.rows("SELECT * FROM attempts WHERE write = ? LIMIT 2", write.id)
        if len(rows) == 1:
            return _receipt(rows[0])
        done = self.summary(write.id)  # a run that was finished with many attempts
        return Receipt(write.id, "", done.rows, done.bytes, done.parts, "")

    def writes(self) -> list[Summary]:
        """The open writes, the latest first."""
        rows = self.database.rows("SELECT * FROM summaries WHERE state = 'open' ORDER BY opened DESC")
        return [summary(row) for row in rows]

    def summary(self, write_id: str) -> Summary:
        """A write as it stands."""
        rows = self.database.rows("SELECT * FROM summaries WHERE write = ?", write_id)
        if not rows:
            raise _no_write(write_id)
        return summary(rows[0])

    def dataset(self, path: str) -> Dataset:
        """A dataset by path."""
        rows = self.database.rows(f"{_DATASETS} WHERE datasets.path = ?", self.incarnation, path)
        if not rows:
            raise self._no_dataset(path)
        return _dataset(rows[0])

    def datasets(self, folder: str) -> list[Dataset]:
        """The datasets below a folder's path, `store/` or `store/demo/`, in the order of their paths."""
        first, end = below(folder)
        rows = self.database.rows(
            f"{_DATASETS} WHERE datasets.path >= ? AND datasets.path < ? ORDER BY datasets.path",
            self.incarnation,
            first,
            end,
        )
        return [_dataset(row) for row in rows]

    def folder(self, folder: str) -> list[Dataset | Folder]:
        """What stands directly in a folder."""
        first, end = below(folder)
        names = self.database.rows(
            "SELECT substr(path, 1, CASE slash WHEN 0 THEN length(path) ELSE ?1 + slash END) AS name,"
            " count(*) AS datasets, sum(rows) AS rows,"
            " sum(bytes) AS bytes, sum(parts) AS parts, max(changed) AS changed"
            " FROM (SELECT *, instr(substr(path, ?1 + 1), '/') AS slash FROM datasets WHERE path >= ?2 AND path < ?3)"
            " GROUP BY name ORDER BY name",
            len(first),
            first,
            end,
        )
        return [
            Folder(row["name"], row["datasets"], row["rows"], row["bytes"], row["parts"], row["changed"])
            if row["name"].endswith("/")
            else self.dataset(row["name"])
            for row in names
        ]

    def names(self, part: str) -> bool:
        """Whether a row names this part."""
        return bool(self.database.rows("SELECT 1 FROM parts WHERE name = ?", part))

    def owns(self, store: str) -> bool:
        """Whether the parts in the store of this name are this ledger's."""
        return bool(self.database.rows("SELECT 1 FROM stores WHERE name = ?", store))

    def part_names(self) -> list[str]:
        """Every part that a row names: what else lies in the store is an orphan."""
        return [row["name"] for row in self.database.rows("SELECT name FROM parts")]

    def totals(self) -> dict[str, int]:
        """Figures for the metrics."""
        return dict(
            self.database.rows(
                "SELECT (SELECT count(*) FROM datasets) AS datasets,"
                " (SELECT count(*) FROM topics) AS topics,"
                " (SELECT coalesce(sum(rows), 0) FROM datasets) AS rows,"
                " (SELECT count(*) FROM writes WHERE state = 'open') AS open_writes,"
                " (SELECT coalesce(sum(bytes), 0) FROM parts WHERE state = 'visible') AS visible_bytes,"
                " (SELECT coalesce(sum(bytes), 0) FROM parts WHERE state = 'retired') AS retired_bytes"
            )[0]
        )

    def _no_dataset(self, path: str) -> NotFound:
        if self.datasets(path + "/"):
            return NotFound(f"{path} is a folder: name a dataset in it (penstock ls {path}/)")
        return NotFound(f"no dataset at {path}: penstock ls shows what there is")


_DATASETS = (
    "SELECT datasets.*, ipc, EXISTS (SELECT 1 FROM parts WHERE parts.path = datasets.path AND parts.state = 'visible'"
    " AND parts.incarnation <> '' AND parts.incarnation <> ?) AS lost"
    " FROM datasets JOIN schemas ON schemas.id = datasets.schema"
)


def _dataset(row: sqlite3.Row) -> Dataset:
    return Dataset(
        row["path"], to_schema(row["ipc"]), row["rows"], row["bytes"], row["parts"], row["changed"], bool(row["lost"])
    )


def _receipt(row: sqlite3.Row) -> Receipt:
    return Receipt(row["write"], row["id"], row["rows"], row["bytes"], row["parts"], row["digest"])


def below(folder: str) -> tuple[str, str]:
    """The range of the paths below `store/demo/`: '0' is the character after '/'."""
    start = folder.removesuffix("/")
    return start + "/", start + "0"


@lru_cache(1_024)
def to_schema(ipc: bytes) -> pa.Schema:
    """A schema as the ledger keeps it."""
    return pa.ipc.read_schema(pa.py_buffer(ipc))


def _no_write(write_id: str) -> NotFound:
    return NotFound(f"no write/{write_id[:40]}: penstock ls write shows the open ones")
