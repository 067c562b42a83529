"""Frames out to a queue: its splits have each row once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import penstock
from penstock import SplitPayload
from penstock.errors import InvalidRequest, WriteEnded
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from penstock.spark_plugin.heartbeat import Heartbeat
from penstock.spark_plugin.write import DoPut, Splits
from penstock.wire.actions import DESCRIBE, Target
from penstock.wire.queue import QueueCounts
from tests.kit.spark import Rows, end_driver, expected_rows, row_frame, start_driver, stored_rows
from tests.kit.spark_faults import FaultyPut, Marks, Once, fail_task
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("url_variable")]
IN = "queue/j/in"


def counts(client: Client, path: str = IN) -> QueueCounts:
    queue = client.call(DESCRIBE, Target(path)).queue
    assert queue is not None
    return queue.counts


def drained(client: Client, path: str = IN) -> list[SplitPayload]:
    """Return what a worker gets until the queue is complete."""
    splits = []
    for lease in client.claim(path):
        with lease as split:
            splits.append(split.payload)
    return splits


def rows_of(splits: list[SplitPayload]) -> Rows:
    rows: Rows = Counter()
    for split in splits:
        rows.update(zip(split.data["id"].to_pylist(), split.data["text"].to_pylist(), strict=True))
    return rows


def test_a_frame_is_drained_split_by_split(spark: SparkSession, client: Client) -> None:
    written = penstock.write(row_frame(spark, 100_000, 4), "store/j/in", queue=IN, split_rows=10_000)

    splits = drained(client)
    assert rows_of(splits) == expected_rows(100_000) == stored_rows("store/j/in")
    assert [split.data.num_rows for split in splits].count(10_000) == 8
    assert len(splits) == written.parts == 12


def test_a_run_that_is_written_again_pushes_nothing(spark: SparkSession, client: Client) -> None:
    for _ in range(2):
        penstock.write(row_frame(spark, 100, 2), "store/j/in", queue=IN, run="nightly", mode="append")
    assert (counts(client).pushed, rows_of(drained(client))) == (2, expected_rows(100))


def test_a_frame_without_rows_completes_its_queue(spark: SparkSession, client: Client) -> None:
    penstock.write(row_frame(spark, 100, 2).limit(0), "store/j/in", queue=IN)
    assert drained(client) == []


def test_a_job_that_fails_fails_its_queue_and_mends_it(spark: SparkSession, client: Client) -> None:
    broken = row_frame(spark, 100, 2).selectExpr("if(id > 70, raise_error('of the user'), id) AS id", "text")
    with pytest.raises(Exception, match="of the user"):
        penstock.write(broken, "store/j/in", queue=IN)
    assert (counts(client).state, counts(client).pushed) == ("failed", 0)

    penstock.write(row_frame(spark, 100, 2), "store/j/in", queue=IN)
    assert rows_of(drained(client)) == expected_rows(100)


def test_a_put_by_hand_fills_a_queue(spark: SparkSession, client: Client) -> None:
    put = penstock.do_put("store/j/in", queue=IN, split_rows=30)
    assert counts(client).state == "open"
    put.finish(row_frame(spark, 100, 2).mapInArrow(put, put.schema).collect())
    assert [split.data.num_rows for split in drained(client)] == [30, 20, 30, 20]


def test_tasks_wait_while_the_workers_are_behind(
    spark: SparkSession, make_server: Callable[..., PenstockServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Eight tasks of ten times the bound each wait for a write before them to be drained, and none fails."""
    server = make_server(data=tmp_path / "bounded", limits=ServerLimits(queue_messages=2))
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    with penstock.connect() as client:
        first, second = (penstock.do_put(f"store/j/{name}", queue=IN, split_rows=5) for name in "ab")
        first.finish(row_frame(spark, 800, 8).mapInArrow(first, first.schema).collect())
        assert counts(client).pending == 160
        splits: list[SplitPayload] = []
        worker = threading.Thread(target=lambda: splits.extend(drained(client)))
        frame = row_frame(spark, 1_600, 8, start=800).mapInArrow(second, second.schema)
        threading.Timer(1, worker.start).start()
        second.finish(frame.collect())
        assert counts(client).done > 150
        worker.join(60)
    assert rows_of(splits) == expected_rows(1_600)


def test_workers_start_while_spark_still_writes(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    """The second half of the partitions waits until a worker has rows of the first."""
    gate = str(tmp_path / "gate")

    def gated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for batch in batches:
            while batch["id"][0].as_py() >= 100 and not os.path.exists(gate):
                time.sleep(0.05)
            yield batch

    frame = row_frame(spark, 200, 4).mapInArrow(gated, "id long, text string")
    written: list[object] = []
    thread = threading.Thread(
        target=lambda: written.append(penstock.write(frame, "store/j/in", queue=IN, split_rows=10, release="partition"))
    )
    thread.start()
    eventually(lambda: any(entry.path == IN for entry in client.list("queue/")), within=60)
    splits: list[SplitPayload] = []
    for lease in client.claim(IN):
        assert splits or not written
        with lease as split:
            splits.append(split.payload)
        (tmp_path / "gate").touch()
    thread.join(60)
    assert len(written) == 1
    assert rows_of(splits) == expected_rows(200) == stored_rows("store/j/in")


@pytest.mark.parametrize("changes", [False, True])
def test_a_released_partition_may_come_again_with_its_rows(
    spark: SparkSession, client: Client, marks: Marks, changes: bool
) -> None:
    """Its task fails once the rows are released; others, if it isn't computed the same way, fail write and workers."""

    def drawn(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for batch in batches:
            texts = [os.urandom(4).hex() if changes else text for text in batch["text"].to_pylist()]
            yield pa.RecordBatch.from_pydict({"id": batch["id"], "text": pa.array(texts, pa.string())})

    frame = row_frame(spark, 200, 8).mapInArrow(drawn, "id long, text string")
    put = DoPut(client, "store/j/in", "error", None, None, Splits(IN, None, "partition"))
    faulty = frame.mapInArrow(FaultyPut(put, Once(marks, {("put", 5): fail_task})), put.schema)
    if not changes:
        assert put.finish(faulty).rows == 200
        assert rows_of(drained(client)) == expected_rows(200)
        return
    with pytest.raises(WriteEnded, match=r"computed partition 5 of stage \d+ again with other rows"), put:
        put.finish(faulty)
    with pytest.raises(WriteEnded, match=r"queue/j/in has failed: write/.* again with other rows"):
        drained(client)


def test_a_run_releases_nothing_early(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequest, match="omit run, or release='partition'"):
        penstock.write(row_frame(spark, 10, 1), "store/j/in", queue=IN, release="partition", run="nightly")


def test_options_that_contradict_are_refused_at_the_driver(spark: SparkSession, client: Client) -> None:
    with pytest.raises(InvalidRequest, match="queue='queue/…' with it"):
        penstock.write(row_frame(spark, 10, 1), "store/j/in", split_rows=5)
    with pytest.raises(InvalidRequest, match="so write to store/"):
        penstock.write(row_frame(spark, 10, 1), "topic/t", queue=IN)
    assert len(client.list("write/")) == 0


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_killed_driver_fails_its_queue_unless_it_is_replaced(
    spark: SparkSession, server: PenstockServer, client: Client, bare_python: Path, tmp_path: Path
) -> None:
    """By its run, or by a second try, each of which fills the queue once; then ten minutes pass."""
    folder, ledger = tmp_path / "driver", server.state.ledger
    process = start_driver(folder, bare_python, str(server.url), "dies_with_queues", "local[4]")
    marks = Marks(folder / "marks-dies_with_queues")
    try:
        for name in ("named", "again", "alone"):
            marks.await_mark(f"waits-{name}", 240)
            eventually(partial(has_an_attempt, client, f"store/{name}"))
    finally:
        end_driver(process)
    assert ledger.expire() == []
    replaced = {"named": "nightly", "again": None}
    for name, run in replaced.items():
        penstock.write(row_frame(spark, 100, 2), f"store/{name}", queue=f"queue/{name}", run=run)
        assert rows_of(drained(client, f"queue/{name}")) == expected_rows(100)

    now = ledger.monotonic
    ledger.monotonic = lambda: now() + 601
    assert len(ledger.expire()) == 2
    with pytest.raises(WriteEnded, match=r"queue/alone has failed: write/.* expired: nobody has put to it or finished"):
        drained(client, "queue/alone")
    assert [counts(client, f"queue/{name}").state for name in replaced] == ["complete", "complete"]


def has_an_attempt(client: Client, path: str) -> bool:
    """Whether the open write to a path has a whole attempt."""
    [write] = [entry.path for entry in client.list("write/") if str(entry.state).endswith(f"to {path}")]
    return bool(client.call("describe", {"path": write})["attempts"])


def test_a_driver_that_computes_for_long_gives_signs_of_life(server: PenstockServer, client: Client) -> None:
    put = penstock.do_put("store/j/in", queue=IN)
    opened = server.state.ledger.summary(put.write).touched
    beats = Heartbeat(client.connection, put._put, every=0.05)
    eventually(lambda: server.state.ledger.summary(put.write).touched != opened)
    beats.close()
    put.abort()
