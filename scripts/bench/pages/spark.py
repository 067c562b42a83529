"""docs/benchmarks-spark.md: Spark's way out and in beside its own floors, Parquet and the driver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import penstock
from scripts.bench.bench import DISK, MEMORY, Bench, Case, Page
from scripts.bench.figures import Line, Measure, Work, timed
from scripts.bench.servers import Penstock
from scripts.bench.session import TENTH, CountRows, ReadyBatches, Shape, blobs, growth, integers, lacks, strings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLOOR = "the floor"
DISK_WRITE, MEMORY_WRITE = "penstock.write, disk", "penstock.write, memory"
AGAIN, FULL_FLOOR = "penstock.write to a path with such rows", "the floor, 10,000 rows a batch"
BY_HAND, SOURCE_WRITE = "do_put by hand, Spark's confs as they are", "DataSource, append"
PARQUET_WRITE, AT_THE_DRIVER = "df.write.parquet", "toArrow at the driver, then put"
READ, SOURCE_READ, PARQUET_READ = "penstock.read", "DataSource, load", "spark.read.parquet"
IN_SPARK, AT_THE_SERVER = "penstock.read, filtered in Spark", "penstock.read with the filter"
THIRD = "a third of the rows"
GROWTH = "growth"
"""A server of its own, as allocators keep what they once had."""
_PARTITION = 1_500_000  # rows; ten times the data are ten times the partitions
_PATH = "store/bench/written"
_FEW = "c < 10"  # of integers(): one row of a hundred


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, in rows; a shape of none is left out."""

    rounds: int
    integers: int
    strings: int
    blobs: int
    growth: int  # rounds in which ten times the integers go out and in: they take the most of the time

    @property
    def room(self) -> int:
        """MiB: eleven times the integers, one more tenfold write beside them."""
        return 25 * 32 * self.integers >> 20


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases; growth first, in fresh processes."""
    shapes = [shape for shape in (integers(sizes.integers), strings(sizes.strings), blobs(sizes.blobs)) if shape.rows]
    few, more, many = (integers(n * sizes.integers, max(1, n * sizes.integers // _PARTITION)) for n in (1, 3, 10))
    first = str(shapes[0])
    for name, side in ((DISK_WRITE, _writing), (READ, _reading)):
        watched = partial(side, way=name, server_name=GROWTH, watched=True)
        sides = {TENTH: partial(watched, shape=few), name: partial(watched, shape=many)}
        yield Case(sides, list(growth(name, "server", "driver")), sizes.growth, data=first)
    for shape in shapes:
        names = (FLOOR, DISK_WRITE, MEMORY_WRITE, BY_HAND, PARQUET_WRITE, SOURCE_WRITE, AT_THE_DRIVER)
        sides = {name: partial(_writing, way=name, shape=shape) for name in names}
        sides[MEMORY_WRITE] = partial(_writing, way=MEMORY_WRITE, shape=shape, server_name=MEMORY)
        lines = [
            Line("Write", DISK_WRITE, DISK_WRITE, FLOOR, ratio="time", promise=("<=", 1.4)),
            Line("Write", MEMORY_WRITE, MEMORY_WRITE, FLOOR, ratio="time", promise=("<=", 1.25)),
            Line("Write", DISK_WRITE, DISK_WRITE, PARQUET_WRITE, ratio="speed", promise=(">=", 1.2)),
            Line("Write", DISK_WRITE, DISK_WRITE, AT_THE_DRIVER, ratio="speed", promise=(">=", 1)),
            Line("Write", BY_HAND, BY_HAND, DISK_WRITE, ratio="time"),
            Line("Write", SOURCE_WRITE, SOURCE_WRITE, DISK_WRITE, ratio="time"),
        ]
        yield Case(sides, lines, sizes.rounds, data=str(shape))
    if sizes.strings:
        text = strings(2 * sizes.strings)
        sides = {name: partial(_writing, way=name, shape=text) for name in (FULL_FLOOR, AGAIN)}
        line = Line("Write", AGAIN, AGAIN, FULL_FLOOR, ratio="time", promise=("<=", 1.25))
        yield Case(sides, [line], sizes.rounds, data=str(text))
    for shape in shapes:
        sides = {name: partial(_reading, way=name, shape=shape) for name in (FLOOR, READ, PARQUET_READ, SOURCE_READ)}
        lines = [
            Line("Read", READ, READ, FLOOR, ratio="time", promise=("<=", 1.3)),
            Line("Read", SOURCE_READ, SOURCE_READ, FLOOR, ratio="time", promise=("<=", 1.7)),
            Line("Read", READ, READ, PARQUET_READ, ratio="speed"),
        ]
        yield Case(sides, lines, sizes.rounds, data=str(shape))
    sides = {name: partial(_reading, way=name, shape=shapes[0], condition=_FEW) for name in (IN_SPARK, AT_THE_SERVER)}
    lines = [Line("Filter", AT_THE_SERVER, AT_THE_SERVER, IN_SPARK, ratio="speed", promise=(">=", 5))]
    yield Case(sides, lines, sizes.rounds, data=first)
    watched = partial(_writing, way=AT_THE_DRIVER, server_name=GROWTH, watched=True)
    sides = {THIRD: partial(watched, shape=few), AT_THE_DRIVER: partial(watched, shape=more)}
    what = f"{AT_THE_DRIVER}: memory of the driver's Python"
    yield Case(sides, [Line("Growth", what, AT_THE_DRIVER, THIRD, "MiB", of="driver")], 1, warm_up=False, data=first)


def _writing(bench: Bench, way: str, shape: Shape, server_name: str = DISK, *, watched: bool = False) -> Measure:
    """Measure a way out. What was written is dropped once all its rows are known to be there."""
    server, frame, parquet = bench.penstock(server_name), shape.frame(bench.spark), bench.folder / "parquet-written"
    url, path = server.url, f"{_PATH}-again" if way == AGAIN else _PATH
    penstock_write = partial(penstock.write, frame, path, progress=False, url=url)
    ways: dict[str, Work] = {
        FLOOR: lambda: _count_rows(frame, shape.rows),
        FULL_FLOOR: lambda: _count_rows(frame, shape.rows, 10_000),
        AGAIN: lambda: penstock_write(mode="overwrite"),
        DISK_WRITE: penstock_write,
        MEMORY_WRITE: penstock_write,
        BY_HAND: lambda: _put_by_hand(frame, url),
        PARQUET_WRITE: lambda: frame.write.parquet(str(parquet)),
        SOURCE_WRITE: lambda: frame.write.format("penstock").mode("append").save(_PATH, url=url),
        AT_THE_DRIVER: lambda: _put_at_the_driver(frame, url),
    }

    def clear() -> None:
        shutil.rmtree(parquet, ignore_errors=True)
        if way not in (FLOOR, FULL_FLOOR, PARQUET_WRITE):
            dataset = server.call("describe", path=path)  # an info would hold the bytes by its tickets
            assert dataset["rows"] == shape.rows, dataset
        if way not in (FLOOR, FULL_FLOOR, PARQUET_WRITE, AGAIN):
            server.drop(_PATH)

    return timed(ways[way], before=bench.settle, clear=clear, watched=_processes(server) if watched else None)


def _count_rows(frame: DataFrame, rows: int, batch_rows: int | None = None) -> None:
    with _tuned(frame, batch_rows):
        counts = frame.mapInArrow(CountRows(), "rows long").collect()
    assert sum(count.rows for count in counts) == rows


def _put_by_hand(frame: DataFrame, url: str) -> None:
    put = penstock.do_put(_PATH, url=url)
    put.finish(frame.mapInArrow(put, put.schema).collect())


def _put_at_the_driver(frame: DataFrame, url: str) -> None:
    with _tuned(frame), penstock.connect(url) as client:
        client.put(_PATH, frame.toArrow())


def _tuned(frame: DataFrame, batch_rows: int | None = None) -> AbstractContextManager[None]:
    """Set the confs that `penstock.write` sets."""
    from penstock.spark_plugin.spark_types import to_arrow
    from penstock.spark_plugin.tuning import tuned

    return tuned(frame.sparkSession, to_arrow(frame.schema), batch_rows)


def _reading(
    bench: Bench, way: str, shape: Shape, server_name: str = DISK, *, condition: str = "true", watched: bool = False
) -> Measure:
    """Measure a way in of a dataset that stays: one that was read can't be dropped, its tickets hold it.

    Every value is summed up, and the sums must be those of the frame itself.
    """
    spark, server, frame = bench.spark, bench.penstock(server_name), shape.frame(bench.spark)
    path, url, parquet = f"store/bench/{shape.rows}", server.url, str(bench.folder / f"parquet-{shape.rows}")
    bench.once(f"{server_name} {path}", lambda: penstock.write(frame, path, progress=False, url=url))
    ways: dict[str, Callable[[], DataFrame]] = {
        READ: lambda: penstock.read(spark, path, url=url),
        SOURCE_READ: lambda: spark.read.format("penstock").load(path, url=url),
        PARQUET_READ: lambda: spark.read.parquet(parquet),
        IN_SPARK: lambda: penstock.read(spark, path, url=url).filter(condition),
        AT_THE_SERVER: lambda: penstock.read(spark, path, url=url, filter=condition),
    }
    if way == PARQUET_READ:
        frame.write.parquet(parquet)
    if way == FLOOR:
        ready = _ready(bench, shape, path, url)
        return timed(lambda: shape.summed(ready), before=bench.settle)
    expected = shape.summed(frame.filter(condition))

    def work() -> None:
        assert shape.summed(ways[way]()) == expected

    return timed(work, before=bench.settle, watched=_processes(server) if watched else None)


def _ready(bench: Bench, shape: Shape, path: str, url: str) -> DataFrame:
    """As many rows that are ready, in as many tasks as penstock has."""
    from penstock.spark_plugin.tuning import rows_per_batch

    tasks = penstock.do_get(path, url=url).tickets(bench.spark).count()
    ready = ReadyBatches(shape.row, shape.rows // tasks, rows_per_batch(shape.row.schema))
    return bench.spark.range(0, tasks, 1, tasks).mapInArrow(ready, shape.frame(bench.spark).schema)


def _processes(server: Penstock) -> dict[str, int]:
    return {"server": server.pid, "driver": os.getpid()}


PAGE = Page(
    output="docs/benchmarks-spark.md",
    command="make bench-spark",
    sizes={
        "all": Sizes(7, 12_000_000, 6_000_000, 200_000, 5),
        "quick": Sizes(5, 6_000_000, 3_000_000, 100_000, 2),
        "smoke": Sizes(1, 8_000, 0, 0, 1),
    },
    cases=cases,
    others=frozenset({FLOOR, FULL_FLOOR, PARQUET_WRITE, PARQUET_READ, AT_THE_DRIVER, IN_SPARK, TENTH, THIRD}),
    lacks=lacks,
)
