"""Servers: in this process for speed, in one of their own where something is killed or measured."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client, connect
from penstock.flight_server.lifecycle import serving
from penstock.flight_server.local import LocalDoor
from penstock.flight_server.server import PenstockServer
from penstock.flight_server.settings import Settings

ANY_PORT = "grpc://127.0.0.1:0"
ELSEWHERE = "from penstock.flight_server.local import LocalDoor; LocalDoor._opened = lambda *_: ([], [])"
"""A prelude: readers are as if on another host, nothing is mapped for them."""


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., PenstockServer]]:
    """A server in this process, with settings of the test's; ended with the test."""
    with ExitStack() as stack:

        def make(**settings: Any) -> PenstockServer:
            settings = {"data": tmp_path / "data", "listen": ANY_PORT, "drain": 5.0, **settings}
            return stack.enter_context(serving(Settings(**settings)))

        yield make


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for servers in this process."""
    monkeypatch.setattr(LocalDoor, "_opened", lambda *_: ([], []))


@pytest.fixture
def server(make_server: Callable[..., PenstockServer]) -> PenstockServer:
    """A server on disk, with every default."""
    return make_server()


@pytest.fixture
def client(server: PenstockServer) -> Iterator[Client]:
    """A client of `server`."""
    with connect(server.url, retry_for=2) as found:
        yield found


@dataclass
class ProcessServer:
    """A server in a process of its own; `kill` is kill -9."""

    process: subprocess.Popen[str]
    url: str
    data: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def terminate(self, timeout: float = 30) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def log(self) -> str:
        return (self.data.parent / f"{self.data.name}.log").read_text()


@contextmanager
def process_server(
    data: Path, *, crash_at: str | None = None, crash_on: int = 1, prelude: str = "", **settings: Any
) -> Iterator[ProcessServer]:
    """A server in its own process, on any port. It kills itself at the `crash_on`th passing of step `crash_at`.

    `prelude` is Python that runs there first, to plant a fault. Settings are `Settings`' fields, as JSON can have them.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    log = (data.parent / f"{data.name}.log").open("a")
    given = {"data": str(data), "listen": ANY_PORT, "http": None, **settings}
    plan = {"settings": given, "crash_at": crash_at, "crash_on": crash_on, "prelude": prelude}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.launch", json.dumps(plan)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("grpc"), (
            f"the server didn't start: {(data.parent / f'{data.name}.log').read_text()[-3000:]}"
        )
        yield ProcessServer(process, url, data)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        process.stdout.close()
        log.close()


@contextmanager
def files_at_most(server: ProcessServer, size: int) -> Iterator[None]:
    """No file of the server's may grow beyond so many bytes: a full disk, as the kernel tells it."""
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)
