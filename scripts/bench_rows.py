"""A benchmark's rows, and how two sides are timed so that their ratio means something."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the page."""

    what: str
    bare: str
    ours: str
    ratio: float | None = None
    """Median over the repeats; above 1 penstock is faster."""
    worst: float | None = None
    """Least favourable of the repeats."""
    promise: str = ""
    held: bool | None = None
    """None where nothing is promised."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    repeats: int
    streams_mb: tuple[int, ...]
    """What do_get reads, MiB."""
    puts_mb: tuple[int, ...]
    """What do_put sends, MiB; the first for information."""
    large_mb: int
    """The payload whose way through the server is watched, MiB."""
    small_gets: int


FULL = Sizes(15, (1, 16, 128), (1, 16, 64, 256), 4096, 10_000)
QUICK = Sizes(7, (1, 16, 128), (1, 16, 64, 256), 512, 10_000)
SMOKE = Sizes(2, (1, 2), (1, 2), 16, 100)

Timed = Callable[[], float]
"""Does the work once, and says how many seconds it took; what it clears up afterwards isn't counted."""


def interleaved(sides: Mapping[str, Timed], repeats: int) -> dict[str, list[float]]:
    """Every side once to warm up, then all in turn, begun by another one each time: a busy moment hits them alike."""
    for timed in sides.values():
        timed()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(repeats):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(sides[name]())
    return seconds


def compared(
    what: str,
    bare: Sequence[float],
    ours: Sequence[float],
    unit: Callable[[float], str],
    least: float | None = None,
) -> Row:
    """The row of two sides: medians, and the ratio of each repeat's neighbours."""
    ratios = [base / own for base, own in zip(bare, ours, strict=True)]
    ratio = statistics.median(ratios)
    promise = "" if least is None else f">= {least:.2g}x"
    held = None if least is None else ratio >= least
    return Row(what, unit(statistics.median(bare)), unit(statistics.median(ours)), ratio, min(ratios), promise, held)


def limited(what: str, found: float, limit: float, unit: Callable[[float], str]) -> Row:
    """The row of an amount that has a limit of its own."""
    return Row(what, "", unit(found), promise=f"< {unit(limit)}", held=found < limit)


def rate(mebibytes: float) -> Callable[[float], str]:
    """Seconds for so many MiB, as a rate."""
    return lambda seconds: f"{mebibytes / seconds:,.0f} MiB/s"


def mebibytes(size: float) -> str:
    """Bytes in MiB, as memory is counted."""
    return f"{size / 2**20:,.0f} MiB"
