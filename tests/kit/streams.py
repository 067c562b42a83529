"""A topic, a server in this process and a Spark that streams: what the tests of source and sink say in a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIMIT = 180
IN = "topic/in"


@dataclass
class Streams:
    """Spark, the server's client, and where checkpoints are."""

    spark: SparkSession
    client: Client
    folder: Path

    @property
    def tells_start(self) -> bool:
        """Whether this Spark tells a source where it is, and what a batch may have: from 4.2 on."""
        found = re.match(r"(\d+)\.(\d+)", self.spark.version)
        assert found is not None
        return (int(found[1]), int(found[2])) >= (4, 2)

    def put(self, first: int, count: int, path: str = IN) -> None:
        """Rows that tell which ones they are."""
        numbers = range(first, first + count)
        self.client.put(path, pa.table({"id": pa.array(numbers), "city": [f"city {number}" for number in numbers]}))

    def stream(self, path: str = IN, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("penstock").options(**options)
        return (reader.schema(schema) if schema else reader).load(path)

    def start(self, frame: DataFrame, sink: Any, checkpoint: str = "c", *, now: bool = True, **options: Any) -> Any:
        """A query into a path, "noop", or a function of batches; to the end of what is there, or until stopped."""
        writer = frame.writeStream.option("checkpointLocation", str(self.folder / checkpoint)).options(**options)
        writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="100 milliseconds")
        if callable(sink):
            return writer.foreachBatch(sink).start()
        return writer.format("noop").start() if sink == "noop" else writer.format("penstock").start(sink)

    def run(self, frame: DataFrame, sink: Any, checkpoint: str = "c", **options: Any) -> list[int]:
        """The same, to its end: how many rows each batch had."""
        return ended(self.start(frame, sink, checkpoint, **options))

    def ids(self, path: str) -> list[int]:
        found: list[int] = self.client.get(path).read_all()["id"].to_pylist()
        return found

    def consumers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.call("describe", {"path": IN})["consumers"]
        return found

    def position(self) -> dict[str, int]:
        """The one consumer's."""
        (consumer,) = self.consumers()
        position: dict[str, int] = consumer["position"]
        return position

    def logged(self, log: str, checkpoint: str = "c") -> dict[int, Mapping[str, int]]:
        """What a checkpoint's log of `offsets` or `commits` has: the source's offset of each batch."""
        files = [file for file in (self.folder / checkpoint / log).iterdir() if file.name.isdecimal()]
        if log == "commits":
            return {int(file.name): {} for file in files}
        return {int(file.name): json.loads(file.read_text().splitlines()[2])["shards"] for file in files}


def ended(query: StreamingQuery) -> list[int]:
    """Wait for a query's end; how many rows its batches had. Its error is raised."""
    assert query.awaitTermination(LIMIT), "it goes on"
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


@pytest.fixture
def streams(
    spark: SparkSession,
    server: PenstockServer,
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Streams]:
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    spark.dataSource.register(penstock.DataSource)
    monkeypatch.delenv("PENSTOCK_URL")
    yield Streams(spark, client, tmp_path_factory.mktemp("checkpoints"))
    for query in spark.streams.active:
        query.stop()
