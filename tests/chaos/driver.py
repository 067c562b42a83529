"""A driver to be killed: it streams a journal into a sink; its arguments are `FOLDER URL PATH COLUMNS SINK MASTER`.
To a topic of Pub/Sub's rows are published as JSON, of payloads that are decoded by COLUMNS.

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
ORDERING_KEYS = 61
"""Of what is published, so that a batch takes more requests than are under way at a time."""


def start(spark: SparkSession, folder: Path, url: str, path: str, columns: str, sink: str) -> StreamingQuery:
    """Start the query on its checkpoint."""
    is_published = sink.startswith("projects/")
    reader = spark.readStream.format("penstock").option("url", url).option("maxRowsPerTrigger", ROWS)
    if is_published:
        reader = reader.option("decode", "json").option("mode", "DROPMALFORMED")
        reader = reader.schema(f"{columns}, _shard int, _offset long")
    else:
        reader = reader.option("columns", f"{columns}, _shard, _offset")
    frame = reader.option("subscription", path).load() if path.startswith("projects/") else reader.load(path)
    placed = frame.withColumnsRenamed({"_shard": "shard", "_offset": "at"})
    if is_published:
        placed = placed.selectExpr("*", f"string(key % {ORDERING_KEYS}) AS ordering_key")
    writer = placed.writeStream.format("penstock").option("url", url)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if is_published:
        return writer.option("topic", sink).option("encode", "json").option("idAttribute", "true").start()
    return writer.start(sink)


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
