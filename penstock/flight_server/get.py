"""do_get: a run of parts goes out, as its ticket says."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.flight as flight

from penstock import filters, projection
from penstock.flight_server.access import Call
from penstock.flight_server.funnel import funnelled
from penstock.store.medium import OpenPart
from penstock.store.payloads import SplitPayloadStore
from penstock.tickets import ReadTicket, Signer

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
    if len(ticket.get) == 1 and (ticket.limit, ticket.schema, ticket.filter) == (None, None, None):
        moved(first.rows, first.bytes)
        return flight.RecordBatchStream(first.reader(ticket.columns))  # 3.
    whole = _schema(ticket, first)
    schema = projection.select(whole, ticket.columns)
    parts = chain((first,), map(store.open, ticket.get[1:]))
    if ticket.filter is not None:
        kept = _kept(ticket.filter, whole, ticket, parts, moved)
        return flight.GeneratorStream(schema, funnelled(call, kept))
    return flight.GeneratorStream(schema, funnelled(call, _streams(ticket, schema, parts, moved)))


def _schema(ticket: ReadTicket, first: OpenPart) -> pa.Schema:
    if ticket.schema is None:
        return first.schema
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(ticket.schema)))


def _streams(
    ticket: ReadTicket, schema: pa.Schema, parts: Iterable[OpenPart], moved: Moved
) -> Iterator[flight.RecordBatchStream | pa.Table]:
    """Each part as a stream that C++ runs; the one in which the limit falls, and widened ones, batch by batch."""
    left = ticket.limit
    for part in parts:
        moved(part.rows if left is None else min(left, part.rows), part.bytes)
        if ticket.schema is None and (left is None or part.rows <= left):
            yield flight.RecordBatchStream(part.reader(ticket.columns))
        else:
            held = [name for name in schema.names if part.schema.get_field_index(name) >= 0]
            batches: Iterable[pa.RecordBatch] = projection.widened(part.reader(held), schema)
            for batch in batches if left is None else projection.first_rows(batches, left):
                yield pa.Table.from_batches([batch])  # a bare batch would leave without its dictionaries
        if left is not None:
            left -= min(left, part.rows)


def _kept(
    text: str, whole: pa.Schema, ticket: ReadTicket, parts: Iterable[OpenPart], moved: Moved
) -> Iterator[pa.Table]:
    """The rows that a filter keeps, at most the ticket's limit.

    A part is filtered at once. The few rows that are left of several leave together: 1 % of 8 MiB in a message of its
    own would cost a reader more than the rows do.
    """
    wanted = filters.parse(text, whole)
    names = wanted.needed(whole, ticket.columns)
    needed = projection.select(whole, names)
    left, waiting, size = ticket.limit, [], 0
    for part in parts:
        held = [name for name in names if part.schema.get_field_index(name) >= 0]
        found = wanted.kept(pa.Table.from_batches(projection.widened(part.reader(held), needed), needed))
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
    if any(table.num_rows for table in tables):
        for batch in pa.concat_tables(tables).combine_chunks().to_batches():
            yield from (pa.Table.from_batches([piece]) for piece in projection.sliced(batch))
