"""Runs: names under which a write to a path happens once."""

from __future__ import annotations

import sqlite3

from penstock.ledger import parts
from penstock.ledger.tables import Transaction
from penstock.store.database import Reader


def write_of(t: Transaction, path: str, run: str | None) -> sqlite3.Row | None:
    """Return the open or finished write of a run; None for one that was aborted, expired, deleted or lost.

    All runs of a lost dataset are forgotten at once: the first one that is written again replaces the rows of all.
    """
    row = t.row("SELECT * FROM writes WHERE path = ? AND run = ? AND state IN ('open', 'finished')", path, run)
    if row is not None and row["state"] == "finished" and parts.are_lost(t, path):
        forget(t, path)
        return None
    return row


def forget(t: Transaction, path: str) -> None:
    """Let the finished runs of a path be written again; the open ones continue."""
    t.execute(
        "UPDATE writes SET run = NULL WHERE path = ? AND run IS NOT NULL"
        " AND state IN ('open', 'finished') AND state = 'finished'",  # the first of the two as in the index `runs`
        path,
    )


def last_epochs(reader: Reader, path: str) -> list[tuple[str, int]]:
    """Return the queries that have written to a path, each with its last finished epoch: of runs `query/epoch`."""
    rows = reader.rows(
        "SELECT query, max(CAST(epoch AS INTEGER)) AS epoch FROM (SELECT rtrim(rtrim(run, '0123456789'), '/') AS query,"
        " substr(run, length(rtrim(run, '0123456789')) + 1) AS epoch FROM writes"
        " WHERE path = ? AND state = 'finished' AND run GLOB '?*/[0-9]*') WHERE epoch <> ''"
        " GROUP BY query ORDER BY query",
        path,
    )
    return [(row["query"], row["epoch"]) for row in rows]
