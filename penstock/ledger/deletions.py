"""Deleted datasets that may come back: their bytes stay for the life of a read ticket, unless their room is needed."""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.errors import AlreadyExists, NotFound
from penstock.ledger import datasets, parts, writes
from penstock.ledger.tables import Transaction
from penstock.store.database import Reader

_KEPT = ("rows", "bytes", "parts", "next_seq", "changed", "made", "compacted", "ttl", "used")
"""The columns of a dataset's row, beside its path and schema."""


def note(t: Transaction, path: str, until: float) -> None:
    """Note what a dataset is, before it is removed; its bytes are to stay until then."""
    row = t.rows("SELECT * FROM datasets WHERE path = ?", path)[0]
    names = [list(part) for part in t.rows("SELECT name, seq FROM parts WHERE path = ? AND state = 'visible'", path)]
    runs = [
        list(write)
        for write in t.rows(
            "SELECT id, run FROM writes WHERE path = ? AND run IS NOT NULL AND state = 'finished'", path
        )
    ]
    thing = {"dataset": {name: row[name] for name in _KEPT}, "parts": names, "runs": runs}
    ticketed = parts.free_at(t, path)
    t.insert("deletions", path=path, until=until, ticketed=ticketed, schema=row["schema"], thing=json.dumps(thing))


def keep_bytes(t: Transaction, path: str) -> None:
    """Keep the bytes of a dataset that was noted; once its parts are retired."""
    _set_free_at(t, path, "max(free_at, until)")


def restore(t: Transaction, path: str, has: Callable[[str], bool]) -> None:
    """Make a deleted dataset what it was, with its runs; `has` tells whether a part's bytes are there."""
    if datasets.schema_at(t, path) is not None:
        raise AlreadyExists(f"{path} exists: nothing can come back in its place")
    row = t.row("SELECT * FROM deletions WHERE path = ? AND until > ?", path, t.now)
    if row is None:
        raise NotFound(
            f"no deleted dataset at {path}: it wasn't deleted lately, or its bytes went as their room was needed"
        )
    datasets.check_path(t, path)
    writes.check_room(t)
    thing = json.loads(row["thing"])
    names = [name for name, _ in thing["parts"]]
    if not all(map(has, names)):  # a backup was put back, which has no deleted bytes
        raise NotFound(f"{path} can't be brought back: bytes of it are gone")
    dataset = thing["dataset"]
    if dataset["ttl"] is not None:  # begins anew, as with a put: else what is back may be gone the next moment
        dataset["changed"] = t.now
    t.insert("datasets", path=path, schema=row["schema"], **dataset)
    t.sql.executemany(
        "UPDATE parts SET state = 'visible', path = ?, seq = ?, free_at = NULL WHERE name = ?",
        [(path, seq, name) for name, seq in thing["parts"]],
    )
    t.sql.executemany(
        "UPDATE OR IGNORE writes SET run = ? WHERE id = ? AND run IS NULL",
        [(run, write) for write, run in thing["runs"]],
    )
    t.execute("DELETE FROM deletions WHERE path = ?", path)


def forget(t: Transaction, path: str) -> bool:
    """Let the bytes of a deleted dataset go, but for those that tickets name; False if there is none."""
    _set_free_at(t, path, "ticketed")
    return t.execute("DELETE FROM deletions WHERE path = ?", path) > 0


def paths(reader: Reader) -> list[str]:
    """Return the paths of the datasets that may come back, those that were deleted first before the others."""
    return [row["path"] for row in reader.rows("SELECT path FROM deletions ORDER BY until")]


def expire(t: Transaction) -> None:
    """Forget the datasets whose time is over; their bytes go by themselves."""
    t.execute("DELETE FROM deletions WHERE until <= ?", t.now)


def _set_free_at(t: Transaction, path: str, moment: str) -> None:
    t.execute(
        f"UPDATE parts SET free_at = {moment} FROM deletions, json_each(deletions.thing, '$.parts') AS part"  # noqa: S608  # our own text
        " WHERE deletions.path = ? AND parts.name = json_extract(part.value, '$[0]') AND state = 'retired'",
        path,
    )  # fmt: skip
