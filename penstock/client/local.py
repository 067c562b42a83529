"""A server's door for readers on its host: a ticket is answered with file descriptors, which are mapped."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Self

import pyarrow as pa

from penstock.rows import slices

_MOST_FDS = 253  # Linux's most for one message
_PATIENCE = 30.0  # seconds for a descriptor: the server may have to check a cold file first


class LocalParts:
    """The server's door for readers on this host: a ticket is answered with file descriptors, which are mapped.

    Where there is no such door (another host, another user, not Linux) nothing is given each time, and the parts come
    by do_get.
    """

    def __init__(self, name: str) -> None:
        self._socket: socket.socket | None = None
        if sys.platform != "linux":
            return
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.settimeout(_PATIENCE)
        try:
            door.connect(f"\0{name}")
            _, uid, _ = struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            uid = -1
        if uid == os.geteuid():
            self._socket = door
        else:
            door.close()

    @property
    def is_open(self) -> bool:
        """Whether the server is on this host, and this user's."""
        return self._socket is not None

    def batches(self, ticket: bytes, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch] | None:
        """The first rows of the ticket's parts, mapped; None where they must come by do_get."""
        mapped = self.open(ticket)
        if not mapped:
            return None
        return slices.first_rows(chain.from_iterable(slices.open_stream(stream, columns) for stream in mapped), rows)

    def open(self, ticket: bytes) -> list[pa.Buffer]:
        """The IPC streams of the ticket's parts; none where they must come by do_get, which also has more patience."""
        if self._socket is None:
            return []
        fds: list[int] = []
        try:
            self._socket.send(ticket)
            answer, fds, _, _ = socket.recv_fds(self._socket, 65_536, _MOST_FDS)
            lengths = json.loads(answer)["bytes"] if fds else []
            return [_mapped(fd, size) for fd, size in zip(fds, lengths, strict=True)]
        except (OSError, ValueError):  # late, so that its answer would be taken for the next one's; gone; out of files
            self.close()
            return []
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mapped(fd: int, size: int) -> pa.Buffer:
    """Not by `mmap`, which keeps a descriptor for as long as somebody has a batch: a topic may have 10,000 parts."""
    with pa.memory_map(f"/proc/self/fd/{fd}") as file:
        return file.read_buffer(size)
