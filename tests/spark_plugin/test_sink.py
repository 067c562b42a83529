"""`writeStream.format("penstock")`: an epoch is there once, whole or not at all, however often Spark brings it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import Internal
from penstock.ledger.ledger import Ledger
from penstock.wire.actions import Summary
from tests.kit.streams import IN, LIMIT, Streams, ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = pytest.mark.spark


def counted(streams: Streams) -> DataFrame:
    """How often each city came, which is small enough to be written whole at each epoch."""
    return streams.stream().groupBy("city").count()


def counts(streams: Streams, path: str = "store/out") -> dict[str, int]:
    found = streams.client.get(path).read_all().to_pydict()
    return dict(zip(found["city"], found["count"], strict=True))


@pytest.fixture(autouse=True)
def few_shuffles(streams: Streams) -> Iterator[None]:
    streams.spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    streams.spark.conf.set("spark.sql.shuffle.partitions", "4")


@pytest.mark.parametrize("path", ["store/out", "topic/out"])
def test_an_epoch_that_is_committed_again_adds_nothing(path: str, streams: Streams) -> None:
    """The driver died between the sink's commit and Spark's: its commit log lacks the last epoch."""
    for first in (0, 10):
        streams.put(first, 10)
        streams.run(streams.stream(), path)
    last = max(streams.logged("commits"))
    for file in (streams.folder / "c" / "commits").glob(f"*{last}*"):
        file.unlink()
    streams.put(20, 10)

    rows = streams.run(streams.stream(), path)
    assert rows[0] == 10, "the epoch was repeated"
    while sum(rows) < 20:  # before 4.2 AvailableNow ends with the repeated epoch
        rows += streams.run(streams.stream(), path)
    assert streams.ids(path) == list(range(30))
    assert len(streams.client.list("write/")) == 0


def test_a_query_with_another_checkpoint_is_another_query(streams: Streams) -> None:
    """Its epochs begin at 0, too, and are written."""
    streams.put(0, 3)
    for checkpoint in ("a", "b"):
        streams.run(streams.stream(), "store/out", checkpoint)
    assert streams.ids("store/out") == [0, 1, 2] * 2


def test_a_task_that_fails_at_first_is_written_once(streams: Streams, tmp_path: Path) -> None:
    streams.put(0, 100)
    marks = str(tmp_path)

    def once(batches: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            mark = f"{marks}/{batch.column(0)[0].as_py()}"
            if not os.path.exists(mark):
                open(mark, "w").close()
                raise OSError("planted")

    frame = streams.stream(minPartitions=2).mapInArrow(once, "id long, city string")
    assert streams.run(frame, "store/out") == [100]
    assert len(list(tmp_path.glob("[0-9]*"))) == 2
    assert sorted(streams.ids("store/out")) == list(range(100))
    assert len(streams.client.list("write/")) == 0


def test_a_task_that_always_fails_leaves_nothing_to_see(streams: Streams) -> None:
    """The tasks that were done are told to the abort, and end the write. The query goes on when the cause is gone."""
    streams.put(0, 10)
    bad = streams.stream(minPartitions=2).selectExpr("if(id < 9, id, raise_error('planted')) id", "city")
    with pytest.raises(Exception, match="planted"):
        streams.run(bad, "store/out")
    assert len(streams.client.list()) == 0
    streams.run(streams.stream(), "store/out")
    assert streams.ids("store/out") == list(range(10))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_without_an_answer_is_made_again(when: str, streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the server had done it or not, the epoch is there once when the query has started again."""
    streams.put(0, 10)
    finish = Ledger.finish

    def lost(ledger: Ledger, write: str, attempts: list[str], **run: Any) -> Summary:
        if when == "after":
            finish(ledger, write, attempts, **run)
        raise Internal("planted: no answer")

    with monkeypatch.context() as here:
        here.setattr(Ledger, "finish", lost)
        with pytest.raises(Exception, match="planted: no answer"):
            streams.run(streams.stream(), "store/out")
    assert [entry.rows for entry in streams.client.list()] == ([10] if when == "after" else [])
    streams.run(streams.stream(), "store/out")
    assert streams.ids("store/out") == list(range(10))
    assert len(streams.client.list("write/")) == 0


# --- modes ---------------------------------------------------------------------------------


def complete(streams: Streams, frame: DataFrame, path: str = "store/out") -> list[int]:
    writer = frame.writeStream.format("penstock").outputMode("complete")
    writer = writer.option("checkpointLocation", str(streams.folder / "c"))
    return ended(writer.trigger(availableNow=True).start(path))


def test_complete_mode_replaces_the_dataset(streams: Streams) -> None:
    streams.put(0, 4)
    complete(streams, counted(streams))
    assert counts(streams) == {f"city {number}": 1 for number in range(4)}
    streams.put(2, 3)
    complete(streams, counted(streams))
    assert counts(streams) == {"city 0": 1, "city 1": 1, "city 2": 2, "city 3": 2, "city 4": 1}
    assert len(streams.client.list("write/")) == 0


def test_complete_mode_replaces_it_by_nothing_too(streams: Streams) -> None:
    streams.put(0, 2)
    once = counted(streams).filter("count = 1")
    complete(streams, once)
    assert counts(streams) == {"city 0": 1, "city 1": 1}
    streams.put(0, 2)
    complete(streams, once)
    assert counts(streams) == {}


def test_complete_mode_is_refused_for_a_topic_with_the_cure(streams: Streams) -> None:
    streams.put(0, 2)
    with pytest.raises(Exception, match=r"topic/out is a topic, whose rows don't change.*outputMode\('append'\)"):
        complete(streams, counted(streams), "topic/out")
    assert [entry.path for entry in streams.client.list("topic/")] == [IN]
    assert len(streams.client.list("write/")) == 0


def test_spark_itself_refuses_update_mode(streams: Streams) -> None:
    """docs/streaming.md says so; the day that it doesn't, the page is wrong, and this sink would append."""
    streams.put(0, 2)
    writer = counted(streams).writeStream.format("penstock").outputMode("update")
    with pytest.raises(Exception, match="does not support Update mode"):
        ended(writer.option("checkpointLocation", str(streams.folder / "c")).start("store/out"))


# --- epochs without rows, options ----------------------------------------------------------


@pytest.mark.parametrize("path", ["store/out", "topic/out"])
def test_an_epoch_without_rows_leaves_all_as_it_was(path: str, streams: Streams) -> None:
    streams.put(0, 10)
    frame = streams.stream().filter("id >= 10")
    assert streams.run(frame, path) == [10]
    assert path not in [entry.path for entry in (*streams.client.list(), *streams.client.list("topic/"))]
    streams.put(10, 5)
    streams.run(frame, path)
    streams.put(0, 3)
    streams.run(frame, path)
    assert streams.ids(path) == list(range(10, 15))
    assert len(streams.client.list("write/")) == 0


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (lambda w: w.option("run", "a").start("store/out"), "'run' is for a write, this is a streaming write"),
        (lambda w: w.option("txnAppId", "a").start("store/out"), "no option 'txnAppId'; did you mean 'run'"),
        (lambda w: w.start(), r"'path' is missing: say \.start\('store/…'\)"),
        (
            lambda w: w.options(
                asyncProgressTrackingEnabled="true", _asyncProgressTrackingOverrideSinkSupportCheck="true"
            ).start("store/out"),
            "asyncProgressTracking doesn't repeat an epoch with the same rows",
        ),
    ],
    ids=["run", "elsewhere", "path", "async"],
)
def test_what_cant_be_meant_is_refused(start: Callable[[Any], Any], said: str, streams: Streams) -> None:
    streams.put(0, 3)
    writer = streams.stream().writeStream.format("penstock").option("checkpointLocation", str(streams.folder / "c"))
    with pytest.raises(Exception, match=said):
        ended_or_stopped(start(writer))
    assert len(streams.client.list()) == len(streams.client.list("write/")) == 0


def ended_or_stopped(query: Any) -> None:
    """Not by AvailableNow, which async progress tracking doesn't know."""
    assert query.awaitTermination(LIMIT), "it goes on"
    query.stop()


def test_rows_that_dont_fit_end_the_query_with_the_difference(streams: Streams) -> None:
    streams.client.put("store/out", pa.table({"name": ["a"]}))
    streams.put(0, 3)
    with pytest.raises(Exception, match="store/out has another schema: lacks name string"):
        streams.run(streams.stream(), "store/out")
    assert streams.client.get("store/out").read_all().num_rows == 1
