"""The rows of parts: whole and unseen, visible, or retired until no ticket names their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from penstock.ledger.tables import Transaction
from penstock.store.database import Reader
from penstock.store.medium import Part


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows of a part, as a dataset or the shard of a topic has them."""

    part: str
    rows: int
    """The rows behind the skipped ones."""
    bytes: int
    schema: pa.Schema
    part_rows: int
    skip: int = 0
    shard: int | None = None
    first: int = 0
    """The offset of the part's first row in its shard."""
    since: float = 0.0
    """The time at which the part was appended."""
    inline: pa.Buffer | None = None
    """The IPC stream of a small payload, which has no part."""
    digest: str | None = None
    """Of the part's records."""

    @property
    def reaches_end(self) -> bool:
        """Whether the part's last row is among them."""
        return self.skip + self.rows == self.part_rows

    def cut(self, rows: int) -> Slice:
        """Return the first of these rows."""
        return replace(self, rows=rows, bytes=self.bytes * rows // max(1, self.rows))

    def fits_one_stream(self, other: Slice) -> bool:
        """Whether one stream can carry both."""
        return self.shard == other.shard and self.schema.equals(other.schema, check_metadata=True)


@dataclass(frozen=True, slots=True)
class NamedPart:
    """A part on disk that readers see, or that an open write has, and the path that it is for."""

    name: str
    path: str
    rows: int
    bytes: int
    digest: str | None


OF_OPEN_WRITES = (
    "SELECT name, writes.path AS path, parts.rows, parts.bytes, parts.digest FROM parts"
    " JOIN attempts ON attempts.id = parts.attempt JOIN writes ON writes.id = attempts.write"
    " WHERE parts.state = 'whole' AND incarnation = '' AND NOT missed"
)
"""The query for the parts of whole attempts that no finish has named yet."""


def add(
    t: Transaction,
    added: Iterable[Part],
    *,
    attempt: str,
    schema: pa.Schema,
    state: Literal["whole", "visible"] = "whole",
    partition: str | None = None,
) -> None:
    """Add the rows of an attempt's parts, whose bytes are durable."""
    schema_id = t.schema_id(schema)
    for number, part in enumerate(added):
        t.insert(
            "parts", name=part.name, attempt=attempt, number=number, rows=part.rows, bytes=part.bytes,
            schema=schema_id, incarnation=t.ledger.incarnation, state=state, digest=part.digest, partition=partition,
        )  # fmt: skip


def add_held(t: Transaction, part: Part, schema: pa.Schema, *, until: float) -> None:
    """Add a part that is at no path: read tickets name it, until then."""
    t.insert(
        "parts", name=part.name, attempt="", number=0, rows=part.rows, bytes=part.bytes, schema=t.schema_id(schema),
        incarnation=t.ledger.incarnation, state="retired", free_at=until, digest=part.digest,
    )  # fmt: skip


def add_payload(
    t: Transaction, name: str, path: str, *, rows: int, bytes: int, schema: pa.Schema, digest: str | None
) -> None:
    """Add the one part of a large payload, whose bytes are durable: visible at the payload's path."""
    t.insert(
        "parts", name=name, attempt="", number=0, rows=rows, bytes=bytes, schema=t.schema_id(schema),
        incarnation=t.ledger.incarnation, state="visible", path=path, seq=0, digest=digest,
    )  # fmt: skip


def retire(t: Transaction, names: Sequence[str], path: str, *, grace: float = 0.0) -> None:
    """Hide the parts of a path; their bytes stay for as long as tickets may name them, and a grace of seconds."""
    until = max(t.now + grace, free_at(t, path))
    t.sql.executemany(
        "UPDATE parts SET state = 'retired', path = NULL, seq = NULL, free_at = ? WHERE name = ?",
        [(until, name) for name in names],
    )


def retire_dataset(t: Transaction, path: str, partition: str | None = None) -> None:
    """Hide all parts of a dataset, or those of a partition, as `retire` does."""
    of_partition = "" if partition is None else " AND partition = ?3"
    t.execute(
        "UPDATE parts SET state = 'retired', path = NULL, seq = NULL, free_at = ?1"  # noqa: S608  # our own text
        f" WHERE path = ?2 AND state = 'visible'{of_partition}",
        free_at(t, path), path, *(() if partition is None else (partition,)),
    )  # fmt: skip


def free_at(t: Transaction, path: str) -> float:
    """Return when the bytes of a path that is hidden now may go: tickets name the path's, or those of its kind."""
    kind = path.partition("/")[0] + "/"
    return max(t.now, t.ledger.ticketed_until(t, path), t.ledger.ticketed_until(t, kind))


def are_lost(t: Transaction, path: str) -> bool:
    """Whether bytes of a dataset were in the memory of a server that has stopped. Each append asks for it."""
    row = t.row(
        "SELECT 1 FROM parts WHERE path = ? AND state = 'visible' AND incarnation <> '' AND incarnation <> ? LIMIT 1",
        path, t.ledger.incarnation,
    )  # fmt: skip
    return row is not None


def are_lost_of_attempt(t: Transaction, attempt: str) -> bool:
    """Whether bytes of an attempt were in the memory of a process that has ended."""
    query = "SELECT 1 FROM parts WHERE attempt = ? AND incarnation NOT IN ('', ?) LIMIT 1"
    return t.row(query, attempt, t.ledger.incarnation) is not None


def note_lost(t: Transaction, names: Sequence[str]) -> None:
    """Note that bytes of these parts were in the memory of a process that has died, as those of a stopped server."""
    t.sql.executemany("UPDATE parts SET incarnation = 'lost' WHERE name = ?", [(name,) for name in names])


def is_known(reader: Reader, name: str) -> bool:
    """Whether a row names this part."""
    return reader.row("SELECT 1 FROM parts WHERE name = ?", name) is not None


def known(reader: Reader, names: Sequence[str]) -> set[str]:
    """Return those of these parts that rows name."""
    rows = reader.rows("SELECT name FROM parts WHERE name IN (SELECT value FROM json_each(?))", json.dumps(names))
    return {row["name"] for row in rows}


def is_visible(reader: Reader, name: str) -> bool:
    """Whether readers see a part."""
    return reader.row("SELECT 1 FROM parts WHERE name = ? AND state = 'visible'", name) is not None


def names(reader: Reader) -> list[str]:
    """Return every part that a row names: any other in the store is an orphan."""
    return [row["name"] for row in reader.rows("SELECT name FROM parts")]


def accept_missing(t: Transaction, missing: Sequence[str]) -> None:
    """Note that the bytes of these parts are gone, and that it is known."""
    t.sql.executemany("UPDATE parts SET missed = 1 WHERE name = ?", [(name,) for name in missing])


def of_dataset(reader: Reader, path: str, attempt: str, number: int) -> str | None:
    """Return the part of a dataset by its attempt and number there, or one that only messages hold; None without."""
    row = reader.row(
        "SELECT name FROM parts WHERE attempt = ? AND number = ?"
        " AND (state = 'visible' AND path = ? OR held)",
        attempt, number, path,
    )  # fmt: skip
    return None if row is None else row["name"]


def of_path(reader: Reader, path: str) -> list[tuple[int, str, int, int, int]]:
    """Return the parts of a dataset in order: place, attempt, number, rows and bytes of each."""
    rows = reader.rows(
        "SELECT seq, attempt, number, rows, bytes FROM parts WHERE path = ? AND state = 'visible' ORDER BY seq", path
    )
    return [(row["seq"], row["attempt"], row["number"], row["rows"], row["bytes"]) for row in rows]


def of_attempt(reader: Reader, attempt: str) -> list[tuple[int, int, int]]:
    """Return the parts of an attempt in order: number, rows and bytes of each."""
    rows = reader.rows("SELECT number, rows, bytes FROM parts WHERE attempt = ? ORDER BY number", attempt)
    return [(row["number"], row["rows"], row["bytes"]) for row in rows]


def written(reader: Reader, name: str) -> tuple[int, str | None]:
    """Return the rows and the digest of a part."""
    row = reader.rows("SELECT rows, digest FROM parts WHERE name = ?", name)[0]
    return row["rows"], row["digest"]


def names_of_write(reader: Reader, write_id: str) -> list[str]:
    """Return the names of the parts of all whole attempts of a write."""
    query = "SELECT name FROM parts JOIN attempts ON attempts.id = parts.attempt WHERE write = ?"
    return [row["name"] for row in reader.rows(query, write_id)]


def names_of_attempt(reader: Reader, attempt: str) -> list[str]:
    """Return the names of an attempt's parts in order."""
    rows = reader.rows("SELECT name FROM parts WHERE attempt = ? ORDER BY number", attempt)
    return [row["name"] for row in rows]


def hold(t: Transaction, names: Iterable[str]) -> None:
    """Keep the bytes of parts that messages name, whatever becomes of their dataset; from now on none is merged."""
    t.sql.executemany("UPDATE parts SET held = 1, pinned = 1 WHERE name = ?", [(name,) for name in names])


_IS_MERGEABLE = "path = ? AND state = 'visible' AND NOT pinned"


def are_mergeable(reader: Reader, path: str) -> bool:
    """Whether parts of a dataset may still become one with others, so that the numbers of those behind change."""
    return reader.row(f"SELECT 1 FROM parts WHERE {_IS_MERGEABLE} LIMIT 1", path) is not None  # noqa: S608  # our own text


def pin(t: Transaction, path: str) -> None:
    """Let the parts that a dataset has now keep their numbers."""
    t.execute(f"UPDATE parts SET pinned = 1 WHERE {_IS_MERGEABLE}", path)  # noqa: S608  # our own text


def let_go(t: Transaction, name: str) -> None:
    """Note that no message names a part any more."""
    t.execute("UPDATE parts SET held = 0 WHERE name = ?", name)


def freeable(reader: Reader, now: float) -> list[str]:
    """Return the retired parts that neither a ticket nor a message names any more, nor another part in their file."""
    is_free = "{0}.state = 'retired' AND {0}.free_at <= ?1 AND NOT {0}.held"
    # Of the parts in one file the names begin alike, with its own and a point. Each file is looked at once: of 100,000
    # free parts each may wait for another in its file, and every sweep asks
    start = "substr(name, 1, instr(name, '.'))"
    rows = reader.rows(
        f"WITH files(start) AS (SELECT DISTINCT {start} FROM parts"  # noqa: S608  # our own text
        f" WHERE {is_free.format('parts')} AND instr(name, '.')),"
        " kept(start) AS (SELECT start FROM files WHERE EXISTS (SELECT 1 FROM parts AS other"
        f" WHERE other.name >= start AND other.name < start || '~' AND NOT ({is_free.format('other')})))"
        f" SELECT name FROM parts WHERE {is_free.format('parts')} AND {start} NOT IN kept",
        now,
    )
    return [row["name"] for row in rows]


def held_by_tickets(reader: Reader, now: float) -> tuple[int, float]:
    """Return the bytes of retired parts that read tickets still name, and the time at which the last one ends."""
    row = reader.row(
        "SELECT coalesce(sum(bytes), 0) AS bytes, coalesce(max(free_at), 0) AS until FROM parts"
        " WHERE state = 'retired' AND free_at > ?",
        now,
    )
    assert row is not None
    return row["bytes"], row["until"]


def forget(t: Transaction, freed: Sequence[str]) -> None:
    """Drop the rows of retired parts, once their bytes are gone."""
    t.sql.executemany("DELETE FROM parts WHERE name = ? AND state = 'retired'", [(name,) for name in freed])
