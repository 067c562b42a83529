"""docs/benchmarks-topics.md: the comparisons, the machine that they are of, and how each was taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.bench_page import machine
from scripts.bench_spark_page import Line

LEFT_OUT = "left out"
_HEAD = """\
Written by `make bench-topics`: topics, and streams of Spark's (`local[2]`) that read them, in turn with a real Kafka
broker (one node, KRaft, on the same machine) and Spark's own source for it, and with what could be had without any
server. Server, broker, JVM and clients share the cores; all is as it comes unless said otherwise.

The sides take turns within one run: one round to warm up, then {rounds} measured ones, each begun by another side. A
ratio is of two neighbours in one round: above 1 penstock is faster, or sooner. The table has the median of the ratios,
by which a promise is judged, and the worst. On a machine that does other things too rates mean little, ratios more.
"""
_SMOKE = "**A smoke run: it shows that the script works, its numbers mean nothing.**"
_HOW = {
    "Backlog": """\
A topic of two shards, a Kafka topic of two partitions, with the same messages: JSON of about 130 bytes, one binary
column `value`, put 10,000 at a time, copied to Kafka shard by partition. A query with `Trigger.AvailableNow`, a new
checkpoint and the sink `noop`; every row is counted. In one batch, and with `maxRowsPerTrigger` (Kafka:
`maxOffsetsPerTrigger`). The time is that of the query's batches, by Spark's own clock (`triggerExecution`), and in the
lines of the whole query that from `start()` until it has ended: for a source in Python, whichever, Spark then starts
processes. **Ready batches** are a Python source that has no server: it yields as many rows of the same size, in batches
of 1 MiB that are made once in a task, in as many tasks.""",
    "Trigger": """\
What a batch of the limited queries above costs, by Spark's own count (`durationMs` of the query's progress, medians of
all batches but each query's first). What penstock has more than the ready batches is penstock's; what those have more
than Kafka is that of sources in Python; the rest is Spark's.""",
    "Growth": """\
Rows of four int64, put 500,000 at a time, and ten times as many, each in one batch, as above. The time of ten times the
rows is divided by that of once. Memory is the most private memory (RssAnon, looked at every 10 ms) that the server, the
driver's Python and the process of the source's driver side had, medians over the rounds.""",
    "Append": """\
A client is a process of its own with Python's client as it comes; a batch is made from Python's bytes each time, and
the next one begins when it is answered: by penstock (a topic as it comes, one shard) when it is fsynced, by Kafka
(`acks=all`, then `flush`) when its page cache has it. **Kafka doesn't fsync** as it comes: on one node its answer
promises less. The bare fsync is a write of as many bytes at the end of a file, and `os.fsync`. All messages of about
130 bytes.""",
    "End to end": """\
One client publishes every 20 ms what is due, and a query without a trigger interval reads on, one after the other. A
row's time begins when it was due, late or not, and ends when Spark has the batch in its commit log (the time of the
file `commits/N`; how far the batch went is in `offsets/N`). The first {warm:g} s don't count. Percentiles are over all
rows.""",
}


def per_second(rows: int) -> Callable[[float], str]:
    """Seconds for so many rows, as a rate."""

    def words(seconds: float) -> str:
        rate = rows / seconds
        return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:,.0f} k/s" if rate >= 1e4 else f"{rate:,.0f}/s"

    return words


def better(
    what: str,
    ours: Sequence[float],
    beside: str,
    theirs: Sequence[float] | None,
    unit: Callable[[float], str],
    *,
    least: float | None = None,
) -> Line:
    """A line of two sides that ran in the same rounds: how many times the other's seconds are ours, and at least."""
    promise = "" if least is None else f">= {least:.3g}x"
    if theirs is None:
        return Line(what, unit(statistics.median(ours)), beside, LEFT_OUT, promise=promise)
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    held = None if least is None else ratio >= least
    its = unit(statistics.median(theirs))
    return Line(what, unit(statistics.median(ours)), beside, its, ratio, min(ratios), promise, held)


Rounds = Sequence[Sequence[float]]
"""Seconds of everything that was done in a round, for each of them."""


def latency(what: str, ours: Rounds, beside: str, theirs: Rounds | None, percent: int) -> Line:
    """A line of a percentile of all rounds; its ratio is the median of the rounds' own, as everywhere."""
    found = _milliseconds(percentile([each for some in ours for each in some], percent))
    if theirs is None:
        return Line(what, found, beside, LEFT_OUT if beside else "")
    ratios = [percentile(b, percent) / percentile(a, percent) for a, b in zip(ours, theirs, strict=True)]
    its = _milliseconds(percentile([each for some in theirs for each in some], percent))
    return Line(what, found, beside, its, statistics.median(ratios), min(ratios))


def percentile(values: Sequence[float], percent: int) -> float:
    """The least of the values that so many percent of them don't pass."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def page(
    sections: Mapping[str, Sequence[Line]],
    *,
    rounds: int,
    warm: float,
    note: str,
    command: str,
    spark: str,
    folder: Path,
    seconds: float,
) -> str:
    """The whole page."""
    lines = [line for some in sections.values() for line in some]
    promised = [line for line in lines if line.promise]
    judged = [line for line in promised if line.held is not None]
    missed = [line for line in judged if not line.held]
    unseen = [line for line in promised if line.held is None]
    return "\n".join(
        [
            "# Benchmarks of topics",
            "",
            _HEAD.format(rounds=rounds),
            *([_SMOKE, ""] if "--smoke" in command else []),
            f"{len(judged) - len(missed)} of {len(judged)} promises held.",
            *[f"- **Not held**: {line.what} beside {line.beside}" for line in missed],
            *[f"- Not looked at: {line.what} beside {line.beside}" for line in unseen],
            "",
            *machine(folder),
            f"- {spark}",
            f"- {note}",
            f"- `{command}`, {time.strftime('%d %B %Y', time.gmtime())}, {seconds:.0f} s",
            "",
            *[text for heading, some in sections.items() for text in _section(heading, some, warm)],
        ]
    )


def _section(heading: str, lines: Sequence[Line], warm: float) -> list[str]:
    head = "| | penstock | beside | its | ratio | worst | promise | held |"
    rows = [_row(line) for line in lines]
    rule = "|---|--:|---|--:|--:|--:|--:|---|"
    return [f"## {heading}", "", _HOW[heading].format(warm=warm), "", head, rule, *rows, ""]


def _row(line: Line) -> str:
    held = "" if line.held is None else "yes" if line.held else "**NO**"
    ratios = ["" if value is None else f"{value:.2f}x" for value in (line.ratio, line.worst)]
    return f"| {' | '.join((line.what, line.found, line.beside, line.its, *ratios, line.promise, held))} |"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.2f} ms"
