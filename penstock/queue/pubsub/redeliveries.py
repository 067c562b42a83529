"""Messages that came again, counted by what was seen of their first delivery."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

from penstock.queue.pubsub.index import Integers, offsets_of, shards_of

Cause = Literal["released", "lease lapsed", "other puller", "restart of puller", "restart of server"]
CAUSES: tuple[Cause, ...] = ("released", "lease lapsed", "other puller", "restart of puller", "restart of server")


class Redeliveries:
    """Counts them since the server's start."""

    def __init__(self) -> None:
        self._counts: Counter[Cause] = Counter()
        self._deliveries: dict[int, _Deliveries] = {}

    def begin(self, shard: int, first: int, stream: int) -> None:
        """Note that the puller's stream of this number has brought the rows from an offset on."""
        self._deliveries.setdefault(shard, _Deliveries()).note(first, stream)

    def count(self, places: Integers, stream: int, connected: AbstractSet[int], released: Mapping[int, int]) -> None:
        """Count the rows that a stream has brought again."""
        for shard, offset in zip(shards_of(places).tolist(), offsets_of(places).tolist(), strict=True):
            is_released = offset < released.get(shard, 0)
            self._counts["released" if is_released else self._cause(shard, offset, stream, connected)] += 1

    def _cause(self, shard: int, offset: int, stream: int, connected: AbstractSet[int]) -> Cause:
        """Infer why a row that isn't released came again.

        (One that is: its ack was late, lost, or undone by a seek.) It was leased, and the first puller that brought it
        says why it is no longer: this one, whose lease lapsed; another one that is still connected; one that has ended;
        or one from before the server's start.
        """
        deliveries = self._deliveries.get(shard)
        first = deliveries.at(offset) if deliveries is not None else 0
        if not first:
            return "restart of server"
        if first == stream:
            return "lease lapsed"
        return "other puller" if first in connected else "restart of puller"

    def drop_below(self, position: Mapping[int, int]) -> None:
        """Forget who brought the rows below a position."""
        for shard, offset in position.items():
            if shard in self._deliveries:
                self._deliveries[shard].drop_below(offset)

    def counts(self) -> dict[str, int]:
        """Return how many there were, by cause."""
        return {cause: self._counts[cause] for cause in CAUSES}


class _Deliveries:
    """Which stream brought the rows of a shard first: the one of the last beginning at or below an offset."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._streams: list[int] = []

    def note(self, first: int, stream: int) -> None:
        """Note that a stream has brought the rows from an offset on."""
        if not self._streams or self._streams[-1] != stream:
            self._firsts.append(first)
            self._streams.append(stream)

    def at(self, offset: int) -> int:
        """Return the number of the stream that brought a row; 0 for one from before the server's start."""
        at = bisect_right(self._firsts, offset)
        return self._streams[at - 1] if at else 0

    def drop_below(self, offset: int) -> None:
        """Forget who brought the rows below an offset."""
        at = max(0, bisect_right(self._firsts, offset) - 1)
        del self._firsts[:at], self._streams[:at]
