"""A do_put spelt out byte by byte: HTTP/2 and gRPC over a plain socket, because no client sends damaged Arrow.

pyarrow's own client would rewrite or refuse the messages; from here they reach the server as they are.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW = 4
_FRAME = 16_384  # the most that a frame may carry
_BODY_TAG = b"\xc2\x3e"  # field 1000 of FlightData


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a call: with a receipt, or without."""

    receipt: bytes | None

    @property
    def accepted(self) -> bool:
        return self.receipt is not None


class RawFlight:
    """One connection, one call at a time. ConnectionError if the server dies."""

    def __init__(self, url: str, timeout: float = 30) -> None:
        self._authority = url.rpartition("//")[2]
        host, _, port = self._authority.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._stream = -1
        self._initial = self._room = 65_535
        self._stream_room = 0
        self._over = True
        self._receipt = b""
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))

    # --- a call, whole or begun --------------------------------------------------------------

    def put(self, messages: Iterable[bytes]) -> Answer:
        """Send messages of FlightData, and wait for the answer."""
        self.begin(messages)
        self._send_data(b"", end=True)
        while not self._over:
            self._read_frame()
        return Answer(self._receipt[5:] or None)

    def begin(self, messages: Iterable[bytes]) -> None:
        """Send messages of FlightData, and leave the stream open."""
        self._stream += 2
        self._stream_room, self._over, self._receipt = self._initial, False, b""
        headers = {
            ":method": "POST", ":scheme": "http", ":path": "/arrow.flight.protocol.FlightService/DoPut",
            ":authority": self._authority, "te": "trailers", "content-type": "application/grpc",
        }  # fmt: skip
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers.items())
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, self._stream, block))
        for message in messages:
            self._send_data(b"\x00" + struct.pack(">I", len(message)) + message)

    def reset(self) -> None:
        """End the connection by RST, as a machine that crashed and came back does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def hears_the_end(self) -> bool:
        """Wait until the server ends the connection."""
        try:
            while True:
                self._read_frame()
        except ConnectionError:
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    # --- frames ------------------------------------------------------------------------------

    def _send_data(self, data: bytes, *, end: bool = False) -> None:
        at = 0
        while (at < len(data) or end) and not self._over:
            while at < len(data) and min(self._room, self._stream_room) <= 0 and not self._over:
                self._read_frame()
            piece = data[at : at + min(_FRAME, self._room, self._stream_room)]
            at += len(piece)
            self._room -= len(piece)
            self._stream_room -= len(piece)
            is_last = end and at == len(data)
            self._socket.sendall(_frame(_DATA, _END_STREAM if is_last else 0, self._stream, piece))
            if is_last:
                return

    def _read_frame(self) -> None:
        head = self._read(9)
        kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0] & 0x7FFFFFFF
        body = self._read(int.from_bytes(head[:3], "big"))
        if kind == _DATA and body:
            self._socket.sendall(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", len(body))))
        if kind == _WINDOW_UPDATE and stream == 0:
            self._room += struct.unpack(">I", body)[0]
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(body)
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, body))
        elif kind == _GOAWAY:
            raise ConnectionError(f"the server said goodbye: {body[8:]!r}")
        elif stream == self._stream:
            self._on_stream(kind, flags, body)

    def _on_stream(self, kind: int, flags: int, body: bytes) -> None:
        if kind == _WINDOW_UPDATE:
            self._stream_room += struct.unpack(">I", body)[0]
        elif kind == _DATA:
            self._receipt += body
        if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self._over = True

    def _settings(self, body: bytes) -> None:
        for at in range(0, len(body), 6):
            name, value = struct.unpack(">HI", body[at : at + 6])
            if name == _INITIAL_WINDOW:
                self._stream_room += value - self._initial
                self._initial = value
        self._socket.sendall(_frame(_SETTINGS, _ACK, 0))

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            some = self._socket.recv(65_536)
            if not some:
                raise ConnectionError("the server hung up")
            self._unread += some
        data, self._unread = self._unread[:size], self._unread[size:]
        return data


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


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + body


def _text(text: str) -> bytes:
    """Encode a header's name or value for HPACK: not indexed, not compressed."""
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def _field(tag: bytes, value: bytes) -> bytes:
    if not value:
        return b""
    size, left = b"", len(value)
    while left > 127:
        size += bytes([left & 127 | 128])
        left >>= 7
    return tag + size + bytes([left]) + value
