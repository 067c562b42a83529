"""A TCP proxy that cuts what goes through it in the middle."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wire:
    """Passes bytes on between `url` and a port; `cut_after` breaks all connections once so many more have passed."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"grpc://127.0.0.1:{self._door.getsockname()[1]}"
        self.target = 0
        self.cuts = 0
        self._left: int | None = None
        self._lock = threading.Lock()  # _left, _ends
        self._ends: list[socket.socket] = []

    def cut_after(self, size: int | None) -> None:
        with self._lock:
            self._left = size

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone doesn't
        self._door.close()
        self._cut()

    def accept(self) -> None:
        """Until closed."""
        while True:
            try:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            with self._lock:
                self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                with self._lock:
                    cut = self._left is not None and len(data) >= self._left
                    self._left = None if cut or self._left is None else self._left - len(data)
                if cut:
                    self.cuts += 1
                    self._cut()
                    return
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _cut(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def wire() -> Iterator[Wire]:
    """A proxy that runs; set its `target`."""
    found = Wire()
    thread = threading.Thread(target=found.accept, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join(10)
