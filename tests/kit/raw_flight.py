"""A do_put whose messages are sent as they are, because no client sends damaged Arrow: pyarrow's own would rewrite or
refuse them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa

_BODY_TAG = b"\xc2\x3e"  # field 1000 of FlightData


class RawFlight:
    """One connection to a server, with any number of puts."""

    def __init__(self, url: str) -> None:
        own_connection = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(url.rpartition("//")[2], options=own_connection)
        self._do_put = self._channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")  # bytes in and out
        self._calls: list[Any] = []
        self._closed = threading.Event()

    def put(self, messages: Iterable[bytes]) -> bool:
        """Send messages of FlightData; whether the server answers with a receipt."""
        with suppress(grpc.RpcError):
            return next(self._do_put(iter(messages), timeout=30), None) is not None
        return False

    def begin(self, messages: Iterable[bytes]) -> None:
        """Send messages of FlightData, and leave the stream open."""

        def unended() -> Iterator[bytes]:
            yield from messages
            self._closed.wait()

        self._calls.append(self._do_put(unended()))

    def await_end(self) -> None:
        """Wait until the server ends the streams."""
        for call in self._calls:
            with suppress(grpc.RpcError):
                call.result(30)

    def close(self) -> None:
        """End the connection with whatever is open on it."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def flight_data(
    header: bytes = b"", body: bytes = b"", *, metadata: bytes = b"", command: bytes = b"", path: Sequence[str] = ()
) -> bytes:
    """Return a message of FlightData; the first one of a put has a descriptor."""
    descriptor = b"\x08\x02" + _field(b"\x12", command) if command else b""
    if path:
        descriptor = b"\x08\x01" + b"".join(_field(b"\x1a", name.encode()) for name in path)
    return _field(b"\x0a", descriptor) + _field(b"\x12", header) + _field(b"\x1a", metadata) + _field(_BODY_TAG, body)


def ipc_messages(table: pa.Table, compression: str | None) -> list[tuple[bytes, bytes]]:
    """Return header and body of each message of a table's IPC stream: schema, dictionaries, batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return [(each.metadata.to_pybytes(), each.body.to_pybytes() if each.body else b"") for each in messages]


def _field(tag: bytes, value: bytes) -> bytes:
    if not value:
        return b""
    size, left = b"", len(value)
    while left > 127:
        size += bytes([left & 127 | 128])
        left >>= 7
    return tag + size + bytes([left]) + value
