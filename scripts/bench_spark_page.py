"""docs/benchmarks-spark.md: the comparisons, the machine that they are of, and how each was taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench_page import machine


@dataclass(frozen=True, slots=True)
class Line:
    """One thing measured, beside another one or beside a limit."""

    what: str
    found: str
    beside: str = ""
    its: str = ""
    ratio: float | None = None
    """Its time by the other's, the median over the rounds: below 1 it is faster."""
    worst: float | None = None
    promise: str = ""
    held: bool | None = None
    """None where nothing is promised."""


_HEAD = """\
Written by `make bench-spark`: Spark, `local[2]`, writes frames to penstock and reads datasets of it, in turn with what
else could be done with the same rows. Each penstock server is a process of its own, reached by loopback, with its
defaults; it shares the cores with Spark's JVM and its Python workers.

The sides take turns within one run: one round to warm up, then {repeats} measured ones, each begun by another side.
Before each the JVM collects its garbage and dirty pages are written out, so that nobody pays for another's. A ratio is
a side's time by that of the one it stands beside, in the same round: below 1 it is faster. The table has the median of
the ratios, by which a promise is judged, and the worst. On a machine that does other things too the seconds mean
little, the ratios more.
"""
_SMOKE = "**A smoke run: it shows that the script works, its numbers mean nothing.**"
_HOW = {
    "Write": """\
A frame of `spark.range`, 8 partitions, columns that cost Spark next to nothing, until the write has returned: for
penstock that is finished and durable, every batch validated, checksummed and (disk) fsynced. Parquet goes to the same
disk, snappy, not fsynced. **The floor** is `mapInArrow` with a function that only counts rows, with the confs that
`penstock.write` sets: what Spark needs to hand rows to Python at all. `toArrow` has the same confs. `do_put` by hand
and the data source run with Spark's own (a data source has no session to set them in).""",
    "Read": """\
Datasets that `penstock.write` wrote, on the disk store, in the page cache, checked at the first read; every value of
every column is summed up in Spark (texts and blobs by their length) and the sums compared with the frame's own. **The
floor** is `mapInArrow` that yields as many rows of the same types in ready batches, in as many tasks. Parquet is read
from the local disk by Spark's vectorised reader, without Python.""",
    "Filter": """\
`penstock.read` and `.filter("c < 10")`, which keeps one row of a hundred, beside `penstock.read(filter="c < 10")`; the
rows that are kept are summed up.""",
    "Growth": """\
The integers, and ten times as many rows of them in ten times the partitions, in turn, out and in. Memory is the most
private memory (RssAnon, looked at every 10 ms) that the server's process and the driver's Python had, the median over
the rounds; the section is measured first, in fresh processes. The last line is for comparison: where the rows pass
through the driver, once with the integers and once with three times as many, after everything else.""",
}


def compared(
    what: str,
    ours: Sequence[float],
    beside: str,
    theirs: Sequence[float],
    *,
    most: float | None = None,
) -> Line:
    """A line of two sides that ran in the same rounds; `most` is what the ratio may come to."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    return Line(
        what,
        _seconds(ours),
        beside,
        _seconds(theirs),
        ratio,
        max(ratios),
        "" if most is None else f"<= {most:.3g}x",
        None if most is None else ratio <= most,
    )


def slower(what: str, theirs: Sequence[float], beside: str, ours: Sequence[float], *, least: float) -> Line:
    """A line of what penstock means to be faster than: the ratio has a least."""
    ratios = [other / own for other, own in zip(theirs, ours, strict=True)]
    ratio = statistics.median(ratios)
    promise = f">= {least:.3g}x"
    return Line(what, _seconds(theirs), beside, _seconds(ours), ratio, min(ratios), promise, ratio >= least)


def memory(what: str, large: float, small: float, beside: str, more: float | None = None) -> Line:
    """A line of what more data takes; `more` is what it may have above the fewer."""
    promise = "" if more is None else f"< {_mebibytes(more)} more"
    held = None if more is None else large - small < more
    return Line(what, _mebibytes(large), beside, _mebibytes(small), promise=promise, held=held)


Sections = Mapping[str, Mapping[str, Sequence[Line]]]
"""Lines by the heading of what was done, and the data that it was done with."""


def page(
    sections: Sections,
    *,
    repeats: int,
    smoke: bool,
    command: str,
    spark: str,
    folder: Path,
    seconds: float,
) -> str:
    """The whole page."""
    lines = [(data, line) for tables in sections.values() for data, some in tables.items() for line in some]
    promised = [line for _, line in lines if line.held is not None]
    missed = [f"- **Not held**: {line.what} beside {line.beside}, {data}" for data, line in lines if line.held is False]
    return "\n".join(
        [
            "# Benchmarks with Spark",
            "",
            _HEAD.format(repeats=repeats),
            *([_SMOKE, ""] if smoke else []),
            f"{len(promised) - len(missed)} of {len(promised)} promises held.",
            *missed,
            "",
            *machine(folder),
            f"- {spark}",
            f"- `{command}`, {time.strftime('%d %B %Y', time.gmtime())}, {seconds:.0f} s",
            "",
            *[text for heading, tables in sections.items() for text in _section(heading, tables)],
        ]
    )


def shown(line: Line) -> str:
    """The line, while the benchmark runs."""
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}x (worst {line.worst:.2f})"
    mark = {True: "held", False: "NOT HELD", None: ""}[line.held]
    words = [f"{line.what}: {line.found}", f"beside {line.beside}: {line.its}", ratio, line.promise, mark]
    return "  ".join(word for word in words if word)


def _section(heading: str, tables: Mapping[str, Sequence[Line]]) -> list[str]:
    found = [f"## {heading}", "", _HOW[heading], ""]
    for data, lines in tables.items():
        found += [f"### {data}", "", "| | took | beside | took | ratio | worst | promise | held |"]
        found.append("|---|--:|---|--:|--:|--:|--:|---|")
        found += [_row(line) for line in lines]
        found.append("")
    return found


def _row(line: Line) -> str:
    held = {True: "yes", False: "**NO**", None: ""}[line.held]
    ratios = [_ratio(line.ratio), _ratio(line.worst)]
    return f"| {' | '.join([line.what, line.found, line.beside, line.its, *ratios, line.promise, held])} |"


def _seconds(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.2f} s"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"
