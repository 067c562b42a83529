"""A driver to be killed: it streams a topic into a sink; its arguments are `URL FOLDER SINK MASTER`.

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

TOPIC = "topic/in"
ROWS = 6_000
"""Most rows of a batch."""


def start(spark: SparkSession, url: str, folder: Path, sink: str) -> StreamingQuery:
    """Start the query on its checkpoint."""
    reader = spark.readStream.format("penstock").option("url", url).option("maxRowsPerTrigger", ROWS)
    frame = reader.option("columns", "seq, key, text, amount, _shard, _offset").load(TOPIC)
    placed = frame.withColumnsRenamed({"_shard": "shard", "_offset": "at"})
    writer = placed.writeStream.format("penstock").option("url", url)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(sink)


def main() -> None:
    url, home, sink, master = sys.argv[1:]
    folder = Path(home)
    os.environ.update(SPARK_LOCAL_DIRS=f"{folder}/blocks", SPARK_WORKER_DIR=f"{folder}/work")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    for key, value in {**CONFS, "spark.executor.memory": "512m", "spark.driver.memory": "512m"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(penstock.DataSource)
    for _ in range(20):  # no schedule ends a query more often
        try:
            query = start(spark, url, folder, sink)
            while not (query.awaitTermination(1) or (folder / "stop").exists()):
                pass
            query.stop()
            break
        except Exception as error:
            with (folder / "ends").open("a") as file:
                file.write(f"{' '.join(str(error).split())[:3000]}\n")
    spark.stop()
