"""How a write begins, and how the open or finished write of a run is joined: within a transaction."""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import replace

from penstock.errors import AlreadyExists, InvalidRequest, LimitExceeded
from penstock.ledger import datasets, places
from penstock.ledger.transaction import Transaction
from penstock.ledger.writes import Write, merged_schema
from penstock.wire.put import Mode


def of_run(t: Transaction, path: str, run: str | None) -> sqlite3.Row | None:
    """The write that has this run already; none for a run that was aborted, has expired, was deleted, or is lost.

    All runs of a lost dataset are forgotten at once: the first one that is written again replaces the rows of all.
    """
    query = "SELECT * FROM writes WHERE path = ? AND run = ? AND state IN ('open', 'finished')"
    found: sqlite3.Row | None = t.sql.execute(query, (path, run)).fetchone()
    if found is not None and found["state"] == "finished" and datasets.is_lost(t, path):
        datasets.forget_runs(t, path)
        return None
    return found


def join(t: Transaction, known: sqlite3.Row, *, mode: Mode, own: bool) -> Write:
    """Go on with the write of a run, as its last opener; a finished one stays as it is."""
    if known["mode"] != mode:
        raise InvalidRequest(
            f"run {known['run']!r} of {known['path']} was opened with mode {known['mode']!r}, now with {mode!r}: "
            "use that mode, or another run"
        )
    if known["state"] == "open" and bool(known["own"]) != own:
        kind = ("a write of many attempts", "one put")[known["own"]]
        raise AlreadyExists(f"run {known['run']!r} of {known['path']} is open as {kind}: use another run")
    t.sql.execute(
        "UPDATE writes SET opener = ?, touched = ? WHERE id = ? AND state = 'open'",
        (uuid.uuid4().hex, t.now, known["id"]),
    )
    write = t.catalog.write(known["id"])
    return replace(write, opener="") if own else write


def begin(t: Transaction, write: Write, *, own: bool, most_datasets: int) -> None:
    """Note a new write, if its path is free for its mode and its schema is the dataset's."""
    held = places.schema_at(t, write.path)
    places.check(t, write, exists=held is not None)
    if held is None:
        check_room(t, most_datasets)
    if write.schema is not None:
        merged_schema(write, held, ())
    t.sql.execute(
        "INSERT INTO writes(id, path, mode, run, state, opener, schema, opened, touched, own)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            write.id, write.path, write.mode, write.run, write.state, write.opener,
            t.schema_id(write.schema), write.opened, write.touched, own,
        ),
    )  # fmt: skip


def check_room(t: Transaction, most_datasets: int) -> None:
    """Whether there may be one dataset or topic more."""
    count = "SELECT (SELECT count(*) FROM datasets) + (SELECT count(*) FROM topics)"
    if t.sql.execute(count).fetchone()[0] >= most_datasets:
        raise LimitExceeded(
            f"the server has {most_datasets:,} datasets and topics, its most (serve --limit datasets=…)"
        )
