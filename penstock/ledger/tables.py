"""The shared tables, and the transaction that changes them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from crc32c import crc32c

from penstock.store.database import Reader, Tables, View

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

TABLES: Tables = {
    2: """
CREATE TABLE IF NOT EXISTS schemas(id INTEGER PRIMARY KEY, ipc BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS writes(
    id TEXT PRIMARY KEY, path TEXT NOT NULL, mode TEXT NOT NULL, run TEXT, state TEXT NOT NULL, opener TEXT NOT NULL,
    schema INTEGER REFERENCES schemas, opened REAL NOT NULL, touched REAL NOT NULL, chosen TEXT,
    own INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, parts INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS runs ON writes(path, run) WHERE run IS NOT NULL AND state IN ('open', 'finished');
CREATE INDEX IF NOT EXISTS writes_by_state ON writes(state, touched);
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
CREATE TABLE IF NOT EXISTS stores(name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS summaries AS SELECT id AS write, path, mode, state, run, opened, touched, rows, bytes, parts,
    (SELECT count(*) FROM attempts WHERE attempts.write = writes.id) AS attempts FROM writes;
""",
    3: """
DROP VIEW summaries;
DROP INDEX IF EXISTS small_puts;
ALTER TABLE writes ADD COLUMN brief INTEGER NOT NULL DEFAULT 0;
UPDATE writes SET brief = 1 WHERE own AND path GLOB 'topic/*'
    AND (run IS NULL OR run GLOB 'put-????????????????????????????????');
CREATE INDEX brief_writes ON writes(touched) WHERE brief AND state = 'finished';
CREATE TABLE ticketed(path TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
INSERT INTO ticketed(path, until) SELECT path, ticketed FROM datasets WHERE ticketed > 0;
ALTER TABLE datasets DROP COLUMN ticketed;
""",
    4: """
ALTER TABLE parts ADD COLUMN missed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE schemas ADD COLUMN crc INTEGER;
CREATE INDEX writes_by_schema ON writes(schema) WHERE schema IS NOT NULL;
CREATE INDEX attempts_by_schema ON attempts(schema);
CREATE INDEX parts_by_schema ON parts(schema);
CREATE INDEX datasets_by_schema ON datasets(schema);
""",
    6: """
ALTER TABLE parts ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
ALTER TABLE parts ADD COLUMN digest TEXT;
ALTER TABLE writes ADD COLUMN queue TEXT;
ALTER TABLE writes ADD COLUMN split_rows INTEGER;
ALTER TABLE writes ADD COLUMN release TEXT NOT NULL DEFAULT 'finish';
ALTER TABLE writes ADD COLUMN differs TEXT;
CREATE TABLE evaluations(
    write TEXT NOT NULL REFERENCES writes ON DELETE CASCADE, attempt TEXT NOT NULL, stage INTEGER NOT NULL,
    partition INTEGER NOT NULL, task INTEGER NOT NULL, number INTEGER NOT NULL, released INTEGER NOT NULL,
    PRIMARY KEY(write, attempt)
) WITHOUT ROWID;
CREATE INDEX evaluations_of_task ON evaluations(write, task);
CREATE UNIQUE INDEX released_evaluations ON evaluations(write, stage, partition, number) WHERE released;
CREATE INDEX writes_with_queues ON writes(touched) WHERE state = 'open' AND queue IS NOT NULL;
""",
    8: """
ALTER TABLE writes ADD COLUMN publish TEXT;
CREATE TABLE publications(
    write TEXT PRIMARY KEY REFERENCES writes ON DELETE CASCADE, path TEXT NOT NULL, number INTEGER NOT NULL UNIQUE,
    chosen TEXT NOT NULL, attempts TEXT NOT NULL, rows INTEGER NOT NULL, published INTEGER NOT NULL,
    code TEXT, text TEXT
) WITHOUT ROWID;
CREATE TABLE publication_parts(
    write TEXT NOT NULL REFERENCES publications ON DELETE CASCADE, number INTEGER NOT NULL, part TEXT NOT NULL,
    unpublished INTEGER NOT NULL, PRIMARY KEY (write, number)
) WITHOUT ROWID;
CREATE TABLE published(
    write TEXT NOT NULL REFERENCES publications ON DELETE CASCADE, part INTEGER NOT NULL, first INTEGER NOT NULL,
    end INTEGER NOT NULL, PRIMARY KEY (write, part, first)
) WITHOUT ROWID;
""",
    11: """
ALTER TABLE parts ADD COLUMN places INTEGER NOT NULL DEFAULT 1;
ALTER TABLE parts ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
UPDATE parts SET pinned = 1 WHERE held OR attempt IN
    (SELECT attempts.id FROM attempts JOIN writes ON writes.id = attempts.write WHERE queue IS NOT NULL);
CREATE INDEX small_parts ON parts(path, seq)
    WHERE state = 'visible' AND path IS NOT NULL AND attempt <> '' AND NOT pinned AND bytes < 1048576;
CREATE INDEX parts_in_memory ON parts(path, incarnation) WHERE state = 'visible' AND incarnation <> '';
ALTER TABLE datasets ADD COLUMN made TEXT NOT NULL DEFAULT '';
ALTER TABLE datasets ADD COLUMN compacted REAL;
UPDATE datasets SET made = lower(hex(randomblob(8)));
""",
    13: """
ALTER TABLE writes ADD COLUMN dataset TEXT;
ALTER TABLE datasets ADD COLUMN ttl REAL;
ALTER TABLE datasets ADD COLUMN used REAL;
ALTER TABLE parts ADD COLUMN partition TEXT;
CREATE INDEX expiring_datasets ON datasets(changed + ttl) WHERE ttl IS NOT NULL;
CREATE INDEX parts_of_partition ON parts(path, partition) WHERE state = 'visible' AND partition IS NOT NULL;
""",
    15: """
CREATE TABLE deletions(
    path TEXT PRIMARY KEY, until REAL NOT NULL, ticketed REAL NOT NULL, schema INTEGER NOT NULL REFERENCES schemas,
    thing TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX deletions_by_schema ON deletions(schema);
""",
}
"""`writes.brief`: remembered for an hour only. `writes.queue`: gets a message for each part at finish.
`writes.split_rows`: the most rows of a part. `writes.differs`: why the released rows aren't those of the write.
`writes.publish`: how its rows are published, as JSON. `writes.dataset`: the same, of a dataset's partition and time to
live. `parts.partition`: the name under which its rows replace others. `datasets.ttl`: seconds after `changed`.
`datasets.used`: when it was read last, to the minute.
`publications`: what a finish has named of a write to publish/…,
until all of it is published; `code`, `text`: why that has failed. `published`: positions in those parts.
`evaluations`: each evaluation of a partition of a write that releases them; `number`: the how manieth of its task.
`parts.held`: a message names it. `parts.pinned`: a message has named it, or a reader by its number: it is never merged.
`parts.places`: how many places it has in its dataset's order, from `seq` on: as many as parts were merged to it.
`parts.digest`: of its records; NULL in rows of before format 6. `parts.missed`: its bytes are gone, and a start has
accepted that. `datasets.made`: tells it from others that were at its path before. `datasets.compacted`: when parts were
merged last. `ticketed`: until when read tickets may name the bytes at a path. `schemas.crc`: of its bytes; NULL in
older rows. `deletions`: datasets that may come back, their parts and runs as JSON; `ticketed`: until when tickets named
their bytes."""


class Transaction(View):
    """One change of the ledger, which happens whole or not at all; `Ledger.change` opens it and ends it."""

    __slots__ = ("_schema_ids", "ledger", "now")

    def __init__(self, sql: sqlite3.Connection, now: float, ledger: Ledger) -> None:
        super().__init__(sql)
        self.now = now
        self.ledger = ledger
        self._schema_ids: dict[pa.Schema, int] = {}

    def execute(self, statement: str, *arguments: object) -> int:
        """Carry out a statement and return how many rows it changed."""
        return self.sql.execute(statement, arguments).rowcount

    def insert(self, table: str, **columns: object) -> None:
        """Insert one row by its columns' names."""
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self.sql.execute(f"INSERT INTO {table}({names}) VALUES ({marks})", tuple(columns.values()))  # noqa: S608  # our own names

    def schema_id(self, schema: pa.Schema | None) -> int | None:
        """Return the id of a schema's row, made if it is new."""
        if schema is None:
            return None
        if schema.metadata is None and schema in self._schema_ids:  # equal schemas may differ in metadata
            return self._schema_ids[schema]
        ipc = schema.serialize().to_pybytes()
        row = self.row("SELECT id FROM schemas WHERE ipc = ?", ipc)
        if row is None:
            row = self.rows("INSERT INTO schemas(ipc, crc) VALUES (?, ?) RETURNING id", ipc, crc32c(ipc))[0]
        self._schema_ids[schema] = int(row["id"])
        return self._schema_ids[schema]


def unused_schemas(reader: Reader, most: int) -> list[int]:
    """Return the ids of schemas that no row refers to, `most` of them at most."""
    # The index, which SQLite would prefer as the smaller tree, has the schemas' bytes before their ids
    query = f"SELECT id FROM schemas NOT INDEXED WHERE {_is_unused(reader)} LIMIT ?"  # noqa: S608  # our own names
    return [row["id"] for row in reader.rows(query, most)]


def forget_schemas(t: Transaction, unused: Sequence[int]) -> None:
    """Drop schemas, without those that some row refers to by now."""
    statement = f"DELETE FROM schemas WHERE id = ? AND {_is_unused(t)}"  # noqa: S608  # our own names
    t.sql.executemany(statement, [(number,) for number in unused])


def _is_unused(reader: Reader) -> str:
    """Return the condition that no row refers to a row of `schemas`, whichever tables there are."""
    references = reader.rows(
        'SELECT name, "from" AS "column" FROM sqlite_schema JOIN pragma_foreign_key_list(name)'
        " WHERE type = 'table' AND \"table\" = 'schemas'"
    )
    return " AND ".join(
        f"NOT EXISTS (SELECT 1 FROM {row['name']} WHERE {row['column']} = schemas.id)"  # noqa: S608  # our own names
        for row in references
    )


def to_schema(ipc: bytes) -> pa.Schema:
    """Return a schema from its row."""
    return (_to_short_schema if len(ipc) <= _SHORT_SCHEMA else _to_long_schema)(ipc)


def _read_schema(ipc: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(ipc))


_SHORT_SCHEMA = 16 << 10
_to_short_schema, _to_long_schema = lru_cache(1_024)(_read_schema), lru_cache(4)(_read_schema)
"""Together they keep at most 32 MiB: a schema may have 4 MiB."""


def paths_below(folder: str) -> tuple[str, str]:
    """Return the range of the paths below `store/demo/`: '0' is the character after '/'."""
    start = folder.removesuffix("/")
    return start + "/", start + "0"


def damaged_schemas(reader: Reader) -> list[str]:
    """Describe the schemas that aren't those that were written: SQLite checks no bytes."""
    rows = reader.rows("SELECT id, ipc, crc FROM schemas WHERE crc IS NOT NULL")
    return [f"schema {row['id']} has other bytes than were written" for row in rows if crc32c(row["ipc"]) != row["crc"]]
