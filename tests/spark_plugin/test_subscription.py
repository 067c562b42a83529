"""`readStream.option("subscription", …)`: Pub/Sub's messages in a query, each once, and every one of them acknowledged.

On the fake, which says what is acked; one test on Google's emulator, too. Spark 4.0 and 4.1 don't tell that the last
batch is done before the query starts again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.client.client import Client, connect
from penstock.wire import actions
from tests.kit.pubsub.emulator import Names, unique_names
from tests.kit.pubsub.fixtures import Broker, open_broker
from tests.kit.server import process_server
from tests.kit.streams import Streams, ended
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(300)]


@dataclass
class Subscribed:
    """A subscription, a server that pulls it, and queries."""

    streams: Streams
    broker: Broker

    @property
    def client(self) -> Client:
        return self.streams.client

    @property
    def names(self) -> Names:
        return self.broker.names

    def publish(self, first: int, count: int) -> None:
        self.broker.publish(first, count)

    def orders(self, **options: Any) -> DataFrame:
        reader = self.streams.spark.readStream.format("penstock").options(**{"settle": "5", **options})
        return reader.option("subscription", self.names.subscription).load()

    def run(self, sink: str = "store/orders", checkpoint: str = "c") -> int:
        """Run a query to the end of what was published before, and return how many rows it had."""
        return sum(self.streams.run(self.orders(), sink, checkpoint))

    def landed(self, path: str = "store/orders") -> list[int]:
        return sorted(map(int, self.client.get(path, columns=["data"]).read_all()["data"].to_pylist()))

    def unreleased(self) -> int:
        state = self.client.call(actions.DESCRIBE, actions.Target(self.names.path)).subscription
        assert state is not None
        outstanding = sum(puller.counters.get("outstanding", 0) for puller in state.connected)
        return state.unreleased_rows + int(outstanding)

    def check_all_acknowledged(self) -> None:
        """Wait until all is released and acked, as the server says, and see whether Pub/Sub agrees."""
        is_slow = self.broker.fake is None  # to say whether it is empty
        eventually(lambda: self.unreleased() == 0 and (is_slow or self.broker.is_empty()), within=60)
        self.client.delete(self.names.path)  # its pullers end, so that what comes again comes to us
        assert self.broker.is_empty()


@pytest.fixture(params=["fake", pytest.param("emulator", marks=pytest.mark.soak)])
def broker(request: pytest.FixtureRequest, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that the environment names."""
    with open_broker(request, pubsub_names) as broker:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", broker.address)
        yield broker


@pytest.fixture
def subscribed(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Subscribed]:
    broker.create()
    running = process_server(tmp_path / "data", allow_emulator=True, pubsub_lease=10)
    with running as server, connect(server.url) as client:
        monkeypatch.setenv("PENSTOCK_URL", server.url)
        spark.dataSource.register(penstock.DataSource)
        streams = Streams(spark, client, tmp_path_factory.mktemp("checkpoints"))
        yield Subscribed(streams, broker)
        for query in spark.streams.active:
            query.stop()


def test_available_now_leaves_nothing_behind(subscribed: Subscribed) -> None:
    """Also at its first start, when the journal is empty."""
    subscribed.publish(0, 5_000)
    assert subscribed.run() == 5_000
    subscribed.publish(5_000, 1_000)
    assert subscribed.run() == 1_000
    if not subscribed.streams.tells_start:
        assert subscribed.run() == 0  # the last batch is acknowledged at the next start
    assert subscribed.landed() == list(range(6_000))
    subscribed.check_all_acknowledged()


@pytest.mark.parametrize("broker", ["fake", "emulator"], indirect=True)
def test_an_idle_query_has_acknowledged_all(subscribed: Subscribed) -> None:
    query = subscribed.streams.start(subscribed.orders(), "store/orders", now=False)
    subscribed.publish(0, 2_000)
    eventually(lambda: len(subscribed.client.list("store/")) == 1, within=60)
    eventually(lambda: len(subscribed.landed()) == 2_000, within=60)
    if not subscribed.streams.tells_start:
        query.stop()
        query = subscribed.streams.start(subscribed.orders(), "store/orders", now=False)
    subscribed.check_all_acknowledged()
    query.stop()


def test_a_query_that_starts_again_acknowledges_the_tail(subscribed: Subscribed) -> None:
    """A query that was stopped behind its last batch, and finds nothing new."""
    query = subscribed.streams.start(subscribed.orders(), "store/orders", now=False)
    subscribed.publish(0, 1_000)
    eventually(lambda: len(subscribed.client.list("store/")) == 1, within=60)
    query.stop()
    eventually(lambda: query.isActive is False, within=30)
    subscribed.streams.start(subscribed.orders(), "store/orders", now=False)
    eventually(lambda: len(subscribed.landed()) == 1_000, within=60)
    subscribed.check_all_acknowledged()


def test_the_slowest_query_acknowledges(subscribed: Subscribed) -> None:
    slow = subscribed.streams.start(subscribed.orders(maxRowsPerTrigger=10), "noop", "slow", now=False)
    eventually(lambda: len(slow.recentProgress) > 0, within=60)
    slow.stop()
    subscribed.publish(0, 1_000)
    assert subscribed.run(checkpoint="fast") == 1_000
    if not subscribed.streams.tells_start:
        subscribed.run(checkpoint="fast")
    time.sleep(1.0)  # a release that came wrongly would come now
    assert subscribed.unreleased() >= 1_000
    assert ended(subscribed.streams.start(subscribed.orders(), "noop", "slow"))
    if not subscribed.streams.tells_start:
        ended(subscribed.streams.start(subscribed.orders(), "noop", "slow"))
    subscribed.check_all_acknowledged()


def test_a_missing_subscription_ends_the_query_at_once(subscribed: Subscribed) -> None:
    subscribed.broker.client.delete_subscription(subscribed.names.subscription)
    began = time.monotonic()
    with pytest.raises(Exception, match=rf"{subscribed.names.subscription}.*create") as failed:
        subscribed.orders()
    assert time.monotonic() - began < 120
    assert not re.search(r"Traceback .* in read", str(failed.value))
    made = subscribed.orders(create=subscribed.names.topic)
    subscribed.publish(0, 10)
    assert subscribed.streams.run(made, "store/orders") == [10]


def test_a_range_is_read_as_a_batch(subscribed: Subscribed) -> None:
    subscribed.publish(0, 100)
    assert subscribed.run() == 100
    reader = subscribed.streams.spark.read.format("penstock").option("subscription", subscribed.names.subscription)
    frame = reader.option("columns", "message_id, publish_time, attributes, data, _shard, _offset").load()
    rows = frame.collect()
    assert sorted(int(row.data) for row in rows) == list(range(100))
    assert all(row.attributes == {} and row.publish_time is not None for row in rows)
    assert len({(row["_shard"], row["_offset"]) for row in rows}) == 100


def test_bad_messages_are_dead_rows_and_are_redriven(subscribed: Subscribed) -> None:
    """By way of a topic of Pub/Sub's and its subscription, with a schema that takes them."""
    path, topic = subscribed.names.path, subscribed.names.dead_letters
    streams, client, pubsub = subscribed.streams, subscribed.client, subscribed.broker.client
    again = unique_names().subscription
    pubsub.create_topic(topic)
    pubsub.create_subscription(again, topic)
    good = [b'{"id": %d}' % number for number in range(100)]
    pubsub.publish(subscribed.names.topic, [*good[:50], b'{"id": "x100"}', b"oops", *good[50:]])

    def typed(subscription: str, schema: str) -> DataFrame:
        reader = streams.spark.readStream.format("penstock").options(settle="2", decode="json", mode="DROPMALFORMED")
        return reader.option("subscription", subscription).schema(schema).load()

    def dead() -> int:
        return sum(each.get("dead", 0) for each in client.call("describe", {"path": path})["consumers"])

    streams.run(typed(subscribed.names.subscription, "id long"), "store/orders")
    if not streams.tells_start:
        streams.run(typed(subscribed.names.subscription, "id long"), "store/orders")
    eventually(lambda: dead() == 2, within=60)
    rows = client.get(f"{path}/dead").read_all().to_pylist()
    assert {row["data"] for row in rows} == {b"oops", b'{"id": "x100"}'}
    assert client.redrive(path, topic.replace("projects/", "publish/").replace("/topics/", "/")) == 2
    assert dead() == 0
    assert sum(streams.run(typed(again, "id string"), "store/again", "again")) == 1
    assert sorted(client.get("store/orders").read_all()["id"].to_pylist()) == [*range(100)]
    assert client.get("store/again").read_all()["id"].to_pylist() == ["x100"]
