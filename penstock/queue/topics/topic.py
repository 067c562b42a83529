"""A topic as it stands, and what is refused of it: a range that isn't there whole, a journal that is another."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import InvalidRequest, Lost
from penstock.text import format_size


@dataclass(frozen=True, slots=True)
class Shard:
    """The offsets that can be read: from `first` up to `next`, which isn't there yet."""

    number: int
    first: int
    next: int
    lost: int = 0
    """Up to here rows were lost with the memory of a server that has stopped, if there are any such."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What decides which shard a row is for."""

    journal: str
    key: str | None
    shards: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it stands."""

    path: str
    journal: str
    epoch: int
    schema: pa.Schema
    key: str | None
    shards: tuple[Shard, ...]
    rows: int
    bytes: int
    part_count: int
    changed: float
    keep_seconds: float
    keep_bytes: int | None

    def earliest(self) -> dict[int, int]:
        """The oldest row of each shard."""
        return {shard.number: shard.first for shard in self.shards}

    def latest(self) -> dict[int, int]:
        """The end of each shard."""
        return {shard.number: shard.next for shard in self.shards}


@dataclass(frozen=True, slots=True)
class Behind:
    """How much lies between a position and the end."""

    rows: int
    bytes: int
    oldest: float | None
    """When the oldest of these rows was appended."""


def check_no_hole(topic: Topic, shard: Shard, reached: int, at: int) -> None:
    """Refuse a range with a hole in it: never fewer rows, whatever has become of the ledger."""
    if at != reached:
        what = "are in none of its parts" if at > reached else "are in two of its parts"
        first, end = sorted((reached, at))
        raise Lost(
            f"{topic.path}: of shard {shard.number} the offsets {first} to {end} {what}: the ledger is damaged there; "
            f"the ranges before {first} and from {end} on can be read"
        )


def check_range(topic: Topic, shard: Shard, start: int, end: int) -> None:
    """Refuse a range that isn't there whole."""
    left = f"of shard {shard.number} the offsets {shard.first} to {shard.next} are left"
    if start < shard.first:
        gone = max(0, min(end, shard.first) - start)
        raise Lost(
            f"{topic.path}: {gone:,} rows from offset {start} on are gone, {_why_gone(topic, shard, start)}: {left}"
        )
    if end > shard.next or start > end:
        raise InvalidRequest(f"{topic.path} has no offsets {start} to {end}: {left}")


def _why_gone(topic: Topic, shard: Shard, start: int) -> str:
    kept = f"they are kept for {topic.keep_seconds / 3600:g} h"
    if topic.keep_bytes is not None:
        kept += f" and up to {format_size(topic.keep_bytes)}"
    if start >= shard.lost:
        return kept
    memory = "lost with the memory of a server that has stopped"
    return memory if shard.lost == shard.first else f"the ones before {shard.lost} {memory}; of the others, {kept}"
