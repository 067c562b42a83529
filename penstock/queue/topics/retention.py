"""Retention: which rows of a topic leave, and which are lost. Whole parts, from the front of a shard.

An offset is never used again: the end of a shard stays where it is, also when nothing is left before it.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Mapping, Sequence

from penstock.ledger.ledger import Ledger
from penstock.ledger.transaction import Transaction
from penstock.queue.topics import consumers, journal
from penstock.text import format_size

log = logging.getLogger("penstock")


class _Front:
    """The parts of a shard, of which the oldest may leave if no live consumer still has to read it."""

    def __init__(self, t: Transaction, path: str, shard: int, floor: float = math.inf) -> None:
        query = (
            "SELECT part, shard, first, first + journal.rows AS next, journal.rows, journal.bytes, until, incarnation"
            " FROM journal JOIN parts ON parts.name = part WHERE journal.path = ? AND shard = ? ORDER BY first"
        )
        self._rest = t.sql.execute(query, (path, shard))
        self._floor = floor
        self._head: sqlite3.Row | None = self._rest.fetchone()

    def first(self) -> sqlite3.Row | None:
        """The oldest part, if there is one that may leave."""
        return self._head if self._head is not None and self._head["next"] <= self._floor else None

    def leave(self) -> sqlite3.Row:
        """The oldest part, which is the oldest no more."""
        left, self._head = self._head, self._rest.fetchone()
        assert left is not None
        return left


def retain(ledger: Ledger) -> int:
    """Let the rows go that are older than their topic keeps them, and the oldest of what is too much; how many."""
    rows = 0
    for topic in ledger.database.rows("SELECT path FROM topics ORDER BY path"):
        path = topic["path"]
        with ledger.transaction() as t:
            gone = leave(t, path, consumers.floors(t, path))
        if gone:
            count = sum(part["rows"] for part in gone)
            size = format_size(sum(part["bytes"] for part in gone))
            log.info("%s: its oldest %s rows (%s) have left, as it says how much it keeps", path, f"{count:,}", size)
            rows += count
    return rows


def leave(t: Transaction, path: str, floors: Mapping[int, int]) -> list[sqlite3.Row]:
    """Take the parts away whose time is over, and the oldest of those beyond the topic's size.

    None that has a row from its shard's floor on: a live consumer has still to read it.
    """
    topic = t.sql.execute("SELECT keep_seconds, keep_bytes FROM topics WHERE path = ?", (path,)).fetchone()
    if topic is None:  # deleted meanwhile
        return []
    shards = [row["shard"] for row in t.sql.execute("SELECT shard FROM shards WHERE path = ?", (path,))]
    fronts = [_Front(t, path, shard, floors.get(shard, math.inf)) for shard in shards]
    gone = []
    for front in fronts:
        while (part := front.first()) is not None and part["until"] < t.now - topic["keep_seconds"]:
            gone.append(front.leave())
    if topic["keep_bytes"] is not None:
        held = "SELECT coalesce(sum(bytes), 0) AS bytes FROM journal WHERE path = ?"
        size = t.sql.execute(held, (path,)).fetchone()["bytes"] - sum(part["bytes"] for part in gone)
        gone += _oldest(fronts, size - topic["keep_bytes"])
    _take_away(t, path, gone)
    return gone


def _oldest(fronts: Sequence[_Front], surplus: int) -> list[sqlite3.Row]:
    """The oldest parts of all shards, until so many bytes are gone."""
    gone: list[sqlite3.Row] = []
    while surplus > 0:
        waiting = [(part["until"], front) for front in fronts if (part := front.first()) is not None]
        if not waiting:
            break
        _, oldest = min(waiting, key=lambda each: each[0])
        gone.append(oldest.leave())
        surplus -= gone[-1]["bytes"]
    return gone


def _take_away(t: Transaction, path: str, gone: Sequence[sqlite3.Row]) -> None:
    ends = {part["shard"]: part["next"] for part in gone}  # in the order of their offsets: the last one counts
    t.sql.executemany(
        "UPDATE shards SET first = ? WHERE path = ? AND shard = ?",
        [(end, path, shard) for shard, end in ends.items()],
    )
    journal.take_away(t, [part["part"] for part in gone], path)


def drop_lost(ledger: Ledger) -> int:
    """At start: the rows that were in the memory of a server that has ended leave the journal, by name; how many.

    What lies behind rows that are still there stays, and its reader is told what it is.
    """
    known = (
        "SELECT DISTINCT journal.path FROM journal JOIN parts ON parts.name = part"
        " WHERE journal.path IS NOT NULL AND incarnation NOT IN ('', ?)"
    )
    rows = 0
    for topic in ledger.database.rows(known, ledger.incarnation):
        path = topic["path"]
        with ledger.transaction() as t:
            lost = _lost(t, path)
            _take_away(t, path, lost)
            t.sql.executemany(
                "UPDATE shards SET lost = ? WHERE path = ? AND shard = ?",
                [(part["next"], path, part["shard"]) for part in lost],
            )
            if lost:
                t.sql.execute("UPDATE topics SET epoch = epoch + 1 WHERE path = ?", (path,))
        if lost:
            count = sum(part["rows"] for part in lost)
            log.warning(
                "%s: %s rows are lost, they were in the memory of a server that has ended: %s. Their offsets are not "
                "used again", path, f"{count:,}", _by_shard(lost),
            )  # fmt: skip
            rows += count
    return rows


def _lost(t: Transaction, path: str) -> list[sqlite3.Row]:
    lost = []
    for row in t.sql.execute("SELECT shard FROM shards WHERE path = ?", (path,)).fetchall():
        front = _Front(t, path, row["shard"])
        while (part := front.first()) is not None and part["incarnation"] not in ("", t.catalog.incarnation):
            lost.append(front.leave())
    return lost


def _by_shard(parts: Sequence[sqlite3.Row]) -> str:
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for part in parts:
        firsts.setdefault(part["shard"], part["first"])
        ends[part["shard"]] = part["next"]
    return ", ".join(f"shard {shard} from {first} up to {ends[shard]}" for shard, first in firsts.items())
