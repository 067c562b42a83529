"""The revisions of schemas that a journal's messages name: each is fetched once, and kept as long as the journal.

So a message decodes alike whenever it is read, whatever becomes of the schema at Pub/Sub. All changes of the table
`revisions` are here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.ledger.tables import Transaction
from penstock.store.database import Reader, Tables

TABLES: Tables = {
    10: """
CREATE TABLE revisions(
    journal TEXT NOT NULL, name TEXT NOT NULL, first TEXT NOT NULL, format TEXT, definition TEXT, error TEXT,
    created REAL, gone REAL, PRIMARY KEY (journal, name)
) WITHOUT ROWID;
""",
}
"""`first`: no row before this position names it; `format` and `definition`, or `error`: NULL until Pub/Sub has said;
`created`: when it was, at Pub/Sub; `gone`: since when its journal is, whose rows tickets may still read."""
MOST = 1_000
"""Revisions of one journal; Pub/Sub keeps 20 of a schema."""


@dataclass(frozen=True, slots=True)
class KnownRevision:
    """A revision that messages of a journal name."""

    name: str
    first: Mapping[int, int]
    """No row before these offsets names it."""
    format: str | None
    """avro or protobuf; None where it has no definition (yet)."""
    definition: str | None
    error: str | None
    """Why it never will have one."""

    @property
    def is_settled(self) -> bool:
        """Whether Pub/Sub has said what it is."""
        return self.format is not None or self.error is not None


_COLUMNS = "SELECT name, first, format, definition, error FROM revisions"


def note(t: Transaction, path: str, names: Iterable[str], shards: Mapping[int, tuple[int, int]]) -> None:
    """Note the revisions that rows name which are appended to these shards, unless they are known.

    Called in the transaction of the rows.
    """
    journal = t.row("SELECT journal FROM topics WHERE path = ?", path)
    assert journal is not None
    for name in names:
        if find(t, journal[0], name) is not None or _count(t, journal[0]) >= MOST:
            continue
        ends = {row["shard"]: row["next"] for row in t.rows("SELECT shard, next FROM shards WHERE path = ?", path)}
        first = ends | {shard: begin for shard, (begin, _) in shards.items()}
        known = t.row(f"{_COLUMNS} WHERE name = ? AND definition IS NOT NULL", name)
        t.insert(
            "revisions", journal=journal[0], name=name, first=json.dumps(first),
            format=known and known["format"], definition=known and known["definition"],
        )  # fmt: skip


def _count(reader: Reader, journal: str) -> int:
    return int(reader.rows("SELECT count(*) FROM revisions WHERE journal = ?", journal)[0][0])


def copy(t: Transaction, journal: str, to: str) -> None:
    """Note the revisions of a journal at another topic, which gets some of its rows."""
    t.execute(
        "INSERT OR IGNORE INTO revisions(journal, name, first, format, definition, error, created)"
        " SELECT topics.journal, name, '{}', format, definition, error, created FROM revisions, topics"
        " WHERE revisions.journal = ? AND topics.path = ?",
        journal, to,
    )  # fmt: skip


def wanted(reader: Reader) -> list[str]:
    """Return the revisions of which Pub/Sub hasn't said what they are."""
    rows = reader.rows(
        "SELECT DISTINCT name FROM revisions WHERE format IS NULL AND error IS NULL AND gone IS NULL ORDER BY name"
    )
    return [row["name"] for row in rows]


def settle(t: Transaction, name: str, format: str, definition: str, created: float) -> None:
    """Note what a revision is, for good."""
    t.execute(
        "UPDATE revisions SET format = ?, definition = ?, created = ?"
        " WHERE name = ? AND format IS NULL AND error IS NULL",
        format, definition, created, name,
    )  # fmt: skip


def refuse(t: Transaction, name: str, error: str) -> None:
    """Note why a revision never will be known."""
    t.execute("UPDATE revisions SET error = ? WHERE name = ? AND format IS NULL AND error IS NULL", error, name)


def find(reader: Reader, journal: str, name: str) -> KnownRevision | None:
    """Return a revision that messages of a journal name."""
    row = reader.row(f"{_COLUMNS} WHERE journal = ? AND name = ?", journal, name)
    return None if row is None else _revision(*row)


def of_journal(reader: Reader, journal: str) -> list[KnownRevision]:
    """Return the revisions that messages of a journal name, the newest last."""
    rows = reader.rows(f"{_COLUMNS} WHERE journal = ? ORDER BY coalesce(created, 0), name", journal)
    return [_revision(*row) for row in rows]


def has_gone(reader: Reader, tickets_from: float) -> bool:
    """Return whether `forget` has something to do."""
    query = "SELECT 1 FROM revisions WHERE gone < ? OR gone IS NULL AND journal NOT IN (SELECT journal FROM topics)"
    return reader.row(query, tickets_from) is not None


def forget(t: Transaction, tickets_from: float) -> None:
    """Remove the revisions of journals that were deleted so long ago that no ticket reads their rows."""
    t.execute("DELETE FROM revisions WHERE gone < ?", tickets_from)
    t.execute("UPDATE revisions SET gone = ? WHERE gone IS NULL AND journal NOT IN (SELECT journal FROM topics)", t.now)


def _revision(name: str, first: str, format: str | None, definition: str | None, error: str | None) -> KnownRevision:
    return KnownRevision(
        name, {int(shard): offset for shard, offset in json.loads(first).items()}, format, definition, error
    )
