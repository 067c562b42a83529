"""Get: what the server says of a path, and the batches of its endpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.connection import Connection, translate_errors
from penstock.client.local import LocalParts
from penstock.wire.read import ReadCommand


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
        chunks = iter(connection.flight.do_get(flight.Ticket(ticket), options))
        return _batches(next(chunks, None), chunks)


def read_table(connection: Connection, ticket: bytes, *, retry_for: float) -> pa.Table:
    """Return all rows of one ticket, by do_get, as one table."""
    options = connection.options(connection.settings.stream_timeout)
    return connection.retry(
        lambda: connection.flight.do_get(flight.Ticket(ticket), options).read_all(), retry_for=retry_for
    )


def _batches(
    chunk: flight.FlightStreamChunk | None, later: Iterator[flight.FlightStreamChunk]
) -> Iterator[pa.RecordBatch]:
    while chunk is not None:
        yield chunk.data
        with translate_errors():
            chunk = next(later, None)


def read_tickets(
    connection: Connection,
    tickets: Iterable[tuple[bytes, int]],
    *,
    local: str | None,
    columns: Sequence[str] | None,
    parallel: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of tickets, each given with its rows, in order: on the server's host mapped through its socket
    `local`; elsewhere up to `parallel` tickets are fetched at a time.
    """
    with ExitStack() as stack:
        parts = stack.enter_context(closing(LocalParts(local))) if local else None

        def batches_of(ticket: bytes, rows: int) -> Iterable[pa.RecordBatch]:
            mapped = parts.batches(ticket, columns, rows) if parts else None
            return fetch(connection, ticket) if mapped is None else mapped

        if parallel <= 1 or (parts is not None and parts.is_open):
            for ticket, rows in tickets:
                yield from batches_of(ticket, rows)
            return
        from concurrent.futures import Future, ThreadPoolExecutor  # 3 ms of every import, needed with `parallel` alone

        pool = stack.enter_context(ThreadPoolExecutor(parallel, thread_name_prefix="penstock-get"))
        ahead: deque[Future[list[pa.RecordBatch]]] = deque()
        for each in tickets:
            ahead.append(pool.submit(lambda each: list(batches_of(*each)), each))
            if len(ahead) == parallel:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()
