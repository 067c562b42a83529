"""The Flight servers that are measured, each in a process of its own, with one plain pyarrow client for all.

The client speaks as docs/wire.md has it, without penstock's modules: any revision of penstock can be the server.
`python -m scripts.bench.servers PORT` is the bare server.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from scripts.bench.watch import FsyncCounter
from scripts.child import free_port

_PATIENCE = 90.0  # seconds for a process to start, to sweep, to end
_SWEPT = 0.02  # seconds for what a sweep does after it has freed the bytes: a transaction


class BareServer(flight.FlightServerBase):
    """Tables in a dict; no checks, no trailer, no disk: the least that do_put and do_get cost through pyarrow."""

    def __init__(self, location: str) -> None:
        self._tables: dict[bytes, pa.Table] = {}
        super().__init__(location)

    def do_put(self, context: object, descriptor: flight.FlightDescriptor, reader: Any, writer: object) -> None:
        self._tables[b"/".join(descriptor.path)] = reader.read_all()

    def do_get(self, context: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        return flight.RecordBatchStream(self._tables[ticket.ticket])

    def do_action(self, context: object, action: flight.Action) -> list[bytes]:
        self._tables.pop(action.body.to_pybytes())
        return []


@dataclass(frozen=True)
class Server:
    """A running server, spoken to as the bare one is."""

    pid: int
    url: str
    client: flight.FlightClient

    def put(self, path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """Put a stream and wait until the server has answered."""
        writer, _ = self.client.do_put(flight.FlightDescriptor.for_path(*path.split("/")), schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.close()

    def tickets(self, path: str) -> list[flight.Ticket]:
        """Return what do_get takes to read a path."""
        return [flight.Ticket(path.encode())]

    def read(self, tickets: Iterable[flight.Ticket]) -> list[pa.Table]:
        """Read the tickets, one after the other."""
        return [self.client.do_get(ticket).read_all() for ticket in tickets]

    def drop(self, path: str) -> None:
        """Delete a path, so that rounds do not fill the machine."""
        list(self.client.do_action(flight.Action("drop", path.encode())))


@dataclass(frozen=True)
class Penstock(Server):
    """The same verbs with penstock's trailer, tickets and actions."""

    http: str
    fsyncs: FsyncCounter

    def put(self, path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        command = _json(attempt=os.urandom(16).hex(), path=path)
        writer, answers = self.client.do_put(flight.FlightDescriptor.for_command(command), schema)
        number = rows = 0
        for batch in batches:
            writer.write_batch(batch)
            number, rows = number + 1, rows + batch.num_rows
        writer.write_metadata(pa.py_buffer(_json(batches=number, rows=rows)))
        writer.done_writing()
        assert answers.read() is not None
        writer.close()

    def tickets(self, path: str) -> list[flight.Ticket]:
        descriptor = flight.FlightDescriptor.for_command(_json(path=path))
        return [endpoint.ticket for endpoint in self.client.get_flight_info(descriptor).endpoints]

    def drop(self, path: str) -> None:
        """Delete a path and wait until the sweep has freed its bytes: they are no part of the next measurement."""
        before = self.call("health")["store_bytes"]
        at_once = {"now": True} if self._has("undelete") else {}  # a revision of before that keeps nothing for it
        self.call("delete", path=path, **at_once)
        give_up = time.monotonic() + _PATIENCE
        while self.call("health")["store_bytes"] >= before:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{path} was deleted, and its bytes are still there after {_PATIENCE:g} s")
            time.sleep(0.01)
        time.sleep(_SWEPT)

    def create_topic(self, path: str, schema: pa.Schema, *, shards: int) -> None:
        """Create an empty topic: by a put without rows, or at a revision of before that by its action."""
        if self._has("topic.create"):
            fields = [{"name": field.name, "type": str(field.type), "nullable": True} for field in schema]
            self.call("topic.create", path=path, schema=fields, shards=shards)
            return
        command = _json(attempt=uuid.uuid4().hex, path=path, create={"shards": shards})
        writer, _ = self.client.do_put(flight.FlightDescriptor.for_command(command), schema)
        writer.write_metadata(_json(batches=0, rows=0))
        writer.done_writing()
        writer.close()

    def _has(self, action: str) -> bool:
        return action in [each.type for each in self.client.list_actions()]

    def call(self, action: str, **body: object) -> dict[str, Any]:
        """Call an action."""
        results = list(self.client.do_action(flight.Action(action, _json(**body))))
        answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        return answer

    def totals(self) -> dict[str, float]:
        """Return what /metrics has, by name and labels, and the `fsyncs` that the process has called for."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=_PATIENCE) as page:
            samples = [line.rpartition(" ") for line in page.read().decode().splitlines() if line[:1] != "#"]
        return {**{name: float(value) for name, _, value in samples}, **self.fsyncs.total()}


@contextmanager
def bare_server(folder: Path) -> Iterator[Server]:
    """Run the bare server."""
    port = free_port()
    url, command = f"grpc://127.0.0.1:{port}", [sys.executable, "-m", "scripts.bench.servers", str(port)]
    with running(command, port, folder / "bare.log") as pid, flight.connect(url) as client:
        yield Server(pid, url, client)


@contextmanager
def penstock_server(data: Path, store: str = "disk:", *options: str) -> Iterator[Penstock]:
    """Run `penstock serve` with every default but the addresses, the folder, the store and these options."""
    port, http = free_port(), free_port()
    url, where = f"grpc://127.0.0.1:{port}", ["--http", f"127.0.0.1:{http}", "--data", str(data), "--store", store]
    command = [sys.executable, "-m", "penstock.cli.app", "serve", "--listen", url, *where, *options]
    counter = FsyncCounter(data)
    with running(command, port, data.with_suffix(".log"), counter.environment), flight.connect(url) as client:
        _wait_until_ready(f"127.0.0.1:{http}")
        pid = int((data / "lock").read_text())  # not the supervisor's
        yield Penstock(pid, url, client, f"127.0.0.1:{http}", counter)


def _wait_until_ready(http: str) -> None:
    """Wait until a server that listens admits calls, too: it rejects the first ones for some milliseconds."""
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            urllib.request.urlopen(f"http://{http}/readyz", timeout=_PATIENCE).close()
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
        else:
            return


@contextmanager
def running(command: list[str], port: int, log: Path, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """Run a server's process; yields its id once it listens at the port."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(environment or {})})
    give_up = time.monotonic() + _PATIENCE
    try:
        while process.poll() is None and time.monotonic() < give_up:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.02)
        else:
            raise RuntimeError(f"{' '.join(command[:4])} … did not start: {log.read_text()[-2000:]}")
        yield process.pid
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _json(**fields: object) -> bytes:
    return json.dumps({"v": 1, **fields}).encode()


if __name__ == "__main__":
    server = BareServer(f"grpc://127.0.0.1:{sys.argv[1]}")
    threading.Event().wait()
