"""Datasets: the parts of finished writes at a path. The destination of writes to `store/…`."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import AlreadyExists, Lost, NotFound
from penstock.ledger import parts, payloads
from penstock.ledger.attempts import Attempt
from penstock.ledger.parts import Slice
from penstock.ledger.tables import Transaction, paths_below, to_schema
from penstock.ledger.writes import Write
from penstock.rows import schemas
from penstock.store.database import Reader
from penstock.store.medium import Part
from penstock.text import counted
from penstock.wire import paths
from penstock.wire.actions import Partition

SMALL = 1 << 20
"""Bytes below which a part may be merged with its neighbours: as the index `small_parts` has it."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """The parts of finished writes at a path."""

    path: str
    schema: pa.Schema
    rows: int
    bytes: int
    part_count: int
    changed: float
    lost: bool = False
    """Whether its bytes were in the memory of a server that has stopped."""
    compacted: float | None = None
    """When small parts became one last."""
    end: str = ""
    """Names its end: what is appended later is behind it, until it is overwritten."""
    expires: float | None = None
    """When it is deleted, unless it is written to before."""
    used: float | None = None
    """When it was read last, to the minute."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The sum of the datasets below a path."""

    path: str
    datasets: int
    rows: int
    bytes: int
    part_count: int
    changed: float


_DATASETS = (
    "SELECT datasets.*, ipc, EXISTS (SELECT 1 FROM parts WHERE parts.path = datasets.path AND parts.state = 'visible'"
    " AND parts.incarnation <> '' AND parts.incarnation <> ?1) AS lost"
    " FROM datasets JOIN schemas ON schemas.id = datasets.schema"
)


def by_path(reader: Reader, path: str, incarnation: str) -> Dataset:
    """Return the dataset at a path."""
    row = reader.row(f"{_DATASETS} WHERE datasets.path = ?2", incarnation, path)
    if row is not None:
        return _dataset(row)
    if below(reader, path + "/", incarnation):
        raise NotFound(f"{path} is a folder: name a dataset in it (penstock ls {path}/)")
    raise NotFound(f"no dataset at {path}: penstock ls lists the datasets")


def below(reader: Reader, folder: str, incarnation: str) -> list[Dataset]:
    """Return the datasets below a folder's path, `store/` or `store/demo/`, in the order of their paths."""
    rows = reader.rows(
        f"{_DATASETS} WHERE datasets.path >= ?2 AND datasets.path < ?3 ORDER BY datasets.path",
        incarnation, *paths_below(folder),
    )  # fmt: skip
    return [_dataset(row) for row in rows]


def children(reader: Reader, folder: str, incarnation: str) -> list[Dataset | Folder]:
    """Return the datasets and folders directly in a folder."""
    first, end = paths_below(folder)
    rows = reader.rows(
        "SELECT substr(path, 1, CASE slash WHEN 0 THEN length(path) ELSE ?1 + slash END) AS name,"
        " count(*) AS datasets, sum(rows) AS rows,"
        " sum(bytes) AS bytes, sum(parts) AS parts, max(changed) AS changed"
        " FROM (SELECT *, instr(substr(path, ?1 + 1), '/') AS slash FROM datasets WHERE path >= ?2 AND path < ?3)"
        " GROUP BY name ORDER BY name",
        len(first), first, end,
    )  # fmt: skip
    return [
        Folder(row["name"], row["datasets"], row["rows"], row["bytes"], row["parts"], row["changed"])
        if row["name"].endswith("/")
        else by_path(reader, row["name"], incarnation)
        for row in rows
    ]


def slices(reader: Reader, path: str) -> list[Slice]:
    """Return the parts of a dataset, in order."""
    rows = reader.rows(
        "SELECT name, rows, bytes, digest, ipc FROM parts JOIN schemas ON schemas.id = parts.schema"
        " WHERE path = ? AND state = 'visible' ORDER BY seq",
        path,
    )
    return [
        Slice(row["name"], row["rows"], row["bytes"], to_schema(row["ipc"]), row["rows"], digest=row["digest"])
        for row in rows
    ]


def _dataset(row: sqlite3.Row) -> Dataset:
    return Dataset(
        row["path"], to_schema(row["ipc"]), row["rows"], row["bytes"], row["parts"], row["changed"], bool(row["lost"]),
        row["compacted"], f"{row['made']}.{row['next_seq']}",
        None if row["ttl"] is None else row["changed"] + row["ttl"], row["used"],
    )  # fmt: skip


def partitions(reader: Reader, path: str) -> list[Partition]:
    """Return the partitions of a dataset, by their names."""
    rows = reader.rows(
        "SELECT partition, sum(rows) AS rows, sum(bytes) AS bytes, count(*) AS parts FROM parts"
        " WHERE path = ? AND state = 'visible' AND partition IS NOT NULL GROUP BY partition ORDER BY partition",
        path,
    )
    return [Partition(**dict(row)) for row in rows]


def expired(reader: Reader, now: float) -> list[str]:
    """Return the datasets that are past their time to live, and that no write is open to."""
    query = (
        "SELECT path FROM datasets WHERE ttl IS NOT NULL AND changed + ttl <= ?"
        " AND path NOT IN (SELECT path FROM writes WHERE state = 'open') ORDER BY path"
    )
    return [row["path"] for row in reader.rows(query, now)]


def least_used(reader: Reader) -> list[tuple[str, int]]:
    """Return the datasets that no write is open to and no message names a part of, each with its bytes; first the one
    that was written or read longest ago.
    """
    rows = reader.rows(
        "SELECT path, bytes FROM datasets"
        " WHERE path NOT IN (SELECT path FROM writes WHERE state = 'open') AND NOT EXISTS"
        " (SELECT 1 FROM parts WHERE parts.path = datasets.path AND state = 'visible' AND held)"
        " ORDER BY max(changed, coalesce(used, 0)), path"
    )
    return [(row["path"], row["bytes"]) for row in rows]


# --- small parts ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SmallPart:
    """A visible part that may be merged with those beside it."""

    name: str
    seq: int
    places: int
    rows: int
    bytes: int
    schema_id: int
    digest: str | None
    partition: str | None = None

    def __str__(self) -> str:
        return counted(self.rows, "row")

    @property
    def end(self) -> int:
        """The place behind it."""
        return self.seq + self.places


_GRACE = 60.0
"""Seconds for which parts that were merged stay: a backup may be copying them, and each second there may be others."""
_ARE_SMALL = f"state = 'visible' AND path IS NOT NULL AND attempt <> '' AND NOT pinned AND bytes < {SMALL}"


def small_parts(reader: Reader, path: str, incarnation: str) -> list[SmallPart]:
    """Return the small parts of a dataset, in order."""
    rows = reader.rows(
        "SELECT name, seq, places, rows, bytes, schema AS schema_id, digest, partition"  # noqa: S608  # our text
        f" FROM parts INDEXED BY small_parts WHERE {_ARE_SMALL} AND path = ? AND incarnation = ? AND NOT missed"
        " ORDER BY seq",
        path, incarnation,
    )  # fmt: skip
    return [SmallPart(**dict(row)) for row in rows]


def paths_of_small_parts(reader: Reader, *, many: int) -> list[str]:
    """Return the datasets that have many small parts."""
    rows = reader.rows(
        f"SELECT path FROM parts INDEXED BY small_parts WHERE {_ARE_SMALL} GROUP BY path HAVING count(*) >= ?",  # noqa: S608  # our own text
        many,
    )
    return [row["path"] for row in rows]


def replace(t: Transaction, path: str, run: Sequence[SmallPart], part: Part) -> bool:
    """Put one part with the same rows in the place of a run of parts; False if these very parts are not there."""
    names, rows = [each.name for each in run], sum(each.rows for each in run)
    in_place = t.rows(
        "SELECT name FROM parts WHERE path = ? AND state = 'visible' AND seq >= ? AND seq < ? AND NOT pinned"
        " ORDER BY seq",
        path, run[0].seq, run[-1].end,
    )  # fmt: skip
    if [row["name"] for row in in_place] != names or part.rows != rows:
        return False
    parts.retire(t, names, path, grace=_GRACE)
    t.insert(
        "parts", name=part.name, attempt=uuid.uuid4().hex, number=0, rows=part.rows, bytes=part.bytes,
        schema=run[0].schema_id, incarnation=t.ledger.incarnation, state="visible", path=path, seq=run[0].seq,
        places=run[-1].end - run[0].seq, digest=part.digest, partition=run[0].partition,
    )  # fmt: skip
    t.execute(
        "UPDATE datasets SET parts = parts - ?, bytes = bytes - ? + ?, compacted = ? WHERE path = ?",
        len(run) - 1, sum(each.bytes for each in run), part.bytes, t.now, path,
    )  # fmt: skip
    return True


# --- the destination of writes -------------------------------------------------------------

growth = schemas.DATASET
visible_parts = (
    "SELECT name, path, rows, bytes, digest FROM parts WHERE state = 'visible' AND path IS NOT NULL"
    " AND incarnation = '' AND NOT missed"
)


def count(reader: Reader) -> int:
    """Return how many there are."""
    row = reader.row("SELECT count(*) AS n FROM datasets")
    return row["n"] if row is not None else 0


def schema_at(reader: Reader, path: str) -> pa.Schema | None:
    """Return the schema at the path, None where nothing is."""
    row = reader.row("SELECT ipc FROM datasets JOIN schemas ON schemas.id = datasets.schema WHERE path = ?", path)
    return to_schema(row["ipc"]) if row is not None else None


def check_write(t: Transaction, write: Write, *, exists: bool) -> None:
    """Reject a write that may not make or change the path."""
    if (write.mode != "overwrite" or write.keeps_rows) and parts.are_lost(t, write.path):
        verb = {"append": "appended to", "overwrite": "overwritten in part"}.get(write.mode, "made")
        raise Lost(f"{write.path} can't be {verb}, its rows are lost: write it again with mode 'overwrite'")
    check_path(t, write.path)
    if exists and write.mode == "error":
        raise AlreadyExists(f"{write.path} exists: choose mode 'append' or 'overwrite', or another path")


def check_path(t: Transaction, path: str) -> None:
    """Reject a dataset where a payload is, or above or below another."""
    payloads.check_is_none(t, paths.parse(path).key)
    for key in paths.parse(path).parents:
        if schema_at(t, f"store/{key}") is not None:
            raise AlreadyExists(f"{path}: store/{key} is a dataset, so nothing can be below it")
    if t.row("SELECT 1 FROM datasets WHERE path >= ? AND path < ? LIMIT 1", *paths_below(path)) is not None:
        raise AlreadyExists(f"{path} is a folder with datasets in it, so it can't be a dataset itself")


def record(t: Transaction, attempt: Attempt) -> None:
    """Nothing more than its parts."""


def is_due(t: Transaction, write: Write, attempts: Sequence[str], chosen: str) -> bool:
    """Return True: a finish shows them."""
    return True


def overwrite(t: Transaction, write: Write) -> None:
    """Retire what an overwrite replaces: all rows, or those of its partition, so that the dataset is another one."""
    path, partition = write.path, write.dataset.partition
    if partition is None:
        remove(t, path)
        return
    t.execute(
        "UPDATE datasets SET rows = datasets.rows - p.rows, bytes = datasets.bytes - p.bytes,"
        " parts = datasets.parts - p.parts, made = ?3"
        " FROM (SELECT coalesce(sum(rows), 0) AS rows, coalesce(sum(bytes), 0) AS bytes, count(*) AS parts FROM parts"
        " WHERE path = ?1 AND state = 'visible' AND partition = ?2) AS p WHERE path = ?1",
        path, partition, uuid.uuid4().hex[:16],
    )  # fmt: skip
    parts.retire_dataset(t, path, partition)


def show(t: Transaction, write: Write, attempts: Sequence[str], schema: pa.Schema) -> None:
    """Make the attempts' parts the end of what is at the write's path."""
    path = write.path
    t.execute(
        "INSERT INTO datasets(path, schema, changed, made, ttl, rows, bytes, parts, next_seq)"
        " VALUES (?, ?, ?, ?, ?, 0, 0, 0, 0) ON CONFLICT(path)"
        " DO UPDATE SET schema = excluded.schema, changed = excluded.changed, ttl = coalesce(excluded.ttl, ttl)",
        path, t.schema_id(schema), t.now, uuid.uuid4().hex[:16], write.dataset.ttl,
    )  # fmt: skip
    t.ledger.note_grown(path)
    for attempt in attempts:
        t.execute(
            "UPDATE parts SET state = 'visible', path = ?1,"
            " seq = number + (SELECT next_seq FROM datasets WHERE path = ?1) WHERE attempt = ?2 AND state = 'whole'",
            path, attempt,
        )  # fmt: skip
        t.execute(
            "UPDATE datasets SET rows = datasets.rows + a.rows, bytes = datasets.bytes + a.bytes,"
            " parts = datasets.parts + a.parts, next_seq = next_seq + a.parts"
            " FROM (SELECT rows, bytes, parts FROM attempts WHERE id = ?2) AS a WHERE path = ?1",
            path, attempt,
        )  # fmt: skip


def remove(t: Transaction, path: str) -> None:
    """Free the path; the parts' bytes stay for as long as tickets name them."""
    parts.retire_dataset(t, path)
    t.execute("DELETE FROM datasets WHERE path = ?", path)


def disagreements(reader: Reader) -> list[str]:
    """Describe datasets whose sums differ from those of their parts: only damage makes them differ."""
    unlike = reader.rows(
        "SELECT datasets.path, datasets.rows, sum(parts.rows) AS others FROM datasets LEFT JOIN parts"
        " ON parts.path = datasets.path AND state = 'visible' GROUP BY datasets.path"
        " HAVING datasets.rows <> coalesce(sum(parts.rows), 0) OR datasets.parts <> count(parts.name)"
        " OR datasets.bytes <> coalesce(sum(parts.bytes), 0)"
    )
    alone = reader.rows(
        "SELECT DISTINCT path FROM parts WHERE state = 'visible' AND path IS NOT NULL"
        " AND path NOT IN (SELECT path FROM datasets UNION ALL SELECT 'store/' || key FROM payloads)"
    )
    return [
        *(f"{row['path']} has {counted(row['rows'], 'row')}, its parts have {row['others'] or 0:,}" for row in unlike),
        *(f"{row['path']} has parts, and is neither dataset nor payload" for row in alone),
        *payloads.disagreements(reader),
    ]
