"""What a subscription remembers of time: when messages came, whose acks were sent, and how long ago that was."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from penstock.queue.pubsub.index import Integers, place_of

_ARRIVALS = 4_096
"""Batches whose arrival is remembered: at 50,000 messages a second more than a minute's."""
_MARK_SECONDS = 60.0
_MARKS_OF_IDS = 16
"""A mark is set after so much connected time, and so often within the window's ids."""


class Arrivals:
    """When messages came last, by their age: the last time at which one came that was published before a moment."""

    def __init__(self) -> None:
        self._published: deque[int] = deque(maxlen=_ARRIVALS)
        self._arrived: deque[float] = deque(maxlen=_ARRIVALS)
        """Both grow: whatever came before an older message says nothing more."""

    def note(self, published: int, now: float) -> None:
        """Note that messages have come, the oldest of which was published then."""
        while self._published and self._published[-1] >= published:
            self._published.pop()
            self._arrived.pop()
        self._published.append(published)
        self._arrived.append(now)

    def last_before(self, published: int) -> float | None:
        """Return when a message came last that was published before a moment, None if none has."""
        at = bisect_left(self._published, published)
        return self._arrived[at - 1] if at else None


class Ranges:
    """Ranges of offsets by shard; those that touch are one."""

    def __init__(self, ranges: list[tuple[int, int, int]]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self.rows = 0
        """All rows that were ever added, so that a window may count them."""
        for shard, first, end in ranges:
            self.add(shard, first, end)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        for shard, ranges in self._ranges.items():
            for first, end in ranges:
                yield shard, first, end

    def add(self, shard: int, first: int, end: int) -> None:
        """Add a range."""
        ranges = self._ranges.setdefault(shard, [])
        low = bisect_right(ranges, (first, -1))
        if low and ranges[low - 1][1] >= first:
            low -= 1
        high = low
        while high < len(ranges) and ranges[high][0] <= end:
            high += 1
        touched = ranges[low:high]
        before = sum(to - since for since, to in touched)
        merged = (min(first, touched[0][0]), max(end, touched[-1][1])) if touched else (first, end)
        ranges[low:high] = [merged]
        self.rows += merged[1] - merged[0] - before

    def drop_below(self, shard: int, offset: int) -> None:
        """Forget the ranges that end at or below an offset."""
        self._ranges[shard] = [each for each in self._ranges.get(shard, []) if each[1] > offset]

    def bounds(self) -> Integers:
        """Return where ranges begin and end, in order: a place is in one where the bounds up to it are odd."""
        ordered = sorted(self)
        return np.array([place_of(shard, at) for shard, first, end in ordered for at in (first, end)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Mark:
    """What was acked and released at some time."""

    connected: float
    """The seconds for which a puller had been connected."""
    acked_rows: int
    acked: Integers
    """`Ranges.bounds`."""
    released: Mapping[int, int]


class Window:
    """How long ago something was acked or released: counted in seconds with a puller, and in acked ids."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._marks: deque[Mark] = deque()
        self._connected = 0.0
        self._last: float | None = None

    def passed(
        self, now: float, acked: Ranges, released: Mapping[int, int], *, is_connected: bool, ids: int
    ) -> Mark | None:
        """Let time pass; return the latest mark that the window has passed, None where none has since the last one.

        `now` is a clock that never jumps; the window has so many `ids`.
        """
        if is_connected and self._last is not None:
            self._connected += max(0.0, now - self._last)
        self._last = now
        last = self._marks[-1] if self._marks else None
        is_due = last is None or self._connected - last.connected >= min(_MARK_SECONDS, self._seconds / 4)
        if is_due or (last is not None and acked.rows - last.acked_rows >= max(1, ids // _MARKS_OF_IDS)):
            self._marks.append(Mark(self._connected, acked.rows, acked.bounds(), released))
        passed = None
        while self._marks and (
            self._connected - self._marks[0].connected >= self._seconds or acked.rows - self._marks[0].acked_rows >= ids
        ):
            passed = self._marks.popleft()
        return passed
