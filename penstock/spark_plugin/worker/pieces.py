"""The data source's objects in Spark's tasks: readers and writers without their driver's half."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql import datasource as sql

from penstock.client.connection import Connection
from penstock.errors import Internal, PenstockError
from penstock.spark_plugin.worker.open_put import OpenPut, abort_put, finish_put
from penstock.spark_plugin.worker.tasks import PutPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_P = ParamSpec("_P")
_T = TypeVar("_T")
TAKES_ARROW = hasattr(sql, "DataSourceStreamArrowWriter")
"""Whether a streaming sink gets Arrow batches: from Spark 4.1 on."""
StreamWriter: Any = sql.DataSourceStreamArrowWriter if TAKES_ARROW else sql.DataSourceStreamWriter


def without_traceback(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Raise penstock's errors without the frames below, which Spark would show to its user: the message says it all."""

    @wraps(method)
    def within(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return method(*args, **named)
        except Internal:
            raise
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return within


class SourceName(sql.DataSource):
    """The data source in a task, where only its name is needed, for Spark's messages."""

    @classmethod
    def name(cls) -> str:
        return "penstock"


class PartitionReader(sql.DataSourceReader):
    """Reads a partition, whose value is a GetTickets and its tickets."""

    def read(self, partition: sql.InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            get, tickets = partition.value
            yield from get([tickets])


class StreamPartitionReader(sql.DataSourceStreamReader):
    """The same for a batch of a stream."""

    read = PartitionReader.read


class PartitionWriter(sql.DataSourceArrowWriter):
    """A write of `mode("append")` or `mode("overwrite")`: in a task it puts a partition, at Spark's commit it finishes.

    Spark pickles one object for both.
    """

    def __init__(self, put: OpenPut, task: PutPartition, retry_for: float) -> None:
        self._put, self._task, self._retry_for = put, task, retry_for

    def write(self, iterator: Iterator[pa.RecordBatch]) -> sql.WriterCommitMessage:
        message = sql.WriterCommitMessage()
        message.receipts = _receipts(self._task, iterator)  # type: ignore[attr-defined]  # as an attribute it needs no class of ours
        return message

    @without_traceback
    def commit(self, messages: list[Any]) -> None:
        with contextlib.closing(Connection(self._task.settings)) as connection:
            finish_put(connection, self._put, (receipt for message in messages for receipt in message.receipts))

    def abort(self, messages: list[Any]) -> None:
        """Abort the write. Spark calls this after a failed commit, too; a write that is finished by then stays so.

        An error here would hide the first one. A write that can't be aborted shows nothing, and expires.
        """
        if not self._put.repeated:
            with contextlib.suppress(PenstockError), contextlib.closing(Connection(self._task.settings)) as connection:
                abort_put(connection, self._put, retry_for=self._retry_for)


class EpochPartitionWriter(StreamWriter):
    """Puts a partition of an epoch, into the write that the driver has opened for it."""

    def __init__(self, put: OpenPut, task: PutPartition, rows: StructType | None) -> None:
        self._put, self._task, self._rows = put, task, rows

    def write(self, iterator: Iterator[Any]) -> sql.WriterCommitMessage:
        """Put a partition. Of the query's id Spark tells the task, not the driver."""
        from pyspark import TaskContext

        context = TaskContext.get()
        message: Any = sql.WriterCommitMessage()
        message.query = context.getLocalProperty("sql.streaming.queryId") if context else None
        message.put = self._put
        message.receipts = _receipts(self._task, iterator if self._rows is None else _to_batches(iterator, self._rows))
        return message  # type: ignore[no-any-return]


def _receipts(task: PutPartition, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [receipt for batch in task(batches) for receipt in batch.to_pylist()]


def _to_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield batches of Python rows, which are all that Spark 4.0 hands to a streaming sink."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    while some := list(islice(rows, 10_000)):
        table = LocalDataToArrowConversion.convert(some, schema, use_large_var_types=False)
        yield from table.to_batches()
