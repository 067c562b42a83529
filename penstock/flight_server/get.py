"""do_get: a run of parts is sent, as its ticket says."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.flight_server.cut import Cut
from penstock.flight_server.funnel import funnelled
from penstock.flight_server.gate import Call
from penstock.flight_server.metrics import Metrics
from penstock.flight_server.selection import with_meta
from penstock.flight_server.state import State
from penstock.flight_server.tickets import ReadTicket
from penstock.rows import schemas, slices
from penstock.rows.filter.parse import parse_filter
from penstock.store.medium import OpenPart
from penstock.store.payload_table import InlinePart

_T = TypeVar("_T")
_WORTH_WATCHING = 2 << 20
"""Bytes of a part whose batches are watched one by one; the handing over of a smaller one is watched as a whole."""
_WORTH_SENDING = 1 << 20
"""Bytes of filtered rows that are sent together."""


def get(state: State, call: Call, raw: bytes) -> flight.FlightDataStream:
    """Return the stream that a ticket names.

    1. Check the ticket: signed by this server, and not expired. 2. Open the parts: every byte of a part is verified
    before its first row is sent; a part that is lost ends the stream with an error. 3. Whole parts are sent as they
    are; rows that are cut, widened or filtered are made batch by batch.
    """
    ticket = state.signer.open_read(raw, now=time.time())  # 1.
    parts = ticket.open_parts(state.store)
    first = next(parts) if ticket.inline is None else InlinePart(base64.b64decode(ticket.inline))  # 2.
    if len(ticket.get) <= 1 and ticket.names_parts_as_stored and (ticket.skip, ticket.rows) == (None, None):
        state.metrics.moved("out", first.rows, first.bytes)
        return _whole(first, ticket, call)  # 3.
    available = _schema(ticket, first)
    schema = slices.select(available, ticket.columns)
    cuts = _cuts(ticket, chain((first,), parts))
    if ticket.decoding is not None:
        decoding = state.journals.revisions.decoding(
            ticket.path, ticket.journal or "", available, ticket.decoding
        ).reading(schema)
        batches = decoding.batches(_undecoded(ticket, available, schema, cuts, state.metrics))
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        return flight.GeneratorStream(decoding.schema, funnelled(call, _sent(tables, call)))
    if ticket.filter is not None:
        rows: Iterator[flight.RecordBatchStream | pa.Table] = _filtered(
            ticket.filter, available, ticket, cuts, state.metrics
        )
    else:
        rows = _streams(ticket, schema, cuts, state.metrics, call)
    return flight.GeneratorStream(schema, funnelled(call, _sent(rows, call)))


def _whole(part: OpenPart, ticket: ReadTicket, call: Call) -> flight.RecordBatchStream:
    reader = part.reader(ticket.columns)
    if part.bytes > _WORTH_WATCHING:
        reader = pa.RecordBatchReader.from_batches(reader.schema, _sent(reader, call))
    return flight.RecordBatchStream(reader)


def _sent(pieces: Iterable[_T], call: Call) -> Iterator[_T]:
    """Give the pieces of an answer, so that the watch knows how long the caller leaves each one unread."""
    call.set_waiting(False)
    for piece in pieces:
        call.set_waiting(True)
        yield piece
        call.set_waiting(False)
    call.set_waiting(True)


def _schema(ticket: ReadTicket, first: OpenPart) -> pa.Schema:
    """Return the columns that may be sent."""
    stored = first.schema if ticket.schema is None else schemas.decode(ticket.schema)
    return stored if ticket.skip is None and ticket.shard is None and ticket.since is None else with_meta(stored)


def _cuts(ticket: ReadTicket, parts: Iterable[OpenPart]) -> Iterator[Cut]:
    skip, left, offset = ticket.skip or 0, ticket.rows, ticket.offset
    for number, part in enumerate(parts):
        rows = part.rows - skip if left is None else min(left, part.rows - skip)
        yield Cut(part, skip, rows, ticket.shard, offset, ticket.since[number] if ticket.since else None)
        offset = None if offset is None else offset + rows
        left = None if left is None else left - rows
        skip = 0


def _streams(
    ticket: ReadTicket, schema: pa.Schema, cuts: Iterable[Cut], metrics: Metrics, call: Call
) -> Iterator[flight.RecordBatchStream | pa.Table]:
    """Send each part as a stream; parts that are cut, or get more columns, batch by batch."""
    as_stored = (ticket.schema, ticket.shard, ticket.since) == (None, None, None)
    for cut in cuts:
        metrics.moved("out", cut.rows, cut.part.bytes)
        if as_stored and cut.is_whole():
            yield _whole(cut.part, ticket, call)
        else:
            for batch in cut.batches(schema):
                yield pa.Table.from_batches([batch])  # a bare batch would be sent without its dictionaries


def _undecoded(
    ticket: ReadTicket, available: pa.Schema, schema: pa.Schema, cuts: Iterable[Cut], metrics: Metrics
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are decoded."""
    if ticket.filter is not None:
        for table in _filtered(ticket.filter, available, ticket, cuts, metrics):
            yield from table.to_batches()
        return
    for cut in cuts:
        metrics.moved("out", cut.rows, cut.part.bytes)
        yield from cut.batches(schema)


def _filtered(
    text: str, available: pa.Schema, ticket: ReadTicket, cuts: Iterable[Cut], metrics: Metrics
) -> Iterator[pa.Table]:
    """Send the rows that a filter keeps, at most the ticket's limit.

    A part is filtered at once. The few rows that it leaves of several parts are sent together: 1 % of 8 MiB in a
    message of its own would cost a reader more than the rows do.
    """
    wanted = parse_filter(text, available)
    names = wanted.needed(available, ticket.columns)
    needed = slices.select(available, names)
    left, waiting, size = ticket.limit, [], 0
    for cut in cuts:
        kept = wanted.kept(pa.Table.from_batches(cut.batches(needed), needed))
        kept = kept.select(ticket.columns or names).slice(0, left)
        kept_size = sum(map(slices.size_of, kept.to_batches()))
        metrics.moved("out", kept.num_rows, kept_size)
        left = None if left is None else left - kept.num_rows
        waiting.append(kept)
        size += kept_size
        if size >= _WORTH_SENDING or left == 0:
            yield from _combined(waiting)
            waiting, size = [], 0
        if left == 0:
            return
    yield from _combined(waiting)


def _combined(tables: list[pa.Table]) -> Iterator[pa.Table]:
    batches = [batch for table in tables for batch in table.to_batches() if batch.num_rows]
    if batches:
        yield from (pa.Table.from_batches([piece]) for piece in slices.together(batches))
