"""Native calls: both ends of an exchange in this process, whose calls into gRPC are checked against what it allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.client import exchange as client_exchange
from penstock.client.connection import Connection
from penstock.flight_server import exchange as server_exchange

_ENDS = {"done_writing", "close"}
"""Calls that end the writing direction; so does a client's read that comes to the end."""
_WRITES = {"begin", "write_metadata", "write_with_metadata", *_ENDS}


class NativeCalls:
    """The calls that run on one stream; those that gRPC doesn't allow beside the others go to `illegal`."""

    def __init__(self, illegal: list[str]) -> None:
        self._illegal = illegal
        self._lock = threading.Lock()  # all that follows
        self._running: list[str] = []
        self._ended: str | None = None
        """What has ended the stream."""

    def wrap(self, native: Any) -> _Checked:
        """Return a reader or a writer whose calls are checked."""
        return _Checked(native, self)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Check a call, which lasts as long as the block."""
        with self._lock:
            beside = next((other for other in self._running if _excludes(name, other)), self._ended)
            if beside is not None and name != "cancel":
                self._illegal.append(f"{name} beside or after {beside}")
            self._running.append(name)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(name)
                if name == "close":
                    self._ended = name

    def end(self) -> None:
        """Note that the handler returns: its stream is freed."""
        with self._lock:
            self._illegal += [f"{name} beside the handler's end" for name in self._running]
            self._ended = "the handler's end"


def _excludes(one: str, other: str) -> bool:
    if one == other or {one, other} <= _WRITES:
        return one != "cancel"
    return "read_chunk" in (one, other) and bool({one, other} & _ENDS)


class _Checked:
    def __init__(self, native: Any, calls: NativeCalls) -> None:
        self._native, self._calls = native, calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self._calls.running(name):
                return getattr(self._native, name)(*arguments)

        return call


class _CheckedFlight:
    def __init__(self, native: Any, illegal: list[str]) -> None:
        self._native, self._illegal = native, illegal

    def do_exchange(self, *arguments: Any) -> tuple[_Checked, _Checked]:
        writer, reader = self._native.do_exchange(*arguments)
        calls = NativeCalls(self._illegal)
        return calls.wrap(writer), calls.wrap(reader)

    def close(self) -> None:
        self._native.close()


@pytest.fixture
def illegal_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Check the calls of all exchanges in this process; the list gets those that gRPC doesn't allow."""
    illegal: list[str] = []

    class CheckedConnection(Connection):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.flight = _CheckedFlight(self.flight, illegal)

    class CheckedStream(server_exchange.Stream):
        def __init__(self, reader: Any, writer: Any, *arguments: Any) -> None:
            self._calls = NativeCalls(illegal)
            super().__init__(self._calls.wrap(reader), self._calls.wrap(writer), *arguments)

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)  # type: ignore[arg-type]
            self._calls.end()

    monkeypatch.setattr(client_exchange, "Connection", CheckedConnection)
    monkeypatch.setattr(server_exchange, "Stream", CheckedStream)
    return illegal
