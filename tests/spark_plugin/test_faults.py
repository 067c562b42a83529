"""Whatever Spark evaluates twice, in part, or again: a dataset holds the rows once, or isn't there."""

from __future__ import annotations

import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import AlreadyExists, NotFound
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import Run
from tests.kit.server import Puts
from tests.kit.spark import collected_rows, expected_rows, row_batch, row_frame, server_paths, stored_rows
from tests.kit.spark_faults import FaultyGet, FaultyPut, Marks, Once, fail_task, kill_worker, widen
from tests.kit.wait import eventually, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.usefixtures("url_variable", "nothing_stays")]


# --- evaluated twice, or in part -----------------------------------------------------------------


Shape = Callable[["DataFrame"], "DataFrame"]
TWICE: dict[str, Shape] = {
    "coalesce": lambda receipts: receipts.coalesce(2),  # eight evaluations under two partition ids
    "orderBy": lambda receipts: receipts.orderBy("rows", "attempt"),  # each evaluated twice, in one action
    "repartition": lambda receipts: receipts.repartition(3, "attempt"),
}


@pytest.mark.parametrize("shape", TWICE.values(), ids=TWICE)
def test_receipts_may_be_gathered_in_any_way(spark: SparkSession, shape: Shape) -> None:
    put = penstock.do_put("store/x")

    receipts = shape(row_frame(spark, 800, 8).mapInArrow(put, put.schema)).collect()
    written = put.finish(receipts)

    assert written.rows == sum(receipt.rows for receipt in receipts) == 800
    assert stored_rows("store/x") == expected_rows(800)


def test_a_sort_evaluates_everything_twice_in_one_action(spark: SparkSession) -> None:
    put = penstock.do_put("store/x")

    row_frame(spark, 800, 8).mapInArrow(put, put.schema).orderBy("attempt").collect()

    assert put.progress().attempts > 8, "or the test before this one proves nothing"


def test_two_actions_on_one_frame_and_one_finish(spark: SparkSession) -> None:
    put = penstock.do_put("store/x")
    receipts = row_frame(spark, 800, 8).mapInArrow(put, put.schema)

    assert receipts.count() == 8
    put.finish(receipts.collect())

    assert stored_rows("store/x") == expected_rows(800)


def test_a_frame_without_finish_leaves_only_an_open_write(
    spark: SparkSession, here: Run, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """`penstock ls write` says so."""
    put = penstock.do_put("store/x")

    row_frame(spark, 400, 40).mapInArrow(put, put.schema).show()

    assert "only showing top 20 rows" in capsys.readouterr().out
    with pytest.raises(NotFound):
        client.info("store/x")
    assert 20 < put.progress().attempts < 40, "show evaluates a part"
    listed = here("ls", "write", terminal=True).text
    assert f"write/{put.write}" in listed
    assert "until finish" in listed


@pytest.mark.parametrize("some", [lambda r: r.head(1), lambda r: r.limit(3).collect(), lambda r: r.take(2)])
def test_finish_shows_what_the_receipts_say_and_no_more(
    spark: SparkSession, some: Callable[[DataFrame], list[Any]]
) -> None:
    put = penstock.do_put("store/x")
    receipts = some(row_frame(spark, 800, 8).mapInArrow(put, put.schema))

    written = put.finish(receipts)

    assert written.rows == len(receipts) * 100
    found = stored_rows("store/x")
    assert found.total() == written.rows
    assert found <= expected_rows(800)


# --- failed, killed, tried again ------------------------------------------------------------------


@pytest.mark.parametrize("fault", [fail_task, kill_worker])
@pytest.mark.parametrize("step", ["begun", "half", "put"])
@pytest.mark.usefixtures("small_batches")
def test_a_retried_task_has_its_rows_once(
    spark: SparkSession, marks: Marks, puts: Puts, step: str, fault: Callable[[], None]
) -> None:
    put = penstock.do_put("store/x")
    task = FaultyPut(put, Once(marks, {(step, 1): fault, (step, 3): fault}))

    put.finish(widen(row_frame(spark, 800, 4)).mapInArrow(task, put.schema).collect())

    assert marks.seen(f"{step}-1")
    assert marks.seen(f"{step}-3")
    broken = [0 < rows < 200 for _, rows in puts.broken]
    assert broken == ([True, True] if step == "half" else []), "the server had some of their rows, or nothing open"
    assert stored_rows("store/x") == expected_rows(800)


def test_a_failed_job_leaves_the_path_and_the_disk_as_before(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    client.put("store/x", pa.Table.from_batches([row_batch(1, 2)]))
    kept = files(tmp_path / "data" / "parts")

    def always(step: str, partition: int) -> None:
        if (step, partition) == ("put", 3):
            raise RuntimeError("planted: this task fails each time")

    with (
        pytest.raises(Exception, match="planted: this task fails"),
        penstock.do_put("store/x", mode="overwrite") as put,
    ):
        put.finish(row_frame(spark, 800, 4).mapInArrow(FaultyPut(put, always), put.schema))

    assert put.progress().state == "aborted"
    assert stored_rows("store/x") == expected_rows(3, 1)
    eventually(lambda: files(tmp_path / "data" / "parts") == kept, what="what was aborted is swept")


def test_a_write_that_fails_puts_the_confs_back(spark: SparkSession) -> None:
    keys = ("spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch")
    before = [spark.conf.get(key, None) for key in keys]

    with pytest.raises(Exception, match="planted: no fifth"):
        penstock.write(spark.range(10).selectExpr("if(id = 5, raise_error('planted: no fifth'), id) as id"), "store/x")

    assert [spark.conf.get(key, None) for key in keys] == before
    assert server_paths(criteria=b"write/") == []


@pytest.mark.usefixtures("elsewhere")
def test_a_read_goes_on_where_its_worker_was_killed(spark: SparkSession, server: PenstockServer, marks: Marks) -> None:
    """With rows of a ticket in Spark's hands, and others still at the server: it has 30 MB."""
    penstock.write(widen(row_frame(spark, 400, 4), 75_000), "store/x", progress=False)
    get = penstock.do_get("store/x")

    def die_while_it_is_open() -> None:
        marks.ask_and_wait()
        kill_worker()

    marks.when_asked(lambda: eventually(lambda: server.state.streams.open_streams))
    task = FaultyGet(get, Once(marks, {("half", 0): die_while_it_is_open}))
    found = collected_rows(get.tickets(spark).mapInArrow(task, get.schema).select("id", "text"))

    assert marks.seen("done")
    assert found == expected_rows(400)


# --- two writers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "start", "end"), [("error", 0, 100), ("append", 0, 200), ("overwrite", 100, 200)])
def test_two_drivers_on_one_path(spark: SparkSession, mode: Any, start: int, end: int) -> None:
    first, second = penstock.do_put("store/x", mode=mode), penstock.do_put("store/x", mode=mode)
    frames = [row_frame(spark, 100, 2), row_frame(spark, 200, 2, start=100)]
    found = [frame.mapInArrow(put, put.schema).collect() for put, frame in zip((first, second), frames, strict=True)]

    first.finish(found[0])
    if mode == "error":
        with pytest.raises(AlreadyExists, match="choose mode 'append' or 'overwrite'"):
            second.finish(found[1])
    else:
        second.finish(found[1])

    assert stored_rows("store/x") == expected_rows(end, start)


def test_a_batch_that_a_stream_repeats_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        text = "".join(f'{{"id": {one}, "text": "row {one}"}}\n' for one in range(number * 10, number * 10 + 10))
        (tmp_path / "in" / f"{number}.json").write_text(text)
    seen: list[int] = []

    def batch_of(frame: DataFrame, number: int) -> None:
        seen.append(number)
        penstock.write(frame, "store/x", mode="append", run=("orders", number))

    def run() -> None:
        rows = (
            spark.readStream.schema("id long, text string").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        )
        query = rows.writeStream.foreachBatch(batch_of).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    for commit in [
        *(tmp_path / "checkpoint" / "commits").glob("*2"),
        *(tmp_path / "checkpoint" / "commits").glob(".2*"),
    ]:
        commit.unlink()
    run()

    assert seen == [0, 1, 2, 2]
    assert stored_rows("store/x") == expected_rows(30)


def test_workers_without_pyarrow_are_a_clear_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "none", symlinks=True)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "none" / "bin" / "python"))
    put = penstock.do_put("store/x")

    with pytest.raises(Exception, match="pyarrow"):
        row_frame(spark, 100, 2).mapInArrow(put, put.schema).collect()

    assert server_paths() == []
