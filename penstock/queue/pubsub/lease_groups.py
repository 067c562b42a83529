"""A puller's leases by deadline: groups of neighbours, each of which one request extends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.queue.pubsub.history import Rows, begun

MOST_IDS = 1_000
"""Ids of one request."""
MOST_BYTES = 499 * 1024
"""Bytes of the ids of one request, which Pub/Sub refuses at 512 KiB; 1 KiB is for the subscription's name."""
_ID_OVERHEAD = 4  # bytes of an id's tag and length
Numbers = npt.NDArray[np.int64]


class Group:
    """Neighbouring leases with one deadline."""

    __slots__ = ("ack_ids", "acking", "alive", "arrived", "attempt", "count", "deadline", "extend_at", "first",
                 "lapsed", "leases", "rows", "size")  # fmt: skip

    def __init__(self, leases: Numbers, ack_ids: list[str], arrived: float, deadline: float) -> None:
        self.first = int(leases[0])
        self.leases, self.ack_ids = leases, ack_ids
        self.alive = np.ones(len(leases), np.bool_)
        self.acking = np.zeros(len(leases), np.bool_)
        """Whose ack is queued or under way."""
        self.rows = begun(len(leases), arrived)
        self.count = len(leases)
        self.size = size_of(ack_ids)
        self.arrived, self.deadline = arrived, deadline
        self.extend_at: float | None = None
        self.attempt = 0
        self.lapsed = False

    def shrink(self) -> None:
        """Free the ids of leases that have ended, once they are half of it."""
        if self.count * 2 <= len(self.ack_ids):
            rows = self.alive.nonzero()[0]
            self.leases, self.acking, self.rows = self.leases[rows], self.acking[rows], self.rows[rows]
            self.ack_ids = [self.ack_ids[row] for row in rows.tolist()]
            self.alive, self.size = np.ones(len(rows), np.bool_), size_of(self.ack_ids)


class Groups:
    """All groups, in the order of their leases."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._firsts: list[int] = []
        self.count = 0
        """The number of leases."""

    @property
    def oldest(self) -> float | None:
        return self._groups[0].arrived if self._groups else None

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def append(self, group: Group) -> None:
        self._groups.append(group)
        self._firsts.append(group.first)
        self.count += group.count

    def find(self, leases: Numbers) -> Iterator[tuple[Group, Numbers]]:
        """Yield the groups of these leases, which are sorted, with the rows of those that haven't ended."""
        start = 0
        while start < len(leases):
            index = bisect_right(self._firsts, int(leases[start])) - 1
            last = self._firsts[index + 1] if index + 1 < len(self._firsts) else None
            end = len(leases) if last is None else int(np.searchsorted(leases, last))
            if index >= 0:
                group = self._groups[index]
                rows = rows_of(leases[start:end], group.leases)
                rows = rows[group.alive[rows]]
                if len(rows):
                    yield group, rows
            start = end

    def drop(self, leases: Numbers) -> list[tuple[Rows, bool]]:
        """End these leases; return what is known of them, by group, and whether they had lapsed."""
        dropped, empty = [], False
        for group, rows in list(self.find(np.sort(leases))):
            dropped.append((group.rows[rows], group.lapsed))
            group.alive[rows] = False
            group.count -= len(rows)
            self.count -= len(rows)
            empty = empty or not group.count
            group.shrink()
        if empty:
            self._keep([group for group in self._groups if group.count])
        return dropped

    def absorb(self, group: Group, until: float) -> None:
        """Let a small group have its neighbours that are to be extended until then, as far as one request goes."""
        index = first = bisect_right(self._firsts, group.first)
        count, size = group.count, group.size
        while index < len(self._groups):
            other = self._groups[index]
            count, size = count + other.count, size + other.size
            if count > MOST_IDS or size > MOST_BYTES:
                break
            if other.lapsed or other.extend_at is None or other.extend_at > until:
                break
            index += 1
        others = self._groups[first:index]
        if not others:
            return
        joined = [group, *others]
        group.leases = np.concatenate([each.leases for each in joined])
        group.alive = np.concatenate([each.alive for each in joined])
        group.acking = np.concatenate([each.acking for each in joined])
        group.rows = np.concatenate([each.rows for each in joined])
        group.ack_ids = [ack_id for each in joined for ack_id in each.ack_ids]
        group.count, group.size = sum(each.count for each in joined), sum(each.size for each in joined)
        group.arrived = min(each.arrived for each in joined)
        group.deadline = min(each.deadline for each in joined)
        for each in others:
            each.extend_at, each.count = None, 0
        del self._groups[first:index], self._firsts[first:index]

    def _keep(self, groups: list[Group]) -> None:
        self._groups, self._firsts = groups, [group.first for group in groups]


def pack(ack_ids: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of ids that fit into a request each."""
    if len(ack_ids) <= MOST_IDS and len("".join(ack_ids).encode()) + _ID_OVERHEAD * len(ack_ids) <= MOST_BYTES:
        if ack_ids:
            yield 0, len(ack_ids)
        return
    start = size = 0
    for at, ack_id in enumerate(ack_ids):
        more = len(ack_id.encode()) + _ID_OVERHEAD
        if at > start and (at - start == MOST_IDS or size + more > MOST_BYTES):
            yield start, at
            start, size = at, 0
        size += more
    if start < len(ack_ids):
        yield start, len(ack_ids)


def rows_of(wanted: Numbers, values: Numbers) -> Numbers:
    """Return at which rows the values, which are sorted and not none, have what is wanted."""
    rows = np.searchsorted(values, wanted)
    present: Numbers = rows[(rows < len(values)) & (values[np.minimum(rows, len(values) - 1)] == wanted)]
    return present


def size_of(ack_ids: Sequence[str]) -> int:
    """Return about the bytes that ids take in a request."""
    return sum(map(len, ack_ids)) + _ID_OVERHEAD * len(ack_ids)
