"""Payloads at a server: what they and datasets agree on, within one transaction.

`store/<key>` is a dataset, a payload or a folder, never two. A large payload's part has a row among the parts, so that
tickets, the sweep, backups and the checks of a start know it as they know a dataset's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import AlreadyExists
from penstock.ledger import parts
from penstock.ledger.tables import Transaction, paths_below
from penstock.rows.payload import plain
from penstock.store import payload_table
from penstock.store.database import Reader
from penstock.store.payload_table import PayloadRow

KIND = "store"
_SPLIT = re.compile(r"(.+)@([0-9a-f]{32})-([0-9]{1,9})")
_CLEARED = 10_000  # payloads removed in one transaction, which others wait for


@dataclass(frozen=True, slots=True)
class Bytes:
    """Where the bytes of a key are: in its row, or in a part."""

    inline: bytes | None
    part: str | None
    rows: int
    digest: str | None = None
    """Of the part."""


@dataclass(frozen=True, slots=True)
class ListedPayload:
    """A payload in a listing."""

    path: str
    rows: int
    bytes: int
    part_count: int
    changed: float


def below(reader: Reader, folder: str, now: float) -> list[ListedPayload]:
    """Return the payloads below a folder's path, `store/` or `store/demo/`, without a queue's own."""
    first, end = (path[len(KIND) + 1 :] for path in paths_below(folder))
    rows = payload_table.below(reader, first, end or "\x7f", now)  # keys are ASCII
    return [
        ListedPayload(f"{KIND}/{row['key']}", row["rows"], row["bytes"], int(row["part"] is not None), row["stored"])
        for row in rows
    ]


def bind(t: Transaction, row: PayloadRow, *, bound: bool = False) -> None:
    """Make a payload readable under its key, in place of an earlier one there; its bytes are durable.

    A `bound` one belongs to the messages that name it: `free` removes it with the last of them.
    """
    _check_is_no_dataset(t, row.key)
    payload_table.check_free(t, row.key, t.now)
    before = payload_table.put(t, row, t.now, bound=bound)
    if before is not None:
        parts.retire(t, [before], f"{KIND}/{row.key}")
    if row.part is not None:
        assert row.schema is not None
        parts.add_payload(
            t, row.part, f"{KIND}/{row.key}", rows=row.rows, bytes=row.bytes, schema=plain(row.schema),
            digest=row.digest,
        )  # fmt: skip


def look_up(reader: Reader, key: str, now: float) -> Bytes | None:
    """Return where the bytes of a payload are, or those of a split, `path@<attempt>-<n>`; None without such.

    With `now` 0 a payload past its time is found, too, until it is swept: a message may name it. A split is found after
    its dataset is deleted, too, for as long as its bytes are there.
    """
    split = split_of(key)
    if split is None:
        row = payload_table.find(reader, key, now)
        return None if row is None else Bytes(row.inline, row.part, row.rows, row.digest)
    path, attempt, number = split
    part = reader.row(
        "SELECT name, rows, digest FROM parts WHERE attempt = ? AND number = ?"
        " AND (state = 'visible' AND path = ? OR state = 'retired' OR held)",
        attempt, number, path,
    )  # fmt: skip
    return None if part is None else Bytes(None, part["name"], part["rows"], part["digest"])


def split_of(key: str) -> tuple[str, str, int] | None:
    """Return the dataset's path, the attempt and the part's number of a split's key; None for any other key."""
    split = _SPLIT.fullmatch(key)
    return None if split is None else (f"{KIND}/{split[1]}", split[2], int(split[3]))


def adopt(t: Transaction, key: str) -> None:
    """Let a payload that was stored for a time go with the last message that names it, and not before."""
    payload_table.set_bound(t, key)


def remove(t: Transaction, key: str) -> PayloadRow | None:
    """Remove a payload, and return it; one that an undone message names stays for that one, and goes with it."""
    row = payload_table.find(t, key, t.now)
    if row is None:
        return None
    _remove_or_bind(t, key)
    return row


def free(t: Transaction, key: str) -> None:
    """Remove a payload if it is bound: the last message that named it is done."""
    if payload_table.is_bound(t, key):
        _remove_row(t, key)


def clear(t: Transaction, prefix: str) -> int:
    """Remove some of the payloads whose keys begin with a prefix, as `remove` does; return how many, 0 at the end."""
    keys = payload_table.keys(t, prefix, t.now, most=_CLEARED)
    for key in keys:
        remove(t, key)
    return len(keys)


def expire(t: Transaction) -> None:
    """Remove the payloads past their time; one that an undone message names goes with that one."""
    for key in payload_table.expired_keys(t, t.now):
        _remove_or_bind(t, key)


def check_is_none(t: Transaction, key: str) -> None:
    """Reject a dataset at, below or above a payload's key."""
    if payload_table.find(t, key, t.now) is not None:
        raise AlreadyExists(f"{KIND}/{key} is a payload, so it can't be a dataset: delete it first")
    payload_table.check_free(t, key, t.now)


def disagreements(reader: Reader) -> list[str]:
    """Describe payloads whose bytes aren't those that were written, or whose part no row of the parts has."""
    apart = reader.rows(
        "SELECT key FROM payloads WHERE part IS NOT NULL AND part NOT IN"
        " (SELECT name FROM parts WHERE state = 'visible' AND path = 'store/' || key)"
    )
    return payload_table.damaged(reader) + [
        f"the payload {KIND}/{row['key']} names a part that isn't its own" for row in apart
    ]


def _remove_or_bind(t: Transaction, key: str) -> None:
    if t.ledger.names_payload(t, key):
        payload_table.set_bound(t, key)
    else:
        _remove_row(t, key)


def _remove_row(t: Transaction, key: str) -> None:
    row = payload_table.remove(t, key)
    if row is not None and row["part"] is not None:
        parts.retire(t, [row["part"]], f"{KIND}/{key}")


def _check_is_no_dataset(t: Transaction, key: str) -> None:
    names = key.split("/")
    for depth in range(1, len(names) + 1):
        path = f"{KIND}/{'/'.join(names[:depth])}"
        if t.row("SELECT 1 FROM datasets WHERE path = ?", path) is not None:
            if depth == len(names):
                raise AlreadyExists(f"{path} is a dataset, so it can't be a payload: choose another key, or delete it")
            raise AlreadyExists(f"{KIND}/{key}: {path} is a dataset, so nothing can be below it")
    below = paths_below(f"{KIND}/{key}")
    if t.row("SELECT 1 FROM datasets WHERE path >= ? AND path < ? LIMIT 1", *below) is not None:
        raise AlreadyExists(f"{KIND}/{key} is a folder with datasets in it, so it can't be a payload itself")
