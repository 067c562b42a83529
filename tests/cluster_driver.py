"""A Spark driver with executors of its own: `python -m tests.cluster_driver URL FOLDER SCENARIO,… [MASTER]`.

Here local[2] would hide what is looked at: executors die, a slow task gets a second attempt, shuffle files are lost.
For each scenario a line of JSON is printed: what was written, or the error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from tests.fix_spark import CONFS
from tests.meddling import Batches, Marks, Meddled, Once, kill_executor
from tests.spark_rows import source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_200
CLUSTER = "local-cluster[2,1,512]"
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.sql.adaptive.enabled": "false",  # which would read shuffles in other pieces than the scenarios name
}


def killed_executor(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """An executor dies in the middle of a put, another when a put is whole and its receipt hasn't left."""
    put = penstock.do_put("store/killed")
    task = Meddled(put, Once(marks, {("half", 1): kill_executor, ("put", 4): kill_executor}))
    receipts = source(spark, ROWS, 6).mapInArrow(task, put.schema).collect()
    return {"rows": put.finish(receipts).rows, "happened": [marks.seen("half-1"), marks.seen("put-4")]}


def killed_executor_reading(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """An executor dies with a ticket read to its end and not a row delivered, another before it reads."""
    penstock.write(source(spark, ROWS, 6), "store/read", progress=False)
    fault = Once(marks, {("half", 1): kill_executor, ("begun", 3): kill_executor})
    tickets = []
    for start in range(0, ROWS, ROWS // 4):
        get = penstock.do_get("store/read", filter=f"id >= {start} and id < {start + ROWS // 4}")
        tickets += get.tickets(spark).collect()
    four = spark.createDataFrame(spark.sparkContext.parallelize(tickets, 4), "ticket binary, rows long, bytes long")
    found = four.mapInArrow(Meddled(get, fault), get.schema).collect()
    return {"found": sorted(map(tuple, found)), "happened": [marks.seen("half-1"), marks.seen("begun-3")]}


def speculation(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A slow task gets a second attempt; both put all of it, and both are whole."""
    put = penstock.do_put("store/speculated")

    def slow(step: str, partition: int) -> None:
        if (step, partition) == ("half", 3):
            if marks.first("slow"):
                marks.await_mark("overtaken", 120)
        elif (step, partition) == ("put", 3):
            marks.first("overtaken")

    receipts = source(spark, ROWS, 6).mapInArrow(Meddled(put, slow), put.schema).collect()
    return {"rows": put.finish(receipts).rows, "happened": [marks.seen("overtaken")]}


def lost_shuffle(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """Shuffle files are lost when a partition is put: Spark makes them again in a second attempt of the stage."""
    put = penstock.do_put("store/shuffled")
    shuffled = source(spark, ROWS, 6).repartition(6, "id")
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


def never_ends(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A driver to be killed: half of its partitions are whole, the others are in the middle."""
    put = penstock.do_put("store/new", run="orphan")

    def wait(step: str, partition: int) -> None:
        if step == "half" and partition >= 2:
            marks.first(f"waits-{partition}")
            time.sleep(600)

    put.finish(source(spark, ROWS, 4).mapInArrow(Meddled(put, wait), put.schema).collect())
    return {}


def never_reads(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A driver to be killed while its tasks have read the first of many batches: 30 MB, as gRPC reads 18 MB ahead."""
    frame = source(spark, ROWS, 4).selectExpr("id", "text", "repeat('x', 100000) as padding")
    penstock.write(frame, "store/padded", progress=False)
    get = penstock.do_get("store/padded")
    folder = marks.folder

    def dawdle(batches: Batches) -> Batches:
        for batch in get(batches):
            Path(folder, f"reads-{os.getpid()}").touch()
            time.sleep(600)
            yield batch

    get.tickets(spark).mapInArrow(dawdle, get.schema).collect()
    return {}


SCENARIOS: dict[str, Callable[[SparkSession, Marks], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        killed_executor, killed_executor_reading, speculation, lost_shuffle, random_key, random_key_then_shuffle,
        never_ends, never_reads,
    )
}  # fmt: skip


def _by_random_key(spark: SparkSession) -> DataFrame:
    def keyed(batches: Batches) -> Batches:
        import random

        import pyarrow as pa

        for batch in batches:
            keys = pa.array([random.randrange(6) for _ in range(batch.num_rows)], pa.int64())
            yield batch.append_column("key", keys)

    frame = source(spark, ROWS, 6).mapInArrow(keyed, "id long, text string, key long")
    return frame.repartition(6, "key").drop("key")


def _losing(put: Any, marks: Marks) -> Meddled:
    """When the first partition is put, the shuffle files of all executors are deleted, which four others still want."""
    blocks = os.environ["SPARK_LOCAL_DIRS"]

    def lose(step: str, partition: int) -> None:
        if step == "put" and marks.first("lost"):
            for file in Path(blocks).rglob("shuffle_*"):
                file.unlink(missing_ok=True)

    return Meddled(put, lose)


def _stage_again(spark: SparkSession, scenario: str) -> bool:
    """Whether Spark began a stage of this scenario's jobs a second time."""
    status = spark.sparkContext.statusTracker()
    jobs = [status.getJobInfo(job) for job in status.getJobIdsForGroup(scenario)]
    stages = [status.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return any(stage is not None and stage.currentAttemptId > 0 for stage in stages)


def main() -> None:
    url, folder, names, *master = sys.argv[1:]
    os.environ.update(PENSTOCK_URL=url, SPARK_LOCAL_DIRS=f"{folder}/blocks", SPARK_WORKER_DIR=f"{folder}/work")
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
    spark.stop()


if __name__ == "__main__":
    main()
