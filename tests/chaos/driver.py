"""A driver to be killed: `python -m tests.chaos.driver URL FOLDER SINK MASTER` streams a topic into a sink.

Its query is started again on its checkpoint when it fails, with a line in `ends`, until there is the file `stop`.
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
"""A batch has so many at most."""


def start(spark: SparkSession, url: str, folder: Path, sink: str) -> StreamingQuery:
    """The query, on its checkpoint."""
    reader = spark.readStream.format("penstock").option("url", url).option("maxRowsPerTrigger", ROWS)
    frame = reader.option("columns", "seq, key, text, amount, _shard, _offset").load(TOPIC)
    placed = frame.withColumnsRenamed({"_shard": "shard", "_offset": "at"})
    writer = placed.writeStream.format("penstock").option("url", url)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(sink)


def main() -> None:
    url, place, sink, master = sys.argv[1:]
    folder = Path(place)
    os.environ.update(SPARK_LOCAL_DIRS=f"{folder}/blocks", SPARK_WORKER_DIR=f"{folder}/work")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    for key, value in {**CONFS, "spark.executor.memory": "512m", "spark.driver.memory": "512m"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(penstock.DataSource)
    for _ in range(20):  # more often is no fault's doing
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


if __name__ == "__main__":
    main()
