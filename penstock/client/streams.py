"""The two streams of a client: batches to a server, batches from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.local import LocalParts
from penstock.errors import InvalidRequest, LimitExceeded, PenstockError, Unavailable, from_flight
from penstock.rows import slices
from penstock.wire.put import PutCommand, Receipt, Trailer

_ASK_TIMEOUT = 30.0  # seconds for the reason why a put was cut


@contextmanager
def translated() -> Iterator[None]:
    """pyarrow's errors as penstock's."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise from_flight(error) from error


class Writer:
    """One attempt: batches go to the server as they come, and count once `close` has the receipt.

    A context manager: leaving normally closes; leaving by exception abandons the stream, nothing of it is kept, and
    the exception is the one that is seen.
    """

    def __init__(
        self, client: flight.FlightClient, options: flight.FlightCallOptions, command: PutCommand, schema: pa.Schema
    ) -> None:
        self.schema = schema
        self.receipt: Receipt | None = None
        self._batches = self._rows = 0
        self._done = False
        self._again = (client, command)
        with translated():
            descriptor = flight.FlightDescriptor.for_command(command.encode())
            self._writer, self._reader = client.do_put(descriptor, schema, options)
            if command.ready and self._reader.read() is None:
                self._writer.close()  # which raises what the server has against it

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Send rows. Batches of more than 2 MiB are cut, without a copy."""
        if self._done:
            raise InvalidRequest("this writer is closed: each takes one stream")
        for batch in [data] if isinstance(data, pa.RecordBatch) else data.to_batches():
            for piece in slices.sliced(batch):
                self._send(piece)

    def close(self) -> Receipt:
        """Say that this was all, and wait for the server's word that it is durable."""
        if self.receipt is not None:
            return self.receipt
        if self._done:
            raise InvalidRequest("this writer was abandoned: nothing of it was kept")
        self._done = True
        answer = None
        with self._server_says_why():
            self._writer.write_metadata(pa.py_buffer(Trailer(self._batches, self._rows).encode()))
            self._writer.done_writing()
            answer = self._reader.read()
            self._writer.close()
        if answer is None:
            raise InvalidRequest("the server took the stream and gave no receipt: it isn't a penstock server")
        self.receipt = Receipt.decode(answer.to_pybytes())
        return self.receipt

    def abandon(self) -> None:
        """End the stream without its trailer: the server forgets what came."""
        if not self._done:
            self._done = True
            try:
                self._writer.close()
            except (flight.FlightError, pa.ArrowException, OSError):
                return  # that it misses the trailer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _send(self, batch: pa.RecordBatch) -> None:
        with self._server_says_why():
            self._writer.write_batch(batch)
        self._batches += 1
        self._rows += batch.num_rows

    @contextmanager
    def _server_says_why(self) -> Iterator[None]:
        """A write into a stream that the server has refused fails without the reason; `close` brings it."""
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._done = True
            try:
                self._writer.close()
            except (flight.FlightError, pa.ArrowException, OSError) as reason:
                raise self._reason(from_flight(reason)) from error
            raise from_flight(error) from error

    def _reason(self, error: PenstockError) -> PenstockError:
        """Where the connection broke: whether the server cut this attempt, which it says to who comes with it again."""
        client, command = self._again
        if command.ticket is None or not isinstance(error, Unavailable) or error.request is not None:
            return error
        try:
            options = flight.FlightCallOptions(timeout=_ASK_TIMEOUT)
            Writer(client, options, replace(command, ready=True), self.schema).abandon()
        except LimitExceeded as cut:
            return cut
        except PenstockError:  # the server is away
            return error
        return error


def batches_of(
    fetch: Callable[[bytes], Iterable[pa.RecordBatch]],
    endpoints: Sequence[flight.FlightEndpoint],
    *,
    local: str | None,
    columns: Sequence[str] | None,
    rows: Sequence[int],
    parallel: int,
) -> Iterator[pa.RecordBatch]:
    """The endpoints' batches in order; with `parallel` the next parts are fetched while this one is used."""
    with ExitStack() as stack:
        door = stack.enter_context(LocalParts(local)) if local else None

        def part(number: int) -> Iterable[pa.RecordBatch]:
            ticket = endpoints[number].ticket.ticket
            mapped = door.batches(ticket, columns, rows[number]) if door else None
            return fetch(ticket) if mapped is None else mapped

        if parallel <= 1 or (door is not None and door.is_open):
            for number in range(len(endpoints)):
                yield from part(number)
            return
        from concurrent.futures import Future, ThreadPoolExecutor  # 3 ms of every import, for those who ask for it

        pool = stack.enter_context(ThreadPoolExecutor(parallel, thread_name_prefix="penstock-get"))
        ahead: deque[Future[list[pa.RecordBatch]]] = deque()
        for number in range(len(endpoints)):
            ahead.append(pool.submit(lambda at: list(part(at)), number))
            if len(ahead) == parallel:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()


def next_batch(reader: flight.FlightStreamReader) -> pa.RecordBatch | None:
    """The stream's next batch; None at its end."""
    try:
        batch: pa.RecordBatch = reader.read_chunk().data
    except StopIteration:
        return None
    return batch


def as_batches(data: Any, schema: pa.Schema | None) -> tuple[pa.Schema, Iterable[pa.RecordBatch | pa.Table], bool]:
    """Schema and batches of whatever holds Arrow data, and whether it may be read again."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data], True
    if isinstance(data, pa.Table):
        return data.schema, [data], True
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data, False
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, reader, False
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        return _of_iterable(data, schema)
    raise InvalidRequest(
        f"{type(data).__name__} can't be put: expected a Table, RecordBatchReader, iterator of batches, or anything "
        "with __arrow_c_stream__ (pandas, polars, DuckDB, …)"
    )


def _of_iterable(data: Iterable[Any], schema: pa.Schema | None) -> tuple[pa.Schema, Iterable[pa.RecordBatch], bool]:
    batches = iter(data)
    first = next(batches, None)
    if first is None and schema is None:
        raise InvalidRequest("there is no batch, so the columns aren't known: pass schema=")
    if first is not None and not isinstance(first, pa.RecordBatch):
        raise InvalidRequest(f"an iterator of {type(first).__name__} can't be put: expected pyarrow.RecordBatch")

    def all_of_them() -> Iterator[pa.RecordBatch]:
        if first is not None:
            yield first
        yield from batches

    return schema or first.schema, all_of_them(), False  # type: ignore[union-attr]  # one of them is there
