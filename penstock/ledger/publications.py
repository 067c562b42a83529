"""Publications: what a finish has named of a write to publish/…, and which of its rows Pub/Sub has.

The destination of writes to `publish/…`, whose rows are shown to nobody: the write is finished once all are published.
A publication that has failed stays as it is until it is finished again, or its write is removed by hand.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import Internal, InvalidRequest, WriteEnded
from penstock.ledger import parts, writes
from penstock.ledger.attempts import Attempt
from penstock.ledger.parts import Slice
from penstock.ledger.tables import Transaction, to_schema
from penstock.ledger.writes import Write
from penstock.rows import schemas
from penstock.store.database import Reader
from penstock.wire.actions import Summary
from penstock.wire.publish import PublishFigures

Range = tuple[int, int]
"""The first position of rows in a part, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A write that is published, or has failed to be."""

    write: str
    path: str
    rows: int
    published: int
    code: str | None
    """Of the error that ended it."""
    text: str | None


@dataclass(frozen=True, slots=True)
class UnpublishedPart:
    """A part of a publication whose rows aren't all published."""

    number: int
    slice: Slice
    published: tuple[Range, ...]


_PUBLICATIONS = "SELECT write, path, rows, published, code, text FROM publications"


def find(reader: Reader, write_id: str) -> Publication | None:
    """Return the publication of a write; None of one that has none, or has ended."""
    row = reader.row(f"{_PUBLICATIONS} WHERE write = ?", write_id)
    return None if row is None else Publication(*row)


def of_run(reader: Reader, prefix: str, *, other_than: str) -> sqlite3.Row | None:
    """Return id, path and run of the write that is published, or was, as a run that begins so, other than one run."""
    return reader.row(
        f"SELECT id, path, run FROM writes WHERE substr(run, 1, length(?1)) = ?1"  # noqa: S608  # our own text
        f" AND run <> ?2 AND (state = 'finished' OR {writes.IS_PUBLISHED})",
        prefix,
        other_than,
    )


def given_up(reader: Reader, prefix: str) -> list[sqlite3.Row]:
    """Return id, path and number of messages of the writes that have published some as a run that begins so, and then
    were given up.
    """
    return reader.rows(
        "SELECT id, path, rows FROM writes WHERE substr(run, 1, length(?1)) = ?1 AND state IN ('aborted', 'expired')"
        " AND rows > 0 ORDER BY touched",
        prefix,
    )


def unfinished(reader: Reader) -> list[Publication]:
    """Return the publications that are under way or have failed, the oldest first."""
    return [Publication(*row) for row in reader.rows(f"{_PUBLICATIONS} ORDER BY number")]


def figures(reader: Reader, now: float) -> dict[str, PublishFigures]:
    """Return what waits for each topic."""
    rows = reader.rows(
        "SELECT publications.path, count(*) AS writes, count(code) AS failed,"
        " sum(publications.rows - published) AS rows, min(opened) AS opened, sum((SELECT coalesce(sum(bytes), 0)"
        "  FROM publication_parts AS staged JOIN parts ON parts.name = part"
        "  WHERE staged.write = publications.write AND unpublished > 0)) AS bytes"
        " FROM publications JOIN writes ON writes.id = write GROUP BY publications.path"
    )
    return {
        row["path"]: PublishFigures(
            row["writes"], row["failed"], row["rows"], row["bytes"], max(0.0, now - row["opened"])
        )
        for row in rows
    }  # fmt: skip


def next_parts(reader: Reader, write_id: str, *, after: int, most: int) -> list[UnpublishedPart]:
    """Return some of the parts behind a number whose rows aren't all published, in order."""
    rows = reader.rows(
        "SELECT staged.number, part, parts.rows, bytes, ipc, digest FROM publication_parts AS staged"
        " JOIN parts ON parts.name = part JOIN schemas ON schemas.id = parts.schema"
        " WHERE write = ? AND staged.number > ? AND unpublished > 0 ORDER BY staged.number LIMIT ?",
        write_id, after, most,
    )  # fmt: skip
    ranges = reader.rows(
        "SELECT part, first, end FROM published WHERE write = ? AND part > ? ORDER BY part, first", write_id, after
    )
    return [
        UnpublishedPart(
            row["number"],
            Slice(row["part"], row["rows"], row["bytes"], to_schema(row["ipc"]), row["rows"], digest=row["digest"]),
            tuple((each["first"], each["end"]) for each in ranges if each["part"] == row["number"]),
        )
        for row in rows
    ]


def note(t: Transaction, write_id: str, published: Iterable[tuple[int, int, int]]) -> Summary:
    """Note rows that Pub/Sub has, by part, first and end; again, it changes nothing. The last ones finish the write."""
    publication = find(t, write_id)
    if publication is None:
        raise WriteEnded(f"write/{write_id} is not published any more: it was ended")
    rows = sum(_note_range(t, write_id, part, first, end) for part, first, end in published)
    t.execute("UPDATE publications SET published = published + ? WHERE write = ?", rows, write_id)
    t.execute("UPDATE writes SET touched = ? WHERE id = ?", t.now, write_id)
    row = t.rows("SELECT attempts, rows, published FROM publications WHERE write = ?", write_id)[0]
    if row["published"] == row["rows"]:
        return writes.finish(t, write_id, json.loads(row["attempts"]))
    return writes.summary(t, write_id)


def _note_range(t: Transaction, write_id: str, part: int, first: int, end: int) -> int:
    """Note rows of a part; return how many of them weren't noted."""
    row = t.row(
        "SELECT rows FROM publication_parts AS staged JOIN parts ON parts.name = part"
        " WHERE write = ? AND staged.number = ?",
        write_id, part,
    )  # fmt: skip
    if row is None or not 0 <= first < end <= row["rows"]:
        raise InvalidRequest(f"write/{write_id} has no rows {first} to {end} in a part {part}")
    before = 0
    for known in t.rows(
        "DELETE FROM published WHERE write = ? AND part = ? AND first <= ? AND end >= ? RETURNING first, end",
        write_id, part, end, first,
    ):  # fmt: skip
        first, end = min(first, known["first"]), max(end, known["end"])
        before += known["end"] - known["first"]
    t.insert("published", write=write_id, part=part, first=first, end=end)
    new = end - first - before
    t.execute(
        "UPDATE publication_parts SET unpublished = unpublished - ? WHERE write = ? AND number = ?", new, write_id, part
    )
    return new


def fail(t: Transaction, write_id: str, code: str, text: str) -> None:
    """Note why a publication can't go on."""
    t.execute("UPDATE publications SET code = ?, text = ? WHERE write = ?", code, text, write_id)


# --- the destination ----------------------------------------------------------------------------

visible_parts = "SELECT name, path, rows, bytes, digest FROM parts WHERE 0"
growth = schemas.DATASET


def schema_at(reader: Reader, path: str) -> pa.Schema | None:
    """Return None: nothing is at a topic's path."""
    return None


def check_write(t: Transaction, write: Write, *, exists: bool) -> None:
    """Reject a write that would replace messages."""
    if write.mode == "overwrite":
        raise InvalidRequest(
            f"{write.path}: messages that are published can't be replaced, as mode overwrite (outputMode('complete')) "
            "does: use append"
        )


def count(reader: Reader) -> int:
    """Return 0: topics are Pub/Sub's."""
    return 0


def record(t: Transaction, attempt: Attempt) -> None:
    """Note nothing besides the attempt."""


def is_due(t: Transaction, write: Write, attempts: Sequence[str], chosen: str) -> bool:
    """Whether all rows of these attempts are published. If they aren't, they are from now on those that will be."""
    row = t.row("SELECT chosen, rows, published FROM publications WHERE write = ?", write.id)
    if row is None:
        return not _begin(t, write, attempts, chosen)
    if row["chosen"] != chosen and write.run is None:
        raise WriteEnded(f"write/{write.id} to {write.path} is being published with another list of attempts")
    writes.resume_publication(t, write.id)
    return bool(row["rows"] == row["published"])


def _begin(t: Transaction, write: Write, attempts: Sequence[str], chosen: str) -> bool:
    """Note the parts to publish, in the order of the list; return False if they have no row."""
    names = [name for attempt in attempts for name in parts.names_of_attempt(t, attempt)]
    sizes = [parts.written(t, name)[0] for name in names]
    if not sum(sizes):
        return False
    number = t.rows("SELECT coalesce(max(number), 0) + 1 FROM publications")[0][0]
    t.insert(
        "publications", write=write.id, path=write.path, number=number, chosen=chosen, attempts=json.dumps([*attempts]),
        rows=sum(sizes), published=0,
    )  # fmt: skip
    t.sql.executemany(
        "INSERT INTO publication_parts(write, number, part, unpublished) VALUES (?, ?, ?, ?)",
        [(write.id, place, *each) for place, each in enumerate(zip(names, sizes, strict=True), 1)],
    )
    return True


def show(t: Transaction, write: Write, attempts: Sequence[str], schema: pa.Schema) -> None:
    """Show nothing: the end of the write retires the parts."""


def overwrite(t: Transaction, write: Write) -> None:
    """Reject what no write to a topic asks for."""
    raise Internal(f"{write.path} is a topic of Pub/Sub's: nothing of it can be replaced")


def disagreements(reader: Reader) -> list[str]:
    """Describe publications whose counts differ from those of their parts."""
    rows = reader.rows(
        "SELECT write FROM publications WHERE rows - published <> (SELECT coalesce(sum(unpublished), 0)"
        " FROM publication_parts WHERE publication_parts.write = publications.write)"
    )
    return [f"write/{row['write']}: its count of published rows isn't that of its parts" for row in rows]
