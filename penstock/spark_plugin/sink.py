"""The streaming sink: an epoch is one write and one run of its query; one that comes again adds nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import datasource as sql

from penstock.client.client import Client
from penstock.errors import Internal, InvalidRequest, PenstockError
from penstock.spark_plugin import carry
from penstock.spark_plugin.opened import OpenPut
from penstock.spark_plugin.worker import types
from penstock.wire.paths import is_topic
from penstock.wire.put import Mode

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ARROW = hasattr(sql, "DataSourceStreamArrowWriter")
_Base: Any = sql.DataSourceStreamArrowWriter if _ARROW else sql.DataSourceStreamWriter
_QUERY = "sql.streaming.queryId"


class EpochPieces(_Base):
    """What is left of a writer in the tasks: the write that the driver has opened for this epoch."""

    def __init__(self, put: OpenPut, rows: StructType | None) -> None:
        self._put, self._rows = put, rows

    def write(self, iterator: Iterator[Any]) -> sql.WriterCommitMessage:
        """Put a partition. The driver isn't told which query this is; the task is."""
        from pyspark import TaskContext

        context = TaskContext.get()
        message: Any = sql.WriterCommitMessage()
        message.query = context.getLocalProperty(_QUERY) if context else None
        message.put = self._put
        batches = iterator if self._rows is None else _as_batches(iterator, self._rows)
        message.receipts = [receipt for batch in self._put.task(batches) for receipt in batch.to_pylist()]
        return message  # type: ignore[no-any-return]


class EpochWriter(_Base):
    """Made twice for an epoch: where Spark plans it, and where it commits. Only the first of them opens a write."""

    def __init__(self, client: Client, path: str, mode: Mode, schema: StructType) -> None:
        if mode == "overwrite" and is_topic(path):
            raise InvalidRequest(
                f"{path} is a topic, whose rows don't change, and outputMode('complete') replaces all of them: use "
                "outputMode('append'), or write to store/…"
            )
        self._client, self._path, self._mode, self._schema = client, path, mode, schema
        self._put: OpenPut | None = None

    def write(self, iterator: Iterator[Any]) -> sql.WriterCommitMessage:
        """Spark calls it on what was pickled."""
        raise Internal("a writer of the driver was asked to write")

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make what the tasks have put part of the dataset, as the run (query, epoch): once, however often it comes."""
        told = [message for message in messages if message is not None]
        receipts = [receipt for message in told for receipt in message.receipts]
        if receipts or (told and self._mode == "overwrite"):  # no rows take the place of all rows, too
            told[0].put.finish_as((told[0].query, batchId), receipts)
        elif told:
            self.abort(messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """End the epoch's write. One that isn't ended shows nothing, and expires."""
        for message in messages:
            if message is not None:
                with contextlib.suppress(PenstockError):
                    message.put.abort()
                return

    def __reduce__(self) -> tuple[Any, ...]:
        if self._put is None:  # Spark pickles it more than once
            schema = types.stored(self._schema)
            self._put = OpenPut(self._client, self._path, self._mode, None, schema, ahead=self._mode == "overwrite")
        return carry.packed(carry.Call(EpochPieces, self._put, None if _ARROW else self._schema))


def _as_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Spark 4.0 hands out rows of Python's to a streaming sink, and nothing else."""
    from itertools import islice

    from pyspark.sql.conversion import LocalDataToArrowConversion

    while some := list(islice(rows, 10_000)):
        table = LocalDataToArrowConversion.convert(some, schema, use_large_var_types=False)
        yield from table.to_batches()
