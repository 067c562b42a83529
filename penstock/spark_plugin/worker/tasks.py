"""The tasks that mapInArrow runs in Spark's workers: one puts a partition, one gets tickets."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.client.get import read_tickets
from penstock.client.put import open_attempt
from penstock.client.settings import ConnectSettings
from penstock.rows.fitting import fit_batches
from penstock.rows.slices import size_of
from penstock.spark_plugin.worker.connection_cache import CONNECTIONS
from penstock.spark_plugin.worker.types import widen_schema
from penstock.wire.put import SparkTask

if TYPE_CHECKING:
    from penstock.decode.decoding import Decoding
    from penstock.rows.to_json import JsonEncoding

RECEIPTS = pa.schema(
    {"write": pa.string(), "attempt": pa.string(), "rows": pa.int64(), "bytes": pa.int64(), "parts": pa.int32(),
     "digest": pa.string()}
)  # fmt: skip
TICKETS = pa.schema({"ticket": pa.binary(), "rows": pa.int64(), "bytes": pa.int64()})
_JOINED_BYTES = 1 << 20


class PutPartition:
    """One evaluation of a partition: one attempt, one do_put, one receipt."""

    def __init__(
        self,
        settings: ConnectSettings,
        ticket: str | None,
        schema: pa.Schema | None,
        *,
        releases: bool = False,
        encoding: JsonEncoding | None = None,
    ) -> None:
        self.settings = settings
        self.ticket = ticket
        """The open write's; None where its run is finished: then nothing is put."""
        self.schema = schema
        self.releases = releases
        """Whether the partition's rows are given to a queue before the write is finished."""
        self.encoding = encoding
        """What makes messages of the rows, where they are published so."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put a partition's batches.

        1. The attempt's name is minted here: Spark evaluates a partition again, or twice, under the same numbers.
        2. Before the first byte the server says that there is room; waiting for that loses nothing.
        3. The trailer says that the stream is whole, the answer that it is durable. A killed task sends no trailer.
        4. Then, and only then, the task yields its receipt. Attempts that the driver doesn't list in `finish` never
           count.
        """
        batches = iter(batches)
        first = next(batches, None)
        if self.ticket is None or first is None:
            return
        schema = self.schema or widen_schema(first.schema)
        with CONNECTIONS.connect(self.settings) as connection:
            task = _this_task() if self.releases else None
            put_schema = schema if self.encoding is None else self.encoding.schema(schema)
            with open_attempt(connection, self.ticket, put_schema, task=task) as writer:  # 1. 2.
                batches = join_batches(fit_batches(chain((first,), batches), schema))
                batches = batches if self.encoding is None else self.encoding.batches(batches, put_schema)
                del first
                for batch in batches:
                    writer.write(batch)
            receipt = writer.close()  # 3.
        yield make_batch(RECEIPTS, *([getattr(receipt, name)] for name in RECEIPTS.names))  # 4.


def _this_task() -> SparkTask:
    """Return Spark's names of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return SparkTask(context.stageId(), context.partitionId(), context.taskAttemptId())


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches that come within a second: 1,465 of 150 kB cost half again the CPU of 210 of 1 MiB."""
    waiting: list[pa.RecordBatch] = []
    size, since = 0, time.monotonic()
    for batch in batches:
        waiting.append(batch)
        size += size_of(batch)
        if size >= _JOINED_BYTES or time.monotonic() - since > 1:
            yield from _joined(waiting)
            waiting, size, since = [], 0, time.monotonic()
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


class GetTickets:
    """Rows of tickets become the rows that they name, in the types that Spark takes."""

    def __init__(
        self, settings: ConnectSettings, schema: pa.Schema, local: str | None, decoding: Decoding | None = None
    ) -> None:
        self.settings = settings
        self.schema = schema
        self.local = local
        """The server's socket for readers on its host; None where it has none, or filters the rows."""
        self.decoding = decoding

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of each ticket. An expired ticket raises, it never reads as fewer rows."""
        columns = ((each["ticket"].to_pylist(), each["rows"].to_pylist()) for each in batches)
        tickets = (pair for each in columns for pair in zip(*each, strict=True))
        with CONNECTIONS.connect(self.settings) as connection:
            names = self.schema.names if self.decoding is None else self.decoding.columns
            rows = read_tickets(connection, tickets, local=self.local, columns=names or None)
            decoding = self.decoding
            yield from fit_batches(rows, self.schema, reading=True) if decoding is None else decoding.batches(rows)


class NumberedTickets:
    """Row n of a range becomes the tickets of task n."""

    def __init__(self, tickets: list[pa.RecordBatch]) -> None:
        self.tickets = tickets

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield self.tickets[number]


class GetNumberedTickets:
    """Row n of a range becomes the rows of task n's tickets, in one evaluation: each costs a task 37 ms."""

    def __init__(self, tickets: NumberedTickets, get: GetTickets) -> None:
        self.tickets, self.get = tickets, get

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.get(self.tickets(batches))


def make_batch(schema: pa.Schema, *columns: Sequence[Any]) -> pa.RecordBatch:
    """Return a batch of numbers, text and bytes, made from buffers: the first value that pyarrow converts from Python
    makes it import pandas, which is half a second of a query's first batch, or of a worker's first task.
    """
    return pa.RecordBatch.from_arrays(
        [_array(kind, values) for kind, values in zip(schema.types, columns, strict=True)], schema=schema
    )


def _array(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if pa.types.is_integer(kind):
        numbers = array({32: "i", 64: "q"}[kind.bit_width], values)
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    ends = array("i", accumulate(map(len, texts), initial=0))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
