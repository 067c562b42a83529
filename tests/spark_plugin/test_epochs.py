"""The sink's objects on their way through Spark's processes: an epoch is written once, and no task has the token."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import InvalidRequest, NotFound
from tests.kit.server import TOKEN, sorted_ids

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")

from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

from penstock.spark_plugin.worker.pieces import TAKES_ARROW

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("id", LongType(), False)])
ARROW = pa.schema([pa.field("id", pa.int64(), False)])


def writer(path: str, overwrite: bool = False) -> Any:
    """As each of Spark's processes makes one."""
    kind = pickle.loads(cloudpickle.dumps(penstock.DataSource))
    return kind(options={"path": path}).streamWriter(SCHEMA, overwrite)


def put(path: str, *tasks: list[int], query: str = "q", overwrite: bool = False) -> list[Any]:
    """What the tasks of an epoch say, in the process of its commit."""
    raw = cloudpickle.dumps(writer(path, overwrite))
    assert TOKEN.encode() not in raw
    messages = []
    for ids in tasks:
        batches: list[Any] = [pa.record_batch({"id": ids}, schema=ARROW)] if ids else []
        message = pickle.loads(raw).write(iter(batches if TAKES_ARROW else [(number,) for number in ids]))
        message.query = query  # which is Spark's to say
        messages.append(message)
    raw = cloudpickle.dumps(messages)
    assert TOKEN.encode() not in raw
    return pickle.loads(raw)  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", ["store/x", "topic/x"])
def test_an_epoch_that_comes_again_adds_nothing(path: str, token_client: Client) -> None:
    """Spark has lost its commit: the tasks run again, and put the rows anew."""
    for _ in range(3):
        writer(path).commit(put(path, [1, 2], [3]), 0)
    writer(path).commit(put(path, [4]), 1)
    writer(path).commit(put(path, [5], query="other"), 1)

    assert sorted_ids(token_client, path) == [1, 2, 3, 4, 5]
    assert len(token_client.list("write/")) == 0


def test_an_epoch_that_comes_again_with_other_rows_says_so(
    token_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Another driver, with a copy of the checkpoint, has written it: its rows count, and these nobody writes again."""
    writer("store/x").commit(put("store/x", [1, 2], [3]), 0)
    writer("store/x").commit(put("store/x", [1, 2], [3]), 0)
    assert caplog.records == []
    writer("store/x").commit(put("store/x", [1, 2], [3, 4]), 0)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "store/x: run q/0 was written before, with 3 rows, and the 4 rows that come now are left out" in told
    assert sorted_ids(token_client, "store/x") == [1, 2, 3]


def test_a_commit_that_comes_again_is_the_same(token_client: Client) -> None:
    """Its answer was lost."""
    messages = put("store/x", [1, 2], [3])
    for _ in range(2):
        writer("store/x").commit(messages, 0)
    assert sorted_ids(token_client, "store/x") == [1, 2, 3]


def test_a_task_that_ran_twice_counts_once(token_client: Client) -> None:
    first, again = put("store/x", [1, 2], [1, 2])
    writer("store/x").commit([again], 0)
    assert first.receipts != again.receipts
    assert sorted_ids(token_client, "store/x") == [1, 2]


def test_an_epoch_that_is_aborted_leaves_nothing(token_client: Client) -> None:
    writer("store/x").abort([None, *put("store/x", [1])], 0)
    writer("store/x").abort([None], 0)
    assert len(token_client.list()) == len(token_client.list("write/")) == 0


def test_an_epoch_without_rows_leaves_nothing(token_client: Client) -> None:
    writer("store/x").commit(put("store/x", [], []), 0)
    assert len(token_client.list()) == len(token_client.list("write/")) == 0
    with pytest.raises(NotFound):
        token_client.info("store/x")


def test_an_overwrite_without_rows_leaves_no_rows(token_client: Client) -> None:
    for epoch, rows in enumerate(([1, 2], [], [], [3])):
        writer("store/x", True).commit(put("store/x", rows, overwrite=True), epoch)
        assert sorted_ids(token_client, "store/x") == rows
    assert len(token_client.list("write/")) == 0


def test_only_the_writer_that_goes_to_the_tasks_opens_a_write(token_client: Client) -> None:
    one = writer("store/x")
    assert len(token_client.list("write/")) == 0
    for _ in range(2):
        cloudpickle.dumps(one)
    assert len(token_client.list("write/")) == 1


def test_a_topic_isnt_overwritten(token_client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"topic/x is a topic, whose rows don't change.*outputMode\('append'\)"):
        writer("topic/x", True)
