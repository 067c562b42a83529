"""Spark as a job's source: V2, whose executors write the splits, and V1, which plans them at the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.client import Client, ServerArguments
from penstock.pipeline.sources import Filling, push_all
from penstock.pipeline.spark_frame import SparkFrame, SparkFrameConfig
from penstock.pipeline.spark_source import SparkSource, SparkSourceConfig
from penstock.spark_plugin.write import write
from penstock.wire.actions import PUSH_DATASET
from penstock.wire.queue import PushDataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkJobSource:
    """A frame as a source: it becomes the dataset store/JOB/STAGE, over an earlier job's; its parts are splits."""

    def __init__(self, config: SparkFrameConfig) -> None:
        self._config = config
        self._spark: SparkSession | None = None

    def __str__(self) -> str:
        return type(self._config).__name__

    def pin(self, client: Client) -> dict[str, Any]:
        """Take the caller's session, which the source's thread doesn't see; the frame is written once, under a run."""
        from pyspark.sql import SparkSession

        self._spark = SparkSession.getActiveSession()
        return {}

    def fill(self, filling: Filling) -> None:
        """Write the frame, and push its splits."""
        settings = filling.client.settings
        server = ServerArguments(
            url=settings.url, token=settings.token, ca=settings.ca, cert=settings.cert, key=settings.key
        )
        stage = f"{filling.job}/{filling.stage}"
        if isinstance(self._config, SparkSourceConfig):
            source = SparkSource(stage, self._config, spark=self._spark, **server)
            try:
                push_all(filling, source.plan_splits(filling.run, "overwrite"))
            finally:
                source.stop()
            return
        frame = SparkFrame(stage, self._config, self._spark)
        try:
            write(frame.make(), f"store/{stage}", mode="overwrite", run=filling.run, progress=False, **server)
        finally:
            frame.stop()
        for queue in filling.queues:
            filling.client.call(PUSH_DATASET, PushDataset(queue, f"store/{stage}"))
