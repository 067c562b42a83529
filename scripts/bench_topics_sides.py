"""The same backlog in a topic, in Kafka, and as batches that are ready; and each of them read by a stream."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import penstock
from scripts.bench_servers import Penstock
from scripts.bench_spark_session import Bench
from scripts.bench_topics_client import message
from scripts.bench_topics_kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

OURS, KAFKA, READY = "penstock", "Spark's Kafka source", "ready batches"
JSON, INTEGERS = "topic/bench/json", "topic/bench/integers"
SHARDS = 2
LIMIT = 300  # seconds for a query
_PUT = {JSON: 10_000, INTEGERS: 500_000}
"""Rows of a put."""
_SCHEMAS = {
    JSON: pa.schema({"value": pa.binary()}),
    INTEGERS: pa.schema(dict.fromkeys(("id", "a", "b", "c"), pa.int64())),
}


@dataclass(slots=True)
class Trial:
    """A way to read a backlog, and what its queries took."""

    frame: DataFrame
    rows: int
    phases: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds by what Spark calls it, of every batch but a query's first."""
    whole: list[float] = field(default_factory=list)
    """Seconds from `start()` until the query had ended."""

    def drained(self, bench: Bench) -> float:
        """Read all in a query with a new checkpoint: the seconds of its batches, by Spark's own clock."""
        bench.settle()
        with fresh(bench.folder) as checkpoint:
            began = time.perf_counter()
            query = started(self.frame, checkpoint, availableNow=True)
            ended = query.awaitTermination(LIMIT)
            taken = time.perf_counter() - began
            found = [progress for progress in query.recentProgress if progress["numInputRows"]]
        if not ended:
            query.stop()
            raise TimeoutError(f"a query of {self.rows:,} rows took more than {LIMIT} s")
        read = sum(progress["numInputRows"] for progress in found)
        assert read == self.rows, f"{read:,} of {self.rows:,} rows in {len(found)} batches"
        self.whole.append(taken)
        for progress in found[1:] or found:
            for phase, milliseconds in progress["durationMs"].items():
                self.phases.setdefault(phase, []).append(milliseconds)
        of_batches: list[int] = [progress["durationMs"]["triggerExecution"] for progress in found]
        return sum(of_batches) / 1000

    def median(self, phase: str) -> float:
        """Milliseconds of a batch."""
        return statistics.median(self.phases.get(phase, [0.0]))


def started(
    frame: DataFrame,
    checkpoint: Path,
    sink: str = "noop",
    options: Mapping[str, str] | None = None,
    **trigger: Any,
) -> StreamingQuery:
    """A query into a sink that takes what comes, if no other is named."""
    writer = frame.writeStream.format(sink).options(**options or {}, checkpointLocation=str(checkpoint))
    return writer.trigger(**trigger).start()


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """A folder for a checkpoint, gone afterwards."""
    found = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=folder))
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


def of_topic(bench: Bench, path: str, **options: object) -> DataFrame:
    """penstock's source."""
    reader = bench.spark.readStream.format("penstock").option("url", bench.disk.url)
    return reader.options(**{name: str(value) for name, value in options.items()}).load(path)


def of_kafka(bench: Bench, kafka: Kafka, topic: str, **options: object) -> DataFrame:
    """Spark's Kafka source; of its columns the one that penstock's has too."""
    reader = bench.spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.address)
    given = {"subscribe": topic, "startingOffsets": "earliest", **options}
    return reader.options(**{name: str(value) for name, value in given.items()}).load().select("value")


def of_ready(bench: Bench, path: str, rows: int, each: int, most: int = 0) -> DataFrame:
    """The floor, in tasks of so many rows each."""
    kind = "json" if path.startswith(JSON) else "integers"
    given = {"kind": kind, "rows": rows, "each": each, "most": most}
    return bench.spark.readStream.format("ready").options(**{name: str(value) for name, value in given.items()}).load()


def filled(server: Penstock, path: str, rows: int, kind: str) -> None:
    """A topic of two shards, put in batches as a busy producer would."""
    create(server, path, kind)
    with penstock.connect(server.url) as client:
        for first in range(0, rows, _PUT[kind]):
            client.put(path, _ROWS[kind](first, min(_PUT[kind], rows - first)))


def create(server: Penstock, path: str, kind: str = JSON, shards: int = SHARDS) -> None:
    """An empty topic."""
    fields = [{"name": each.name, "type": str(each.type), "nullable": True} for each in _SCHEMAS[kind]]
    with penstock.connect(server.url) as client:
        client.call("topic.create", {"path": path, "schema": fields, "shards": shards})


def copied(bench: Bench, kafka: Kafka, path: str, topic: str) -> None:
    """The same messages in Kafka, partition by shard."""
    reader = bench.spark.read.format("penstock").option("url", bench.disk.url)
    frame = reader.option("columns", "value, _shard").load(path)
    writer = frame.selectExpr("value", "cast(_shard as int) as partition").write.format("kafka")
    writer.option("kafka.bootstrap.servers", kafka.address).option("topic", topic).save()


def rows_of_a_task(server: Penstock, path: str, rows: int) -> int:
    """What penstock gives a task of a backlog that is one batch, on average."""
    from penstock.spark_plugin.read import split_tickets

    with penstock.connect(server.url) as client:
        tasks = len(list(split_tickets(client.info(path).endpoints, filtered=False)))
    return -(-rows // tasks)


def _messages(first: int, count: int) -> pa.Table:
    return pa.table([pa.array([message(n) for n in range(first, first + count)], pa.binary())], schema=_SCHEMAS[JSON])


def _integers(first: int, count: int) -> pa.Table:
    numbers: Any = pa.array(range(first, first + count), pa.int64())
    return pa.table([numbers] * 4, schema=_SCHEMAS[INTEGERS])


_ROWS: Mapping[str, Callable[[int, int], pa.Table]] = {JSON: _messages, INTEGERS: _integers}
