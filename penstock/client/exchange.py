"""Exchange: one stream of do_exchange, on which batches are appended and each is answered once it is durable.

gRPC aborts the process at calls that it doesn't allow. One thread reads, one at a time writes (`_lock`), any may
cancel, and the one that reads closes, once it reads no more. None half-closes: a read that comes to the end does that,
and a `done_writing` at the same moment is one too many ("API misuse of type GRPC_CALL_ERROR_TOO_MANY_OPERATIONS"). The
server is asked to end the stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.connection import Connection, translate_errors
from penstock.client.settings import ConnectSettings
from penstock.errors import InvalidRequest, PenstockError, TimedOut, Unavailable, from_flight, of_code
from penstock.wire import exchange as wire
from penstock.wire.position import Position

_ErrorT = TypeVar("_ErrorT", bound=BaseException)
_PYARROW_ERRORS = (flight.FlightError, pa.ArrowException, OSError)
_CANCELLED = 5.0
"""Seconds for a thread of a stream that was cut: one inside pyarrow at the end of Python aborts the process."""


class Listener:
    """What an exchange tells; each function is called in the thread that reads the stream."""

    def answered(self, answer: wire.Answer, places: pa.RecordBatch | None) -> None:
        """A batch is durable; a puller gets the place of each of its rows."""

    def released(self, position: Position) -> None:
        """Every consumer is done with the rows before this position."""

    def asked(self, request: str) -> None:
        """Of a puller: report all leases, with this request's id."""
        return

    def draining(self) -> None:
        """The server is about to stop: send no more batches, and `finish` or `close` once all are answered."""

    def ended(self, error: PenstockError | None) -> None:
        """The stream has ended: batches without an answer are stored or not, those that `send` gets now are not.

        Called once, last. None after `close`, and after `finish`.
        """


class Exchange:
    """One stream, on a socket of its own: hello, numbered batches, beats. It isn't opened again once it has ended."""

    def __init__(
        self, settings: ConnectSettings, path: str, listener: Listener, *, producer: str | None = None, acked: int = 0
    ) -> None:
        """Open the stream: the first batch is the one behind `welcome.last`."""
        self._listener = listener
        self._silence = settings.timeout
        self._acked = acked
        self._closing = False
        self._schema: pa.Schema | None = None
        self._over = threading.Event()
        self._silent = False
        self._lock = threading.Lock()  # writing, and what is sent next: _sent, _next, _schema
        self._connection = Connection(settings, alone=True)
        try:
            with translate_errors():
                descriptor = flight.FlightDescriptor.for_path(*path.split("/"))
                self._writer, self._reader = self._connection.flight.do_exchange(descriptor, self._options(settings))
        except BaseException:
            self._connection.close()
            raise
        self._sent = self._heard = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, name="penstock-exchange-watch", daemon=True)
        self._watcher.start()
        try:
            with translate_errors():
                self._writer.write_metadata(pa.py_buffer(wire.Hello(producer, acked).encode()))
                self.welcome = self._read_welcome()
        except BaseException as error:
            self._end()
            raise self._explained(error) from None
        self._silence = self.welcome.silence
        self._next = self.welcome.last + 1
        self._beats = threading.Thread(target=self._beat, name="penstock-exchange-beat", daemon=True)
        self._beats.start()
        self._thread = threading.Thread(target=self._read, name="penstock-exchange", daemon=True)
        self._thread.start()

    def _options(self, settings: ConnectSettings) -> flight.FlightCallOptions:
        """Return the headers without a deadline: beats tell whether the server is there."""
        token = settings.token
        return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())] if token else [])

    # --- out --------------------------------------------------------------------------------

    def send(self, batch: pa.RecordBatch) -> int:
        """Send a batch, and return its number. Waits while the server takes nothing."""
        with self._lock:
            n = self._next
            self._write_beside(batch, wire.Numbered(n, self._acked))
            self._next += 1
        return n

    def report(self, report: wire.Report | wire.Acks, rows: pa.RecordBatch | None = None) -> None:
        """Send what a puller reports; beside Acks with rows."""
        with self._lock:
            if rows is None:
                self._write(lambda: self._writer.write_metadata(pa.py_buffer(report.encode())))
            else:
                self._write_beside(rows, report)

    def _write_beside(self, batch: pa.RecordBatch, message: wire.Message) -> None:
        """Write a batch with a message beside it."""
        if self._schema is None:
            self._write(lambda: self._writer.begin(batch.schema))
            self._schema = batch.schema
        if not self._schema.equals(batch.schema, check_metadata=True):
            raise InvalidRequest("an exchange has one schema for all of its batches: open another one")
        self._write(lambda: self._writer.write_with_metadata(batch, pa.py_buffer(message.encode())))

    def finish(self) -> None:
        """Send no more; the stream ends once everything is answered, and its producer may come back."""
        self._ask_to_end(wire.End())

    def close(self, timeout: float = 30.0) -> None:
        """Say bye, and wait until everything is answered; the producer is forgotten."""
        self._ask_to_end(wire.Bye())
        if threading.current_thread() is self._thread:
            self.abandon()
            return
        self._thread.join(timeout)
        self.abandon()
        for thread in (self._thread, self._beats, self._watcher):
            thread.join(_CANCELLED)

    def abandon(self) -> None:
        """End the stream at once."""
        self._closing = True
        self._reader.cancel()

    def _ask_to_end(self, message: wire.End | wire.Bye) -> None:
        self._closing = True
        with suppress(Unavailable), self._lock:
            self._write(lambda: self._writer.write_metadata(pa.py_buffer(message.encode())))

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the stream; why a stream has ended comes by reading it."""
        if self._over.is_set():
            raise Unavailable("the exchange has ended")
        try:
            write()
        except _PYARROW_ERRORS as error:
            raise Unavailable(f"the exchange has ended: {from_flight(error)}") from error
        self._sent = time.monotonic()

    # --- in ---------------------------------------------------------------------------------

    def _read_welcome(self) -> wire.Welcome:
        try:
            message, _ = self._next_message()
        except StopIteration:
            raise InvalidRequest("the server took the exchange and said nothing: it isn't a penstock server") from None
        if not isinstance(message, wire.Welcome):
            raise InvalidRequest(f"expected the server's welcome, got {message.type}")
        return message

    def _next_message(self) -> tuple[wire.Message, pa.RecordBatch | None]:
        chunk = self._reader.read_chunk()
        self._heard = time.monotonic()
        if chunk.app_metadata is None:
            raise InvalidRequest("the server sent a batch without a message")
        return wire.decode(chunk.app_metadata.to_pybytes()), chunk.data

    def _read(self) -> None:
        error: PenstockError | None = None
        try:
            while error is None:
                error = self._take(*self._next_message())
        except StopIteration:
            error = None if self._closing else Unavailable("the server has ended the exchange")
        except _PYARROW_ERRORS as broken:
            error = None if self._closing else self._explained(from_flight(broken))
        except PenstockError as malformed:
            error = malformed
        finally:
            self._end()
            self._listener.ended(error)

    def _take(self, message: wire.Message, batch: pa.RecordBatch | None) -> PenstockError | None:
        """Pass a message on; return the error of one that ends the stream."""
        if isinstance(message, wire.Answer):
            self._acked = message.n
            self._listener.answered(message, batch)
        elif isinstance(message, wire.Released):
            self._listener.released(message.position)
        elif isinstance(message, wire.AskAcks):
            self._listener.asked(message.request)
        elif isinstance(message, wire.Drain):
            self._listener.draining()
        elif isinstance(message, wire.Refusal):
            return of_code(message.code, message.text, retry_after=message.retry_after)
        return None

    def _explained(self, error: _ErrorT) -> _ErrorT | TimedOut:
        """Return why the stream ended."""
        silent = TimedOut(f"the server sent nothing for {self._silence:g} s: the exchange was cut")
        return silent if self._silent else error

    def _end(self) -> None:
        """End both directions, and the socket: one whose other end is gone is of no more use."""
        self._over.set()
        self._reader.cancel()
        with self._lock, suppress(*_PYARROW_ERRORS):
            self._writer.close()
        self._connection.close()

    # --- alive ------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send a beat when nothing else was sent for a while. May wait for ever to write: `_watch` ends that."""
        pause = self._silence / 3
        while not self._over.wait(pause / 2):
            if time.monotonic() - self._sent < pause / 2 or not self._lock.acquire(blocking=False):
                continue  # a batch is on its way
            try:
                self._write(lambda: self._writer.write_metadata(pa.py_buffer(wire.Beat(self._acked).encode())))
            except Unavailable:
                return
            finally:
                self._lock.release()

    def _watch(self) -> None:
        """End a stream whose server is silent: reads and writes would wait for ever."""
        while not self._over.wait(min(1.0, self._silence / 10)):
            if time.monotonic() - self._heard > self._silence:
                self._silent = True
                self._reader.cancel()
                return
