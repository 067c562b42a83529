"""Measure Spark's way out and in beside its own floors, Parquet and the driver, and write docs/benchmarks-spark.md.

`make bench-spark`, or with ARGS=--quick. Every figure is a ratio of two neighbours in one run: absolute numbers of a
shared machine say little.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

import penstock
from scripts import bench_command
from scripts import bench_spark_sides as sides
from scripts.bench_rows import interleaved
from scripts.bench_servers import penstock as server
from scripts.bench_spark_growth import at_the_driver, growth
from scripts.bench_spark_page import Line, compared, page, shown, slower
from scripts.bench_spark_session import Bench, Shape, blobs, integers, session, strings, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    repeats: int
    integers: int
    """Rows, like the next two."""
    strings: int
    """None: the shape is left out."""
    blobs: int
    growth: int
    """Rounds in which ten times the integers go out and in: they take the most of the time."""


FULL = Sizes(7, 12_000_000, 6_000_000, 200_000, 5)
QUICK = Sizes(5, 6_000_000, 3_000_000, 100_000, 2)
SMOKE = Sizes(1, 8_000, 0, 0, 1)
_COMMANDS = {FULL: "make bench-spark", QUICK: "make bench-spark ARGS=--quick", SMOKE: "scripts/bench_spark.py --smoke"}
_HEADINGS = ("Write", "Read", "Filter", "Growth")


def main() -> None:
    """Measure, show, write."""
    if sys.platform != "linux":
        sys.exit("the benchmarks look into /proc: they run on Linux")
    options = bench_command.options(
        __doc__,
        "docs/benchmarks-spark.md",
        quick="half the rows, fewer repeats",
        smoke="a few rows: shows that it runs, measures nothing",
    )
    sizes = SMOKE if options.smoke else QUICK if options.quick else FULL
    began = time.monotonic()
    found: dict[str, dict[str, list[Line]]] = {heading: {} for heading in _HEADINGS}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name:
        folder = Path(name)
        _check_room(folder, sizes)
        with session(folder) as spark:
            for heading, shape, line in _measured(spark, folder, sizes):
                found[heading].setdefault(str(shape), []).append(line)
                so_far = f"{time.monotonic() - began:5.0f} s"
                print(f"{so_far}  {heading}, {shape}: {shown(line)}", file=sys.stderr, flush=True)
            text = page(
                found,
                repeats=sizes.repeats,
                smoke=sizes == SMOKE,
                command=_COMMANDS[sizes],
                spark=versions(spark),
                folder=folder,
                seconds=time.monotonic() - began,
            )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text)
    lines = [line for tables in found.values() for some in tables.values() for line in some]
    missed = [line.what for line in lines if line.held is False]
    print(f"wrote {options.output}; {f'not held: {missed}' if missed else 'every promise held'}", file=sys.stderr)


def _measured(spark: SparkSession, folder: Path, sizes: Sizes) -> Iterator[tuple[str, Shape, Line]]:
    """Each line with the heading that it stands under, and its data."""
    every = (integers(sizes.integers), strings(sizes.strings), blobs(sizes.blobs))
    shapes = [shape for shape in every if shape.rows]
    settles = sizes != SMOKE
    with _servers(spark, folder / "growth", settles) as bench:  # first: allocators keep what they once had
        for line in growth(bench, sizes.integers, sizes.growth):
            yield "Growth", shapes[0], line
    shutil.rmtree(folder / "growth")
    with _servers(spark, folder / "sides", settles) as bench:
        if sides.has_source(spark):
            spark.dataSource.register(penstock.DataSource)
        for shape in shapes:
            for line in _written(bench, shape, sizes.repeats):
                yield "Write", shape, line
        for shape in shapes:
            for line in _read(bench, shape, sizes.repeats):
                yield "Read", shape, line
        yield "Filter", shapes[0], _filtered(bench, shapes[0], sizes.repeats)
        if sides.has_source(spark):
            for line in at_the_driver(bench, sizes.integers):
                yield "Growth", shapes[0], line


@contextmanager
def _servers(spark: SparkSession, folder: Path, settles: bool) -> Iterator[Bench]:
    with server(folder / "disk", "disk:") as disk, server(folder / "memory", "memory:") as memory:
        yield Bench(spark, disk, memory, folder, settles)


def _written(bench: Bench, shape: Shape, repeats: int) -> Iterator[Line]:
    taken = interleaved(sides.writes(bench, shape), repeats)
    floor, ours = taken.pop(sides.FLOOR), taken.pop(sides.DISK)
    yield compared(sides.DISK, ours, sides.FLOOR, floor, most=1.4)
    yield compared(sides.MEMORY, taken.pop(sides.MEMORY), sides.FLOOR, floor, most=1.25)
    yield slower(sides.PARQUET_WRITE, taken.pop(sides.PARQUET_WRITE), sides.DISK, ours, least=1.2)
    if sides.AT_THE_DRIVER in taken:
        yield slower(sides.AT_THE_DRIVER, taken.pop(sides.AT_THE_DRIVER), sides.DISK, ours, least=1)
    for name, seconds in taken.items():
        yield compared(name, seconds, sides.DISK, ours)


def _read(bench: Bench, shape: Shape, repeats: int) -> Iterator[Line]:
    taken = interleaved(sides.reads(bench, shape), repeats)
    floor, ours = taken.pop(sides.FLOOR), taken.pop(sides.READ)
    yield compared(sides.READ, ours, sides.FLOOR, floor, most=1.3)
    if sides.SOURCE_READ in taken:
        yield compared(sides.SOURCE_READ, taken.pop(sides.SOURCE_READ), sides.FLOOR, floor, most=1.7)
    yield compared(sides.PARQUET_READ, taken.pop(sides.PARQUET_READ), sides.READ, ours)


def _filtered(bench: Bench, shape: Shape, repeats: int) -> Line:
    sides.kept(bench, shape)
    taken = interleaved(sides.filtered(bench, shape), repeats)
    return slower(sides.IN_SPARK, taken[sides.IN_SPARK], sides.AT_THE_SERVER, taken[sides.AT_THE_SERVER], least=5)


def _check_room(folder: Path, sizes: Sizes) -> None:
    needed = 25 * 32 * sizes.integers >> 20  # MiB: eleven times the integers, one more tenfold write beside them
    bench_command.check_room(folder, needed)


if __name__ == "__main__":
    main()
