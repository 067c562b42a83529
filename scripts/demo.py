"""The whole way of a table, in and out, with a server of its own, then Spark's, a job's, a stream's: `make demo`."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
import pyarrow.parquet as pq

import penstock
from penstock.text import format_size, format_table

ROWS = 500_000
ZONES = [
    "Airport", "Castle Hill", "Docks", "East Side", "Fish Market", "Garden City", "Harbour", "Island", "Mill Street",
    "Museum", "North Station", "Old Town", "Park", "River Bend", "South Gate", "Stadium", "Town Hall", "University",
]  # fmt: skip
PENSTOCK = Path(sys.executable).with_name("penstock")
WITH_SPARK = Path(__file__).with_name("demo_spark.py")
PATIENCE = 60.0  # seconds for the server to start, and to end


def trips(rows: int = ROWS) -> pa.Table:
    """A month of taxi trips, the same each time."""
    dice = random.Random(8815)
    start = 1_780_272_000  # the first second of June 2026, UTC
    waits = dice.choices(range(11), k=rows)  # seconds between two trips
    stops = pa.array(ZONES)
    distance = pa.array([round(dice.lognormvariate(1.2, 0.7), 2) for _ in range(rows)])
    minutes = pc.multiply(distance, pa.array([dice.uniform(1.6, 4.2) for _ in range(rows)]))
    fare = pc.add(pc.add(3.0, pc.multiply(distance, 1.75)), pc.multiply(minutes, 0.4))
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "picked_up": pc.add(pc.cumulative_sum(pa.array(waits, pa.int64())), start)
            .cast(pa.timestamp("s"))
            .cast(pa.timestamp("ms")),
            "from": stops.take(pa.array(dice.choices(range(len(ZONES)), k=rows))),
            "to": stops.take(pa.array(dice.choices(range(len(ZONES)), k=rows))),
            "passengers": pa.array(dice.choices((1, 2, 3, 4, 5, 6), (70, 16, 5, 4, 3, 2), k=rows), pa.int8()),
            "distance": distance,
            "fare": pc.round(fare, 2),
        }
    )


def paint(text: str, code: str) -> str:
    """The text in colour, if a terminal reads it."""
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def say(text: str = "") -> None:
    """A line, at once: the commands write to the same place."""
    print(text, flush=True)


def shell(line: str) -> None:
    """Show a line and run it."""
    say(paint(f"$ {line}", "1;36"))
    program, *arguments = shlex.split(line)
    assert program == "penstock"
    subprocess.run([PENSTOCK, *arguments], check=True)
    say()


class Server:
    """`penstock serve` on one address and one data folder; it may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._listen = folder, "grpc://127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> str:
        """Start it, and return its address, the same each time."""
        log, data = self._folder / "log", str(self._folder / "data")
        flags = ["--listen", self._listen, "--http", "off", "--data", data, "--log-level", "error", *more]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        with log.open("w") as file:
            self._process = subprocess.Popen([str(PENSTOCK), "serve", *flags], stderr=file, env=environment)
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up and self._process.poll() is None:
            text = log.read_text()
            if match := re.search(r"^penstock serves (\S+)$", text, re.MULTILINE):
                say(text)
                self._listen = match[1]
                return self._listen
            time.sleep(0.02)
        raise SystemExit(f"the server didn't start:\n{log.read_text()}")

    def end(self, number: int) -> int | None:
        """Send it a signal, and return its exit code."""
        if self._process is not None:
            self._process.send_signal(number)
            return self._process.wait(PATIENCE)
        return None


def timed(work: Callable[[], int]) -> tuple[int, float]:
    """The rows that were moved, and the seconds of the quickest of three times."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        rows = work()
        seconds.append(time.perf_counter() - began)
    return rows, min(seconds)


def in_python(url: str, table: pa.Table) -> None:
    """What a program does, and whether what comes out is what went in."""
    for line in (
        ">>> import penstock",
        ">>> with penstock.connect() as c:",
        '...     c.put("store/demo/june", table)',
        '...     assert c.get("store/demo/june").read_all().equals(table)',
    ):
        say(paint(line, "1;36"))
    with penstock.connect(url) as c:
        c.put("store/demo/june", table)
        if not c.get("store/demo/june").read_all().equals(table):
            raise SystemExit("what came out isn't what went in")
    say("what came out is what went in\n")


def rates(url: str, table: pa.Table) -> str:
    """The three ways, as a table."""
    with penstock.connect(url) as c, flight.connect(url) as plain:
        info = c.info("store/demo/june")
        ways: dict[str, Callable[[], int]] = {
            "put (checked, on disk)": lambda: c.put("store/demo/rate", table, mode="overwrite").rows,
            "do_get, a plain Flight client": lambda: sum(
                plain.do_get(endpoint.ticket).read_all().num_rows for endpoint in info.endpoints
            ),
            "get, mapped on the same host": lambda: c.get("store/demo/june").read_all().num_rows,
        }
        lines = []
        for name, work in ways.items():
            rows, seconds = timed(work)
            rate = f"{format_size(info.bytes / seconds)}/s"
            lines.append((name, f"{rows:,}", format_size(info.bytes), f"{seconds:.3f}", rate))
    return format_table(("", "rows", "size", "seconds", "rate"), lines, right=("rows", "size", "seconds", "rate"))


def main() -> None:
    """Show it."""
    if not PENSTOCK.exists():
        raise SystemExit(f"{PENSTOCK} isn't there: make setup installs it")
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    server, out = Server(folder), Path("out.parquet")
    try:
        table = trips()
        pq.write_table(table, "trips.parquet")
        say(f"trips.parquet: {table.num_rows:,} trips, {format_size(Path('trips.parquet').stat().st_size)}\n")
        say(paint("$ penstock serve", "1;36"))
        url = os.environ["PENSTOCK_URL"] = server.start()
        for line in (
            "penstock put store/demo/trips trips.parquet",
            "penstock ls store/",
            "penstock get store/demo/trips -n 5",
            "penstock get store/demo/trips -o out.parquet",
        ):
            shell(line)
        if not pq.read_table(out).equals(table):
            raise SystemExit("out.parquet isn't trips.parquet")
        in_python(url, table)
        say(f"{rates(url, table)}\n")
        if code := subprocess.run([sys.executable, WITH_SPARK], check=False).returncode:
            raise SystemExit(code)
        if ended := server.end(signal.SIGTERM):
            raise SystemExit(f"the server ended with {ended}: {(folder / 'log').read_text()}")
    finally:
        server.end(signal.SIGKILL)
        out.unlink(missing_ok=True)
        shutil.rmtree(folder)
    left = " and job.html are" if Path("job.html").exists() else " is"
    say(f"\nThe server has stopped and its data is gone; trips.parquet{left} still here. Now you: in one shell")
    say(paint("  make run-flight", "1"))
    say("and in another")
    say(paint("  . .venv/bin/activate\n  penstock put store/demo/trips trips.parquet", "1"))
    say(paint("  penstock ls store/\n  penstock get store/demo/trips -n 20", "1"))


if __name__ == "__main__":
    main()
