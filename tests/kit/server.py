"""Servers: in this process for speed, in one of their own where something is killed or measured."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from penstock.client.client import Client, connect
from penstock.flight_server import put
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import serving
from penstock.flight_server.local import LocalDoor
from penstock.flight_server.server import PenstockServer
from penstock.flight_server.state import State
from penstock.flight_server.upload import Upload
from penstock.ledger.writes import Write
from tests.kit import plain
from tests.kit.wait import eventually, files

ANY_PORT = "grpc://127.0.0.1:0"
ELSEWHERE = "from penstock.flight_server.local import LocalDoor; LocalDoor._opened = lambda *_: ([], [])"
"""A prelude: readers are as if on another host, nothing is mapped for them."""


@pytest.fixture
def servers() -> list[PenstockServer]:
    """Those that `make_server` has made."""
    return []


@pytest.fixture
def make_server(tmp_path: Path, servers: list[PenstockServer]) -> Iterator[Callable[..., PenstockServer]]:
    """A server in this process, with settings of the test's; ended with the test."""
    with ExitStack() as stack:

        def make(**settings: Any) -> PenstockServer:
            settings = {"data": tmp_path / "data", "listen": ANY_PORT, "drain": 5.0, **settings}
            servers.append(stack.enter_context(serving(ServerConfig(**settings))))
            return servers[-1]

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

    `prelude` is Python that runs there first, to plant a fault. Settings are those of `ServerConfig`, in JSON.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    log = (data.parent / f"{data.name}.log").open("a")
    given = {"data": str(data), "listen": ANY_PORT, "http": None, **settings}
    plan = {"settings": given, "crash_at": crash_at, "crash_on": crash_on, "prelude": prelude}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.launch", json.dumps(plan)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=Path(__file__).parents[2],
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


def free_port() -> int:
    """For what is started in a moment, or again and again: nobody who binds to port 0 gets it meanwhile."""
    others = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, max(others, 20_000))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def files_at_most(server: ProcessServer, size: int) -> Iterator[None]:
    """No file of the server's may grow beyond so many bytes: a full disk, as the kernel tells it."""
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)


# --- what a fault has met, and what it leaves ---------------------------------------------------


@dataclass
class Puts:
    """What comes by do_put to servers in this process."""

    coming: list[Upload] = field(default_factory=list)
    """The streams that are open."""
    broken: list[tuple[str, int]] = field(default_factory=list)
    """Of each that ended without its trailer: the path, and how many rows had come."""


@contextmanager
def puts_seen() -> Iterator[Puts]:
    """Look on while they come."""
    puts, store = Puts(), put._store

    def seen(state: State, write: Write, upload: Upload, *rest: Any) -> Any:
        puts.coming.append(upload)
        try:
            return store(state, write, upload, *rest)
        except BaseException:
            puts.broken.append((write.path, upload.rows))
            raise
        finally:
            puts.coming.remove(upload)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(put, "_store", seen)
        yield puts


@pytest.fixture
def puts() -> Iterator[Puts]:
    with puts_seen() as found:
        yield found


def own_parts(data: Path) -> set[str]:
    """The parts that a dataset or a topic has, or a read ticket holds, asked of SQLite itself."""
    ledger = sqlite3.connect(data / "ledger.db")
    try:
        query = "SELECT name FROM parts WHERE state = 'visible' OR free_at > ?"
        return {name for (name,) in ledger.execute(query, (time.time(),))}
    finally:
        ledger.close()


def unowned(data: Path) -> set[str]:
    """The files of a data folder that are no dataset's, and the parts of datasets that have no file."""
    return (files(data / "parts") ^ own_parts(data)) | files(data / "tmp")


def left_behind(url: str, data: Path) -> set[str]:
    """End the writes that are open, as `penstock rm` does, and let the sweep run: what then is there still."""
    with flight.connect(url) as bare:
        for write in plain.names(bare, b"write/"):
            plain.call(bare, "delete", path=write)
    with suppress(AssertionError):  # the names say more
        eventually(lambda: not unowned(data))
    return unowned(data)


@pytest.fixture
def nothing_stays(make_server: object, servers: list[PenstockServer]) -> Iterator[None]:
    """After the test, and before its servers end: the bytes on disk are those of its datasets, and no others."""
    yield
    for server in servers:
        assert left_behind(f"grpc://127.0.0.1:{server.port}", server.state.ledger.database.path.parent) == set()
