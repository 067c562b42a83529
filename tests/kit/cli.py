"""The command line: in this process against the test's server, or as a process; and files of each format."""

from __future__ import annotations

import io
import json
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.cli import app, tables
from penstock.client.client import Client
from penstock.client.put import Writer
from penstock.flight_server.server import PenstockServer
from penstock.wire.put import PutCommand

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "penstock.cli.app"]
"""The command line as a process of its own."""

NOWHERE = "grpc://127.0.0.1:1"
TRIP_TABLE = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "at": pa.array(
            [datetime(2026, 6, 1, 12, 0, n % 60, tzinfo=UTC) for n in range(100)], pa.timestamp("us", "UTC")
        ),
        "to": pa.array([None if n % 7 == 0 else f"zone {n % 5}" for n in range(100)]),
        "fare": pa.array([n / 4 for n in range(100)], pa.float64()),
    }
)


def write_arrow(table: pa.Table, file: str) -> None:
    with pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)


def write_arrows(table: pa.Table, file: str) -> None:
    with pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)


WRITERS: dict[str, Callable[[pa.Table, str], None]] = {
    ".arrow": write_arrow,
    ".feather": lambda table, file: pyarrow.feather.write_feather(table, file, compression="uncompressed"),
    ".arrows": write_arrows,
    ".parquet": pq.write_table,
}
READERS: dict[str, Callable[[str], pa.Table]] = {
    ".arrow": lambda file: pa.ipc.open_file(pa.memory_map(file)).read_all(),
    ".feather": pyarrow.feather.read_table,
    ".arrows": lambda file: pa.ipc.open_stream(pa.memory_map(file)).read_all(),
    ".parquet": pq.read_table,
}


def environment(**variables: str) -> dict[str, str]:
    """Return this process's variables without penstock's, with these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | variables


@dataclass
class Ran:
    """The end of a command line."""

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


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line as `main` does; with `terminal` as on a terminal of 100 columns."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Ran:
        with monkeypatch.context() as patch:
            if terminal:
                patch.setattr(tables, "on_terminal", lambda stream=None: True)
                patch.setattr(tables, "width", lambda: 100)
            with CliRunner().isolation(input=io.BufferedReader(io.BytesIO(stdin))) as (out, err, _):
                code = app.run(arguments)
            return Ran(code, out.getvalue(), err.getvalue().decode())

    return run


@pytest.fixture
def here(server: PenstockServer, penstock: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against `server`."""
    assert server.url
    monkeypatch.setenv("PENSTOCK_URL", server.url)
    return penstock


@pytest.fixture
def trips(client: Client) -> str:
    """A dataset of TRIP_TABLE."""
    client.put("store/demo/trips", TRIP_TABLE)
    return "store/demo/trips"


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    """TRIP_TABLE as a file."""
    pq.write_table(TRIP_TABLE, tmp_path / "trips.parquet")
    return str(tmp_path / "trips.parquet")


def open_write(client: Client, path: str, *, whole: bool, **options: str) -> str:
    """Open a write, with or without a whole attempt, and return its id."""
    opened = client.call("write.open", {"path": path, **options})
    if whole:
        command = PutCommand(uuid.uuid4().hex, ticket=opened["ticket"])
        with Writer(client.connection, command, TRIP_TABLE.schema) as writer:
            writer.write(TRIP_TABLE)
    return str(opened["write"])
