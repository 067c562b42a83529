"""Figures: sides measured in turn, the lines that compare them, and whether a line's promise is kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scripts.bench.watch import Process, peaks

Work = Callable[[], object]
Sample = Mapping[str, Sequence[float]]
"""The figures of one measurement by name: its seconds, bytes, or many latencies. Less is better."""
Measure = Callable[[], Sample]
Samples = Mapping[str, Sequence[Sample]]
"""Of all rounds, by side."""
Promise = tuple[Literal[">=", "<=", "<", "< more"], float]
"""A sign and a limit: `>=` and `<=` of the ratio, `<` of the figure, `< more` of what it is above the one beside it."""


def nothing() -> None:
    """Do nothing."""


def timed(
    work: Work,
    *,
    before: Work = nothing,
    clear: Work = nothing,
    times: int = 1,
    watched: Mapping[str, Process] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measure:
    """Measure the seconds of some work, on average if it is done several times, and the most memory of processes."""

    def measure() -> Sample:
        before()
        with peaks(watched or {}) as most:
            began = clock()
            for _ in range(times):
                work()
            taken = (clock() - began) / times
        clear()
        return {"seconds": [taken], **{name: [size] for name, size in most.items()}}

    return measure


def interleaved(sides: Mapping[str, Measure], rounds: int, *, warm_up: bool = True, before: Work = nothing) -> Samples:
    """Measure each side once to warm up, then all in turn, each round begun by another one.

    A busy moment of the machine hits neighbours alike, so ratios within a round mean more than seconds.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(-warm_up, rounds):
        first = max(0, number) % max(1, len(names))
        for name in names[first:] + names[:first]:
            before()
            samples[name].append(sides[name]())
    return {name: every[warm_up:] for name, every in samples.items()}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page: one figure of a side, beside another side's."""

    heading: str
    what: str
    side: str
    beside: str = ""
    unit: Literal["s", "ms", "MiB", "MiB/s", "/s", ""] = "s"
    amount: float = 1
    """The MiB or things whose rate it is."""
    promise: Promise | None = None
    ratio: Literal["speed", "time", ""] = ""
    """Speed: the other's by own, above 1 is faster. Time: own by the other's, below 1 is faster."""
    of: str = "seconds"
    """The figure's name in the samples."""
    percent: int | None = None
    """Which percentile of the values; by default their median."""

    def result(self, samples: Samples, data: str = "") -> Result:
        """Compare the sides, of which some may have been left out."""
        own, other = (
            [sample[self.of] for sample in samples.get(side, ()) if sample.get(self.of)]
            for side in (self.side, self.beside)
        )
        figure, beside = (
            self._statistic([value for values in samples_of for value in values]) if samples_of else None
            for samples_of in (own, other)
        )
        rounds = [(self._statistic(a), self._statistic(b)) for a, b in zip(own, other, strict=False) if self.ratio]
        speeds = [b / a for a, b in rounds if a and b]  # in a smoke run a process may have used no measurable CPU
        ratios = [1 / speed for speed in speeds] if self.ratio == "time" else speeds
        ratio, worst = (statistics.median(ratios), (max if self.ratio == "time" else min)(ratios)) if ratios else (0, 0)
        words, kept = "", None
        if self.promise:
            sign, limit = self.promise
            words = f"{sign} {limit:.3g}x" if "=" in sign else f"< {written(limit, self.unit)}{sign[1:]}"
            if figure is not None and (beside is not None or not self.beside):
                more = figure - (beside or 0)
                kept = {">=": ratio >= limit, "<=": ratio <= limit, "<": figure < limit, "< more": more < limit}[sign]
        cells = [
            self.what,
            "left out" if figure is None else written(figure, self.unit, self.amount),
            self.beside,
            "" if not self.beside else "left out" if beside is None else written(beside, self.unit, self.amount),
            *([f"{ratio:.2f}x", f"{worst:.2f}x"] if ratios else ["", ""]),
            words,
            {True: "yes", False: "**NO**", None: ""}[kept],
        ]
        return Result(self, data, cells, kept, [self._statistic(values) for values in own])

    def _statistic(self, values: Sequence[float]) -> float:
        return statistics.median(values) if self.percent is None else percentile(values, self.percent)


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured for a line."""

    line: Line
    data: str
    cells: list[str]
    """A row of the table: what, its figure, beside what, that figure, median ratio, worst, promise, if it is kept."""
    kept: bool | None
    """By the median ratio; None where nothing is promised or a side was left out."""
    rounds: list[float]
    """The figure in each round."""


def written(value: float, unit: str, amount: float = 1) -> str:
    """Return a figure with its unit; of a rate the value is the seconds for an amount."""
    if unit == "s":
        return f"{value:.2f} s"
    if unit == "ms":
        return f"{value * 1000:,.0f} ms" if value >= 0.01 else f"{value * 1000:.2f} ms"
    if unit == "MiB":
        return f"{value / 2**20:,.0f} MiB"
    if unit == "MiB/s":
        return f"{amount / value:,.0f} MiB/s"
    if unit == "/s":
        rate = amount / value
        return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:,.0f} k/s" if rate >= 1e4 else f"{rate:,.0f}/s"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the least of the values that so many percent of them do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
