"""A puller's leases by place: which lease has the row at an offset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.queue.pubsub.lease_groups import Numbers, rows_of


class Places:
    """Where the leased rows are: for each shard runs of offsets, sorted, each with its lease; -1: not any more."""

    def __init__(self) -> None:
        self._runs: dict[int, list[tuple[Numbers, Numbers]]] = {}

    def replace(self, shard: int, offsets: Numbers, leases: Numbers) -> Numbers:
        """Add rows, by offset; return the leases that these places had."""
        runs = self._runs.setdefault(shard, [])
        before = [self._take(run, offsets) for run in runs]
        runs.append((offsets, leases))
        while len(runs) > 1 and len(runs[-2][0]) < 2 * len(runs[-1][0]):  # each row is merged log(rows) times
            upper, lower = runs.pop(), runs.pop()
            runs.append(_merged(lower, upper))
        return np.concatenate([leases[:0], *before])

    def take_below(self, shard: int, end: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Take the rows below an offset: their offsets and leases, by lease."""
        runs = self._runs.get(shard, [])
        for index, (offsets, leases) in enumerate(runs):
            below = int(np.searchsorted(offsets, end))
            if below:
                runs[index] = offsets[below:], leases[below:]
                order = np.argsort(leases[:below], kind="stable")
                order = order[leases[order] >= 0]
                yield offsets[order], leases[order]
        self._runs[shard] = [run for run in runs if len(run[0])]

    @staticmethod
    def _take(run: tuple[Numbers, Numbers], wanted: Numbers) -> Numbers:
        """Take the leases of these offsets out of a run."""
        offsets, leases = run
        if not len(offsets) or wanted[-1] < offsets[0] or wanted[0] > offsets[-1]:
            return wanted[:0]
        rows = rows_of(wanted, offsets)
        taken = leases[rows]
        leases[rows] = -1
        return taken[taken >= 0]


def _merged(lower: tuple[Numbers, Numbers], upper: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
    offsets, leases = np.concatenate([lower[0], upper[0]]), np.concatenate([lower[1], upper[1]])
    present = leases >= 0
    offsets, leases = offsets[present], leases[present]
    order = np.argsort(offsets, kind="stable")
    return offsets[order], leases[order]
