"""The command line in this process, against the test's server."""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.cli import app, tables
from penstock.client.client import Client
from penstock.client.put import Writer
from penstock.flight_server.server import PenstockServer
from penstock.wire.put import PutCommand

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


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line as `main` does. `terminal` makes it believe that a person looks on, 100 columns wide."""
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
    """The same, with `server` as its server."""
    assert server.url
    monkeypatch.setenv("PENSTOCK_URL", server.url)
    return penstock


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


def open_write(client: Client, path: str, *, whole: bool, **options: str) -> str:
    """An open write, with or without a whole attempt; its id."""
    opened = client.call("write.open", {"path": path, **options})
    if whole:
        command = PutCommand(uuid.uuid4().hex, ticket=opened["ticket"])
        with Writer(client.connection, command, TRIPS.schema) as writer:
            writer.write(TRIPS)
    return str(opened["write"])
