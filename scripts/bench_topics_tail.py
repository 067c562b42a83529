"""End to end: from when a row was due at its publisher until Spark has its batch in the commit log."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.bench_spark_page import Line
from scripts.bench_spark_session import Bench
from scripts.bench_topics_append import Publisher, publisher
from scripts.bench_topics_kafka import Kafka
from scripts.bench_topics_page import latency
from scripts.bench_topics_sides import KAFKA, create, fresh, of_kafka, of_topic, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TICK = 0.02  # seconds between a publisher's batches
_MOST_OF_KAFKA = 10_000  # rows a second; kafka-python sends twice as many at best, with a core for itself
_INTO_A_DATASET = 10_000  # rows a second, of the trial with a sink that keeps them
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How a trial is run, in seconds."""

    seconds: float
    warm: float
    """Before them; rows of this time don't count."""


def latencies(bench: Bench, kafka: Kafka | None, rates: Sequence[int], pace: Pace) -> Iterator[Line]:
    """Each rate from penstock and, where its client can send as much, from Kafka; one of them into a dataset too."""
    for rate in rates:
        ours = _of_penstock(bench, f"topic/bench/tail-{rate}", rate, pace)
        theirs = _of_kafka(bench, kafka, f"tail-{rate}", rate, pace) if kafka and rate <= _MOST_OF_KAFKA else None
        for percent in (50, 99):
            yield latency(f"{rate:,} rows/s, p{percent}", [ours], KAFKA, [theirs] if theirs else None, percent)
        if rate == _INTO_A_DATASET:
            kept = _of_penstock(bench, "topic/bench/kept", rate, pace, "store/bench/tailed")
            for percent in (50, 99):
                yield latency(f"{rate:,} rows/s into a dataset, p{percent}", [kept], "", None, percent)


def _of_penstock(bench: Bench, topic: str, rate: int, pace: Pace, into: str | None = None) -> list[float]:
    create(bench.disk, topic)
    with publisher("penstock", bench.disk.url, topic) as client:
        return _tailed(bench, of_topic(bench, topic), client, rate, pace, into=into)


def _of_kafka(bench: Bench, kafka: Kafka, topic: str, rate: int, pace: Pace) -> list[float]:
    with publisher("kafka", kafka.address, topic, kafka) as client:
        client.told("batches", count=1, rows=1)  # makes the topic
        return _tailed(bench, of_kafka(bench, kafka, topic), client, rate, pace, before=1)


def _tailed(
    bench: Bench,
    frame: DataFrame,
    client: Publisher,
    rate: int,
    pace: Pace,
    *,
    before: int = 0,
    into: str | None = None,
) -> list[float]:
    """The seconds of each of the publisher's batches, all of which have as many rows; `before` were there already."""
    with fresh(bench.folder) as checkpoint:
        sink = ("penstock", {"path": into, "url": bench.disk.url}) if into else ("noop", {})
        query = started(frame, checkpoint, *sink, processingTime="0 seconds")
        try:
            sent = client.told("paced", rate=rate, seconds=pace.warm + pace.seconds, tick=TICK)
            rows = before + sum(count for _, count in sent)
            give_up = time.monotonic() + _PATIENCE
            while not (found := committed(checkpoint)) or found[-1][1] < rows:
                if (failed := query.exception()) or time.monotonic() > give_up:
                    raise RuntimeError(f"{found[-1:]} of {rows:,} rows are committed: {failed}")
                time.sleep(TICK)
        finally:
            query.stop()
        return seconds_of(sent, found, before=before, warm=pace.warm)


def committed(checkpoint: Path) -> list[tuple[float, int]]:
    """When each batch was in the commit log, and how many rows there were up to its end."""
    files = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    return [(file.stat().st_mtime, _rows(checkpoint / "offsets" / file.name)) for file in files]


def seconds_of(
    sent: Sequence[tuple[float, int]], commits: Sequence[tuple[float, int]], *, before: int, warm: float
) -> list[float]:
    """For each batch that was sent after the first seconds: from when it was due until all of it was committed."""
    ends, until, found = [rows for _, rows in commits], before, []
    for due, rows in sent:
        until += rows
        if due >= sent[0][0] + warm:
            found.append(commits[bisect_left(ends, until)][0] - due)
    return found


def _rows(offsets: Path) -> int:
    """The sum of a batch's offsets: {"shards": {"0": 5}} in penstock's words, {"topic": {"0": 5}} in Kafka's."""
    found = json.loads(offsets.read_text().splitlines()[-1])
    shards: dict[str, int] = found["shards"] if "shards" in found else next(iter(found.values()))
    return sum(shards.values())
