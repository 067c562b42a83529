"""Get: what the server says of a path, and the batches of its endpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.arguments import check_columns, check_filter, check_path, to_position
from penstock.client.connection import Connection, translate_errors
from penstock.client.local import LocalParts
from penstock.wire.read import EndpointNote, ReadCommand

Start = Mapping[int, int] | datetime
"""Where to start in a topic: the first offset of each shard, or a time at which rows were appended."""


def read_command(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    filter: str | None = None,
    part: int | None = None,
    start: Start | None = None,
    end: Mapping[int, int] | None = None,
    journal: str | None = None,
) -> ReadCommand:
    """Return the command of these arguments, each checked."""
    check_path(path)
    check_columns(columns)
    check_filter(filter)
    since = start.timestamp() if isinstance(start, datetime) else None
    position = None if isinstance(start, datetime) else to_position(start, "start")
    names = None if columns is None else tuple(columns)
    return ReadCommand(path, names, limit, part, filter, position, to_position(end, "end"), since, journal)


def read_info(connection: Connection, command: ReadCommand) -> flight.FlightInfo:
    """Return the schema, size and endpoints of what a command names."""
    descriptor = flight.FlightDescriptor.for_command(command.encode())
    return connection.flight.get_flight_info(descriptor, connection.options())


def fetch(connection: Connection, ticket: bytes) -> Iterator[pa.RecordBatch]:
    """Return the batches of one ticket, by do_get, which is retried until the first batch has come."""
    return connection.retry(lambda: open_stream(connection, ticket))


def open_stream(connection: Connection, ticket: bytes) -> Iterator[pa.RecordBatch]:
    """Return the batches of one ticket, of which the first has come."""
    with translate_errors():
        options = connection.options(connection.settings.stream_timeout)
        reader = connection.flight.do_get(flight.Ticket(ticket), options)
        return _batches(reader, _next_batch(reader))


def _batches(reader: flight.FlightStreamReader, first: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    batch = first
    while batch is not None:
        yield batch
        with translate_errors():
            batch = _next_batch(reader)


def _next_batch(reader: flight.FlightStreamReader) -> pa.RecordBatch | None:
    """Return the stream's next batch; None at its end."""
    try:
        batch: pa.RecordBatch = reader.read_chunk().data
    except StopIteration:
        return None
    return batch


def read_endpoints(
    fetch: Callable[[bytes], Iterable[pa.RecordBatch]],
    endpoints: Sequence[flight.FlightEndpoint],
    *,
    local: str | None,
    columns: Sequence[str] | None,
    parallel: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the endpoints' batches in order, mapped through the server's socket `local` where that is on this host.

    Elsewhere up to `parallel` endpoints are fetched at a time.
    """
    with ExitStack() as stack:
        parts = stack.enter_context(LocalParts(local)) if local else None

        def batches_of(endpoint: flight.FlightEndpoint) -> Iterable[pa.RecordBatch]:
            ticket = endpoint.ticket.ticket
            rows = EndpointNote.decode(endpoint.app_metadata).rows
            mapped = parts.batches(ticket, columns, rows) if parts else None
            return fetch(ticket) if mapped is None else mapped

        if parallel <= 1 or (parts is not None and parts.is_open):
            for endpoint in endpoints:
                yield from batches_of(endpoint)
            return
        from concurrent.futures import Future, ThreadPoolExecutor  # 3 ms of every import, needed with `parallel` alone

        pool = stack.enter_context(ThreadPoolExecutor(parallel, thread_name_prefix="penstock-get"))
        ahead: deque[Future[list[pa.RecordBatch]]] = deque()
        for endpoint in endpoints:
            ahead.append(pool.submit(lambda endpoint: list(batches_of(endpoint)), endpoint))
            if len(ahead) == parallel:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()
