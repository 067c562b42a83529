"""Spark source V1: the driver holds the rows and plans the splits, and each worker reads its own from the source."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Unpack

import pyarrow as pa

from penstock.client.client import ServerArguments, connect
from penstock.errors import InvalidRequest
from penstock.pipeline.spark_frame import SparkFrame, SparkFrameConfig
from penstock.rows.fitting import fit_batches
from penstock.rows.payload import SplitPayload
from penstock.spark_plugin.spark_types import to_arrow
from penstock.wire.message import QueueMessage
from penstock.wire.put import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RUN = "SparkSource"


@dataclass
class SparkSourceConfig(SparkFrameConfig):
    """The configuration of a SparkSource; a worker, which only reads, needs no field of it."""


class ClaimedSplit(Protocol):
    """What a worker has claimed: `with lease as split`."""

    @property
    def message(self) -> QueueMessage: ...


class SparkSource:
    """Fills `queue/STAGE_ID` with source messages, whose rows workers read from the dataset `store/STAGE_ID`.

    `spark` is a session to use, such as one of Spark Connect. A stage is filled once: after a crash of the driver
    `start` pushes what is missing.
    """

    def __init__(
        self,
        stage_id: str,
        config: SparkSourceConfig,
        *,
        spark: SparkSession | None = None,
        **server: Unpack[ServerArguments],
    ) -> None:
        self.stage_id = stage_id
        self.config = config
        self._frame = SparkFrame(stage_id, config, spark)
        self._client = connect(**server)

    def start(self) -> int:
        """Push the planned splits, declare that they are all; return how many there are."""
        if self._frame.topic is not None:
            self._client.create_queue(f"queue/{self.stage_id}", self._frame.topic)
        return self._client.push(f"queue/{self.stage_id}", list(self.plan_splits()), finish=True)

    def plan_splits(self, run: str = _RUN, mode: Mode = "error") -> Iterator[QueueMessage]:
        """Collect the frame's rows here, put them as a dataset, and yield a source message for each part of it.

        They are put once for each run.
        """
        path = f"store/{self.stage_id}"
        written = self._client.put(path, _collect(self._frame.make()), mode=mode, run=run)
        for part in range(written.parts):
            data_range = {"path": path, "part": part}
            records = self._client.info(path, part=part).rows
            metadata = {"source_stage": self.stage_id, "num_records": records, "data_range": data_range}
            yield QueueMessage(f"{written.write}_{part}", f"{written.attempt}-{part}", "", metadata, time.time())

    def read(self, split: ClaimedSplit) -> SplitPayload:
        """Return the rows of a split whose message has no payload: `payload_key` is empty."""
        message = split.message
        try:
            path, part = (message.metadata["data_range"][name] for name in ("path", "part"))
        except (KeyError, TypeError) as missing:
            raise InvalidRequest(
                f"message {message.message_id} has no data_range in its metadata: a SparkSource reads the splits that "
                "its plan_splits() made"
            ) from missing
        return SplitPayload.from_arrow(self._client.get(path, part=part).read_all(), message.split_id)

    def stop(self) -> None:
        """Stop the Spark session that `start` made, and close the connection."""
        self._frame.stop()
        self._client.close()


def _collect(df: DataFrame) -> pa.Table:
    """Return all rows of a frame in the types in which a write stores them."""
    schema = to_arrow(df.schema)
    if hasattr(df, "toArrow"):
        batches = df.toArrow().to_batches()
    elif hasattr(df, "_collect_as_arrow"):  # Spark 3.5 without Connect
        batches = df._collect_as_arrow()  # type: ignore[operator]  # noqa: SLF001  # a column, to mypy
    else:
        raise InvalidRequest("V1 collects rows by toArrow, which Connect has since Spark 4.0: use SparkSourceV2Master")
    return pa.Table.from_batches(fit_batches(batches, schema), schema)
