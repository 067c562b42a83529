"""A Spark driver with executors of its own; its arguments are `URL FOLDER SCENARIO,… [MASTER]`.

local[2] would hide the faults: executors die, a slow task gets a second attempt, shuffle files are lost.
For each scenario a line of JSON is printed: the rows written, or the error. The next one begins with a line of stdin.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from penstock.errors import WriteEnded
from penstock.spark_plugin.write import DoPut, Splits
from tests.kit.spark import CONFS, row_frame
from tests.kit.spark_faults import (
    Batches,
    Fault,
    FaultyGet,
    FaultyPut,
    FaultyTask,
    Marks,
    Once,
    kill_executor,
    kill_worker,
    same,
    widen,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_200
TASKS = 4
"""Of an epoch."""
CLUSTER = "local-cluster[2,1,512]"
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.python.task.killTimeout": "120s",  # for so long the worker of a task that isn't needed any more goes on
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.sql.adaptive.enabled": "false",  # which would read shuffles in other pieces than the scenarios name
}

_JAVA = """#!/usr/bin/env bash
given=("$@") host= number=
for at in "${!given[@]}"; do
    case "${given[at]}" in
        --executor-id) number=${given[at + 1]} ;;
        --hostname) host=$((at + 1)) ;;
    esac
done
[ -z "$host" ] || given[host]=127.0.1.$((number + 1))
exec JAVA "${given[@]}"
"""
"""Gives each executor an address of its own: Spark runs a second attempt of a task on another host, or not at all."""


def killed_executor(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """An executor dies in the middle of a put, another when a put is whole and its receipt hasn't left."""
    put = penstock.do_put("store/killed")
    task = FaultyPut(put, Once(marks, {("half", 1): kill_executor, ("put", 4): kill_executor}))
    receipts = widen(row_frame(spark, ROWS, 6)).mapInArrow(task, put.schema).collect()
    return {"rows": put.finish(receipts).rows, "happened": [marks.seen("half-1"), marks.seen("put-4")]}


def killed_executor_reading(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """An executor dies with rows of a ticket delivered and others at the server, of 30 MB, another before it reads."""
    penstock.write(widen(row_frame(spark, ROWS, 6), 75_000), "store/read", progress=False)
    get = penstock.do_get("store/read")

    def kill_while_it_is_open() -> None:
        marks.ask_and_wait()
        kill_executor()

    task = FaultyGet(get, Once(marks, {("half", 1): kill_while_it_is_open, ("begun", 2): kill_executor}))
    rows = get.tickets(spark).mapInArrow(task, get.schema).select("id", "text").collect()
    return {"found": sorted(map(tuple, rows)), "happened": [marks.seen("done"), marks.seen("begun-2")]}


def speculation(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A slow task gets a second attempt; both put all of it, and both are whole."""
    put = penstock.do_put("store/speculated")

    def slow(step: str, partition: int) -> None:
        if (step, partition) == ("half", 3) and marks.first("slow"):
            marks.await_mark("overtaken", 120)
        elif (step, partition) == ("put", 3):
            if marks.first("overtaken"):
                marks.await_mark("both", 120)
            marks.first("both")

    receipts = widen(row_frame(spark, ROWS, 6)).mapInArrow(FaultyPut(put, slow), put.schema).collect()
    attempts = put.progress().attempts
    return {"rows": put.finish(receipts).rows, "happened": [marks.seen("both"), attempts > 6]}


def zombie(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A slow attempt that a second one has made needless goes on, and its put is whole after finish has returned."""
    put, folder = penstock.do_put("store/zombie"), marks.folder

    def slow(step: str, partition: int) -> None:
        if (step, partition) == ("all", 3) and marks.first("slow"):
            marks.await_mark("finished", 120)

    task = FaultyPut(put, slow)

    def watched(batches: Batches) -> Batches:
        try:
            yield from task(batches)
        except Exception as error:
            Path(folder, f"ended by {type(error).__name__}").touch()
            raise

    written = put.finish(widen(row_frame(spark, ROWS, 6)).mapInArrow(watched, put.schema).collect())
    with penstock.connect() as client:
        before = client.info("store/zombie").changed
        marks.first("finished")
        marks.await_mark("ended by WriteEnded")
        return {"rows": written.rows, "happened": [client.info("store/zombie").changed == before]}


def lost_shuffle(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """Shuffle files are lost when a partition is put: Spark makes them again in a second attempt of the stage."""
    put = penstock.do_put("store/shuffled")
    shuffled = row_frame(spark, ROWS, 6).repartition(6, "id")
    receipts = shuffled.mapInArrow(_losing(put, marks), put.schema).collect()
    written = put.finish(receipts)
    return {"rows": written.rows, "happened": [marks.seen("lost"), _stage_again(spark, "lost_shuffle")]}


def random_key(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """The same with a key that is another one each time, so that the rows fall otherwise: all again, or an error."""
    put = penstock.do_put("store/random")
    receipts = _by_random_key(spark).mapInArrow(_losing(put, marks), put.schema).collect()
    return {"rows": put.finish(receipts).rows, "happened": [marks.seen("lost"), _stage_again(spark, "random_key")]}


def random_key_then_shuffle(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """And with a shuffle after the put, which Spark can take back: the put's stage is run anew."""
    put = penstock.do_put("store/then")
    receipts = _by_random_key(spark).mapInArrow(_losing(put, marks), put.schema).repartition(3, "attempt").collect()
    return {
        "rows": put.finish(receipts).rows,
        "happened": [marks.seen("lost"), _stage_again(spark, "random_key_then_shuffle")],
    }


def released_lost_shuffle(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """In the third of four waves a worker dies whose partition was released, and all shuffle files are lost."""
    shuffled = row_frame(spark, ROWS, 6).repartition(8, "id")
    told = _release("released_lost_shuffle", shuffled, Once(marks, {("put", 5): _losing_and_dying()}))
    return {**told, "happened": [marks.seen("put-5"), _stage_again(spark, "released_lost_shuffle")]}


def released_random_key(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """The same with a key that is another one each time, and the first partition: no task of Spark's is done."""
    fault = Once(marks, dict.fromkeys([("put", 0), ("put", 1)], _losing_and_dying()))
    told = _release("released_random_key", _by_random_key(spark), fault)
    return {**told, "happened": [marks.seen("put-0") or marks.seen("put-1")]}  # the first to die may end the job


def released_speculation(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A slow task gets a second attempt, and both put all of it: the second one's rows are in another order."""

    def slow(step: str, partition: int) -> None:
        if (step, partition) == ("all", 3) and marks.first("slow"):
            marks.await_mark("overtaken", 120)
        elif (step, partition) == ("put", 3):
            if marks.first("overtaken"):
                marks.await_mark("both", 120)
            marks.first("both")

    told = _release("released_speculation", row_frame(spark, ROWS, 6).repartition(6, "id"), slow)
    return {**told, "happened": [marks.seen("both")]}


def streamed_speculation(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A slow task of an epoch gets a second attempt; the test keeps that at the server until both are whole."""
    from pyspark import cloudpickle

    def slow(step: str, partition: int) -> None:
        if (step, partition) == ("half", 1) and marks.first("slow"):
            marks.await_mark("overtaken", 120)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(penstock.DataSource)
    rows = spark.readStream.format("penstock").option("minPartitions", TASKS).load("topic/in")
    faulty = rows.mapInArrow(FaultyTask(same, slow), "id long, text string")
    sink = faulty.writeStream.format("penstock").option("checkpointLocation", f"{marks.folder}/checkpoint")
    query = sink.trigger(availableNow=True).start("store/epochs")
    assert query.awaitTermination(180), "the query does not end"
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    return {"rows": batches, "happened": [marks.seen("overtaken")]}


def never_ends(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A driver to be killed while it writes and reads."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda task: task(spark, marks), (_never_written, _never_read)))
    return {}


def _never_written(spark: SparkSession, marks: Marks) -> None:
    """Half of the partitions are whole, the others are in the middle."""
    put = penstock.do_put("store/new", run="orphan")

    def wait(step: str, partition: int) -> None:
        if step == "half" and partition >= 2:
            marks.first(f"waits-{partition}")
            time.sleep(600)

    put.finish(widen(row_frame(spark, ROWS, 4)).mapInArrow(FaultyPut(put, wait), put.schema).collect())


def dies_with_queues(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A driver to be killed in three writes, each to a queue of its own: a partition is whole, the other one waits."""

    def write(name: str) -> None:
        put = penstock.do_put(f"store/{name}", queue=f"queue/{name}", run="nightly" if name == "named" else None)

        def wait(step: str, partition: int) -> None:
            if (step, partition) == ("all", 1):
                marks.first(f"waits-{name}")
                time.sleep(600)

        put.finish(row_frame(spark, ROWS, 2).mapInArrow(FaultyTask(put, wait), put.schema).collect())

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, ("named", "again", "alone")))
    return {}


def _never_read(spark: SparkSession, marks: Marks) -> None:
    """Tasks have read the first of many batches: 30 MB, as gRPC reads 18 MB ahead."""
    penstock.write(widen(row_frame(spark, ROWS, 4), 100_000), "store/padded", progress=False)
    get = penstock.do_get("store/padded")
    folder = marks.folder

    def dawdle(batches: Batches) -> Batches:
        for batch in get(batches):
            Path(folder, f"reads-{os.getpid()}").touch()
            time.sleep(600)
            yield batch

    get.tickets(spark).mapInArrow(dawdle, get.schema).collect()


SCENARIOS: dict[str, Callable[[SparkSession, Marks], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        killed_executor, killed_executor_reading, speculation, zombie, lost_shuffle, random_key,
        random_key_then_shuffle, released_lost_shuffle, released_random_key, released_speculation, streamed_speculation,
        never_ends, dies_with_queues,
    )
}  # fmt: skip


def _release(name: str, frame: DataFrame, fault: Fault) -> dict[str, Any]:
    """Write a frame that is released by partition, while a worker claims it; return what both have, or their errors."""
    told: dict[str, Any] = {}
    with penstock.connect() as client, ThreadPoolExecutor() as pool:
        put = DoPut(client, f"store/{name}", "error", None, None, Splits(f"queue/{name}", None, "partition"))
        working = pool.submit(_work, f"queue/{name}")
        try:
            with put:
                told["rows"] = put.finish(frame.mapInArrow(FaultyTask(put, fault), put.schema)).rows
        except Exception as error:
            told["error"] = str(error)[:5000]
        told["claimed"], told["cause"] = working.result(120)
    return told


def _work(queue: str) -> tuple[list[tuple[int, str]], str | None]:
    """Return the rows that a worker gets until the queue is complete, or has failed, and why."""
    rows: list[tuple[int, str]] = []
    with penstock.connect() as client:
        try:
            for lease in client.claim(queue):
                with lease as split:
                    data = split.payload.data
                    rows += zip(data["id"].to_pylist(), data["text"].to_pylist(), strict=True)
        except WriteEnded as failed:
            return rows, str(failed)
    return rows, None


def _by_random_key(spark: SparkSession) -> DataFrame:
    def keyed(batches: Batches) -> Batches:
        import random

        import pyarrow as pa

        for batch in batches:
            keys = pa.array([random.randrange(6) for _ in range(batch.num_rows)], pa.int64())
            yield batch.append_column("key", keys)

    frame = row_frame(spark, ROWS, 6).mapInArrow(keyed, "id long, text string, key long")
    return frame.repartition(6, "key").drop("key")


def _lose_files(folder: str) -> Callable[[], None]:
    """Return what deletes the shuffle files of all executors."""

    def lose() -> None:
        for file in Path(folder).rglob("shuffle_*"):
            file.unlink(missing_ok=True)

    return lose


def _losing_and_dying() -> Callable[[], None]:
    """Return what deletes all shuffle files, then kills the task's worker: the task is tried again, and misses them."""
    lose_files = _lose_files(os.environ["SPARK_LOCAL_DIRS"])

    def lose_and_die() -> None:
        lose_files()
        kill_worker()

    return lose_and_die


def _losing(put: Any, marks: Marks) -> FaultyTask:
    """When the first partition is put, the shuffle files of all executors are deleted, which four others still want."""
    lose_files = _lose_files(os.environ["SPARK_LOCAL_DIRS"])

    def lose(step: str, partition: int) -> None:
        if step == "put" and marks.first("lost"):
            lose_files()

    return FaultyTask(put, lose)


def _stage_again(spark: SparkSession, scenario: str) -> bool:
    """Whether Spark began a stage of this scenario's jobs a second time."""
    status = spark.sparkContext.statusTracker()
    jobs = [status.getJobInfo(job) for job in status.getJobIdsForGroup(scenario)]
    stages = [status.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return any(stage is not None and stage.currentAttemptId > 0 for stage in stages)


def _on_hosts_of_their_own(folder: str) -> None:
    home = os.environ.get("JAVA_HOME")
    program = Path(folder, "java", "bin", "java")
    program.parent.mkdir(parents=True)
    program.write_text(_JAVA.replace("JAVA", f"{home}/bin/java" if home else shutil.which("java") or "java"))
    program.chmod(0o755)
    os.environ["JAVA_HOME"] = f"{folder}/java"


def main() -> None:
    url, folder, names, *master = sys.argv[1:]
    os.environ.update(PENSTOCK_URL=url, SPARK_LOCAL_DIRS=f"{folder}/blocks", SPARK_WORKER_DIR=f"{folder}/work")
    _on_hosts_of_their_own(folder)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master[0] if master else CLUSTER)
    for key, value in {**CONFS, **EXECUTORS}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for name in names.split(","):
        marks = Path(folder) / f"marks-{name}"
        marks.mkdir()
        spark.sparkContext.setJobGroup(name, name)
        try:
            told = SCENARIOS[name](spark, Marks(marks))
        except Exception as error:
            told = {"error": str(error)[:5000], "happened": [Marks(marks).seen("lost")]}
        print(json.dumps({"scenario": name, **told}), flush=True)  # noqa: T201  # read by the test
        sys.stdin.readline()
    spark.stop()
