"""A Spark driver that streams, with executors of its own: `batch_driver` with these scenarios.

local[2] would hide the faults: executors die, and the driver is killed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from tests.kit.programs import batch_driver
from tests.kit.spark_faults import Batches, Fault, FaultyTask, Marks, Once, kill_executor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN = "topic/in"
TASKS = 4


def same(batches: Batches) -> Batches:
    """Pass the rows on."""
    yield from batches


def streamed(spark: SparkSession, marks: Marks, fault: Fault, path: str) -> list[int]:
    """Stream the topic into a dataset, through tasks with a fault; return the rows of each batch."""
    import sys

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(penstock.DataSource)
    rows = spark.readStream.format("penstock").option("minPartitions", TASKS).load(IN)
    faulty = rows.mapInArrow(FaultyTask(same, fault), "id long, text string")
    sink = faulty.writeStream.format("penstock").option("checkpointLocation", f"{marks.folder}/checkpoint")
    query = sink.trigger(availableNow=True).start(path)
    assert query.awaitTermination(180), "the query does not end"
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def killed_executor(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """An executor dies in the middle of a batch, another when a task has all rows and the sink has none of them."""
    fault = Once(marks, {("half", 1): kill_executor, ("put", 2): kill_executor})
    rows = streamed(spark, marks, fault, "store/killed")
    return {"rows": rows, "happened": [marks.seen("half-1"), marks.seen("put-2")]}


def speculation(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A slow task gets a second attempt; the test keeps that at the server until the first one is whole there, too."""

    def slow(step: str, partition: int) -> None:
        if (step, partition) == ("half", 1) and marks.first("slow"):
            marks.await_mark("overtaken", 120)

    rows = streamed(spark, marks, slow, "store/speculated")
    return {"rows": rows, "happened": [marks.seen("overtaken")]}


def goes_on(spark: SparkSession, marks: Marks) -> dict[str, Any]:
    """A query for a driver that is to be killed: from its checkpoint on, in small batches."""
    spark.dataSource.register(penstock.DataSource)
    rows = spark.readStream.format("penstock").option("maxRowsPerTrigger", 50).load(IN)
    checkpoint = Path(marks.folder).parents[1] / "checkpoint"  # each life has a folder of its own beside it
    sink = rows.writeStream.format("penstock").option("checkpointLocation", str(checkpoint))
    sink.start("store/lives").awaitTermination()
    return {}


def main() -> None:
    """Run the scenarios that are named, as `batch_driver.main` does."""
    batch_driver.SCENARIOS.update({each.__name__: each for each in (killed_executor, speculation, goes_on)})
    batch_driver.main()
