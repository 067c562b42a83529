"""docs/benchmarks-connect.md: results of Spark Connect, beside pyspark's own client."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import create_server
from typing import Any

from scripts import connect_server
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.figures import Line, Measure, Sample
from scripts.bench.session import lacks

OURS, TO_ARROW, ITERATOR = "penstock", "pyspark's toArrow", "pyspark's private iterator"
_READERS = {OURS: "penstock", TO_ARROW: "toArrow", ITERATOR: "iterator"}
_CONFS = {
    "spark.driver.memory": "6g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.maxResultSize": "0",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_ROW = 20.0  # bytes: a long, a long, an int
_CLIENT = "pyspark-client==4.2.0"  # the newest one on the index
_IMPORTS = {OURS: "import penstock; penstock.spark_connect", TO_ARROW: "import pyspark.sql.connect.session"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    rows: int
    small_rows: int
    """Of the result in batches of 1,000."""

    @property
    def room(self) -> int:
        """MiB that must be free: two installations."""
        return 1_500


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    large = f"{sizes.rows:,} rows, {sizes.rows * _ROW / 1e9:.1f} GB"
    sides: dict[str, Side] = {name: partial(_reads, name, sizes.rows, 10_000) for name in _READERS}
    yield Case(
        sides,
        [
            Line("Large result", "all of it", OURS, TO_ARROW, ratio="time", promise=("<=", 1.1)),
            Line("Large result", "all of it", OURS, ITERATOR, ratio="time"),
            Line("Large result", "first batch", OURS, TO_ARROW, ratio="speed", promise=(">=", 3), of="first"),
            Line("Large result", "first batch", OURS, ITERATOR, ratio="speed", of="first"),
            Line("Large result", "client's peak memory", OURS, unit="MiB", of="peak", promise=("<", 200e6)),
            Line("Large result", "client's peak memory", TO_ARROW, unit="MiB", of="peak"),
            Line("Large result", "client's peak memory", ITERATOR, unit="MiB", of="peak"),
        ],
        sizes.rounds,
        data=large,
    )
    sides = {name: partial(_reads, name, sizes.small_rows, 1_000) for name in _READERS}
    yield Case(
        sides,
        [
            Line("Small batches", "all of it", OURS, TO_ARROW, ratio="speed", promise=(">=", 2)),
            Line("Small batches", "all of it", OURS, ITERATOR, ratio="speed"),
        ],
        sizes.rounds,
        data=f"{sizes.small_rows:,} rows, 1,000 a batch",
    )
    imports = {name: partial(_import, code) for name, code in _IMPORTS.items()}
    yield Case(imports, [Line("Import", "import", OURS, TO_ARROW, ratio="speed", promise=(">=", 2))], sizes.rounds)
    sizes_of = {OURS: partial(_installed, "penstock"), TO_ARROW: partial(_installed, "pyspark")}
    line = Line("Installed size", "with all that it needs", OURS, TO_ARROW, "MiB", ratio="time", promise=("<=", 0.5))
    yield Case(sizes_of, [line], 1, warm_up=False)


def _reads(side: str, rows: int, batch_rows: int, bench: Bench) -> Measure:
    """Read a result in a process of its own."""
    uri = _server(bench, batch_rows)
    query = f"select id, id * 2 as twice, cast(id % 1000 as int) as small from range(0, {rows}, 1, 8)"

    def measure() -> Sample:
        report = _run("-m", "scripts.bench.connect_reader", _READERS[side], uri, query)
        values: dict[str, Any] = json.loads(report)
        if values["rows"] != rows:
            raise SystemExit(f"{side} has {values['rows']:,} of {rows:,} rows")
        return {name: [values[name]] for name in ("seconds", "first", "peak")}

    return measure


def _server(bench: Bench, batch_rows: int) -> str:
    """Return the address of a server whose batches have so many rows; it ends with the case."""
    confs = {
        **_CONFS, "spark.sql.execution.arrow.maxRecordsPerBatch": str(batch_rows),
        "spark.local.dir": str(bench.folder / "spark"),
    }  # fmt: skip
    folder = bench.folder / f"connect-{batch_rows}"
    if folder.exists():
        return (folder / "uri").read_text()
    uri = bench.contexts.enter_context(connect_server.running(folder, _free_port(), confs))
    (folder / "uri").write_text(uri)
    return uri


def _free_port() -> int:
    while True:
        port = random.randrange(15_000, 20_000)
        with suppress(OSError), create_server(("127.0.0.1", port)):
            return port


def _import(code: str, _: Bench) -> Measure:
    """Import in a new interpreter; the interpreter's own start doesn't count."""
    script = f"import time; t = time.perf_counter(); exec({code!r}); print(time.perf_counter() - t)"
    return lambda: {"seconds": [float(_run("-W", "ignore", "-c", script))]}


def _installed(what: str, bench: Bench) -> Measure:
    """Install a client with all that it needs into an empty folder, and take its size."""

    def measure() -> Sample:
        folder = bench.folder / f"installed-{what}"
        wanted = _CLIENT if what == "pyspark" else f"{Path(__file__).parents[3]}[connect]"
        _run("-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder), wanted)
        files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
        return {"seconds": [float(sum(file.stat().st_size for file in files))]}

    return measure


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)[:200]}: {done.stderr[-3000:]}")
    return done.stdout


def _lacks() -> str | None:
    """Say what of pyspark's client is missing."""
    missing = [
        name for name in ("grpc", "grpc_status", "pandas", "zstandard") if importlib.util.find_spec(name) is None
    ]
    return lacks() or (f"pyspark's Connect client lacks {', '.join(missing)}" if missing else None)


PAGE = Page(
    output="docs/benchmarks-connect.md",
    command="make bench-connect",
    sizes={
        "all": Sizes(rounds=7, rows=50_000_000, small_rows=10_000_000),
        "quick": Sizes(rounds=3, rows=10_000_000, small_rows=2_000_000),
        "smoke": Sizes(rounds=1, rows=20_000, small_rows=5_000),
    },
    cases=cases,
    others=frozenset({TO_ARROW, ITERATOR}),
    lacks=_lacks,
)
