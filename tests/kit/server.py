"""Servers: in this process for speed, in one of their own where something is killed or measured; and their folders."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from scripts.child import free_port
from tests.kit import wire
from tests.kit.proxy import Proxy, open_proxy
from tests.kit.wait import eventually, files

if TYPE_CHECKING:
    from tests.kit.spark_faults import Marks

ANY_PORT = "grpc://127.0.0.1:0"
NO_LOCAL_READS = "from penstock.flight_server.local import LocalDoor; LocalDoor._opened = lambda *_: ([], [])"
"""A prelude of `process_server`: readers map nothing, as if on another host."""
TOKEN = "canary-0123456789abcdef"


@pytest.fixture
def servers() -> list[PenstockServer]:
    """The servers that `make_server` has made."""
    return []


@pytest.fixture
def make_server(tmp_path: Path, servers: list[PenstockServer]) -> Iterator[Callable[..., PenstockServer]]:
    """Start servers in this process, with the settings of the test; they end with it."""
    with ExitStack() as stack:

        def make(**settings: Any) -> PenstockServer:
            servers.append(stack.enter_context(served(**{"data": tmp_path / "data", **settings})))
            return servers[-1]

        yield make


@contextmanager
def served(data: Path, **settings: Any) -> Iterator[PenstockServer]:
    """Serve a data folder in this process, on any port."""
    settings = {"listen": ANY_PORT, "drain": 5.0, "http": None, **settings}
    with serving(ServerConfig(data=data, **settings)) as server:
        yield server


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make readers of servers in this process map nothing, as if on another host."""
    monkeypatch.setattr(LocalDoor, "_opened", lambda *_: ([], []))


@pytest.fixture
def server(make_server: Callable[..., PenstockServer]) -> PenstockServer:
    """A server on disk, with every default."""
    return make_server()


@pytest.fixture
def client(server: PenstockServer) -> Iterator[Client]:
    """A client of `server`."""
    with connect(server.url, retry_for=2) as client:
        yield client


@pytest.fixture
def url_variable(server: PenstockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PENSTOCK_URL name `server`."""
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))


@pytest.fixture
def token_client(make_server: Callable[..., PenstockServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of a server with a token; the environment has both."""
    monkeypatch.setenv("PENSTOCK_URL", str(make_server(token_file=token_file(tmp_path)).url))
    monkeypatch.setenv("PENSTOCK_TOKEN", TOKEN)
    return connect(retry_for=2)


@pytest.fixture
def proxied(make_server: Callable[..., PenstockServer]) -> Iterator[Proxy]:
    """A proxy whose address is the only one of a server in this process."""
    with open_proxy() as proxy:
        proxy.target = make_server(advertise=proxy.url).port
        yield proxy


def sorted_ids(client: Client, path: str) -> list[int]:
    """Return the ids of all rows, sorted."""
    return sorted(client.get(path).read_all()["id"].to_pylist())


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    """Write a server's token to a file, by default readable by its user alone."""
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


class Fork:
    """A process that was forked for this one, by another: with the verbs of subprocess.Popen."""

    def __init__(self, pid: int, code: int) -> None:
        """`code` is the descriptor that its exit code comes from."""
        self.pid = pid
        self.returncode: int | None = None
        self._code = code
        self._told = select.poll()  # not select(): a process may have more than 1,024 descriptors
        self._told.register(code, select.POLLIN)
        self._lock = threading.Lock()  # returncode, _code

    def poll(self) -> int | None:
        """Return the exit code, if it has ended."""
        with self._lock:
            if self.returncode is None and self._told.poll(0):
                self.returncode = int(os.read(self._code, 9))
                os.close(self._code)
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        """Wait for its end, and return its exit code."""
        eventually(lambda: self.poll() is not None, within=timeout, what=f"process {self.pid} ends")
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Forks:
    """The process that forks servers: started with the first one, for as long as this process lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a plan and its answer
        self._control: socket.socket | None = None

    def start(self, plan: dict[str, Any], address: int, log: int) -> Fork:
        """Start a server with these descriptors for its address and its log."""
        code, told = os.pipe()
        with self._lock:
            if self._control is None:
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                command = [sys.executable, "-m", "tests.kit.programs.server"]
                with theirs:
                    process = subprocess.Popen(command, stdin=theirs.fileno(), cwd=Path(__file__).parents[2])
                atexit.register(process.wait)
                atexit.register(self._control.close)  # which ends it
            socket.send_fds(self._control, [json.dumps(plan).encode()], [address, log, told])
            pid = int(self._control.recv(9))
        os.close(told)
        return Fork(pid, code)


FORKS = Forks()


def token_of(name: str) -> str:
    """Return the token of a caller of `tokens_file`."""
    return f"canary-of-{name}-0123456789"


def tokens_file(folder: Path, **callers: Mapping[str, Sequence[str]]) -> Path:
    """Write callers to a file, each with the paths of its rights; or write it again."""
    path = folder / "tokens.toml"
    tables = []
    for name, rights in callers.items():
        lines = [f"{right} = {json.dumps(paths)}" for right, paths in rights.items()]
        digest = hashlib.sha256(token_of(name).encode()).hexdigest()
        tables.append("\n".join([f"[{name}]", f'sha256 = "{digest}"', *lines]))
    path.write_text("\n\n".join(tables))
    path.chmod(0o600)
    return path


def bearer(token: str, **options: Any) -> flight.FlightCallOptions:
    """Return the options of a call that shows a token."""
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())], **options)


@dataclass
class ProcessServer:
    """A server in a process of its own; `kill` is kill -9."""

    process: Fork
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
    """Start a server in its own process, on any port. It kills itself at the `crash_on`th passing of step `crash_at`.

    `prelude` is Python that runs there first, to plant a fault. Settings are those of `ServerConfig`, in JSON.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    settings = {"data": str(data), "listen": ANY_PORT, "http": None, **settings}
    plan = {
        "settings": settings, "crash_at": crash_at, "crash_on": crash_on, "prelude": prelude,
        "environment": dict(os.environ),
    }  # fmt: skip
    address, told = os.pipe()
    with (data.parent / f"{data.name}.log").open("a") as log, os.fdopen(address) as lines:
        try:
            process = FORKS.start(plan, told, log.fileno())
        finally:
            os.close(told)
        try:
            url = lines.readline().strip()
            assert url.startswith("grpc"), f"the server didn't start: {Path(log.name).read_text()[-3000:]}"
            yield ProcessServer(process, url, data)
        finally:
            process.kill()
            process.wait(30)


class RestartingServer:
    """A server that is started again on its folder and its port whenever it dies.

    At its end its folder has its datasets, and no other bytes.
    """

    def __init__(self, data: Path, **settings: Any) -> None:
        self.url = f"grpc://127.0.0.1:{free_port()}"
        self.data = data
        self.lives = 0
        self._settings = settings
        self._end = threading.Event()
        self._process: ProcessServer | None = None

    @contextmanager
    def living(self) -> Iterator[None]:
        started = threading.Event()
        thread = threading.Thread(target=self._live, args=(started,), daemon=True)
        thread.start()
        try:
            assert started.wait(60)
            yield
            assert leftover_files(self.url, self.data) == set()
        finally:
            self._end.set()
            thread.join(60)

    def kill(self) -> None:
        assert self._process is not None
        self._process.process.kill()

    def killed_at(self, marks: Marks, when: Callable[[], object]) -> threading.Thread:
        """Start a thread that kills the server when a task asks for it and `when` is true, and then tells the task."""

        def kill() -> None:
            eventually(when)
            self.kill()

        return marks.when_asked(kill)

    def _live(self, started: threading.Event) -> None:
        settings = dict(self._settings)
        while not self._end.is_set():
            with process_server(self.data, listen=self.url, **settings) as self._process:
                self.lives += 1
                started.set()
                while self._process.process.poll() is None and not self._end.wait(0.02):
                    pass
            settings.pop("crash_at", None)


# --- puts, and bytes on disk --------------------------------------------------------------------


@dataclass
class Puts:
    """The puts of servers in this process."""

    coming: list[Upload] = field(default_factory=list)
    """The open ones."""
    broken: list[tuple[str, int]] = field(default_factory=list)
    """Path and received rows of each that ended without its trailer."""


@contextmanager
def watch_puts() -> Iterator[Puts]:
    """Record the puts of servers in this process."""
    puts, store = Puts(), put._store

    def recorded(state: State, write: Write, upload: Upload, *rest: Any) -> Any:
        puts.coming.append(upload)
        try:
            return store(state, write, upload, *rest)
        except BaseException:
            puts.broken.append((write.path, upload.rows))
            raise
        finally:
            puts.coming.remove(upload)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(put, "_store", recorded)
        yield puts


@pytest.fixture
def puts() -> Iterator[Puts]:
    with watch_puts() as puts:
        yield puts


def named_parts(data: Path, condition: str = "true") -> set[str]:
    """Return the parts that a data folder's ledger has rows for, read by SQLite itself."""
    ledger = sqlite3.connect(data / "ledger.db")
    try:
        return {name for (name,) in ledger.execute(f"SELECT name FROM parts WHERE {condition}")}
    finally:
        ledger.close()


def stray_files(data: Path) -> set[str]:
    """Return the files of a data folder that no dataset, topic or ticket names, and named parts without a file."""
    owned = named_parts(data, f"state = 'visible' OR free_at > {time.time()}")
    return (files(data / "parts") ^ owned) | files(data / "tmp")


def leftover_files(url: str, data: Path) -> set[str]:
    """End the open writes, as `penstock rm` does, wait for the sweep, and return the stray files that stay."""
    with flight.connect(url) as bare:
        for write in wire.list_paths(bare, b"write/"):
            wire.call(bare, "delete", path=write)
    with suppress(AssertionError):  # the names say more
        eventually(lambda: not stray_files(data))
    return stray_files(data)


@pytest.fixture
def nothing_stays(make_server: object, servers: list[PenstockServer]) -> Iterator[None]:
    """Check after the test, before its servers end, that only bytes of datasets are on disk."""
    yield
    for server in servers:
        assert leftover_files(f"grpc://127.0.0.1:{server.port}", server.state.ledger.database.path.parent) == set()
