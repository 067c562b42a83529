"""do_get: a run of parts goes out, as its ticket says."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.flight as flight

from penstock.flight_server.columns import with_places
from penstock.flight_server.funnel import funnelled
from penstock.flight_server.gate import Call
from penstock.flight_server.tickets import ReadTicket, Signer
from penstock.rows import slices
from penstock.rows.filter.parse import parse_filter
from penstock.store.medium import OpenPart
from penstock.store.payloads import SplitPayloadStore

_WORTH_SENDING = 1 << 20
Moved = Callable[[int, int], None]
"""Told the rows and bytes of each part that goes out."""


def get(call: Call, raw: bytes, store: SplitPayloadStore, signer: Signer, moved: Moved) -> flight.FlightDataStream:
    """The stream that a ticket names.

    1. The ticket is ours and not over. 2. Every byte of a part is as it was written, looked at before its first row
    leaves; a part that is lost ends the stream with an error. 3. Whole parts leave in C++, only what is cut, widened or
    filtered passes through Python, batch by batch.
    """
    ticket = signer.open_read(raw, now=time.time())  # 1.
    first = store.open(ticket.get[0])  # 2.
    if len(ticket.get) == 1 and ticket.is_of_whole_parts:
        moved(first.rows, first.bytes)
        return flight.RecordBatchStream(first.reader(ticket.columns))  # 3.
    whole = _schema(ticket, first)
    schema = slices.select(whole, ticket.columns)
    cut = _cut(ticket, chain((first,), map(store.open, ticket.get[1:])))
    if ticket.filter is not None:
        return flight.GeneratorStream(schema, funnelled(call, _kept(ticket.filter, whole, ticket, cut, moved)))
    return flight.GeneratorStream(schema, funnelled(call, _streams(ticket, schema, cut, moved)))


def _schema(ticket: ReadTicket, first: OpenPart) -> pa.Schema:
    held = first.schema
    if ticket.schema is not None:
        held = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(ticket.schema)))
    return held if ticket.skip is None and ticket.shard is None and ticket.since is None else with_places(held)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The rows of a part that its ticket names, and what the server knows of them."""

    part: OpenPart
    skip: int
    rows: int
    shard: int | None
    offset: int | None
    since: float | None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """These rows, in this schema: columns that came later are null, the server's own are added. No copy."""
        held = [name for name in schema.names if self.part.schema.get_field_index(name) >= 0]
        at = self.skip
        for batch in slices.rows_of(self.part.reader(held), self.skip, self.rows):
            yield pa.RecordBatch.from_arrays([self._column(field, batch, at) for field in schema], schema=schema)
            at += batch.num_rows

    def is_all(self) -> bool:
        """Whether these are all rows of the part."""
        return (self.skip, self.rows) == (0, self.part.rows)

    def _column(self, field: pa.Field, batch: pa.RecordBatch, at: int) -> pa.Array:
        index = batch.schema.get_field_index(field.name)
        if index >= 0:
            return batch.column(index)
        if field.name == "_offset" and self.offset is not None:
            start = self.offset + at - self.skip
            return pa.arange(start, start + batch.num_rows)  # type: ignore[attr-defined]  # the stubs lack it
        if field.name == "_shard" and self.shard is not None:
            return pa.repeat(pa.scalar(self.shard, field.type), batch.num_rows)
        if field.name == "_time" and self.since is not None:
            return pa.repeat(pa.scalar(round(self.since * 1e6), field.type), batch.num_rows)
        return pa.nulls(batch.num_rows, field.type)


def _cut(ticket: ReadTicket, parts: Iterable[OpenPart]) -> Iterator[_Cut]:
    skip, left, offset = ticket.skip or 0, ticket.rows, ticket.offset
    if ticket.filter is None and left is None:
        left = ticket.limit
    for number, part in enumerate(parts):
        rows = part.rows - skip if left is None else min(left, part.rows - skip)
        yield _Cut(part, skip, rows, ticket.shard, offset, ticket.since[number] if ticket.since else None)
        offset = None if offset is None else offset + rows
        left = None if left is None else left - rows
        skip = 0


def _streams(
    ticket: ReadTicket, schema: pa.Schema, cuts: Iterable[_Cut], moved: Moved
) -> Iterator[flight.RecordBatchStream | pa.Table]:
    """Each part as a stream that C++ runs; what is cut, widened or given more columns, batch by batch."""
    as_it_is = (ticket.schema, ticket.shard, ticket.since) == (None, None, None)
    for cut in cuts:
        moved(cut.rows, cut.part.bytes)
        if as_it_is and cut.is_all():
            yield flight.RecordBatchStream(cut.part.reader(ticket.columns))
        else:
            for batch in cut.batches(schema):
                yield pa.Table.from_batches([batch])  # a bare batch would leave without its dictionaries


def _kept(text: str, whole: pa.Schema, ticket: ReadTicket, cuts: Iterable[_Cut], moved: Moved) -> Iterator[pa.Table]:
    """The rows that a filter keeps, at most the ticket's limit.

    A part is filtered at once. The few rows that are left of several leave together: 1 % of 8 MiB in a message of its
    own would cost a reader more than the rows do.
    """
    wanted = parse_filter(text, whole)
    names = wanted.needed(whole, ticket.columns)
    needed = slices.select(whole, names)
    left, waiting, size = ticket.limit, [], 0
    for cut in cuts:
        found = wanted.kept(pa.Table.from_batches(cut.batches(needed), needed))
        found = found.select(ticket.columns or names).slice(0, left)
        moved(found.num_rows, found.nbytes)
        left = None if left is None else left - found.num_rows
        waiting.append(found)
        size += found.nbytes
        if size >= _WORTH_SENDING or left == 0:
            yield from _in_one(waiting)
            waiting, size = [], 0
        if left == 0:
            return
    yield from _in_one(waiting)


def _in_one(tables: list[pa.Table]) -> Iterator[pa.Table]:
    batches = [batch for table in tables for batch in table.to_batches() if batch.num_rows]
    if batches:
        yield from (pa.Table.from_batches([piece]) for piece in slices.together(batches))
