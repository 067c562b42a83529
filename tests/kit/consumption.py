"""A topic of two shards on a real server, queries that read it without Spark, and time that passes on both sides."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow.flight as flight
import pytest

from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.retention import retain
from penstock.queue.topics.topics import Topics
from penstock.spark_plugin.consumption import Consumption
from penstock.spark_plugin.offsets import StreamOffset, StreamOptions
from penstock.wire.actions import DESCRIBE, ConsumerState, Target
from penstock.wire.position import Position
from tests.kit.doubles import Clock
from tests.kit.plain import at, call, put, trips

X = "topic/x"
DAY = 24 * 3600.0
SCHEMA = [{"name": "id", "type": "int64"}, {"name": "city", "type": "string"}]


@dataclass
class Reading:
    """Queries and their server."""

    server: PenstockServer
    client: Client
    bare: flight.FlightClient
    clock: Clock = field(default_factory=Clock)
    """The queries' own."""

    def create(self, shards: int = 2, **options: Any) -> None:
        call(self.bare, "topic.create", path=X, schema=SCHEMA, shards=shards, **options)

    def put(self, shard: int, count: int, first: int = 0) -> None:
        """Some rows at the end of a shard."""
        attempt = f"{shard:08x}{uuid.uuid4().hex[8:]}"
        put(self.bare, at(X, attempt=attempt), [trips(*range(first, first + count))])

    def query(self, **limits: Any) -> Consumption:
        """A query that starts, or starts again."""
        return Consumption(self.client, X, StreamOptions(**limits), self.clock)

    def begun(self, **limits: Any) -> tuple[Consumption, StreamOffset, StreamOffset]:
        """A query that has planned its first batch, and where that begins and ends."""
        query = self.query(**limits)
        start = query.initial()
        end = query.latest(start)
        query.planned(start, end)
        return query, start, end

    def consumers(self) -> tuple[ConsumerState, ...]:
        return self.client.call(DESCRIBE, Target(X)).consumers or ()

    def position(self) -> Position:
        """The one consumer's."""
        (consumer,) = self.consumers()
        return consumer.position

    @property
    def desk(self) -> Consumers:
        ledger = self.server._ledger
        return Consumers(ledger, Topics(ledger))

    def later(self, seconds: float) -> None:
        """The server's time from now on."""
        self.server._ledger.now = lambda: time.time() + seconds

    def purge(self) -> None:
        """All rows leave, as retention would have it once nobody is seen any more."""
        self.later(8 * DAY)
        self.desk.expire()
        retain(self.server._ledger)
        self.server._ledger.now = time.time


@pytest.fixture
def reading(server: PenstockServer, client: Client, bare: flight.FlightClient) -> Reading:
    return Reading(server, client, bare)
