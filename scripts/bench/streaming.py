"""Streaming queries: a backlog that is drained, and rows that come while the query runs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.bench.bench import Bench
from scripts.bench.figures import Measure, Sample
from scripts.bench.publisher import Publisher, paced
from scripts.bench.watch import Process, descendant, peaks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Pace = Mapping[str, float]
"""`rate` in rows a second, and `seconds`, after `warm` others that don't count."""
TICK = 0.02  # seconds between a publisher's batches
_LIMIT = 300  # seconds for a query
_PATIENCE = 60.0  # seconds for its last commit
_RUNNER = b"python_streaming_source_runner"
"""The module of the process in which Spark has a source's driver side, for as long as a query runs."""


def stream(
    bench: Bench, source: str, options: Mapping[str, object], path: str | None = None, schema: str | None = None
) -> DataFrame:
    """Read a source as a stream."""
    texts = {name: str(value) for name, value in options.items()}
    reader = bench.spark.readStream.format(source).options(**texts)
    return (reader if schema is None else reader.schema(schema)).load(path)


def drained(bench: Bench, frame: DataFrame, rows: int, *, watched: bool = False) -> Measure:
    """Read a backlog in a query with a new checkpoint.

    Its seconds are those of its batches by Spark's own clock, `whole` those from `start()` to its end; what Spark calls
    the phases of a batch are seconds of every batch but the first. If watched, `server`, `driver` and `source`, the
    process of the source's driver side, are the most memory that each had.
    """
    runner = partial(descendant, _RUNNER, os.getpid())
    processes: dict[str, Process] = {"server": bench.penstock().pid, "driver": os.getpid(), "source": runner}

    def measure() -> Sample:
        bench.settle()
        with peaks(processes if watched else {}) as most:
            began = time.perf_counter()
            with _query(bench, frame, {}, availableNow=True) as (query, _):
                if not query.awaitTermination(_LIMIT):
                    raise TimeoutError(f"a query of {rows:,} rows took more than {_LIMIT} s")
                whole = time.perf_counter() - began
                batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        read = sum(batch["numInputRows"] for batch in batches)
        assert read == rows, f"{read:,} of {rows:,} rows in {len(batches)} batches"
        seconds = sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000
        later = [batch["durationMs"] for batch in batches[1:] or batches]
        phases = {name: [phases.get(name, 0) / 1000 for phases in later] for name in later[0]}
        return {**phases, "seconds": [seconds], "whole": [whole], **{name: [size] for name, size in most.items()}}

    return measure


def tailed(
    bench: Bench, frame: DataFrame, publisher: Publisher, pace: Pace, *, before: int = 0, into: str = ""
) -> Sample:
    """Publish at a pace while a query reads: `each` of the publisher's batches, from when it was due to its commit.

    `before` is how many rows were there already; `into` is a dataset that takes the rows.
    """
    with _query(bench, frame, {"path": into} if into else {}, processingTime="0 seconds") as (query, checkpoint):
        warm = pace["warm"]
        sent = publisher(paced, rate=pace["rate"], seconds=warm + pace["seconds"], tick=TICK).result()
        rows = before + sum(count for _, count in sent)
        give_up = time.monotonic() + _PATIENCE
        while not (commits := committed(checkpoint)) or commits[-1][1] < rows:
            if (failure := query.exception()) or time.monotonic() > give_up:
                raise RuntimeError(f"{commits[-1:]} of {rows:,} rows are committed: {failure}")
            time.sleep(TICK)
        return {"each": seconds_of(sent, commits, before=before, warm=warm)}


def committed(checkpoint: Path) -> list[tuple[float, int]]:
    """Return when each batch came into the commit log, and how many rows there were up to its end."""
    files = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    return [(file.stat().st_mtime, _rows(checkpoint / "offsets" / file.name)) for file in files]


def _rows(offsets: Path) -> int:
    """Sum up a batch's offsets: {"shards": {"0": 5}} in penstock's words, {"topic": {"0": 5}} in Kafka's."""
    offset = json.loads(offsets.read_text().splitlines()[-1])
    shards: dict[str, int] = offset["shards"] if "shards" in offset else next(iter(offset.values()))
    return sum(shards.values())


def seconds_of(
    sent: Sequence[tuple[float, int]], commits: Sequence[tuple[float, int]], *, before: int, warm: float
) -> list[float]:
    """Return, for each batch sent after the warm-up, the seconds from when it was due until all of it was committed."""
    ends, end, seconds = [rows for _, rows in commits], before, []
    for due, rows in sent:
        end += rows
        if due >= sent[0][0] + warm:
            seconds.append(commits[bisect_left(ends, end)][0] - due)
    return seconds


@contextmanager
def _query(
    bench: Bench, frame: DataFrame, options: dict[str, str], **trigger: Any
) -> Iterator[tuple[StreamingQuery, Path]]:
    """Start a query with a new checkpoint, into a dataset or a sink that takes what comes, and stop it at the end."""
    checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=bench.folder))
    writer = frame.writeStream.format("penstock" if options else "noop").trigger(**trigger)
    url = bench.penstock().url
    query = writer.options(url=url, checkpointLocation=str(checkpoint), **options).start()
    try:
        yield query, checkpoint
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
