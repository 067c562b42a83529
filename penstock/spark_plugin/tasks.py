"""What runs in Spark's workers: a partition that is put, tickets that are got. Given to mapInArrow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa

from penstock.client import Client
from penstock.settings import Settings
from penstock.spark_plugin.fitting import fitted
from penstock.spark_plugin.types import storable

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
        values = [[getattr(receipt, name)] for name in RECEIPTS.names]
        yield pa.RecordBatch.from_arrays(
            [pa.array(value, kind) for value, kind in zip(values, RECEIPTS.types, strict=True)], schema=RECEIPTS
        )  # 4.


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

    def __init__(self, settings: Settings, schema: pa.Schema) -> None:
        self.settings = settings
        self.schema = schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Get each ticket's batches. A ticket that has ended raises, it never reads as fewer rows."""
        with Client(self.settings) as client:
            for batch in batches:
                for ticket in batch.column("ticket").to_pylist():
                    yield from fitted(client.fetch(ticket), self.schema)


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
