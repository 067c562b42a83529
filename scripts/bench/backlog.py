"""Backlogs that streams read: a topic of messages, and the same in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import penstock
from scripts.bench.bench import Bench
from scripts.bench.publisher import rows
from scripts.bench.streaming import stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARDS = 2
_PUT = {"json": 10_000, "avro": 10_000, "integers": 500_000}  # rows of a busy producer's put


def filled(bench: Bench, kind: str, number: int) -> str:
    """Fill a topic of two shards, once, in batches as a busy producer would, and return its path."""
    path, server = f"topic/bench/{kind}-{number}", bench.penstock()

    def fill() -> None:
        server.create_topic(path, rows(kind, range(0)).schema, shards=SHARDS)
        with penstock.connect(server.url) as client:
            for first in range(0, number, _PUT[kind]):
                client.put(path, rows(kind, range(number)[first : first + _PUT[kind]]))

    bench.once(path, fill)
    return path


def copied(bench: Bench, kind: str, number: int) -> None:
    """Fill a topic of Kafka with the same rows, partition by shard, once."""
    path = filled(bench, kind, number)

    def copy() -> None:
        reader = bench.spark.read.format("penstock").option("url", bench.penstock().url)
        frame = reader.option("columns", "value, _shard").load(path)
        writer = frame.selectExpr("value", "cast(_shard as int) as partition").write.format("kafka")
        writer.option("kafka.bootstrap.servers", bench.kafka.address).option("topic", kind).save()

    bench.once(f"{kind} in Kafka", copy)


def of_kafka(bench: Bench, topic: str, options: Mapping[str, object]) -> DataFrame:
    """Read a topic of Kafka as a stream, from its begin: of its columns the one that ours has too."""
    earliest = {"subscribe": topic, "startingOffsets": "earliest", "kafka.bootstrap.servers": bench.kafka.address}
    return stream(bench, "kafka", {**earliest, **options}).select("value")
