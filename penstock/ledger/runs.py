"""Runs: names under which a write to a path happens once."""

from __future__ import annotations

import sqlite3

from penstock.ledger import parts
from penstock.ledger.tables import Transaction


def write_of(t: Transaction, path: str, run: str | None) -> sqlite3.Row | None:
    """Return the open or finished write of a run; None for one that was aborted, expired, deleted or lost.

    All runs of a lost dataset are forgotten at once: the first one that is written again replaces the rows of all.
    """
    row = t.row("SELECT * FROM writes WHERE path = ? AND run = ? AND state IN ('open', 'finished')", path, run)
    if row is not None and row["state"] == "finished" and parts.are_lost(t, "path = ? AND state = 'visible'", path):
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
