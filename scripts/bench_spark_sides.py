"""The sides: every way to write a frame, every way to read a dataset, and the floors that no way can be faster than."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import penstock
from penstock.spark_plugin import tuning
from scripts.bench_rows import Timed
from scripts.bench_servers import Penstock
from scripts.bench_spark_session import Bench, Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLOOR = "the floor"
DISK, MEMORY = "penstock.write, disk", "penstock.write, memory"
BY_HAND, SOURCE_WRITE = "do_put by hand, Spark's confs as they are", "DataSource, append"
PARQUET_WRITE, AT_THE_DRIVER = "df.write.parquet", "toArrow at the driver, then put"
READ, SOURCE_READ, PARQUET_READ = "penstock.read", "DataSource, load", "spark.read.parquet"
IN_SPARK, AT_THE_SERVER = "penstock.read, filtered in Spark", "penstock.read with the filter"
KEEPS_1_PERCENT = "c < 10"  # of integers(): c is id % 1000
_PATH = "store/bench/written"
_KEPT = "store/bench/kept"


class Counted:
    """The floor of a write: takes every batch from Spark, gives back how many rows there were."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


class Ready:
    """The floor of a read: gives Spark so many rows, in batches that are made once in a task, of the dataset's size."""

    def __init__(self, shape: Shape, tasks: int) -> None:
        self.rows = shape.rows // tasks
        self.schema, self.like = shape.schema, shape.like
        self.batch_rows = tuning.rows_per_batch(shape.schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            columns = [
                pa.repeat(pa.scalar(value, kind), min(self.batch_rows, self.rows))
                for value, kind in zip(self.like, self.schema.types, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            for begun in range(0, self.rows, self.batch_rows):
                yield batch.slice(0, self.rows - begun)


def writes(bench: Bench, shape: Shape) -> dict[str, Timed]:
    """Every way out, of the same frame; what was written is dropped afterwards, outside of the measurement."""
    frame = shape.frame(bench.spark)
    schema = shape.schema

    def floor() -> None:
        with tuning.tuned(bench.spark, schema):
            counts = frame.mapInArrow(Counted(), "rows long").collect()
        assert sum(row.rows for row in counts) == shape.rows

    def by_hand() -> None:
        put = penstock.do_put(_PATH, url=bench.disk.url)
        put.finish(frame.mapInArrow(put, put.schema).collect())

    def at_the_driver() -> None:
        with tuning.tuned(bench.spark, schema), penstock.connect(bench.disk.url) as client:
            client.put(_PATH, frame.toArrow())

    def source() -> None:
        frame.write.format("penstock").option("url", bench.disk.url).mode("append").save(_PATH)

    folder = bench.folder / "parquet-written"
    clear = dropped(bench.disk, shape)
    sides = {
        FLOOR: bench.timed(floor),
        DISK: bench.timed(lambda: _write(frame, bench.disk), clear),
        MEMORY: bench.timed(lambda: _write(frame, bench.memory), dropped(bench.memory, shape)),
        BY_HAND: bench.timed(by_hand, clear),
        PARQUET_WRITE: bench.timed(lambda: frame.write.parquet(str(folder)), lambda: shutil.rmtree(folder)),
    }
    if has_source(bench.spark):
        sides[SOURCE_WRITE] = bench.timed(source, clear)
        sides[AT_THE_DRIVER] = bench.timed(at_the_driver, clear)
    return sides


def reads(bench: Bench, shape: Shape) -> dict[str, Timed]:
    """Every way in, of the same rows, every value of them summed up in Spark; the sums must be the frame's own."""
    spark, folder = bench.spark, bench.folder / "parquet"
    frame = shape.frame(spark)
    expected = _sums(frame, shape)
    kept(bench, shape)
    frame.write.mode("overwrite").parquet(str(folder))
    tasks = penstock.do_get(_KEPT, url=bench.disk.url).tickets(spark).count()

    def summed(read: Callable[[], DataFrame]) -> Timed:
        def work() -> None:
            assert _sums(read(), shape) == expected

        return bench.timed(work)

    def floor() -> DataFrame:
        return spark.range(0, tasks, 1, tasks).mapInArrow(Ready(shape, tasks), frame.schema)

    sides = {
        FLOOR: bench.timed(lambda: _sums(floor(), shape)),
        READ: summed(lambda: penstock.read(spark, _KEPT, url=bench.disk.url)),
        PARQUET_READ: summed(lambda: spark.read.parquet(str(folder))),
    }
    if has_source(spark):
        source = spark.read.format("penstock").option("url", bench.disk.url)
        sides[SOURCE_READ] = summed(lambda: source.load(_KEPT))
    return sides


def filtered(bench: Bench, shape: Shape) -> dict[str, Timed]:
    """One row of a hundred: chosen by Spark out of all of them, or by the server."""
    spark, url = bench.spark, bench.disk.url
    expected = _sums(shape.frame(spark).filter(KEEPS_1_PERCENT), shape)

    def in_spark() -> None:
        assert _sums(penstock.read(spark, _KEPT, url=url).filter(KEEPS_1_PERCENT), shape) == expected

    def at_the_server() -> None:
        assert _sums(penstock.read(spark, _KEPT, url=url, filter=KEEPS_1_PERCENT), shape) == expected

    return {IN_SPARK: bench.timed(in_spark), AT_THE_SERVER: bench.timed(at_the_server)}


def kept(bench: Bench, shape: Shape, path: str = _KEPT) -> None:
    """The shape as a dataset that stays. One that was read can't be dropped at once: its tickets hold it."""
    penstock.write(shape.frame(bench.spark), path, mode="overwrite", progress=False, url=bench.disk.url)


def read_whole(bench: Bench, shape: Shape, path: str) -> None:
    """A dataset in, every value of it summed up in Spark."""
    _sums(penstock.read(bench.spark, path, url=bench.disk.url), shape)


def write_whole(bench: Bench, shape: Shape) -> None:
    """A frame out."""
    _write(shape.frame(bench.spark), bench.disk)


def write_collected(bench: Bench, shape: Shape) -> None:
    """A frame out by way of the driver's memory."""
    with penstock.connect(bench.disk.url) as client:
        client.put(_PATH, shape.frame(bench.spark).toArrow())


def dropped(server: Penstock, shape: Shape) -> Callable[[], None]:
    """What clears up after a write, once it has looked whether all rows are there."""

    def drop() -> None:
        with penstock.connect(server.url) as client:
            found = client.call("describe", {"path": _PATH})  # an info would hold the bytes by its tickets
        assert found["rows"] == shape.rows, found
        server.drop(_PATH)

    return drop


def has_source(spark: SparkSession) -> bool:
    """Whether this Spark has Python data sources, and toArrow: since 4.0."""
    return not spark.version.startswith("3.")


def _write(frame: DataFrame, server: Penstock) -> None:
    penstock.write(frame, _PATH, progress=False, url=server.url)


def _sums(frame: DataFrame, shape: Shape) -> Any:
    return frame.selectExpr(*shape.sums).collect()
