"""The journal of a topic: parts in shards, each row with an offset. What changes it, within a transaction.

A part that is shown lies in its shard behind the one before, without a gap: `first` is the offset of its first row.
The end of a shard only grows, so that an offset names one row for ever.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import AlreadyExists, InvalidRequest, WriteEnded
from penstock.ledger.catalog import below, to_schema
from penstock.ledger.transaction import Transaction
from penstock.wire import paths

KEEP = 24 * 3600.0
"""Seconds for which rows stay at least, consumed or not, unless the topic says otherwise."""
META = pa.schema(
    [
        pa.field("_shard", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_time", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""What the server knows of each row, for who asks for it by name: its place, and when it was appended."""


def check_schema(path: str, schema: pa.Schema) -> None:
    """The names of what the server adds are taken."""
    for name in META.names:
        if schema.get_field_index(name) >= 0:
            raise InvalidRequest(f"{path}: the column {name} is one that the server adds: rename yours")


def create(
    t: Transaction,
    path: str,
    schema: pa.Schema,
    *,
    shards: int = 1,
    key: str | None = None,
    keep_seconds: float = KEEP,
    keep_bytes: int | None = None,
) -> None:
    """An empty topic, with a journal of its own: an offset of an earlier one of the same name isn't one of it."""
    check_schema(path, schema)
    t.sql.execute(
        "INSERT INTO topics(path, journal, epoch, schema, key, keep_seconds, keep_bytes, changed)"
        " VALUES (?, ?, 0, ?, ?, ?, ?, ?)",
        (path, uuid.uuid4().hex, t.schema_id(schema), key, keep_seconds, keep_bytes, t.now),
    )
    t.sql.executemany(
        "INSERT INTO shards(path, shard, first, next) VALUES (?, ?, 0, 0)", [(path, shard) for shard in range(shards)]
    )


def schema_at(t: Transaction, path: str) -> pa.Schema | None:
    """The schema of the topic at a path; None where there is none."""
    row = t.sql.execute(
        "SELECT ipc FROM topics JOIN schemas ON schemas.id = topics.schema WHERE path = ?", (path,)
    ).fetchone()
    return to_schema(row["ipc"]) if row else None


def check_path(t: Transaction, path: str) -> None:
    """Whether there may be a topic at this path: none above it, none below."""
    for key in paths.parse(path).parents:
        if schema_at(t, f"topic/{key}") is not None:
            raise AlreadyExists(f"{path}: topic/{key} is a topic, so nothing can lie below it")
    if t.sql.execute("SELECT 1 FROM topics WHERE path >= ? AND path < ? LIMIT 1", below(path)).fetchone():
        raise AlreadyExists(f"{path} is a folder with topics in it, so it can't be a topic itself")


def lay(t: Transaction, part: str, shard: int, journal: str | None) -> None:
    """Note which shard a part is for that isn't shown yet, and in which journal; None where there was no topic yet."""
    t.sql.execute("INSERT INTO journal(part, shard, laid) VALUES (?, ?, ?)", (part, shard, journal))


def show(t: Transaction, path: str, attempts: Sequence[str], schema: pa.Schema) -> None:
    """The parts of these attempts become the ends of their shards, in the order of the list."""
    held = schema_at(t, path)
    if held is None:
        create(t, path, schema)
    elif not held.equals(schema):
        widen(t, path, schema)
    parts = [
        row["name"]
        for attempt in attempts
        for row in t.sql.execute(
            "SELECT name FROM parts WHERE attempt = ? AND state = 'whole' ORDER BY number", (attempt,)
        )
    ]
    append(t, path, parts)
    t.sql.executemany("UPDATE attempts SET chosen = 1 WHERE id = ?", [(attempt,) for attempt in attempts])


def widen(t: Transaction, path: str, schema: pa.Schema) -> None:
    """The topic has columns more; older rows have nulls there."""
    check_schema(path, schema)
    t.sql.execute("UPDATE topics SET schema = ? WHERE path = ?", (t.schema_id(schema), path))


def append(t: Transaction, path: str, parts: Sequence[str]) -> None:
    """Parts that were laid get their offsets, and the readable ends of their shards move behind them.

    One without rows has no place: the next part would have its offset.
    """
    now = round(t.now, 6)  # as exact as `_time`, so that who asks for the rows since a row's time gets that row
    empty = "UPDATE parts SET state = 'retired', free_at = ? WHERE name = ? AND rows = 0"
    for part in parts:
        if t.sql.execute(empty, (t.now, part)).rowcount:
            continue
        placed = t.sql.execute(
            "UPDATE journal SET path = ?1, first = shards.next, rows = parts.rows, bytes = parts.bytes, since = ?2,"
            " until = ?2 FROM topics, shards, parts WHERE part = ?3 AND parts.name = ?3 AND topics.path = ?1"
            " AND shards.path = ?1 AND shards.shard = journal.shard AND (topics.key IS NULL OR laid = topics.journal)",
            (path, now, part),
        )
        if placed.rowcount != 1:
            raise WriteEnded(f"{path} was made anew meanwhile, with a key or with fewer shards: write again")
        t.sql.execute(
            "UPDATE shards SET next = next + journal.rows FROM journal"
            " WHERE part = ?1 AND shards.path = journal.path AND shards.shard = journal.shard",
            (part,),
        )
        t.sql.execute("UPDATE parts SET state = 'visible' WHERE name = ?", (part,))
    t.sql.execute("UPDATE topics SET changed = ? WHERE path = ?", (t.now, path))


def take_away(t: Transaction, parts: Sequence[str], path: str) -> None:
    """These parts leave the journal; their bytes stay for as long as tickets may name them."""
    t.sql.executemany(
        "UPDATE parts SET state = 'retired', free_at = max(?1, (SELECT ticketed FROM topics WHERE path = ?2))"
        " WHERE name = ?3",
        [(max(t.now, t.catalog.held.get(path, 0.0)), path, part) for part in parts],
    )
    t.sql.executemany("DELETE FROM journal WHERE part = ?", [(part,) for part in parts])


def remove(t: Transaction, path: str) -> None:
    """The topic and all of its rows go; the runs that wrote to it are forgotten."""
    parts = [row["part"] for row in t.sql.execute("SELECT part FROM journal WHERE path = ?", (path,))]
    take_away(t, parts, path)
    t.sql.execute("DELETE FROM topics WHERE path = ?", (path,))
