"""docs/benchmarks-connect.md: results of Spark Connect, beside pyspark's own client."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import penstock
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.figures import Line, Measure, Sample
from scripts.bench.session import lacks

OURS, TO_ARROW, ITERATOR = "penstock", "pyspark's toArrow", "pyspark's private iterator"
_READERS = {OURS: "penstock", TO_ARROW: "toArrow", ITERATOR: "iterator"}
_ROW = 20.0  # bytes: a long, a long, an int
_OURS = ("penstock-flight", "grpcio", "protobuf")
_THEIRS = (
    "pyspark", "pandas", "numpy", "pyarrow", "grpcio", "grpcio-status", "googleapis-common-protos", "zstandard",
    "pyyaml",
)  # fmt: skip
"""What pyspark-client asks for, whose own files are pyspark's without its jars."""
_IMPORTS = {
    OURS: "import sys; sys.modules['numpy'] = None; import penstock; penstock.spark_connect",
    TO_ARROW: "import pyspark.sql.connect.session",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    rows: int
    small_rows: int
    """Of the result in batches of 1,000."""

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return 500


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    large = f"{sizes.rows:,} rows, {sizes.rows * _ROW / 1e9:.1f} GB"
    peak = partial(Line, "Large result", "client's peak memory", OURS, unit="MiB", ratio="time", of="peak")
    sides: dict[str, Side] = {name: partial(_reads, name, sizes.rows, 10_000) for name in _READERS}
    yield Case(
        sides,
        [
            Line("Large result", "all of it", OURS, TO_ARROW, ratio="time", promise=("<=", 1.1)),
            Line("Large result", "all of it", OURS, ITERATOR, ratio="time"),
            Line("Large result", "first batch", OURS, TO_ARROW, ratio="speed", promise=(">=", 3), of="first"),
            Line("Large result", "first batch", OURS, ITERATOR, ratio="speed", of="first"),
            peak(beside=TO_ARROW, promise=("<", 200e6)),
            peak(beside=ITERATOR),
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
    sizes_of = {OURS: partial(_installed, _OURS), TO_ARROW: partial(_installed, _THEIRS)}
    line = Line("Installed size", "with all that it needs", OURS, TO_ARROW, "MiB", ratio="time", promise=("<=", 0.5))
    yield Case(sizes_of, [line], 1, warm_up=False)


def _reads(side: str, rows: int, batch_rows: int, bench: Bench) -> Measure:
    """Read a result in a process of its own."""
    query = f"select id, id * 2 as twice, cast(id % 1000 as int) as small from range(0, {rows}, 1, 8)"

    def measure() -> Sample:
        report = _run("-m", "scripts.bench.connect_reader", _READERS[side], bench.connect, str(batch_rows), query)
        values: dict[str, Any] = json.loads(report)
        if values["rows"] != rows:
            raise SystemExit(f"{side} has {values['rows']:,} of {rows:,} rows")
        return {name: [values[name]] for name in ("seconds", "first", "peak")}

    return measure


def _import(code: str, _: Bench) -> Measure:
    """Import in a new interpreter; the interpreter's own start doesn't count."""
    script = f"import time; t = time.perf_counter(); exec({code!r}); print(time.perf_counter() - t)"
    return lambda: {"seconds": [float(_run("-W", "ignore", "-c", script))]}


def _installed(names: Sequence[str], _: Bench) -> Measure:
    """Take the size of installed distributions with all that they need; of pyspark its Python files alone."""

    def measure() -> Sample:
        total, waiting, seen = 0, [*names], set[str]()
        while waiting:
            name = re.split(r"[^\w.-]", waiting.pop())[0].lower().replace("_", "-")
            if name in seen:
                continue
            seen.add(name)
            own = distribution(name)
            waiting += [each for each in own.requires or () if "extra ==" not in each] if name != "pyspark" else []
            files = [Path(str(own.locate_file(file))) for file in own.files or ()]
            if name == "penstock-flight":  # installed for development: its files are here
                files = [*Path(penstock.__file__).parent.rglob("*")]
            if name == "pyspark":
                files = [file for file in files if file.suffix in (".py", ".pyi", ".pyc")]
            total += sum(file.stat().st_size for file in files if file.is_file())
        return {"seconds": [float(total)]}

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
