"""A driver to be killed: it streams a journal into a sink; its arguments are `FOLDER URL PATH COLUMNS SINK MASTER`.

A query that fails adds a line to the file `ends`, and is started again on its checkpoint, until there is a file `stop`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from tests.kit.spark import CONFS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 6_000
"""Most rows of a batch."""


def start(spark: SparkSession, folder: Path, url: str, path: str, columns: str, sink: str) -> StreamingQuery:
    """Start the query on its checkpoint."""
    reader = spark.readStream.format("penstock").option("url", url).option("maxRowsPerTrigger", ROWS)
    reader = reader.option("columns", f"{columns}, _shard, _offset")
    frame = reader.option("subscription", path).load() if path.startswith("projects/") else reader.load(path)
    placed = frame.withColumnsRenamed({"_shard": "shard", "_offset": "at"})
    writer = placed.writeStream.format("penstock").option("url", url)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(sink)


def main() -> None:
    folder, (url, path, columns, sink, master) = Path(sys.argv[1]), sys.argv[2:]
    os.environ.update(SPARK_LOCAL_DIRS=f"{folder}/blocks", SPARK_WORKER_DIR=f"{folder}/work")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    ours = {
        "spark.executor.memory": "512m", "spark.driver.memory": "512m",
        "spark.sql.streaming.minBatchesToRetain": "100000",  # the checkpoint says when each was done
    }  # fmt: skip
    for key, value in {**CONFS, **ours}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(penstock.DataSource)
    for _ in range(20):  # no schedule ends a query more often
        try:
            query = start(spark, folder, url, path, columns, sink)
            while not (query.awaitTermination(1) or (folder / "stop").exists()):
                pass
            query.stop()
            break
        except Exception as error:
            with (folder / "ends").open("a") as file:
                file.write(f"{' '.join(str(error).split())[:3000]}\n")
    spark.stop()
