"""Parts of a server on the same host: it answers a ticket with file descriptors, which are mapped into memory."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa

from penstock.rows import slices

_MAX_DESCRIPTORS = 253  # Linux's limit for one message
_TIMEOUT = 30.0  # seconds for an answer: the server may have to check a cold file first


class LocalParts:
    """A connection to the server's Unix socket for readers on its host.

    Where there is no such socket (another host, another user, not Linux) no part is mapped: do_get fetches them.
    """

    def __init__(self, name: str) -> None:
        self._socket: socket.socket | None = None
        if sys.platform != "linux":
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_TIMEOUT)
        try:
            connection.connect(f"\0{name}")
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            uid = -1
        if uid == os.geteuid():
            self._socket = connection
        else:
            connection.close()

    @property
    def is_open(self) -> bool:
        """Whether the server runs on this host, as this user."""
        return self._socket is not None

    def batches(self, ticket: bytes, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch] | None:
        """Return the ticket's rows, mapped; None where do_get has to fetch them."""
        streams, skip = self.open(ticket)
        if not streams:
            return None
        batches = chain.from_iterable(slices.open_stream(each, columns) for each in streams)
        return slices.first_rows(batches, rows, skip=skip)

    def open(self, ticket: bytes) -> tuple[list[pa.Buffer], int]:
        """Return the IPC streams of the ticket's parts, and how many rows come before its own; none where do_get, which
        waits longer, has to.
        """
        if self._socket is None:
            return [], 0
        descriptors: list[int] = []
        try:
            self._socket.send(ticket)
            answer, descriptors, _, _ = socket.recv_fds(self._socket, 65_536, _MAX_DESCRIPTORS)
            fields = json.loads(answer) if descriptors else {"ranges": []}
            skip = fields.get("skip", 0)
            ranges = fields["cut"] if skip else fields.get("ranges") or [(0, size) for size in fields.get("bytes", ())]
            return [_map(descriptor, *each) for descriptor, each in zip(descriptors, ranges, strict=True)], skip
        except (OSError, ValueError):  # gone, out of files, or late: then its answer would pass for the next ticket's
            self.close()
            return [], 0
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        """Close the connection; parts that are mapped stay."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _map(descriptor: int, start: int, size: int) -> pa.Buffer:
    """Map a range of a file. Not by `mmap`, which keeps its descriptor while a batch lives: a topic may have 10,000."""
    with pa.memory_map(f"/proc/self/fd/{descriptor}") as file:
        return file.read_buffer(start + size)[start:]
