"""do_exchange: a client appends batch after batch on one stream, and each is answered once it is durable.

A handler that waits in a read can't be woken, and a write to a client that doesn't read never returns: the watch cuts
the sockets of both. A client that was killed reads as a clean end, so only Bye ends more than the stream.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.flight as flight

from penstock import steps
from penstock.errors import Internal, InvalidRequest, LimitExceeded, PenstockError
from penstock.flight_server.gate import Call
from penstock.flight_server.limits import ServerLimits, check_schema
from penstock.flight_server.state import State
from penstock.flight_server.upload import check_batch, reject_malformed
from penstock.flight_server.watch import WatchedExchange
from penstock.wire import exchange as wire
from penstock.wire import paths

_MOST_WAITING = 1_000
"""Messages that wait to be written before the next one is read."""


def exchange(
    state: State,
    call: Call,
    peer: str,
    descriptor: flight.FlightDescriptor,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.MetadataRecordBatchWriter,
) -> None:
    """Serve one stream to its end, by the kind of its path."""
    call.check_known()
    if descriptor.descriptor_type != flight.DescriptorType.PATH:
        raise InvalidRequest("an exchange's descriptor is a path, such as topic/orders")
    kind, path = state.locate(paths.join_descriptor(descriptor.path))

    def check_right() -> None:
        state.check(call, "write", str(path))

    check_right()
    with (
        state.watch.exchange(peer) as watched,
        Stream(reader, writer, watched, state.limits, call.id, check_right) as stream,
    ):
        watched.drain = stream.drain
        kind.exchange(path, stream)


class Stream:
    """One exchange: its messages come in order, and what is sent goes out in order, by a thread of its own.

    Two threads that write to one stream end the process. A context manager: leaving writes what waits.
    """

    def __init__(
        self,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
        watched: WatchedExchange,
        limits: ServerLimits,
        request: str,
        check_right: Callable[[], None],
    ) -> None:
        self.silence = float(limits.exchange_idle)
        """Seconds without a message after which the client is cut."""
        self.said_bye = False
        self._reader, self._writer, self._watched, self._limits = reader, writer, watched, limits
        self._request = request
        self._check_right = check_right
        """Called at each message: a stream has no end, and its caller's token may be removed."""
        self._has_schema = self._begun = False  # what has come, and what was sent
        self._refused: PenstockError | None = None
        self._changed = threading.Condition()  # all that follows
        self._waiting: deque[tuple[wire.Message, pa.RecordBatch | None]] = deque()
        self._released: wire.Released | None = None
        """The newest one alone."""
        self._ended = False
        self._thread = threading.Thread(target=self._write, name="penstock-exchange", daemon=True)

    # --- in ---------------------------------------------------------------------------------

    def hello(self) -> wire.Hello:
        """Return the first message."""
        for message, _ in self.messages():
            if isinstance(message, wire.Hello):
                return message
            break
        raise InvalidRequest('an exchange begins with {"v":1,"type":"hello"} (write_metadata), before the first batch')

    def messages(self) -> Iterator[tuple[wire.Message, pa.RecordBatch | None]]:
        """Read messages, and the batch beside each, until the client says bye or end, or its stream ends."""
        while (chunk := self._next_chunk()) is not None:
            if chunk.app_metadata is None:
                raise InvalidRequest('a batch came without its number: {"v":1,"type":"batch","n":…} beside it')
            self._check_right()
            message = wire.decode(chunk.app_metadata.to_pybytes())
            is_numbered = isinstance(message, wire.Numbered)
            if is_numbered != (chunk.data is not None) and not isinstance(message, wire.Acks):
                came, expected = ("alone", "beside a batch") if chunk.data is None else ("beside a batch", "alone")
                raise InvalidRequest(f"a message of type {message.type!r} came {came}: expected {expected}")
            if chunk.data is not None:
                self._check(chunk.data)
                steps.passed("exchange.received")
            if isinstance(message, wire.Bye | wire.End):
                self.said_bye = isinstance(message, wire.Bye)
                return
            yield message, chunk.data

    def _next_chunk(self) -> flight.FlightStreamChunk | None:
        with self._changed:
            while len(self._waiting) >= _MOST_WAITING and not self._ended:
                self._changed.wait()
        self._watched.set_reading(True)
        try:
            chunk = reject_malformed(self._reader.read_chunk)
        except StopIteration:
            chunk = None
        finally:
            self._watched.set_reading(False)
        if self._refused is not None:  # whatever came now comes too late
            raise self._refused
        return chunk

    def _check(self, batch: pa.RecordBatch) -> None:
        if not self._has_schema:
            check_schema(batch.schema, self._limits)
            self._has_schema = True
        if (size := check_batch(batch, self._limits)) > wire.MOST_BYTES:
            raise LimitExceeded(f"bytes in a batch of an exchange: expected at most {wire.MOST_BYTES:,}, got {size:,}")

    # --- out --------------------------------------------------------------------------------

    def send(self, message: wire.Message, batch: pa.RecordBatch | None = None) -> None:
        """Queue a message, with a batch beside it; of Released only the newest is kept."""
        with self._changed:
            if isinstance(message, wire.Released):
                self._released = message
            else:
                self._waiting.append((message, batch))
            self._changed.notify_all()

    def refuse(self, error: Exception) -> None:
        """End the stream behind what waits: the client is told, and whatever it sends from now on is refused."""
        if not isinstance(error, PenstockError):
            error = Internal("this exchange failed inside penstock; the server's log has the cause")
        self._refused = error
        self.send(wire.Refusal(error.code, str(error)[:1_000], error.retry_after))

    def drain(self) -> None:
        """Ask the client to end."""
        self.send(wire.Drain())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()  # the watch cuts a client that doesn't read

    def _write(self) -> None:
        try:
            while (message := self._next_message()) is not None:
                self._watched.set_writing(True)
                self._write_one(*message)
                self._watched.set_writing(False)
                if isinstance(message[0], wire.Answer):
                    steps.passed("exchange.answered")
        except (flight.FlightError, pa.ArrowException, OSError):  # the client is gone: its stream has ended, too
            pass
        finally:
            self._watched.set_writing(False)
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _next_message(self) -> tuple[wire.Message, pa.RecordBatch | None] | None:
        """Wait for a message, at most until a beat is due; None at the end."""
        with self._changed:
            if not (self._waiting or self._released or self._ended):
                self._changed.wait(self.silence / 3)
            if self._waiting:
                if len(self._waiting) == _MOST_WAITING:
                    self._changed.notify_all()
                return self._waiting.popleft()
            if self._released is not None:
                released, self._released = self._released, None
                return released, None
            return None if self._ended else (wire.Beat(), None)

    def _write_one(self, message: wire.Message, batch: pa.RecordBatch | None) -> None:
        body = pa.py_buffer(message.encode())
        if batch is None:
            self._writer.write_metadata(body)
            return
        if not self._begun:
            self._writer.begin(batch.schema)
            self._begun = True
        self._writer.write_with_metadata(batch, body)
