"""Streams over a topic: by Spark, or by the queries' own logic without it; and their server in this process."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import penstock
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.retention import retain
from penstock.queue.topics.topics import Topics
from penstock.spark_plugin.consumption import Consumption
from penstock.spark_plugin.offsets import StreamOffset, StreamOptions
from penstock.wire.actions import DESCRIBE, ConsumerState, Target
from penstock.wire.position import Position
from tests.kit.clock import Clock
from tests.kit.wire import TRIPS, at, create_topic, ids, put, trips

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIMIT = 180
"""Seconds within which a query must end."""
IN = "topic/in"
X = "topic/x"
DAY = 24 * 3600.0


def only_position(consumers: list[dict[str, Any]]) -> dict[str, int]:
    """Return the position of a topic's one consumer."""
    (consumer,) = consumers
    position: dict[str, int] = consumer["position"]
    return position


# --- by Spark -----------------------------------------------------------------------------------


@dataclass
class Streams:
    """Spark, the server's client, and where checkpoints are."""

    spark: SparkSession
    client: Client
    folder: Path

    @property
    def tells_start(self) -> bool:
        """Whether this Spark passes `start` and the limit to a source: from 4.2 on."""
        version = re.match(r"(\d+)\.(\d+)", self.spark.version)
        assert version is not None
        return (int(version[1]), int(version[2])) >= (4, 2)

    def put(self, first: int, count: int, path: str = IN) -> None:
        """Append rows with these ids."""
        numbers = range(first, first + count)
        self.client.put(path, pa.table({"id": pa.array(numbers), "city": [f"city {number}" for number in numbers]}))

    def stream(self, path: str = IN, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("penstock").options(**options)
        return (reader.schema(schema) if schema else reader).load(path)

    def start(self, frame: DataFrame, sink: Any, checkpoint: str = "c", *, now: bool = True, **options: Any) -> Any:
        """Start a query into a path, "noop", or a function of batches; up to the topic's end, or until stopped."""
        writer = frame.writeStream.option("checkpointLocation", str(self.folder / checkpoint)).options(**options)
        writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="100 milliseconds")
        if callable(sink):
            return writer.foreachBatch(sink).start()
        return writer.format("noop").start() if sink == "noop" else writer.format("penstock").start(sink)

    def run(self, frame: DataFrame, sink: Any, checkpoint: str = "c", **options: Any) -> list[int]:
        """Run a query to its end; return the rows of each batch."""
        return ended(self.start(frame, sink, checkpoint, **options))

    def ids(self, path: str) -> list[int]:
        numbers: list[int] = self.client.get(path).read_all()["id"].to_pylist()
        return numbers

    def landed(self, path: str) -> Counter[int]:
        """Count each id, read by plain pyarrow."""
        with flight.connect(self.client.settings.url) as bare:
            return Counter(ids(bare, path))

    def consumers(self) -> list[dict[str, Any]]:
        consumers: list[dict[str, Any]] = self.client.call("describe", {"path": IN})["consumers"]
        return consumers

    def position(self) -> dict[str, int]:
        return only_position(self.consumers())

    def logged(self, log: str, checkpoint: str = "c") -> dict[int, Mapping[str, int]]:
        """Return the batches of a checkpoint's log, `offsets` or `commits`, with the source's offset of each."""
        files = [file for file in (self.folder / checkpoint / log).iterdir() if file.name.isdecimal()]
        if log == "commits":
            return {int(file.name): {} for file in files}
        return {int(file.name): json.loads(file.read_text().splitlines()[2])["shards"] for file in files}


def ended(query: StreamingQuery) -> list[int]:
    """Wait for a query's end, and return the rows of each batch. Its error is raised."""
    assert query.awaitTermination(LIMIT), "the query does not end"
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


# --- without Spark ------------------------------------------------------------------------------


@dataclass
class Reading:
    """A topic of two shards on a server in this process, and queries that read it without Spark."""

    server: PenstockServer
    client: Client
    bare: flight.FlightClient
    clock: Clock = field(default_factory=Clock)
    """The clock of the queries."""
    desk: Consumers = field(init=False)
    """The server's consumers, by a clock that `later` sets."""

    def __post_init__(self) -> None:
        ledger = self.server.state.ledger
        self.desk = Consumers(ledger, Topics(ledger), steady=self._now)
        self.desk.expire()  # the first time after a start nobody does

    def _now(self) -> float:
        return self.server.state.ledger.now()

    def create(self, shards: int = 2, **options: Any) -> None:
        create_topic(self.bare, X, TRIPS, shards=shards, **options)

    def put(self, shard: int, count: int, first: int = 0) -> None:
        """Append rows to a shard."""
        attempt = f"{shard:08x}{uuid.uuid4().hex[8:]}"
        put(self.bare, at(X, attempt=attempt), [trips(*range(first, first + count))])

    def query(self, **limits: Any) -> Consumption:
        """Start a query, for the first time or again."""
        return Consumption(self.client, X, StreamOptions(**limits), self.clock.now)

    def begun(self, **limits: Any) -> tuple[Consumption, StreamOffset, StreamOffset]:
        """Start a query that has planned its first batch; return it with the batch's start and end."""
        query = self.query(**limits)
        start = query.initial()
        end = query.latest(start)
        query.planned(start, end)
        return query, start, end

    def consumers(self) -> tuple[ConsumerState, ...]:
        return self.client.call(DESCRIBE, Target(X)).consumers or ()

    def position(self) -> Position:
        (consumer,) = self.consumers()
        return consumer.position

    def later(self, seconds: float) -> None:
        """Let so much time pass at the server."""
        self.server.state.ledger.now = lambda: time.time() + seconds

    def purge(self) -> None:
        """Remove all rows, as retention does once no consumer is left."""
        self.later(8 * DAY)
        self.desk.expire()
        retain(self.server.state.ledger)
        self.server.state.ledger.now = time.time


@pytest.fixture
def reading(server: PenstockServer, client: Client, bare: flight.FlightClient) -> Reading:
    return Reading(server, client, bare)
