"""The journal of a topic: parts in shards, each row with an offset. All that is known of it in the ledger is here.

A visible part is in its shard behind the one before, without a gap: `first` is the offset of its first row.
The end of a shard only grows, so that an offset names one row for ever. The destination of writes to `topic/…`.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import AlreadyExists, InvalidRequest, NotFound, WriteEnded
from penstock.ledger import parts
from penstock.ledger.attempts import Attempt
from penstock.ledger.tables import Transaction, paths_below, to_schema
from penstock.ledger.writes import Write
from penstock.queue.topics.topic import Layout, Shard, Topic
from penstock.rows import schemas
from penstock.store.database import Reader, Tables
from penstock.store.medium import Part
from penstock.wire import paths

TABLES: Tables = {
    2: """
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
CREATE TABLE IF NOT EXISTS consumers(
    id TEXT PRIMARY KEY, path TEXT NOT NULL, journal TEXT NOT NULL, session TEXT NOT NULL, initial TEXT NOT NULL,
    position TEXT NOT NULL, registered REAL NOT NULL, seen REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('live', 'expired', 'detached'))
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS consumers_of_topic ON consumers(path, journal);
""",
    3: """
INSERT INTO ticketed(path, until) SELECT path, ticketed FROM topics WHERE ticketed > 0;
ALTER TABLE topics DROP COLUMN ticketed;
""",
    4: """
CREATE TABLE lives(
    journal TEXT NOT NULL, shard INTEGER NOT NULL, life TEXT NOT NULL, number INTEGER NOT NULL, first INTEGER NOT NULL,
    PRIMARY KEY (journal, shard, life)
) WITHOUT ROWID;
CREATE INDEX lives_by_number ON lives(journal, shard, number);
CREATE INDEX lives_by_life ON lives(life, number);
CREATE INDEX topics_by_schema ON topics(schema);
INSERT INTO lives(journal, shard, life, number, first)
    SELECT journal, shard, lower(hex(randomblob(8))), 0, 0 FROM topics JOIN shards ON shards.path = topics.path;
""",
    5: "ALTER TABLE topics ADD COLUMN held TEXT;",
    12: """
ALTER TABLE topics ADD COLUMN keep_absent INTEGER NOT NULL DEFAULT 1;
ALTER TABLE consumers RENAME TO consumers_11;
DROP INDEX consumers_of_topic;
CREATE TABLE consumers(
    path TEXT NOT NULL, id TEXT NOT NULL, journal TEXT NOT NULL, session TEXT NOT NULL, initial TEXT NOT NULL,
    position TEXT NOT NULL, registered REAL NOT NULL, seen REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('live', 'expired', 'detached')), holders TEXT, PRIMARY KEY (path, id)
) WITHOUT ROWID;
INSERT INTO consumers SELECT path, id, journal, session, initial, position, registered, seen, state, NULL
    FROM consumers_11;
DROP TABLE consumers_11;
""",
}
"""`topics.keep_absent`: whether consumers that nobody sees hold rows beyond `keep_bytes`.
`consumers.holders`: of a group, which member has which shard; NULL of a query.
`lives`: the offset at which each life of the server, numbered in their order, has begun to append to a shard.
`topics.held`: a position from which on retention takes no rows, whoever has read them; NULL without one."""
KEEP = 24 * 3600.0
"""Seconds for which rows stay at least, consumed or not, unless the topic says otherwise."""
ADDED = pa.schema(
    [
        pa.field("_shard", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_time", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""The columns that the server adds to a topic's own for readers that name them: each row's offset, and its time."""
_MADE_BY = {"topic": "the first put", "subscription": "penstock call subscription.attach"}
_PAGE = 256
"""Parts that are read at a time where a shard may have 10,000."""


def check_schema(path: str, schema: pa.Schema) -> None:
    """Reject columns with the names of those that the server adds."""
    for name in ADDED.names:
        if schema.get_field_index(name) >= 0:
            raise InvalidRequest(f"{path}: the column {name} is one that the server adds: rename yours")


# --- what is known -------------------------------------------------------------------------

_TOPICS = "SELECT topics.*, ipc FROM topics JOIN schemas ON schemas.id = topics.schema"


def find(reader: Reader, path: str) -> Topic | None:
    """Return the topic at a path, None without one."""
    row = reader.row(f"{_TOPICS} WHERE topics.path = ?", path)
    return _topic(reader, row) if row is not None else None


def by_path(reader: Reader, path: str) -> Topic:
    """Return the topic at a path."""
    topic = find(reader, path)
    if topic is None:
        kind = path.partition("/")[0]
        raise NotFound(f"no {kind} at {path}: penstock ls {kind}/ lists what there is; {_MADE_BY[kind]} makes one")
    return topic


def below(reader: Reader, folder: str) -> list[Topic]:
    """Return the topics below a folder's path."""
    query = f"{_TOPICS} WHERE topics.path >= ? AND topics.path < ? ORDER BY topics.path"
    return [_topic(reader, row) for row in reader.rows(query, *paths_below(folder))]


def all_shards(reader: Reader) -> list[tuple[str, int]]:
    """Return path and number of every shard of every topic."""
    return [(row["path"], row["shard"]) for row in reader.rows("SELECT path, shard FROM shards ORDER BY path, shard")]


def paths_with_lost_rows(reader: Reader, incarnation: str) -> list[str]:
    """Return the topics with parts that were in the memory of a server that has stopped."""
    query = (
        "SELECT DISTINCT journal.path FROM journal JOIN parts ON parts.name = part"
        " WHERE journal.path IS NOT NULL AND incarnation NOT IN ('', ?)"
    )
    return [row["path"] for row in reader.rows(query, incarnation)]


def shard_numbers(reader: Reader, path: str) -> list[int]:
    """Return the numbers of a topic's shards."""
    return [row["shard"] for row in reader.rows("SELECT shard FROM shards WHERE path = ? ORDER BY shard", path)]


def layout(reader: Reader, path: str) -> Layout | None:
    """Return what a put needs to know of a topic, None without one."""
    row = reader.row(
        "SELECT journal, key, (SELECT count(*) FROM shards WHERE shards.path = topics.path) AS shards"
        " FROM topics WHERE path = ?",
        path,
    )
    return Layout(row["journal"], row["key"], row["shards"]) if row is not None else None


def _topic(reader: Reader, row: sqlite3.Row) -> Topic:
    shards = reader.rows(
        "SELECT shard, first, next, lost, parts, bytes FROM shards WHERE path = ? ORDER BY shard", row["path"]
    )
    return Topic(
        row["path"], row["journal"], row["epoch"], to_schema(row["ipc"]), row["key"],
        tuple(Shard(each["shard"], each["first"], each["next"], each["lost"]) for each in shards),
        sum(each["next"] - each["first"] for each in shards), sum(each["bytes"] for each in shards),
        sum(each["parts"] for each in shards), row["changed"], row["keep_seconds"], row["keep_bytes"],
        bool(row["keep_absent"]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A visible part of a shard."""

    name: str
    shard: int
    first: int
    rows: int
    bytes: int
    since: float
    until: float
    """The times at which its first and its last row were appended."""
    schema_id: int
    incarnation: str
    digest: str | None

    def __str__(self) -> str:
        return f"the offsets {self.first} up to {self.end}"

    @property
    def end(self) -> int:
        """The offset behind its last row."""
        return self.first + self.rows


def placed_parts(reader: Reader, path: str, shard: int, *, below_bytes: int = 2**62) -> Iterator[PlacedPart]:
    """Give the parts of a shard in the order of their offsets, a page at a time."""
    query = (
        "SELECT part AS name, shard, first, journal.rows, journal.bytes, since, until, schema AS schema_id,"
        " incarnation, digest FROM journal JOIN parts ON parts.name = part WHERE journal.path = ? AND shard = ?"
        " AND first >= ? AND journal.bytes < ? ORDER BY first LIMIT ?"
    )
    start = 0
    while page := [PlacedPart(**dict(row)) for row in reader.rows(query, path, shard, start, below_bytes, _PAGE)]:
        yield from page
        start = page[-1].end


def life_of(reader: Reader, journal: str, position: Mapping[int, int]) -> str | None:
    """Return the youngest life that appended one of the last rows before a position; None before the first row."""
    row = reader.row(
        "SELECT life FROM lives JOIN json_each(?1) ON shard = CAST(key AS INTEGER) AND first < value WHERE journal = ?2"
        " ORDER BY number DESC LIMIT 1",
        json.dumps(dict(position)), journal,
    )  # fmt: skip
    return None if row is None else str(row["life"])


def ends_of_life(reader: Reader, path: str, journal: str, life: str) -> dict[int, int] | None:
    """Return where a life ended in each shard, or the shard ends; None for one that is unknown."""
    known = reader.row("SELECT number FROM lives WHERE journal = ? AND life = ? LIMIT 1", journal, life)
    if known is None:
        return None
    rows = reader.rows(
        "SELECT shard, coalesce((SELECT min(first) FROM lives WHERE journal = ?1 AND lives.shard = shards.shard"
        " AND number > ?2), next) AS end FROM shards WHERE path = ?3",
        journal, known["number"], path,
    )  # fmt: skip
    return {row["shard"]: row["end"] for row in rows}


def is_placed(reader: Reader, part: str) -> bool:
    """Whether a part is still in a journal."""
    return reader.row("SELECT 1 FROM journal WHERE part = ?", part) is not None


def first_offset(reader: Reader, part: str) -> int:
    """Return the offset of a visible part's first row."""
    return int(reader.rows("SELECT first FROM journal WHERE part = ?", part)[0]["first"])


# --- what changes --------------------------------------------------------------------------


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
    """Make an empty topic, with a journal of its own: offsets of a deleted one of that name aren't offsets of it."""
    check_schema(path, schema)
    t.insert(
        "topics", path=path, journal=uuid.uuid4().hex, epoch=0, schema=t.schema_id(schema), key=key,
        keep_seconds=keep_seconds, keep_bytes=keep_bytes, changed=t.now,
    )  # fmt: skip
    add_shards(t, path, range(shards))


def add_shards(t: Transaction, path: str, numbers: Iterable[int]) -> None:
    """Give a topic more shards, without rows. A position that doesn't name them is at their beginning."""
    for shard in numbers:
        t.insert("shards", path=path, shard=shard, first=0, next=0)


def keep(t: Transaction, path: str, *, keep_seconds: float | None, keep_bytes: int | None) -> None:
    """Change what a topic keeps, where something is said."""
    t.execute(
        "UPDATE topics SET keep_seconds = coalesce(?1, keep_seconds), keep_bytes = coalesce(?2, keep_bytes)"
        " WHERE path = ?3",
        keep_seconds, keep_bytes, path,
    )  # fmt: skip


def keep_absent(t: Transaction, path: str, keeps: bool | None) -> None:
    """Change whether a topic's absent consumers hold rows beyond its size, where that is said."""
    t.execute("UPDATE topics SET keep_absent = coalesce(?, keep_absent) WHERE path = ?", keeps, path)


def hold(t: Transaction, path: str, position: Mapping[int, int]) -> None:
    """Keep the rows from a position on, whatever retention says and whoever has read them."""
    t.execute("UPDATE topics SET held = ? WHERE path = ?", json.dumps(dict(position)), path)


def held(reader: Reader, path: str) -> dict[int, int]:
    """Return the position from which on retention takes no rows; empty without one."""
    row = reader.row("SELECT held FROM topics WHERE path = ?", path)
    return (
        {} if row is None or row["held"] is None else {int(shard): at for shard, at in json.loads(row["held"]).items()}
    )


def check_path(t: Transaction, path: str) -> None:
    """Reject a new journal above or below another."""
    parsed = paths.parse(path)
    for key in parsed.parents:
        if parsed.key == f"{key}/{paths.DEAD}":  # its dead rows
            continue
        if schema_at(t, f"{parsed.kind}/{key}") is not None:
            raise AlreadyExists(f"{path}: {parsed.kind}/{key} is a {parsed.kind}, so nothing can be below it")
    if t.row("SELECT 1 FROM topics WHERE path >= ? AND path < ? LIMIT 1", *paths_below(path)) is not None:
        raise AlreadyExists(f"{path} is a folder with {parsed.kind}s in it, so it can't be a {parsed.kind} itself")


def reserve(t: Transaction, part: str, shard: int, journal: str | None) -> None:
    """Note the shard of a part that isn't visible yet, and of which journal; None where there was no topic yet."""
    t.insert("journal", part=part, shard=shard, laid=journal)


def append(t: Transaction, path: str, names: Sequence[str]) -> None:
    """Give reserved parts their offsets, and move the readable ends of their shards behind them.

    A part without rows gets none: the next part would have its offset.
    """
    now = round(t.now, 6)  # as exact as `_time`, so that a read of the rows since a row's time has that row
    for name in names:
        if t.execute("UPDATE parts SET state = 'retired', free_at = ? WHERE name = ? AND rows = 0", t.now, name):
            continue
        t.execute(
            "INSERT INTO lives(journal, shard, life, number, first) SELECT topics.journal, journal.shard, ?1,"
            " coalesce((SELECT number FROM lives WHERE life = ?1 LIMIT 1), (SELECT coalesce(max(number), 0) + 1 FROM"
            " lives)), shards.next FROM topics JOIN shards ON shards.path = topics.path JOIN journal"
            " ON journal.shard = shards.shard WHERE topics.path = ?2 AND part = ?3 ON CONFLICT DO NOTHING",
            t.ledger.life, path, name,
        )  # fmt: skip
        placed = t.execute(
            "UPDATE journal SET path = ?1, first = shards.next, rows = parts.rows, bytes = parts.bytes, since = ?2,"
            " until = ?2 FROM topics, shards, parts WHERE part = ?3 AND parts.name = ?3 AND topics.path = ?1"
            " AND shards.path = ?1 AND shards.shard = journal.shard AND (topics.key IS NULL OR laid = topics.journal)",
            path, now, name,
        )  # fmt: skip
        if placed != 1:
            raise WriteEnded(f"{path} was made anew meanwhile, with a key or with fewer shards: write again")
        t.execute(
            "UPDATE shards SET next = next + journal.rows FROM journal"
            " WHERE part = ?1 AND shards.path = journal.path AND shards.shard = journal.shard",
            name,
        )
        t.execute("UPDATE parts SET state = 'visible' WHERE name = ?", name)
    t.execute("UPDATE topics SET changed = ? WHERE path = ?", t.now, path)


def replace(t: Transaction, path: str, run: Sequence[PlacedPart], part: Part) -> bool:
    """Put one part with the same rows in the place of a run of parts; False if these very parts are not there."""
    first, end, shard = run[0].first, run[-1].end, run[0].shard
    rows = t.rows(
        "SELECT part FROM journal WHERE path = ? AND shard = ? AND first >= ? AND first < ? ORDER BY first",
        path, shard, first, end,
    )  # fmt: skip
    if [row["part"] for row in rows] != [each.name for each in run] or part.rows != end - first:
        return False
    remove_parts(t, [each.name for each in run], path)
    t.insert(
        "parts", name=part.name, attempt=f"group-{part.name}", number=0, rows=part.rows, bytes=part.bytes,
        schema=run[0].schema_id, incarnation=t.ledger.incarnation, state="visible",
        digest=part.digest,
    )  # fmt: skip
    t.insert(
        "journal", part=part.name, shard=shard, path=path, first=first, rows=part.rows, bytes=part.bytes,
        since=min(each.since for each in run), until=max(each.until for each in run),
    )  # fmt: skip
    return True


def remove_oldest(t: Transaction, path: str, oldest: Sequence[PlacedPart], *, lost: bool = False) -> None:
    """Remove the first parts of shards, and move the shards' beginnings behind them; `lost` notes why."""
    for part in oldest:  # in the order of their offsets: the last one of a shard counts
        t.execute("UPDATE shards SET first = ? WHERE path = ? AND shard = ?", part.end, path, part.shard)
        if lost:
            t.execute("UPDATE shards SET lost = ? WHERE path = ? AND shard = ?", part.end, path, part.shard)
    t.execute(  # a position at the very end of a life stays valid when that life's rows are gone
        "DELETE FROM lives WHERE journal = (SELECT journal FROM topics WHERE path = ?1) AND EXISTS"
        " (SELECT 1 FROM lives AS later JOIN shards ON shards.path = ?1 AND shards.shard = later.shard"
        " WHERE later.journal = lives.journal AND later.shard = lives.shard AND later.number > lives.number"
        " AND later.first < shards.first)",
        path,
    )
    if oldest and lost:
        t.execute("UPDATE topics SET epoch = epoch + 1 WHERE path = ?", path)
    remove_parts(t, [part.name for part in oldest], path)


def remove_parts(t: Transaction, names: Sequence[str], path: str) -> None:
    """Remove parts from the journal; their bytes stay for as long as tickets may name them."""
    parts.retire(t, names, path)
    t.sql.executemany("DELETE FROM journal WHERE part = ?", [(name,) for name in names])


# --- the destination of writes -------------------------------------------------------------

growth = schemas.TOPIC
visible_parts = (
    "SELECT name, journal.path AS path, parts.rows, parts.bytes, digest FROM journal JOIN parts ON parts.name = part"
    " WHERE journal.path IS NOT NULL AND incarnation = '' AND NOT missed"
)


def count(reader: Reader, kind: str = "topic") -> int:
    """Return how many there are of a kind."""
    row = reader.row("SELECT count(*) AS n FROM topics WHERE path >= ? AND path < ?", *paths_below(kind))
    return row["n"] if row is not None else 0


def schema_at(reader: Reader, path: str) -> pa.Schema | None:
    """Return the schema at the path, None where nothing is."""
    row = reader.row("SELECT ipc FROM topics JOIN schemas ON schemas.id = topics.schema WHERE path = ?", path)
    return to_schema(row["ipc"]) if row is not None else None


def check_write(t: Transaction, write: Write, *, exists: bool) -> None:
    """Reject a write that may not make or change the path."""
    if not exists:
        check_path(t, write.path)


def record(t: Transaction, attempt: Attempt) -> None:
    """Note the shard of each of its parts."""
    for part, shard in zip(attempt.parts, attempt.shards, strict=False):
        reserve(t, part.name, shard, attempt.journal)


def is_due(t: Transaction, write: Write, attempts: Sequence[str], chosen: str) -> bool:
    """Return True: a finish shows them."""
    return True


def show(t: Transaction, write: Write, attempts: Sequence[str], schema: pa.Schema) -> None:
    """Make the attempts' parts the end of what is at the write's path."""
    make_or_widen(t, write.path, schema)
    whole = "SELECT name FROM parts WHERE attempt = ? AND state = 'whole' ORDER BY number"
    append(t, write.path, [row["name"] for attempt in attempts for row in t.rows(whole, attempt)])


def make_or_widen(t: Transaction, path: str, schema: pa.Schema) -> None:
    """Make the topic, or give it columns more: older rows have nulls there."""
    current = schema_at(t, path)
    if current is None:
        create(t, path, schema)
    elif not current.equals(schema):
        check_schema(path, schema)
        t.execute("UPDATE topics SET schema = ? WHERE path = ?", t.schema_id(schema), path)


def overwrite(t: Transaction, write: Write) -> None:
    """Free the path."""
    remove(t, write.path)


def remove(t: Transaction, path: str) -> None:
    """Free the path; the parts' bytes stay for as long as tickets name them."""
    remove_parts(t, [row["part"] for row in t.rows("SELECT part FROM journal WHERE path = ?", path)], path)
    t.execute("DELETE FROM lives WHERE journal = (SELECT journal FROM topics WHERE path = ?)", path)
    t.execute("DELETE FROM topics WHERE path = ?", path)


def disagreements(reader: Reader) -> list[str]:
    """Describe shards whose offsets differ from those of their parts: only damage makes them differ."""
    gaps = reader.rows(
        "SELECT path, shard, first + rows AS first, following FROM (SELECT *, lead(first) OVER"
        " (PARTITION BY path, shard ORDER BY first) AS following FROM journal WHERE path IS NOT NULL)"
        " WHERE following <> first + rows"
    )
    ends = reader.rows(
        "SELECT shards.path, shards.shard, shards.first, next, min(journal.first) AS begin,"
        " max(journal.first + journal.rows) AS end FROM shards LEFT JOIN journal ON journal.path = shards.path"
        " AND journal.shard = shards.shard GROUP BY shards.path, shards.shard"
        " HAVING shards.first <> coalesce(begin, shards.first) OR next <> coalesce(end, shards.first)"
        " OR shards.parts <> count(part)"
    )
    alone = reader.rows(
        "SELECT DISTINCT journal.path AS path FROM journal LEFT JOIN parts ON parts.name = part"
        " WHERE journal.path IS NOT NULL AND (state IS NOT 'visible' OR parts.rows <> journal.rows"
        " OR journal.path NOT IN (SELECT path FROM topics))"
    )
    lone = reader.rows(
        "SELECT count(*) AS parts FROM parts WHERE state = 'visible' AND path IS NULL"
        " AND name NOT IN (SELECT part FROM journal WHERE path IS NOT NULL) HAVING count(*) > 0"
    )
    return [
        *(f"{row['path']}: shard {row['shard']} has no offsets {row['first']} to {row['following']}" for row in gaps),
        *(
            f"{row['path']}: shard {row['shard']} has offsets {row['first']} to {row['next']}, its parts have "
            f"{row['begin']} to {row['end']}"
            for row in ends
        ),
        *(f"{row['path']} has parts in the journal that are no parts of a topic" for row in alone),
        *(f"{row['parts']:,} visible parts are of no dataset and no topic" for row in lone),
    ]
