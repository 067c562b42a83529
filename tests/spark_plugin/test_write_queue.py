"""Frames out to a queue: its splits have each row once."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import SplitPayload, SplitPayloadStore
from penstock.errors import InvalidRequest
from penstock.flight_server.server import PenstockServer
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.spark_plugin.heartbeat import Heartbeat
from tests.kit.spark import Rows, expected_rows, row_frame, stored_rows
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("url_variable")]
IN = "queue/j/in"


@pytest.fixture
def queue(server: PenstockServer) -> LedgerQueue:
    return LedgerQueue(server.state.ledger)


def drained(queue: LedgerQueue) -> list[SplitPayload]:
    """Claim, load and ack splits until the queue is complete."""
    splits: list[SplitPayload] = []
    store = SplitPayloadStore()
    while (claim := queue.claim(IN, uuid.uuid4().hex, worker="w", most=7)).state == "open":
        assert claim.leases, "an open queue without messages: nobody would push any more"
        splits += [payload for lease in claim.leases if (payload := store.get(lease.message.payload_key)) is not None]
        assert {each.state for each in queue.ack([lease.key for lease in claim.leases])} == {"done"}
    assert claim.state == "complete"
    return splits


def rows_of(splits: list[SplitPayload]) -> Rows:
    rows: Rows = Counter()
    for split in splits:
        rows.update(zip(split.data["id"].to_pylist(), split.data["text"].to_pylist(), strict=True))
    return rows


def test_a_frame_is_drained_split_by_split(spark: SparkSession, queue: LedgerQueue) -> None:
    written = penstock.write(row_frame(spark, 100_000, 4), "store/j/in", queue=IN, split_rows=10_000)

    splits = drained(queue)
    assert rows_of(splits) == expected_rows(100_000) == stored_rows("store/j/in")
    assert [split.data.num_rows for split in splits].count(10_000) == 8
    assert len(splits) == written.parts == 12
    assert all(split.split_id.startswith("j/in@") for split in splits)


def test_a_run_that_is_written_again_pushes_nothing(spark: SparkSession, queue: LedgerQueue) -> None:
    for _ in range(2):
        penstock.write(row_frame(spark, 100, 2), "store/j/in", queue=IN, run="nightly", mode="append")
    assert (queue.counts(IN).pushed, rows_of(drained(queue))) == (2, expected_rows(100))


def test_a_frame_without_rows_completes_its_queue(spark: SparkSession, queue: LedgerQueue) -> None:
    penstock.write(row_frame(spark, 100, 2).limit(0), "store/j/in", queue=IN)
    assert drained(queue) == []


def test_a_job_that_fails_fails_its_queue_and_mends_it(spark: SparkSession, queue: LedgerQueue) -> None:
    broken = row_frame(spark, 100, 2).selectExpr("if(id > 70, raise_error('of the user'), id) AS id", "text")
    with pytest.raises(Exception, match="of the user"):
        penstock.write(broken, "store/j/in", queue=IN)
    assert (queue.counts(IN).state, queue.counts(IN).pushed) == ("failed", 0)

    penstock.write(row_frame(spark, 100, 2), "store/j/in", queue=IN)
    assert rows_of(drained(queue)) == expected_rows(100)


def test_a_put_by_hand_fills_a_queue(spark: SparkSession, queue: LedgerQueue) -> None:
    put = penstock.do_put("store/j/in", queue=IN, split_rows=30)
    assert queue.counts(IN).state == "open"
    put.finish(row_frame(spark, 100, 2).mapInArrow(put, put.schema).collect())
    assert [split.data.num_rows for split in drained(queue)] == [30, 20, 30, 20]


def test_options_that_contradict_are_refused_at_the_driver(spark: SparkSession, client: Client) -> None:
    with pytest.raises(InvalidRequest, match="queue='queue/…' with it"):
        penstock.write(row_frame(spark, 10, 1), "store/j/in", split_rows=5)
    with pytest.raises(InvalidRequest, match="so write to store/"):
        penstock.write(row_frame(spark, 10, 1), "topic/t", queue=IN)
    assert len(client.list("write/")) == 0


def test_a_driver_that_computes_for_long_gives_signs_of_life(server: PenstockServer, client: Client) -> None:
    put = penstock.do_put("store/j/in", queue=IN)
    opened = server.state.ledger.summary(put.write).touched
    beats = Heartbeat(client.connection, put._put, every=0.05)
    eventually(lambda: server.state.ledger.summary(put.write).touched != opened)
    beats.close()
    put.abort()
