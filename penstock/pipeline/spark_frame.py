"""The frame of a Spark source: its configuration, and the session that makes it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
EMBEDDED_QUEUE = "memory://"
"""The storage URL of a queue that the server itself keeps."""


@dataclass
class SparkFrameConfig:
    """Which frame Spark makes, and in what session."""

    app_name: str = "solstice-spark"
    num_executors: int = 1
    executor_cores: int = 2
    executor_memory: str = "1g"
    spark_configs: dict[str, str] = field(default_factory=dict)
    """These five are of the session that a source makes; one that is there is used as it is."""
    dataframe_fn: Callable[[SparkSession], DataFrame] | None = None
    parallelism: int | None = None
    """The frame's partitions; None leaves them as they are."""

    tansu_storage_url: str = EMBEDDED_QUEUE


class SparkFrame:
    """The frame of a configuration: made once it is needed, in the session that is there or in one of its own."""

    def __init__(self, stage_id: str, config: SparkFrameConfig, spark: SparkSession | None) -> None:
        self.topic = None if config.tansu_storage_url == EMBEDDED_QUEUE else config.tansu_storage_url
        """Where the queue's messages are records; None for a queue that the server itself keeps."""
        if self.topic is not None and not self.topic.startswith("kafka://"):
            raise InvalidRequest(
                f"tansu_storage_url={config.tansu_storage_url!r}: expected {EMBEDDED_QUEUE!r}, the queue that the "
                "penstock server keeps on its disk, or the broker that this server was started with, Kafka or Tansu "
                "with any storage: 'kafka://host:port'"
            )
        self._stage_id = stage_id
        self._config = config
        self._spark = spark
        self._made: SparkSession | None = None

    def make(self) -> DataFrame:
        """Return the frame that the configuration's function makes."""
        if self._config.dataframe_fn is None:
            raise InvalidRequest(
                f"the source {self._stage_id} has no dataframe_fn: pass one, such as lambda spark: "
                "spark.read.parquet('/data')"
            )
        df = self._config.dataframe_fn(self._session())
        return df if self._config.parallelism is None else df.repartition(self._config.parallelism)

    def stop(self) -> None:
        """Stop the session that was made for the frame; one that was there goes on."""
        if self._made is not None:
            self._made.stop()
            self._made = self._spark = None

    def _session(self) -> SparkSession:
        if self._spark is None:
            from pyspark.sql import SparkSession

            self._spark = SparkSession.getActiveSession()
            if self._spark is None:
                self._spark = self._made = self._make_session(SparkSession.builder)
                return self._spark
        if self._made is None:
            log.info(
                "source %s: Spark's session is used as it is: app_name, num_executors, executor_cores, executor_memory "
                "and spark_configs are for a session that the source makes",
                self._stage_id,
            )
        return self._spark

    def _make_session(self, builder: SparkSession.Builder) -> SparkSession:
        config = self._config
        confs = {
            "spark.executor.instances": str(config.num_executors),
            "spark.executor.cores": str(config.executor_cores),
            "spark.executor.memory": config.executor_memory,
            **config.spark_configs,
        }
        builder = builder.appName(config.app_name)
        for name, value in confs.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
