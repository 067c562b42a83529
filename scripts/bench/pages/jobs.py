"""docs/benchmarks-jobs.md: Ray Data's reads and the store `ray:` beside Ray's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scripts.bench import on_ray
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.figures import Line, Measure

READ, PARQUET = "Datasource", "Ray Data's read_parquet"
STORE, REGISTRY, OWNER = "store ray:", "a registry of Ray, the producer owns", "a registry of Ray, which owns"
_WAYS = {STORE: "store", REGISTRY: "registry", OWNER: "owned"}
_PATH = "store/bench/jobs"
_BATCH_ROWS = 65_536
_FILE_BYTES = 32 << 20
"""Of an endpoint, and of a Parquet file."""
_ROW_BYTES = 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    rows: int
    payloads: int

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return (2 * self.rows * _ROW_BYTES >> 20) + 600


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    sides: dict[str, Side] = {READ: partial(_read, rows=sizes.rows), PARQUET: partial(_read_parquet, rows=sizes.rows)}
    amount = sizes.rows * _ROW_BYTES / 2**20
    what = f"{amount:,.0f} MiB"
    read = Line("Ray Data's read", what, READ, PARQUET, "MiB/s", amount, (">=", 0.8), "speed")
    yield Case(sides, [read], sizes.rounds)
    for size, name in ((100_000, "100 kB"), (1_000_000, "1 MB")):
        sides = {way: partial(_pass_on, way=way, count=sizes.payloads, size=size) for way in _WAYS}
        line = partial(
            Line, "Store of Ray", f"payloads of {name}", STORE, unit="/s", amount=sizes.payloads, ratio="speed"
        )
        yield Case(sides, [line(beside=REGISTRY, promise=(">=", 1)), line(beside=OWNER)], sizes.rounds)


def _read(bench: Bench, rows: int) -> Measure:
    server, peer = bench.penstock(), bench.ray
    schema = next(_batches(1)).schema
    bench.once(_PATH, lambda: server.put(_PATH, _batches(rows), schema))
    return lambda: {"seconds": [peer("read_dataset", server.url, _PATH, rows)]}


def _read_parquet(bench: Bench, rows: int) -> Measure:
    peer, folder = bench.ray, bench.folder / "parquet"

    def write() -> None:
        folder.mkdir()
        count = _FILE_BYTES // _ROW_BYTES // _BATCH_ROWS
        batches = list(_batches(rows))
        for first in range(0, len(batches), count):
            table = pa.Table.from_batches(batches[first : first + count])
            pq.write_table(table, folder / f"{first:06}.parquet", compression="none")

    bench.once(str(folder), write)
    return lambda: {"seconds": [peer("read_parquet", str(folder), rows)]}


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield so many rows of four int64, of which no two are equal: Parquet's dictionaries would save most of them."""
    for first in range(0, rows, _BATCH_ROWS):
        ids = np.arange(first, min(first + _BATCH_ROWS, rows))
        yield pa.RecordBatch.from_arrays([pa.array(ids * (2 * n + 1) + n) for n in range(4)], names=list("abcd"))


def _pass_on(bench: Bench, way: str, count: int, size: int) -> Measure:
    peer = bench.ray
    return lambda: {"seconds": [peer("pass_on", _WAYS[way], count, size)]}


PAGE = Page(
    output="docs/benchmarks-jobs.md",
    command="make bench-jobs",
    sizes={
        "all": Sizes(5, 128_000_000, 500),
        "quick": Sizes(3, 16_000_000, 200),
        "smoke": Sizes(1, 8_000, 4),
    },
    cases=cases,
    others=frozenset({PARQUET, REGISTRY, OWNER}),
    rivals={on_ray.NAME: frozenset({PARQUET, REGISTRY, OWNER})},
    lacks=lambda: on_ray.lacks() or None,
)
