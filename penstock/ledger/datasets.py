"""What stands at a path, how it gets there and how it goes: within a transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import Lost
from penstock.ledger.catalog import below, to_schema
from penstock.ledger.transaction import Transaction
from penstock.ledger.writes import Write, check_place
from penstock.wire import paths


def schema_at(t: Transaction, path: str) -> pa.Schema | None:
    """The schema of the dataset at a path; None where there is none."""
    row = t.sql.execute(
        "SELECT ipc FROM datasets JOIN schemas ON schemas.id = datasets.schema WHERE path = ?", (path,)
    ).fetchone()
    return to_schema(row["ipc"]) if row else None


def check_path(t: Transaction, write: Write, *, exists: bool) -> None:
    """Whether the write may make or change the dataset at its path, as things stand now."""
    above = [f"store/{key}" for key in paths.parse(write.path).parents]
    found = [path for path in above if schema_at(t, path) is not None]
    if write.mode != "overwrite" and is_lost(t, write.path):
        raise Lost(
            f"{write.path} can't be {'appended to' if write.mode == 'append' else 'made'}, its rows are lost: "
            "write it again with mode 'overwrite'"
        )
    first, end = below(write.path)
    in_it = t.sql.execute("SELECT 1 FROM datasets WHERE path >= ? AND path < ? LIMIT 1", (first, end)).fetchone()
    check_place(write, exists, found, in_it is not None)


def show(t: Transaction, path: str, attempts: Sequence[str], schema: pa.Schema) -> None:
    """The parts of these attempts become the end of the dataset."""
    t.sql.execute(
        "INSERT INTO datasets(path, schema, rows, bytes, parts, next_seq, changed) VALUES (?, ?, 0, 0, 0, 0, ?)"
        " ON CONFLICT(path) DO UPDATE SET schema = excluded.schema, changed = excluded.changed",
        (path, t.schema_id(schema), t.now),
    )
    for attempt in attempts:
        t.sql.execute(
            "UPDATE parts SET state = 'visible', path = ?1,"
            " seq = number + (SELECT next_seq FROM datasets WHERE path = ?1) WHERE attempt = ?2"
            " AND state = 'whole'",
            (path, attempt),
        )
        t.sql.execute(
            "UPDATE datasets SET rows = datasets.rows + a.rows, bytes = datasets.bytes + a.bytes,"
            " parts = datasets.parts + a.parts, next_seq = next_seq + a.parts"
            " FROM (SELECT rows, bytes, parts FROM attempts WHERE id = ?2) AS a WHERE path = ?1",
            (path, attempt),
        )
        t.sql.execute("UPDATE attempts SET chosen = 1 WHERE id = ?", (attempt,))


def take_away(t: Transaction, path: str) -> None:
    """The path is free; the parts are retired, and their bytes stay for as long as tickets name them."""
    t.sql.execute(
        "UPDATE parts SET state = 'retired', path = NULL, seq = NULL,"
        " free_at = max(?1, (SELECT ticketed FROM datasets WHERE path = ?2)) WHERE path = ?2 AND state = 'visible'",
        (max(t.now, t.catalog.held.get(path, 0.0)), path),
    )
    t.sql.execute("DELETE FROM datasets WHERE path = ?", (path,))


def is_lost(t: Transaction, path: str) -> bool:
    """Whether a dataset stands at this path, and its rows are gone with the memory of a server that has ended."""
    part = "SELECT 1 FROM parts WHERE path = ? AND state = 'visible' AND incarnation NOT IN ('', ?) LIMIT 1"
    return t.sql.execute(part, (path, t.catalog.incarnation)).fetchone() is not None


def forget_runs(t: Transaction, path: str) -> None:
    """The runs that were finished at this path may be written again; the ones that are open go on."""
    t.sql.execute(
        "UPDATE writes SET run = NULL WHERE path = ? AND run IS NOT NULL"
        " AND state IN ('open', 'finished') AND state = 'finished'",  # the first of the two as in the index `runs`
        (path,),
    )
