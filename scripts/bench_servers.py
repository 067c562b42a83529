"""The two servers of a benchmark, each in a process of its own, spoken to by the same plain pyarrow client."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.wire.put import PutCommand, Trailer
from penstock.wire.read import ReadCommand

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
}
"""This checkout is measured, with its defaults."""
_PATIENCE = 60.0  # seconds for a server to start, to sweep, to end
_SETTLE = 0.02  # seconds for what a sweep does after it has freed the bytes: a transaction


@dataclass
class Server:
    """A running server, what it takes of the machine, and a client of it."""

    pid: int
    url: str
    client: flight.FlightClient

    def put(self, path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """Put a stream and wait until the server says that it has it."""
        descriptor = flight.FlightDescriptor.for_path(*path.split("/"))
        writer, _ = self.client.do_put(descriptor, schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.close()

    def tickets(self, path: str) -> list[flight.Ticket]:
        """What do_get takes to read a path."""
        return [flight.Ticket(path.encode())]

    def read(self, tickets: Iterable[flight.Ticket]) -> list[pa.Table]:
        """What the tickets name, one after the other."""
        return [self.client.do_get(ticket).read_all() for ticket in tickets]

    def drop(self, path: str) -> None:
        """Forget a path, so that repeats don't fill the machine."""
        list(self.client.do_action(flight.Action("drop", path.encode())))

    def memory(self, field: str) -> int:
        """Bytes, as /proc/PID/status has them: VmRSS, RssAnon."""
        return memory(self.pid, field)

    def threads(self) -> int:
        """How many threads the process has."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def descriptors(self) -> int:
        """How many files and sockets the process has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @contextmanager
    def grown(self, field: str) -> Iterator[list[int]]:
        """Watch the process's memory; afterwards the list has one number, the most that it was above the beginning."""
        growth: list[int] = []
        before = self.memory(field)
        with peak(self.pid, field=field, every=0.005) as most:
            yield growth
        growth.append(most[self.pid] - before)


def memory(pid: int, field: str) -> int:
    """Bytes, as /proc/PID/status has them: VmRSS, RssAnon."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


@contextmanager
def peak(*pids: int, field: str = "RssAnon", every: float = 0.01) -> Iterator[dict[int, int]]:
    """Watch processes' memory, looking every so many seconds; afterwards there is for each the most that it was."""
    most: dict[int, int] = dict.fromkeys(pids, 0)
    over = threading.Event()

    def look() -> None:
        for pid in pids:
            most[pid] = max(most[pid], memory(pid, field))

    def watch() -> None:
        while not over.wait(every):
            look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()
        look()


class Penstock(Server):
    """The same verbs with penstock's trailer, tickets and actions, spelt as any Flight client would."""

    def put(self, path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        command = PutCommand(os.urandom(16).hex(), path=path)
        writer, reader = self.client.do_put(flight.FlightDescriptor.for_command(command.encode()), schema)
        count = rows = 0
        for batch in batches:
            writer.write_batch(batch)
            count, rows = count + 1, rows + batch.num_rows
        writer.write_metadata(pa.py_buffer(Trailer(count, rows).encode()))
        writer.done_writing()
        assert reader.read() is not None
        writer.close()

    def tickets(self, path: str) -> list[flight.Ticket]:
        descriptor = flight.FlightDescriptor.for_command(ReadCommand(path).encode())
        return [endpoint.ticket for endpoint in self.client.get_flight_info(descriptor).endpoints]

    def drop(self, path: str) -> None:
        """Forget a path, and wait until the sweep has freed its bytes: they aren't part of the next measurement."""
        before = self._call("health")["store_bytes"]
        self._call("delete", path=path)
        give_up = time.monotonic() + _PATIENCE
        while self._call("health")["store_bytes"] >= before:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{path} was deleted, and its bytes are still there after {_PATIENCE:g} s")
            time.sleep(0.01)
        time.sleep(_SETTLE)

    def _call(self, name: str, **body: str) -> dict[str, Any]:
        results = list(self.client.do_action(flight.Action(name, json.dumps({"v": 1, **body}).encode())))
        found: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        return found


@contextmanager
def bare() -> Iterator[Server]:
    """The bare server."""
    with _running([str(ROOT / "scripts" / "bench_bare.py")]) as (pid, url), flight.connect(url) as client:
        yield Server(pid, url, client)


@contextmanager
def penstock(data: Path, store: str) -> Iterator[Penstock]:
    """`penstock serve` with every default but the address, the folder and the store."""
    given = ["--listen", "grpc://127.0.0.1:0", "--http", "off", "--data", str(data), "--store", store]
    with _running(["-m", "penstock.cli.app", "serve", *given]) as (pid, url), flight.connect(url) as client:
        yield Penstock(pid, url, client)


@contextmanager
def _running(command: list[str]) -> Iterator[tuple[int, str]]:
    """A server's process, and the address that it tells in its first lines."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, *command], stdout=said, stderr=said, cwd=ROOT, env=ENVIRONMENT)
        try:
            yield process.pid, _address(process, said)
        finally:
            process.terminate()
            process.wait(_PATIENCE)


def _address(process: subprocess.Popen[bytes], said: IO[str]) -> str:
    give_up = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < give_up:
        said.seek(0)
        found = re.search(r"grpc\S*://\S+(?=\s)", said.read())
        if found:
            return found[0]
        time.sleep(0.01)
    said.seek(0)
    raise RuntimeError(f"a server didn't start: {said.read()[-2000:]}")
