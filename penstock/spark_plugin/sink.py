"""The streaming sink: an epoch is one write and one run of its query; one that comes again adds nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as sql

from penstock.client.client import Client
from penstock.client.publish import Publishing
from penstock.errors import Internal, InvalidRequest, PenstockError
from penstock.spark_plugin import carry
from penstock.spark_plugin.spark_types import to_arrow
from penstock.spark_plugin.worker.open_put import abort_put, finish_put
from penstock.spark_plugin.worker.pieces import TAKES_ARROW, EpochPartitionWriter, StreamWriter
from penstock.spark_plugin.write import open_put, task_of
from penstock.wire.paths import parse
from penstock.wire.put import Mode

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class EpochWriter(StreamWriter):
    """Made twice for an epoch: where Spark plans it, and where it commits. Only the first one opens a write."""

    def __init__(self, client: Client, path: str, mode: Mode, schema: StructType, publishing: Publishing) -> None:
        if mode == "overwrite" and parse(path).kind == "topic":
            raise InvalidRequest(
                f"{path} is a topic, whose rows don't change, and outputMode('complete') replaces all of them: use "
                "outputMode('append'), or write to store/…"
            )
        self._client, self._path, self._mode, self._schema = client, path, mode, schema
        self._publishing = publishing
        self._task_writer: EpochPartitionWriter | None = None

    def write(self, iterator: Iterator[Any]) -> sql.WriterCommitMessage:
        """Spark calls `write` on the pickled writer only."""
        raise Internal("a writer of the driver was called to write a partition")

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make the tasks' rows part of the dataset, as the run (query, epoch): once, however often the epoch comes."""
        sent = [message for message in messages if message is not None]
        receipts = [receipt for message in sent for receipt in message.receipts]
        if receipts or (sent and self._mode == "overwrite"):  # an epoch without rows replaces all rows, too
            finish_put(self._client.connection, sent[0].put, receipts, run=(sent[0].query, batchId))
        elif sent:
            self.abort(messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Abort the epoch's write. One that isn't aborted shows nothing, and expires."""
        for message in messages:
            if message is not None:
                with contextlib.suppress(PenstockError):
                    abort_put(self._client.connection, message.put)
                return

    def __reduce__(self) -> tuple[Any, ...]:
        if self._task_writer is None:  # Spark pickles it more than once
            arrow = to_arrow(self._schema)
            put = open_put(
                self._client, self._path, self._mode, None, arrow, put_schema=self._mode == "overwrite",
                publishing=self._publishing,
            )  # fmt: skip
            rows = None if TAKES_ARROW else self._schema
            task = task_of(put, self._client, arrow, publishing=self._publishing)
            self._task_writer = EpochPartitionWriter(put, task, rows)
        return carry.pack(self._task_writer, decoding=self._publishing.encoding is not None)
