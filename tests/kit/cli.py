"""The command line: in this process against the test's server, or in a process of its own."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.cli import app
from penstock.cli import terminal as streams
from penstock.client.client import Client
from penstock.client.put import Writer
from penstock.flight_server.server import PenstockServer
from penstock.wire.put import PutCommand
from tests.kit.processes import kill
from tests.kit.wait import eventually

ROOT = Path(__file__).parents[2]
PENSTOCK = [sys.executable, "-m", "penstock.cli.app"]
LIMIT = 30.0
"""Seconds for anything that is waited for."""
NOWHERE = "grpc://127.0.0.1:1"
TRIPS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "at": pa.array(
            [datetime(2026, 6, 1, 12, 0, n % 60, tzinfo=UTC) for n in range(100)], pa.timestamp("us", "UTC")
        ),
        "to": pa.array([None if n % 7 == 0 else f"zone {n % 5}" for n in range(100)]),
        "fare": pa.array([n / 4 for n in range(100)], pa.float64()),
    }
)
ORDERS = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("total", pa.decimal128(10, 2)),
        ("city", pa.string()),
    ]
)


@dataclass
class Ran:
    """A command line that has run."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


Run = Callable[..., Ran]
Complete = Callable[..., list[str]]


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line as `main` does. `terminal` makes it believe that a person looks on, 100 columns wide."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Ran:
        with monkeypatch.context() as patch:
            if terminal:
                patch.setattr(streams, "is_terminal", lambda stream=None: True)
                patch.setenv("COLUMNS", "100")
            with CliRunner().isolation(input=io.BufferedReader(io.BytesIO(stdin))) as (out, err, _):
                code = app.run(arguments)
            return Ran(code, out.getvalue(), err.getvalue().decode())

    return run


@pytest.fixture
def here(server: PenstockServer, penstock: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same, with `server` as its server."""
    assert server.url
    monkeypatch.setenv("PENSTOCK_URL", server.url)
    return penstock


@pytest.fixture
def complete(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What bash would offer for the last of these words."""

    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["penstock", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with CliRunner().isolation() as (out, _, _), pytest.raises(SystemExit):
            app.run([])
        return [line.partition(",")[2] for line in out.getvalue().decode().splitlines() if line]

    return offered


@pytest.fixture
def trips(client: Client) -> str:
    """A dataset with TRIPS in it."""
    client.put("store/demo/trips", TRIPS)
    return "store/demo/trips"


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    """TRIPS as a file."""
    pq.write_table(TRIPS, tmp_path / "trips.parquet")
    return str(tmp_path / "trips.parquet")


@pytest.fixture
def ten(client: Client) -> str:
    """A topic of ten rows, put one by one."""
    for number in range(10):
        client.put("topic/x", pa.table({"id": [number]}))
    return "topic/x"


def open_write(client: Client, path: str, *, whole: bool, **options: str) -> str:
    """An open write, with or without a whole attempt; its id."""
    opened = client.call("write.open", {"path": path, **options})
    if whole:
        command = PutCommand(uuid.uuid4().hex, ticket=opened["ticket"])
        with Writer(client.connection, command, TRIPS.schema) as writer:
            writer.write(TRIPS)
    return str(opened["write"])


def create_topic(client: Client, schema: pa.Schema, path: str = "topic/x", **options: Any) -> None:
    """An empty topic."""
    client.create_topic(path, schema, **options)


# --- files ----------------------------------------------------------------------------------


def text_file(folder: Path, *lines: str, name: str = "a.jsonl") -> str:
    """A file of these lines."""
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return str(folder / name)


def write_table(table: pa.Table, file: Path) -> str:
    """A file in the format that its extension tells."""
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    elif file.suffix == ".feather":
        pyarrow.feather.write_feather(table, str(file), compression="uncompressed")
    else:
        with (pa.ipc.new_file if file.suffix == ".arrow" else pa.ipc.new_stream)(str(file), table.schema) as out:
            out.write_table(table)
    return str(file)


def read_table(file: Path) -> pa.Table:
    """What other programs read of such a file."""
    if file.suffix == ".parquet":
        return pq.read_table(file)
    if file.suffix == ".feather":
        return pyarrow.feather.read_table(str(file))
    return (pa.ipc.open_file if file.suffix == ".arrow" else pa.ipc.open_stream)(pa.memory_map(str(file))).read_all()


# --- processes ------------------------------------------------------------------------------


def environment(**variables: str) -> dict[str, str]:
    """This process's variables without penstock's, with these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | variables


def run_process(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A command line in a process, to its end."""
    command = [*PENSTOCK, *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, env=environment(**variables), cwd=ROOT, timeout=60, check=False
    )


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command line in a process whose three streams are pipes; at the end of the block it is killed."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*PENSTOCK, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment(PYTHONUNBUFFERED=""), cwd=ROOT
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@dataclass
class Served:
    """`penstock serve`: the supervisor's process, the address, the file of its log."""

    process: subprocess.Popen[bytes]
    url: str
    file: Path

    @property
    def log(self) -> str:
        return self.file.read_text()

    def server(self) -> int | None:
        """Return the process of the server itself; None while there is none."""
        number = self.process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        return int(children[0]) if children else None

    def end(self) -> None:
        """Kill both: of a supervisor with a planted bug the server would stay."""
        server = None
        with suppress(FileNotFoundError):  # the supervisor has ended
            server = self.server()
        self.process.kill()
        self.process.wait(LIMIT)
        if server is not None:
            kill(server)

    def lives(self) -> int:
        """Count how often the server has said where it is."""
        return self.log.count("\npenstock serves ") + self.log.startswith("penstock serves ")

    def kill_server(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the server a signal that ends it, and wait until the next one serves."""
        before, server = self.lives(), self.server()
        assert server is not None
        os.kill(server, number)
        eventually(lambda: self.lives() > before, within=LIMIT)


@contextmanager
def serving(log: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    """`penstock serve`, once it says where; at the end of the block it is killed."""
    command = [*PENSTOCK, "serve", *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env=environment(**variables), cwd=ROOT)

    def address() -> str | None:
        assert process.poll() is None, log.read_text()
        match = re.search(r"^penstock serves (\S+).*\n", log.read_text(), re.MULTILINE)
        return match and match[1]

    try:
        eventually(address, within=LIMIT)
        yield Served(process, str(address()), log)
    finally:
        Served(process, "", log).end()


def on_a_terminal(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """Exit code and screen of a command line that writes to a terminal of 24 x 80; stdin is one, too, if empty."""
    parent, child = pty.openpty()
    os.set_inheritable(child, True)
    process = subprocess.Popen(
        [*PENSTOCK, *arguments], stdin=subprocess.PIPE if stdin else child, stdout=child, stderr=child, cwd=ROOT,
        env=environment(TERM="xterm-256color"),
    )  # fmt: skip
    os.close(child)
    if process.stdin is not None:
        process.stdin.write(stdin)
        process.stdin.close()
    seen, give_up = b"", time.monotonic() + LIMIT
    while time.monotonic() < give_up:
        if not select.select([parent], [], [], 0.1)[0]:
            continue
        try:
            seen += os.read(parent, 65_536)
        except OSError:  # EIO: the other end is closed
            break
    os.close(parent)
    return process.wait(LIMIT), seen.decode()


class Output:
    """What a process has printed so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._stdout, self._text = process.stdout, b""
        os.set_blocking(process.stdout.fileno(), False)

    def becomes(self, *rows: dict[str, Any]) -> None:
        """Wait until these rows are printed, and no others."""

        def printed() -> list[dict[str, Any]]:
            self._text += self._stdout.read() or b""
            return [json.loads(line) for line in self._text.splitlines()]

        eventually(lambda: printed() == list(rows), within=LIMIT)
