"""Retention: whole parts are removed from the front of a shard, by age, by size, and where their rows are lost.

An offset is never used again: the end of a shard stays where it is, also when nothing is left before it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial

from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.topics import journal
from penstock.queue.topics.consumers import floors
from penstock.queue.topics.journal import PlacedPart
from penstock.text import counted, format_size

log = logging.getLogger("penstock")


class _Front:
    """The parts of a shard, oldest first, up to the first one that a live consumer has still to read."""

    def __init__(self, t: Transaction, path: str, shard: int, floor: float = math.inf) -> None:
        self._parts = journal.placed_parts(t, path, shard)
        self.floor = floor
        self._head: PlacedPart | None = next(self._parts, None)

    def oldest(self) -> PlacedPart | None:
        """Return the oldest part that may be removed, None without one."""
        return self._head if self._head is not None and self._head.end <= self.floor else None

    def take(self) -> PlacedPart:
        """Take the oldest part from the front."""
        part, self._head = self._head, next(self._parts, None)
        assert part is not None
        return part


def retain(ledger: Ledger, *, present_since: float = 0.0) -> int:
    """Remove the rows that are older than their topic keeps them, and the oldest above its size; return how many.

    Consumers that weren't seen since a time are absent.
    """
    rows = 0
    for path in dict.fromkeys(path for path, _ in journal.all_shards(ledger.database)):
        removed = ledger.change(partial(_retain_topic, path=path, present_since=present_since))
        if removed:
            count = sum(part.rows for part in removed)
            size = format_size(sum(part.bytes for part in removed))
            log.info("%s: retention removed the oldest %s (%s)", path, counted(count, "row"), size)
            rows += count
    return rows


def _retain_topic(t: Transaction, path: str, present_since: float) -> list[PlacedPart]:
    held = journal.held(t, path)

    def floor(seen_since: float) -> dict[int, int]:
        lowest = dict(held)
        for shard, offset in floors(t, path, seen_since=seen_since).items():
            lowest[shard] = min(offset, lowest.get(shard, offset))
        return lowest

    return remove_expired(t, path, floor(0.0), floor(present_since))


def remove_expired(
    t: Transaction, path: str, floors: Mapping[int, int], present: Mapping[int, int]
) -> list[PlacedPart]:
    """Remove the parts that are too old, and the oldest above the topic's size; return them.

    None that has a row from its shard's floor on: a live consumer has still to read it. Where the topic says so, only
    the `present` ones' rows count above its size.
    """
    topic = journal.find(t, path)
    if topic is None:  # deleted meanwhile
        return []
    fronts = [_Front(t, path, shard.number, floors.get(shard.number, math.inf)) for shard in topic.shards]
    removed = []
    for front in fronts:
        while (part := front.oldest()) is not None and part.until < t.now - topic.keep_seconds:
            removed.append(front.take())
    if not topic.keep_absent:
        for shard, front in zip(topic.shards, fronts, strict=True):
            front.floor = present.get(shard.number, math.inf)
    if topic.keep_bytes is not None:
        removed += _oldest(fronts, topic.bytes - sum(part.bytes for part in removed) - topic.keep_bytes)
    journal.remove_oldest(t, path, removed)
    return removed


def _oldest(fronts: Sequence[_Front], surplus: int) -> list[PlacedPart]:
    """Take the oldest parts of all shards until so many bytes are gone."""
    removed: list[PlacedPart] = []
    while surplus > 0:
        heads = [(part.until, front) for front in fronts if (part := front.oldest()) is not None]
        if not heads:
            break
        _, oldest = min(heads, key=lambda head: head[0])
        removed.append(oldest.take())
        surplus -= removed[-1].bytes
    return removed


def drop_lost(ledger: Ledger) -> int:
    """Remove, at start, the rows that were in the memory of a server that has stopped, by name; return how many.

    Those behind rows that are still there stay, and their reader is told of the loss.
    """
    rows = 0
    for path in journal.paths_with_lost_rows(ledger.database, ledger.incarnation):
        lost = ledger.change(partial(_remove_lost, path=path))
        if lost:
            count = sum(part.rows for part in lost)
            log.warning(
                "%s: %s lost, in the memory of a server that has stopped: %s. Their offsets are not used again", path,
                counted(count, "row is", "rows are"), _by_shard(lost),
            )  # fmt: skip
            rows += count
    return rows


def _remove_lost(t: Transaction, path: str) -> list[PlacedPart]:
    lost = []
    for shard in journal.shard_numbers(t, path):
        front = _Front(t, path, shard)
        while (part := front.oldest()) is not None and part.incarnation not in ("", t.ledger.incarnation):
            lost.append(front.take())
    journal.remove_oldest(t, path, lost, lost=True)
    return lost


def _by_shard(parts: Sequence[PlacedPart]) -> str:
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for part in parts:
        firsts.setdefault(part.shard, part.first)
        ends[part.shard] = part.end
    return ", ".join(f"shard {shard} from {first} up to {ends[shard]}" for shard, first in firsts.items())
