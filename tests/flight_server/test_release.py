"""A write that releases each partition: the first whole evaluation's rows are given to workers, later ones compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.put import open_attempt
from penstock.errors import InvalidRequest, WriteEnded
from penstock.flight_server.server import PenstockServer
from penstock.wire.actions import ABORT_WRITE, FINISH_WRITE, OPEN_WRITE, AbortWrite, FinishWrite, OpenedWrite, OpenWrite
from penstock.wire.put import Receipt, SparkTask
from tests.kit.wait import files

IN = "queue/j/in"
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])


@pytest.fixture
def write(client: Client) -> OpenedWrite:
    request = OpenWrite("store/j/in", queue=IN, split_rows=4, release="partition")
    return client.call(OPEN_WRITE, request)


def evaluate(client: Client, write: OpenedWrite, task: SparkTask | None, ids: Sequence[int]) -> Receipt:
    """Put one evaluation of a partition."""
    table = pa.table({"id": ids, "x": [1 / (each + 1) for each in ids]}, SCHEMA)
    with open_attempt(client.connection, write.ticket, SCHEMA, task=task) as writer:
        writer.write(table)
    return writer.close()


def finish(client: Client, write: OpenedWrite, *receipts: Receipt) -> int:
    return client.call(FINISH_WRITE, FinishWrite(write.ticket, tuple(each.attempt for each in receipts))).rows


def state(client: Client) -> str:
    counts: dict[str, str] = client.call("describe", {"path": IN})["queue"]["counts"]
    return counts["state"]


def claimed_ids(client: Client, number: int) -> list[int]:
    """Return the ids in the next splits, which are acked."""
    ids: list[int] = []
    for lease in client.claim(IN, prefetch=0):
        with lease as split:
            ids += split.payload.data["id"].to_pylist()
        if len(ids) >= number:
            break
    return ids


def test_workers_have_a_partition_before_the_write_is_finished(client: Client, write: OpenedWrite) -> None:
    schema = evaluate(client, write, None, [])
    first = evaluate(client, write, SparkTask(1, 0, 10), range(6))
    assert claimed_ids(client, 6) == list(range(6))
    second = evaluate(client, write, SparkTask(1, 1, 11), range(6, 8))
    evaluate(client, write, SparkTask(1, 2, 12), [])
    assert state(client) == "open"
    assert finish(client, write, schema, first, second) == 8
    assert claimed_ids(client, 2) == [6, 7]
    assert state(client) == "complete"
    assert sorted(client.get("store/j/in").read_all()["id"].to_pylist()) == list(range(8))


def test_the_same_rows_again_end_with_the_first_receipt(
    client: Client, write: OpenedWrite, server: PenstockServer, tmp_path: Path
) -> None:
    """In another order, after the first's rows were worked on, and from a task with two evaluations."""
    tasks = [SparkTask(1, 0, attempt) for attempt in (10, 11)]
    first, second = evaluate(client, write, tasks[0], range(6)), evaluate(client, write, tasks[0], range(6, 8))
    stored = files(tmp_path / "data" / "parts")
    assert claimed_ids(client, 6) == list(range(6))
    assert evaluate(client, write, tasks[1], [5, 3, 4, 0, 1, 2]) == first
    assert evaluate(client, write, tasks[1], [7, 6]) == second
    assert files(tmp_path / "data" / "parts") == stored
    assert finish(client, write, first, second) == 8
    assert claimed_ids(client, 2) == [6, 7]


@pytest.mark.parametrize("others", [[0, 1, 2, 3, 4, 9], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4], []])
def test_other_rows_fail_the_write_and_its_workers(client: Client, write: OpenedWrite, others: list[int]) -> None:
    first = evaluate(client, write, SparkTask(7, 3, 10), range(6))
    evaluate(client, write, SparkTask(7, 3, 11), others)
    for _ in range(2):
        with pytest.raises(WriteEnded):
            finish(client, write, first)
    with pytest.raises(WriteEnded, match=f"write/{write.write} computed partition 3 of stage 7 again with other rows"):
        list(client.claim(IN))
    assert len(client.list("store/")) == 0


def test_a_partition_that_the_driver_lacks_fails_the_write(client: Client, write: OpenedWrite) -> None:
    first = evaluate(client, write, SparkTask(1, 0, 10), range(6))
    evaluate(client, write, SparkTask(1, 1, 11), range(6, 8))
    with pytest.raises(WriteEnded, match="released 2 partitions, of which the driver's receipts don't name the same"):
        finish(client, write, first)
    assert state(client) == "failed"


def test_a_put_that_named_no_task_is_not_among_the_released(client: Client, write: OpenedWrite) -> None:
    with pytest.raises(WriteEnded, match="don't name the same"):
        finish(client, write, evaluate(client, write, None, range(6)))


def test_a_new_write_mends_no_queue_that_had_released_rows(client: Client, write: OpenedWrite) -> None:
    evaluate(client, write, SparkTask(1, 0, 10), range(6))
    client.call(ABORT_WRITE, AbortWrite(write.ticket))
    client.call(OPEN_WRITE, OpenWrite("store/j/in", queue=IN))
    assert state(client) == "failed"


def test_options_that_contradict_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="queue='queue/…' with it"):
        client.call(OPEN_WRITE, OpenWrite("store/j/in", release="partition"))
    write = client.call(OPEN_WRITE, OpenWrite("store/j/in", queue=IN))
    with pytest.raises(InvalidRequest, match="its puts name no task"):
        evaluate(client, write, SparkTask(1, 0, 1), [1])
