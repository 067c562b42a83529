"""What runs in Spark's workers: a partition that is put, tickets that are got. Given to mapInArrow."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from penstock.client.client import Client
from penstock.client.local import LocalParts
from penstock.client.settings import Settings
from penstock.spark_plugin.worker.fitting import fitted
from penstock.spark_plugin.worker.types import storable

RECEIPTS = pa.schema(
    {"write": pa.string(), "attempt": pa.string(), "rows": pa.int64(), "bytes": pa.int64(), "parts": pa.int32(),
     "digest": pa.string()}
)  # fmt: skip
_TOGETHER = 1 << 20
TICKETS = pa.schema({"ticket": pa.binary(), "rows": pa.int64(), "bytes": pa.int64()})


class PutPartition:
    """One evaluation of a partition: one attempt, one do_put, one receipt."""

    def __init__(self, settings: Settings, ticket: str | None, schema: pa.Schema | None) -> None:
        self.settings = settings
        self.ticket = ticket
        """The open write's; None where its run is finished and nothing is left to do."""
        self.schema = schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put a partition's batches.

        1. The attempt's name is minted here: Spark evaluates a partition again, or twice, under the same numbers.
        2. Before the first byte the server says that there is room; it is waited for, as nothing is lost by that.
        3. The trailer says that this was all, the answer that it is durable. A task that is killed before sends none.
        4. Then, and only then, the receipt leaves. What the driver doesn't list in `finish` never counts.
        """
        batches = iter(batches)
        first = next(batches, None)
        if self.ticket is None or first is None:
            return
        schema = self.schema or storable(first.schema)
        with Client(self.settings) as client:
            with client.attempt(self.ticket, schema) as writer:  # 1. 2.
                batches = joined(fitted(chain((first,), batches), schema))
                del first
                for batch in batches:
                    writer.write(batch)
            receipt = writer.close()  # 3.
        yield plain(RECEIPTS, *([getattr(receipt, name)] for name in RECEIPTS.names))  # 4.


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches that come within a second as one: 1,465 of 150 kB cost half again the CPU of 210 of 1 MiB."""
    waiting: list[pa.RecordBatch] = []
    size, since = 0, time.monotonic()
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _TOGETHER or time.monotonic() - since > 1:
            yield from _as_one(waiting)
            waiting, size, since = [], 0, time.monotonic()
    yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


class GetTickets:
    """Rows of tickets become the rows that they name, in the types that Spark takes."""

    def __init__(self, settings: Settings, schema: pa.Schema, local: str | None) -> None:
        self.settings = settings
        self.schema = schema
        self.local = local
        """The server's door for who is on its host; None where there is none, or the server filters."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Get each ticket's batches. A ticket that has ended raises, it never reads as fewer rows."""
        with ExitStack() as stack:
            client = stack.enter_context(Client(self.settings))
            door = stack.enter_context(LocalParts(self.local)) if self.local else None
            for batch in batches:
                for ticket, rows in zip(batch["ticket"].to_pylist(), batch["rows"].to_pylist(), strict=True):
                    mapped = door.batches(ticket, self.schema.names or None, rows) if door else None
                    yield from fitted(client.fetch(ticket) if mapped is None else mapped, self.schema)


class GetPieces:
    """Both in one: row n of a range becomes the nth piece's rows. An evaluation in Python costs each task 37 ms."""

    def __init__(self, hand_out: HandOut, get: GetTickets) -> None:
        self.hand_out, self.get = hand_out, get

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.get(self.hand_out(batches))


class HandOut:
    """Row n of a range becomes the nth piece: as many tickets as one task should get."""

    def __init__(self, pieces: list[pa.RecordBatch]) -> None:
        self.pieces = pieces

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield self.pieces[number]


def plain(schema: pa.Schema, *columns: Sequence[Any]) -> pa.RecordBatch:
    """Numbers, text and bytes as Arrow has them, from buffers: the first value that pyarrow takes from Python makes it
    import pandas, which is half a second of a query's first batch, or of a worker's first task.
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
