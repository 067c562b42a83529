"""do_get: a part goes out, as its ticket says."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.flight as flight

from penstock import projection
from penstock.flight_server.access import Call
from penstock.flight_server.funnel import funnelled
from penstock.store.medium import OpenPart
from penstock.store.payloads import SplitPayloadStore
from penstock.tickets import ReadTicket, Signer


def get(call: Call, raw: bytes, store: SplitPayloadStore, signer: Signer) -> tuple[flight.FlightDataStream, int, int]:
    """The stream that a ticket names, with its rows and bytes.

    1. The ticket is ours and not over. 2. Every byte of the part is as it was written. 3. Whole parts leave in C++;
    only what is cut or widened passes through Python, batch by batch.
    """
    ticket = signer.open_read(raw, now=time.time())  # 1.
    part = store.open(ticket.get)  # 2.
    if ticket.limit is None and ticket.schema is None:
        return flight.RecordBatchStream(part.reader(ticket.columns)), part.rows, part.bytes  # 3.
    schema, batches = _shaped(ticket, part)
    rows = part.rows if ticket.limit is None else min(part.rows, ticket.limit)
    # As tables: a bare batch leaves without its dictionaries, and its reader can't begin
    tables = (pa.Table.from_batches([batch]) for batch in funnelled(call, batches))
    return flight.GeneratorStream(schema, tables), rows, part.bytes


def _shaped(ticket: ReadTicket, part: OpenPart) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    batches: Iterable[pa.RecordBatch]
    if ticket.schema is None:
        schema, batches = projection.select(part.schema, ticket.columns), part.reader(ticket.columns)
    else:
        schema = projection.select(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(ticket.schema))), ticket.columns)
        held = [name for name in schema.names if part.schema.get_field_index(name) >= 0]
        batches = projection.widened(part.reader(held), schema)
    return schema, batches if ticket.limit is None else projection.first_rows(batches, ticket.limit)
