"""A streaming query's offsets: their form in Spark's checkpoint, where the next batch ends, and which batches are done.

Values and functions of values; `consumption` calls the server between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import InvalidRequest
from penstock.text import counted
from penstock.wire.actions import Offsets
from penstock.wire.position import Position

VERSION = 1
MAX_DELAY = 900.0
"""Seconds for which a batch waits for its minimum of rows."""
SETTLE = 10.0
"""Seconds without an older message after which an AvailableNow run of a subscription begins."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """An offset of Spark's checkpoint: a consumer's position in a journal."""

    journal: str
    epoch: int
    consumer: str
    initial: Position
    """The position at which the query began."""
    position: Position

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Return an offset of a checkpoint."""
        if value.get("v") != VERSION:
            raise InvalidRequest(
                f"the checkpoint has an offset of version {value.get('v')!r}, this penstock reads {VERSION}: "
                "take a new checkpoint, and startingOffsets"
            )
        shards = value["shards"] | ({"life": value["life"]} if "life" in value else {})  # older offsets have no life
        initial, position = Position.from_json(value["initial"]), Position.from_json(shards)
        return cls(value["journal"], value["epoch"], value["consumer"], initial, position)

    def to_json(self) -> dict[str, Any]:
        """Return what the checkpoint keeps. Spark compares it as text, so the order of the names matters, too."""
        life = {} if self.position.life is None else {"life": self.position.life}
        return {
            "journal": self.journal, **life, "epoch": self.epoch, "consumer": self.consumer,
            "initial": Position(self.initial).to_json(), "shards": Position(self.position).to_json(), "v": VERSION,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Where a query starts, how much a batch has, and whether rows may be lost."""

    starting: str = "earliest"
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay: float = MAX_DELAY
    fail_on_loss: bool = True
    settle: float = SETTLE
    name: str | None = None
    """What the consumer's id begins with."""


# --- what counts as done -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """Spark's calls in this session, and the batches that they prove to be done. Spark tells little:

    - `commit(X)` comes one batch late, and never for the last batch.
    - From 4.2 on `latestOffset` gets the last offset of the commit log, in time. Before 4.2 the call itself proves that
      the batch which was planned last is done.
    - `partitions(X, X)` after a restart proves nothing: X is the end of the last batch in the offset log, and that
      batch may not have run.
    - With async progress tracking `start` runs ahead of the disk. It isn't believed any more once that shows.
    """

    known: StreamOffset | None = None
    """The end of the last planned batch, or the last requested start: the next start for a Spark that tells none."""
    batch: tuple[StreamOffset, StreamOffset] | None = None
    """The batch that was planned last."""
    committed: Position | None = None
    """The position that Spark has committed last."""
    start_is_believed: bool = True
    planned_at: float = -math.inf
    """When the last batch was planned: the first one waits for no rows."""

    def is_done(self, start: StreamOffset) -> bool:
        """Whether the rows before `start` are done, where Spark requests the end of the batch from there on."""
        return self.start_is_believed and start.position != start.initial

    def is_done_by_plan(self, start: StreamOffset) -> bool:
        """Whether the rows before `start` are done, where Spark plans a batch from there on: a session's first."""
        return self.batch is None and start.position != start.initial

    def after_request(self, start: StreamOffset) -> Progress:
        """Return the progress after Spark has requested the end of the batch that begins at `start`."""
        return replace(self, known=start)

    def after_plan(self, start: StreamOffset, end: StreamOffset, now: float) -> Progress:
        """Return the progress after Spark has planned a batch: a new one, or the same again where a query scans its
        stream twice, as in a union with itself. If the batch before isn't committed, Spark tracks progress async.
        """
        follows = self.batch in (None, (start, end)) or start.position == self.committed
        believed = self.start_is_believed and follows
        return replace(self, known=end, batch=(start, end), start_is_believed=believed, planned_at=now)

    def after_commit(self, end: StreamOffset) -> Progress:
        """Return the progress after Spark has committed a batch."""
        return replace(self, committed=end.position)


# --- which offsets come next ---------------------------------------------------------------


def begin_again(start: StreamOffset, offsets: Offsets) -> StreamOffset:
    """Return the start of the next batch where the rows before the present one are gone: the topic's first row."""
    return replace(start, journal=offsets.journal, initial=offsets.start, position=offsets.start)


def waits_for_rows(offsets: Offsets, options: StreamOptions, since_last: float) -> bool:
    """Whether the next batch waits for more rows, for at most `max_delay` seconds after the last one."""
    rows = sum(offsets.end.values()) - sum(offsets.start.values())
    return rows < (options.min_rows or 0) and since_last < options.max_delay


def actual_start(path: str, start: StreamOffset, end: StreamOffset, initial: StreamOffset | None) -> StreamOffset:
    """Return the start of a batch that Spark plans, for the consumer of its end, which is the checkpoint's.

    Where Spark repeats the first batch it requests an initial offset again, and gets one of a new consumer.
    """
    if start.consumer == end.consumer:
        return start
    if start != initial:
        raise InvalidRequest(
            f"{path}: this batch begins at the position of another consumer than the one it ends with, as Spark "
            "requested the end before it told this query's position. Set "
            "spark.sql.streaming.triggerAvailableNowWrapper.enabled to false, and remove the newest file from the "
            "checkpoint's folder `offsets`: nothing of that batch was read"
        )
    return replace(end, position=end.initial)


def remaining(start: Position, end: Position, first: Position) -> tuple[Position, Position]:
    """Return the range of a batch without the rows before `first`, which were removed."""
    begin = skip_to(start, first)
    return begin, Position({shard: max(offset, begin[shard]) for shard, offset in end.items()}, end.life)


def skip_to(position: Position, first: Position) -> Position:
    """Return the position, behind the rows before `first`, which were removed; a shard that it doesn't name is new."""
    return Position({shard: max(position.get(shard, 0), offset) for shard, offset in first.items()})


def gap(path: str, start: Position, first: Position, end: Position | None = None) -> str | None:
    """Describe the rows from `start` on that were removed; None if all are there. With `end`, only those of shards that
    have rows in the batch up to there.
    """
    begin = {shard: start.get(shard, 0) for shard in first}  # shards that came later are read from their first row
    gone = [s for s, offset in begin.items() if offset < first[s] and (end is None or offset < end.get(s, 0))]
    if not gone:
        return None
    which = ", ".join(f"shard {shard}: offsets {begin[shard]} to {first[shard]}" for shard in gone)
    rows = sum(first[shard] - begin[shard] for shard in gone)
    return f"{path}: {counted(rows, 'row is', 'rows are')} gone that this query hasn't read ({which})"


def beyond_end(path: str, position: Position, ends: Position) -> str | None:
    """Describe a position behind the topic's end; None if it isn't."""
    which = [f"shard {shard}: {offset} of {ends[shard]}" for shard, offset in position.items() if offset > ends[shard]]
    if not which:
        return None
    return (
        f"{path} ends before this query's position ({', '.join(which)}): the server was put back to an older state, "
        "and rows that come now have offsets that this query has read"
    )


def check_start(path: str, offsets: Offsets) -> None:
    """Reject a start that isn't within the topic: the query would wait for it, and not say why."""
    for shard, offset in offsets.start.items():
        first, end = offsets.first[shard], offsets.next[shard]
        if not first <= offset <= end:
            raise InvalidRequest(f"startingOffsets: shard {shard} of {path} has offsets {first} to {end}, got {offset}")
