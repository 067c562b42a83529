"""Spark source V2: Spark's executors write the splits to store and queue; nothing is iterated at the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from penstock.client.client import ServerArguments, connect
from penstock.pipeline.spark_frame import SparkFrame, SparkFrameConfig
from penstock.spark_plugin.write import write
from penstock.wire.message import QueueMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
_RUN = "SparkSourceV2"


@dataclass
class SparkSourceV2Config(SparkFrameConfig):
    """The configuration of a SparkSourceV2Master."""

    app_name: str = "solstice-spark-v2"


class SparkSourceV2Master:
    """Fills `queue/STAGE_ID` with splits of a frame, which is the dataset `store/STAGE_ID` at the end.

    `split_rows` and the server's arguments are those of `penstock.write`; `spark` is a session to use, such as one of
    Spark Connect. A stage is filled once: after a crash of the driver `start` goes on, or does nothing more.
    """

    def __init__(
        self,
        stage_id: str,
        config: SparkSourceV2Config,
        *,
        spark: SparkSession | None = None,
        split_rows: int | None = None,
        **server: Unpack[ServerArguments],
    ) -> None:
        self.stage_id = stage_id
        self.config = config
        self._frame = SparkFrame(stage_id, config, spark)
        self._split_rows = split_rows
        self._server = server

    def start(self) -> int:
        """Make the queue, let Spark write the splits, declare that they are all; return how many there are."""
        if self._frame.topic is not None:
            with connect(**self._server) as client:
                client.create_queue(f"queue/{self.stage_id}", self._frame.topic)
        written = write(
            self._frame.make(), f"store/{self.stage_id}", queue=f"queue/{self.stage_id}", split_rows=self._split_rows,
            run=_RUN, **self._server,
        )  # fmt: skip
        log.info("source %s: %d splits", self.stage_id, written.parts)
        return written.parts

    def plan_splits(self) -> Iterator[QueueMessage]:
        """Raise NotImplementedError: there is nothing to plan at the driver."""
        raise NotImplementedError(
            "V2 does not use plan_splits(): Spark's executors write directly to store and queue. Call start()"
        )

    def stop(self) -> None:
        """Stop the Spark session that `start` made; one that was there goes on."""
        self._frame.stop()
