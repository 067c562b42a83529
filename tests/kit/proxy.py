"""A TCP proxy that cuts, resets, slows, holds or swallows what goes through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing sends RST, and drops what wasn't sent."""
_TAKEN_AHEAD = 256 << 10
"""Bytes that the kernel takes from the server for the proxy: by itself it takes up to 32 MiB."""


class Link:
    """A connection through the proxy: its two sockets, closed when both directions have ended."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.ends = (near, far)
        self._passing = 2
        self._reset = False
        self._lock = threading.Lock()  # _passing

    def cut(self) -> None:
        """Shut both sockets down, as if each side had hung up."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Send RST to both sides. `done` closes the sockets: here a close would wait for the thread that receives."""
        self._reset = True
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                end.shutdown(socket.SHUT_RD)

    def done(self) -> bool:
        """Note that one direction has ended; whether both have now."""
        if not self._reset:
            self.cut()
        with self._lock:
            self._passing -= 1
            if self._passing == 0:
                for end in self.ends:
                    end.close()
            return self._passing == 0


class Proxy:
    """Forwards bytes between its `url` and the port `target`."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"grpc://127.0.0.1:{self._door.getsockname()[1]}"
        self.target = 0
        self.cuts = 0
        self._left: int | None = None
        self._lock = threading.Lock()  # _left, _links
        self._links: list[Link] = []
        self._deaf = False
        self._delay = 0.0
        self._rate = float("inf")
        self._held_after = 0
        self._flows = threading.Event()
        self._flows.set()

    def cut_after(self, size: int | None) -> None:
        """Cut all connections once so many more bytes have passed."""
        with self._lock:
            self._left = size

    def cut(self) -> None:
        """Cut all connections now."""
        for link in self._open():
            link.cut()

    def reset(self) -> None:
        """Reset all connections."""
        for link in self._open():
            link.reset()

    @contextmanager
    def half_open(self) -> Iterator[None]:
        """Swallow all bytes, in both directions; at the end reset the connections."""
        self._deaf = True
        try:
            yield
        finally:
            self.reset()  # what was swallowed is missing, so nothing may follow it
            self._deaf = False

    @contextmanager
    def slow(self, *, delay: float = 0.0, rate: float = float("inf")) -> Iterator[None]:
        """Delay each piece by so many seconds, and pass so many bytes a second in each direction of a connection."""
        self._delay, self._rate = delay, rate
        try:
            yield
        finally:
            self._delay, self._rate = 0.0, float("inf")

    @contextmanager
    def held(self, after: int) -> Iterator[None]:
        """Take no more than so many bytes of a connection from the server; the others wait there until the end."""
        self._flows.clear()
        self._held_after = after
        try:
            yield
        finally:
            self._flows.set()

    def close(self) -> None:
        self._flows.set()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone doesn't
        self._door.close()
        self.cut()

    def accept(self) -> None:
        """Accept connections until closed."""
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TAKEN_AHEAD)
            try:
                far.connect(("127.0.0.1", self.target))
            except OSError:  # the server is down
                near.close()
                far.close()
                continue
            link = Link(near, far)
            with self._lock:
                self._links.append(link)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(link, one, other), daemon=True).start()

    def _pass_on(self, link: Link, one: socket.socket, other: socket.socket) -> None:
        taken = 0
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                taken += len(data)
                if one is link.ends[1] and taken >= self._held_after:
                    self._flows.wait()
                if wait := self._delay + len(data) / self._rate:
                    time.sleep(wait)
                if self._is_cut(len(data)):
                    self.cuts += 1
                    self.cut()
                    break
                if not self._deaf:
                    other.sendall(data)
        if link.done():
            with self._lock, contextlib.suppress(ValueError):
                self._links.remove(link)

    def _is_cut(self, size: int) -> bool:
        with self._lock:
            cut = self._left is not None and size >= self._left
            self._left = None if cut or self._left is None else self._left - size
        return cut

    def _open(self) -> list[Link]:
        with self._lock:
            return list(self._links)


@contextmanager
def open_proxy() -> Iterator[Proxy]:
    """Run a proxy; set its `target`."""
    proxy = Proxy()
    thread = threading.Thread(target=proxy.accept, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(10)
