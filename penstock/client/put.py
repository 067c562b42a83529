"""Put: rows to a server, one stream for each attempt."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.block import SendingBlock
from penstock.client.connection import Connection, translate_errors
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import InvalidRequest, LimitExceeded, PenstockError, TimedOut, Unavailable, from_flight
from penstock.rows import slices
from penstock.wire.put import DatasetOptions, Mode, PutCommand, Receipt, SparkTask, TopicOptions, Trailer

if TYPE_CHECKING:
    from penstock.wire.actions import FinishWrite, Summary

    MaybeSummary = TypeVar("MaybeSummary", bound=Summary | None)

_REASON_TIMEOUT = 30.0  # seconds for the reason why the server cut a put
_PYARROW_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


class Writer(SendingBlock):
    """One attempt: batches go to the server as they are written, and count once `close` has the receipt.

    A context manager: of a stream that is left by exception the server keeps nothing.
    """

    def __init__(
        self, connection: Connection, command: PutCommand, schema: pa.Schema, *, timeout: float | None = None
    ) -> None:
        self.schema = schema
        self.receipt: Receipt | None = None
        self._connection, self._command = connection, command
        self._batches = self._rows = 0
        self._ended = False
        with translate_errors():
            descriptor = flight.FlightDescriptor.for_command(command.encode())
            options = connection.options(timeout or connection.settings.stream_timeout)
            self._writer, self._reader = connection.flight.do_put(descriptor, schema, options)
            if command.ready and self._reader.read() is None:
                self._writer.close()  # raises the server's refusal

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Send rows. Batches of more than 2 MiB are cut, without a copy."""
        if self._ended:
            raise InvalidRequest("this writer is closed: each takes one stream")
        for batch in [data] if isinstance(data, pa.RecordBatch) else data.to_batches():
            for piece in slices.sliced(batch):
                with self._refusal_explained():
                    self._writer.write_batch(piece)
                self._count(piece)

    def write_noted(self, batch: pa.RecordBatch, note: bytes) -> None:
        """Send a batch, which isn't cut, with its app_metadata."""
        with self._refusal_explained():
            self._writer.write_with_metadata(batch, pa.py_buffer(note))
        self._count(batch)

    def _count(self, piece: pa.RecordBatch) -> None:
        self._batches += 1
        self._rows += piece.num_rows

    def close(self) -> Receipt:
        """Send the trailer, and wait for the receipt: the rows are durable."""
        if self.receipt is not None:
            return self.receipt
        if self._ended:
            raise InvalidRequest("this writer was abandoned: the server kept none of its rows")
        self._ended = True
        answer = None
        with self._refusal_explained():
            self._writer.write_metadata(pa.py_buffer(Trailer(self._batches, self._rows).encode()))
            self._writer.done_writing()
            answer = self._reader.read()
            self._writer.close()
        if answer is None:
            raise InvalidRequest("the server took the stream and gave no receipt: it isn't a penstock server")
        self.receipt = Receipt.decode(answer.to_pybytes())
        return self.receipt

    def abandon(self) -> None:
        """End the stream without its trailer: the server drops its rows."""
        if not self._ended:
            self._ended = True
            try:
                self._writer.close()
            except _PYARROW_ERRORS:
                return  # the server's complaint about the missing trailer

    @contextmanager
    def _refusal_explained(self) -> Iterator[None]:
        """Raise the server's reason: a write into a stream that it has refused fails without one, `close` has it."""
        try:
            yield
        except _PYARROW_ERRORS as error:
            self._ended = True
            try:
                self._writer.close()
            except _PYARROW_ERRORS as reason:
                raise self._reason(from_flight(reason)) from error
            raise from_flight(error) from error

    def _reason(self, error: PenstockError) -> PenstockError:
        """Return why the connection broke: a server that cut an attempt says so when the attempt is opened again."""
        if self._command.ticket is None or not isinstance(error, Unavailable) or error.request is not None:
            return error
        try:
            again = replace(self._command, ready=True)
            Writer(self._connection, again, self.schema, timeout=_REASON_TIMEOUT).abandon()
        except LimitExceeded as cut:
            return cut
        except PenstockError:  # the server is away
            return error
        return error


def open_attempt(connection: Connection, ticket: str, schema: pa.Schema, *, task: SparkTask | None = None) -> Writer:
    """Open one of many attempts of an open write; wait while the server has no room."""
    return connection.retry(
        lambda: Writer(connection, PutCommand(uuid.uuid4().hex, ticket=ticket, ready=True, task=task), schema),
        waits_for_room=True,
    )


def finish_write(connection: Connection, request: FinishWrite, *, retry_for: float | None = None) -> Summary:
    """Finish a write; of one that is published wait until all of it is, for as long as that goes on."""
    from penstock.wire.actions import FINISH_WRITE  # which tasks that put do without

    return wait_until_published(lambda: connection.call(FINISH_WRITE, request, retry_for=retry_for), retry_for)


def wait_until_published(ask: Callable[[], MaybeSummary], retry_for: float | None = None) -> MaybeSummary:
    """Ask for a write, if there is one, until it isn't open any more; TimedOut once it has not moved for long."""
    patience = max(LONG_RETRY_FOR, retry_for or 0.0)
    before, moved = None, time.monotonic()
    while True:
        answer = ask()
        if answer is None or answer.state != "open":
            return answer
        if (now := (answer.published or 0, answer.ahead)) != before:
            before, moved = now, time.monotonic()
        if time.monotonic() - moved > patience:
            raise TimedOut(
                f"{answer.path}: Pub/Sub has taken nothing for {patience:g} s; {now[0]:,} of {answer.rows:,} "
                f"messages are published, and the server goes on: penstock show write/{answer.write}"
            )


def describe_write(connection: Connection, write: str) -> Summary:
    """Return what the server has of a write so far."""
    from penstock.wire.actions import DESCRIBE, Summary, Target

    described = connection.call(DESCRIBE, Target(f"write/{write}"))
    return Summary(**{field.name: getattr(described, field.name) for field in fields(Summary)})


def create_topic(connection: Connection, path: str, schema: pa.Schema, options: TopicOptions) -> None:
    """Make an empty topic by a put without rows, or change what an existing one keeps."""
    command = PutCommand(uuid.uuid4().hex, path=path, create=options)
    connection.retry(lambda: Writer(connection, command, schema).close())


def put(
    connection: Connection,
    path: str,
    data: Any,
    *,
    mode: Mode = "error",
    run: str | None,
    schema: pa.Schema | None = None,
    dataset: DatasetOptions | None = None,
    waits_for_room: bool = False,
) -> Receipt:
    """Write rows to a path, all or nothing, as a write of its own.

    Each put is a run, so that one whose answer was lost can be sent again. A one-shot source is not consumed before the
    server accepts the put (`ready`), and not sent again afterwards: a retry would send only the rest.
    """
    schema, batches = batches_to_put(data, schema)
    repeatable = isinstance(batches, list)
    brief, run = (True, f"put-{uuid.uuid4().hex}") if run is None else (None, run)
    ready = not repeatable
    command = PutCommand(uuid.uuid4().hex, path=path, mode=mode, run=run, brief=brief, ready=ready, dataset=dataset)
    begun = False

    def once() -> Receipt:
        nonlocal begun
        with Writer(connection, command, schema) as writer:
            for batch in batches:
                begun = True
                writer.write(batch)
        return writer.close()

    return connection.retry(once, safe=lambda refused: repeatable or not begun, waits_for_room=waits_for_room)


def dataset_options(path: str, partition: str | None, ttl: float | None) -> DatasetOptions | None:
    """Return what a put says of its dataset; reject it for messages, whose put has no room for it."""
    if partition is None and ttl is None:
        return None
    if path.startswith("publish/"):
        raise InvalidRequest(f"{path}: only a dataset has partitions and a time to live: omit partition and ttl")
    return DatasetOptions(partition, ttl)


def batches_to_put(
    data: Any, schema: pa.Schema | None
) -> tuple[pa.Schema, Iterable[pa.RecordBatch] | list[pa.RecordBatch | pa.Table]]:
    """Return the schema and the batches of anything that holds Arrow data; a list of them can be read again.

    `schema` is for an iterator without batches.
    """
    if isinstance(data, pa.RecordBatch | pa.Table):
        return data.schema, [data]
    if hasattr(data, "__arrow_c_stream__"):  # a RecordBatchReader's, too
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, reader
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | dict):
        raise InvalidRequest(
            f"{type(data).__name__} can't be put: expected a Table, RecordBatchReader, iterator of batches, list of "
            "dicts, or anything with __arrow_c_stream__ (pandas, polars, DuckDB, …)"
        )
    batches = iter(data)
    first = next(batches, None)
    if first is None and schema is None:
        raise InvalidRequest("an iterator without batches has no schema: pass schema=")
    if isinstance(first, Mapping):
        table = _table_of([first, *batches], schema)
        return table.schema, [table]
    if first is not None and not isinstance(first, pa.RecordBatch):
        raise InvalidRequest(
            f"an iterator of {type(first).__name__} can't be put: expected pyarrow.RecordBatch, or a dict for each row"
        )
    batches = batches if first is None else chain((first,), batches)
    return schema or first.schema, batches  # type: ignore[union-attr]  # one of them is there


def _table_of(rows: Sequence[Any], schema: pa.Schema | None) -> pa.Table:
    """Return rows as a table, a column that a row lacks as null. Without a schema the types are those of the values."""
    others = [row for row in rows if not isinstance(row, Mapping)]
    if others:
        raise InvalidRequest(f"a list of dicts can't hold {type(others[0]).__name__}: expected a dict for each row")
    names = dict.fromkeys(chain.from_iterable(rows))
    if schema is not None and (unknown := [name for name in names if name not in schema.names]):
        raise InvalidRequest(f"the rows have a column {unknown[0]!r}, which schema= lacks")
    types = dict.fromkeys(names) if schema is None else dict(zip(schema.names, schema.types, strict=True))
    columns = {}
    for name, kind in types.items():
        try:
            columns[name] = pa.array([row.get(name) for row in rows], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"the column {name!r} can't be put: {error}") from error
    return pa.table(columns, schema)
