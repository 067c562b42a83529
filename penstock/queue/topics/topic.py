"""A topic's state, and the checks of ranges against it: never fewer rows than were asked for."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import InvalidRequest, Lost
from penstock.text import counted, format_size


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's readable offsets: from `first` up to, not including, `next`."""

    number: int
    first: int
    next: int
    lost: int = 0
    """Some rows before this offset were in the memory of a server that has stopped; 0 if none were."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The key and shards of a topic, which decide the shard of a row."""

    journal: str
    key: str | None
    shards: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's state."""

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
    keep_absent: bool = True

    def earliest(self) -> dict[int, int]:
        """Return the offset of each shard's oldest row."""
        return {shard.number: shard.first for shard in self.shards}

    def latest(self) -> dict[int, int]:
        """Return the offset behind each shard's last row."""
        return {shard.number: shard.next for shard in self.shards}


@dataclass(frozen=True, slots=True)
class Behind:
    """The rows and bytes between a position and the end."""

    rows: int
    bytes: int
    oldest: float | None
    """The time at which the oldest of these rows was appended."""


def check_no_hole(topic: Topic, shard: Shard, reached: int, at: int) -> None:
    """Reject a range with a hole in it: never fewer rows, whatever happened to the ledger."""
    if at != reached:
        what = "are in none of its parts" if at > reached else "are in two of its parts"
        first, end = sorted((reached, at))
        raise Lost(
            f"{topic.path}: of shard {shard.number} the offsets {first} to {end} {what}: the ledger is damaged there; "
            f"the ranges before {first} and from {end} on can be read"
        )


def check_range(topic: Topic, shard: Shard, start: int, end: int) -> None:
    """Reject a range of which some rows are not there."""
    left = f"of shard {shard.number} the offsets {shard.first} to {shard.next} are left"
    if start < shard.first:
        gone = max(0, min(end, shard.first) - start)
        raise Lost(
            f"{topic.path}: {counted(gone, 'row')} from offset {start} on {'is' if gone == 1 else 'are'} gone, "
            f"{_why_gone(topic, shard, start)}: {left}"
        )
    if end > shard.next or start > end:
        range_ = f"offset {start}" if start > shard.next else f"offsets {start} to {end}"
        raise InvalidRequest(f"{topic.path} has no {range_}: {left}")


def _why_gone(topic: Topic, shard: Shard, start: int) -> str:
    kept = f"they are kept for {topic.keep_seconds / 3600:g} h"
    if topic.keep_bytes is not None:
        kept += f" and up to {format_size(topic.keep_bytes)}"
    if start >= shard.lost:
        return kept
    memory = "lost with the memory of a server that has stopped"
    return memory if shard.lost == shard.first else f"the ones before {shard.lost} {memory}; of the others, {kept}"
