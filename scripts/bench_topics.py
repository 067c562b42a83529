"""Measure topics, and streams that read them, beside Kafka and a bare fsync, and write docs/benchmarks-topics.md.

`make bench-topics`, or with ARGS=--quick. Kafka and Spark's source for it are got by Maven into .venv-bench/, and the
Spark that they are for into .venv-spark/, once. Every figure is a ratio of two neighbours in one run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

import penstock
from scripts import bench_command, bench_topics_append, bench_topics_kafka
from scripts.bench_rows import interleaved
from scripts.bench_servers import penstock as server
from scripts.bench_spark_page import Line, shown
from scripts.bench_spark_session import Bench, session, versions
from scripts.bench_topics_growth import growth
from scripts.bench_topics_kafka import Kafka
from scripts.bench_topics_page import better, page, per_second
from scripts.bench_topics_sides import (
    JSON,
    KAFKA,
    OURS,
    READY,
    Trial,
    copied,
    filled,
    of_kafka,
    of_ready,
    of_topic,
    rows_of_a_task,
)
from scripts.bench_topics_tail import Pace, latencies
from scripts.demo_spark import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SINCE = (4, 2)
"""The first Spark whose Python sources are told a limit."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    messages: int
    limit: int
    """Rows of a batch where they are limited."""
    integers: int
    """Rows; ten times as many are the large backlog."""
    growth: int
    """Rounds of it."""
    batches: int
    """Of a client that appends."""
    single: int
    """Rows in a round of a client that appends row by row."""
    rates: tuple[int, ...]
    pace: Pace


FULL = Sizes(7, 2_000_000, 200_000, 2_000_000, 3, 40, 200, (1_000, 10_000, 50_000), Pace(12, 4))
QUICK = Sizes(3, 1_000_000, 100_000, 500_000, 2, 20, 100, (1_000, 10_000, 50_000), Pace(5, 3))
SMOKE = Sizes(1, 4_000, 2_000, 1_000, 1, 1, 5, (1_000,), Pace(0.4, 0.1))
_COMMANDS = {
    FULL: "make bench-topics",
    QUICK: "make bench-topics ARGS=--quick",
    SMOKE: "scripts/bench_topics.py --smoke",
}
_PHASES = {
    "triggerExecution": "a batch, all in all",
    "latestOffset": "where it ends",
    "walCommit": "its offsets on disk",
    "getBatch": "its range",
    "queryPlanning": "its plan, and its tickets",
    "addBatch": "its rows",
    "commitOffsets": "its commit",
}


def main() -> None:
    """Measure, show, write."""
    if sys.platform != "linux":
        sys.exit("the benchmarks look into /proc: they run on Linux")
    options = bench_command.options(
        __doc__,
        "docs/benchmarks-topics.md",
        quick="half the rows, fewer rounds",
        smoke="a few rows: shows that it runs, measures nothing",
        without_kafka="leave Kafka out, and take the Spark that is installed",
    )
    if lack := missing():
        sys.exit(lack)
    lacks = "it wasn't asked for" if options.without_kafka else bench_topics_kafka.lacks()
    _with_spark(None if lacks else bench_topics_kafka.SPARK)
    sizes = SMOKE if options.smoke else QUICK if options.quick else FULL
    began = time.monotonic()
    found: dict[str, list[Line]] = {name: [] for name in ("Backlog", "Trigger", "Growth", "Append", "End to end")}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name, ExitStack() as stack:
        folder = Path(name)
        bench_command.check_room(folder, 50 * sizes.messages * 130 + 30 * 32 * sizes.integers >> 20)
        kafka = None if lacks else stack.enter_context(bench_topics_kafka.broker(folder / "kafka"))
        if kafka:
            jars = ",".join(map(str, bench_topics_kafka.spark_jars()))
            os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
        with session(folder) as spark:
            for heading, line in _measured(spark, kafka, folder, sizes):
                found[heading].append(line)
                print(f"{time.monotonic() - began:5.0f} s  {heading}: {shown(line)}", file=sys.stderr, flush=True)
            text = page(
                found,
                rounds=sizes.rounds,
                warm=sizes.pace.warm,
                note=f"Kafka left out: {lacks}" if lacks else bench_topics_kafka.VERSIONS,
                command=_COMMANDS[sizes],
                spark=versions(spark),
                folder=folder,
                seconds=time.monotonic() - began,
            )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text)
    missed = [line.what for lines in found.values() for line in lines if line.held is False]
    print(f"wrote {options.output}; {f'not held: {missed}' if missed else 'every promise held'}", file=sys.stderr)


def _with_spark(version: str | None) -> None:
    """Go on with this Spark, where it isn't the installed one: as another Python, in this process's place."""
    import pyspark

    if version is not None and not pyspark.__version__.startswith(version):
        python = str(bench_topics_kafka.spark_python())
        os.execv(python, [python, *sys.argv])
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < _SINCE:
        sys.exit(f"streams with a limit need Spark 4.2 or newer, this is {pyspark.__version__}")


def _measured(spark: SparkSession, kafka: Kafka | None, folder: Path, sizes: Sizes) -> Iterator[tuple[str, Line]]:
    """Each line with the heading that it stands under."""
    from scripts.bench_topics_ready import Ready

    spark.dataSource.register(penstock.DataSource)
    spark.dataSource.register(Ready)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100000")  # the latencies are read from the logs
    with server(folder / "disk", "disk:") as disk, server(folder / "memory", "memory:") as memory:
        bench = Bench(spark, disk, memory, folder, sizes != SMOKE)
        for line in growth(bench, sizes.integers, sizes.growth):
            yield "Growth", line
        filled(disk, JSON, sizes.messages, JSON)
        if kafka:
            copied(bench, kafka, JSON, "json")
        yield from _backlog(bench, kafka, sizes)
        for line in bench_topics_append.batches(disk, kafka, sizes.batches, sizes.rounds):
            yield "Append", line
        for line in bench_topics_append.single(disk, kafka, folder, sizes.single, sizes.rounds):
            yield "Append", line
        for line in latencies(bench, kafka, sizes.rates, sizes.pace):
            yield "End to end", line


def _backlog(bench: Bench, kafka: Kafka | None, sizes: Sizes) -> Iterator[tuple[str, Line]]:
    rows, unit = sizes.messages, per_second(sizes.messages)
    for limit, words, least in ((None, "one batch", 3.0), (sizes.limit, f"{sizes.limit:,} rows a batch", 1.0)):
        trials = _trials(bench, kafka, rows, limit)
        sides = {name: (lambda trial=trial: trial.drained(bench)) for name, trial in trials.items()}
        taken = interleaved(sides, sizes.rounds)
        ours = taken[OURS]
        yield "Backlog", better(words, ours, KAFKA, taken.get(KAFKA), unit, least=least)
        yield "Backlog", better(words, ours, READY, taken[READY], unit, least=None if limit else 0.8)
        whole = {name: trial.whole[1:] for name, trial in trials.items()}  # the first round is to warm up
        yield "Backlog", better(f"{words}, the whole query", whole[OURS], KAFKA, whole.get(KAFKA), unit)
        if limit:
            for line in _triggers(trials.pop(OURS), trials):
                yield "Trigger", line


def _trials(bench: Bench, kafka: Kafka | None, rows: int, limit: int | None) -> dict[str, Trial]:
    each = min(rows_of_a_task(bench.disk, JSON, rows), limit or rows)
    frames = {
        OURS: of_topic(bench, JSON, **({"maxRowsPerTrigger": limit} if limit else {})),
        READY: of_ready(bench, JSON, rows, each, limit or 0),
    }
    if kafka:
        frames[KAFKA] = of_kafka(bench, kafka, "json", **({"maxOffsetsPerTrigger": limit} if limit else {}))
    return {name: Trial(frame, rows) for name, frame in frames.items()}


def _triggers(ours: Trial, others: dict[str, Trial]) -> Iterator[Line]:
    for beside, other in others.items():
        for phase, words in _PHASES.items():
            yield _phase(f"{words} ({phase})", ours.median(phase), beside, other.median(phase))


def _phase(what: str, ours: float, beside: str, theirs: float) -> Line:
    return Line(what, f"{ours:,.0f} ms", beside, f"{theirs:,.0f} ms")


if __name__ == "__main__":
    main()
