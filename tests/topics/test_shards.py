"""Shards of rows without a key, and shards that a topic gets later: nobody misses a row."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics import keys
from penstock.queue.topics.retention import retain
from penstock.queue.topics.topic import Layout

KEYED, UNKEYED = Layout("j", "k", 4), Layout("j", None, 4)


def ids(by_shard: dict[int, list[pa.RecordBatch]]) -> dict[int, list[int]]:
    return {shard: [row for batch in batches for row in batch["id"].to_pylist()] for shard, batches in by_shard.items()}


def batches(*sizes: int, key: str | None = None) -> list[pa.RecordBatch]:
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    return [
        pa.record_batch({"id": range(first, end), "k": pa.array([key] * (end - first), pa.string())})
        for first, end in pairwise(ends)
    ]


# --- rows without a key ---------------------------------------------------------------------


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "RUN_ROWS", 10)


@pytest.mark.parametrize("layout", [KEYED, UNKEYED], ids=["null keys", "no key"])
@pytest.mark.parametrize("sizes", [(100,), (1,) * 100, (3, 0, 90, 7)], ids=["one", "many", "some"])
def test_rows_without_a_key_spread_over_all_shards(layout: Layout, sizes: tuple[int, ...], short_runs: None) -> None:
    by_shard, shard_of_row = keys.split(batches(*sizes), layout, 6)
    runs = {2: range(25), 3: range(25, 50), 0: range(50, 75), 1: range(75, 100)}
    assert ids(by_shard) == {shard: list(run) for shard, run in runs.items()}
    assert shard_of_row is not None
    assert shard_of_row.to_pylist() == [2] * 25 + [3] * 25 + [0] * 25 + [1] * 25


def test_a_column_that_is_missing_is_no_key(short_runs: None) -> None:
    by_shard, _ = keys.split([batch.drop_columns(["k"]) for batch in batches(40)], KEYED, 0)
    assert {shard: len(rows) for shard, rows in ids(by_shard).items()} == dict.fromkeys(range(4), 10)


def test_a_run_of_few_rows_is_one_file(short_runs: None) -> None:
    assert ids(keys.split(batches(9, 10), UNKEYED, 7)[0]) == {3: list(range(19))}
    assert [len(rows) for rows in ids(keys.split(batches(29), UNKEYED, 7)[0]).values()] == [14, 15]
    assert keys.split(batches(0), UNKEYED, 0) == ({}, None)


def test_rows_with_a_key_stay_beside_rows_without() -> None:
    alone, _ = keys.split(batches(40, key="a"), KEYED, 3)
    [of_a] = alone
    by_shard, _ = keys.split([*batches(80, key="a"), *batches(80)], KEYED, 0)
    sizes = {shard: len(rows) for shard, rows in ids(by_shard).items()}
    assert sum(sizes.values()) == 160
    assert sizes[of_a] >= 80


def test_large_puts_without_a_key_keep_their_parts_whole() -> None:
    parts = [batches(10), batches(20), batches(30)]
    assert list(keys.sharded(parts, UNKEYED, 3)) == [(3, parts[0]), (0, parts[1]), (1, parts[2])]


def test_every_shard_has_rows_of_a_put_and_of_a_producer(client: Client, short_runs: None) -> None:
    client.create_topic("topic/x", "id long", shards=4)
    client.put("topic/x", pa.table({"id": range(100)}))
    with client.producer("topic/x") as producer:
        for first in range(100, 200, 5):
            producer.send(pa.table({"id": range(first, first + 5)}))
    shards = client.call("describe", {"path": "topic/x"})["shards"]
    assert sum(shard["next"] for shard in shards) == 200
    assert min(shard["next"] for shard in shards) >= 45
    assert sorted(client.get("topic/x").read_all()["id"].to_pylist()) == list(range(200))


# --- more shards ----------------------------------------------------------------------------


def test_a_follower_reads_shards_that_come_later(client: Client, short_runs: None) -> None:
    client.put("topic/x", pa.table({"id": range(10)}))
    follower = client.follow("topic/x", start="earliest")
    seen: list[int] = next(follower)["id"].to_pylist()
    client.alter_topic("topic/x", shards=4)
    client.put("topic/x", pa.table({"id": range(10, 50)}))
    while len(seen) < 50:
        seen += next(follower)["id"].to_pylist()
    assert sorted(seen) == list(range(50))
    assert follower.position == {0: 20, 1: 10, 2: 10, 3: 10}


def test_a_position_without_the_new_shards_is_before_their_rows(client: Client, short_runs: None) -> None:
    client.put("topic/x", pa.table({"id": range(10)}))
    position = client.follow("topic/x").position
    client.alter_topic("topic/x", shards=2)
    client.put("topic/x", pa.table({"id": range(10, 30)}))
    rows = client.get("topic/x", start=position).read_all()
    assert sorted(rows["id"].to_pylist()) == list(range(10, 30))


def test_a_consumer_holds_the_rows_of_shards_that_come_later(
    client: Client, server: PenstockServer, short_runs: None
) -> None:
    """Its position was committed before, and doesn't name them."""
    client.put("topic/x", pa.table({"id": range(10)}))
    journal = client.call("describe", {"path": "topic/x"})["journal"]
    reader = {"path": "topic/x", "journal": journal, "consumer": "c", "session": "s"}
    client.call("consumer.attach", {**reader, "initial": {"0": 0}})
    client.call("consumer.commit", {**reader, "position": {"0": 10}})
    client.alter_topic("topic/x", shards=3, keep_seconds=0)
    client.put("topic/x", pa.table({"id": range(10, 40)}))
    retain(server.state.ledger)
    offsets = client.call("consumer.offsets", {**reader, "start": {"0": 10}})
    assert (offsets["rows"], offsets["start"]["1"], offsets["end"]["1"]) == (30, 0, 10)
    client.call("consumer.commit", {**reader, "position": {"0": 20, "1": 10, "2": 10}})
    assert retain(server.state.ledger) == 30, "its own ten were removed before"
