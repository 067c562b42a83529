"""Spark as the benchmarks run it, frames that cost it next to nothing to make, and floors: what handing rows to Python
takes at least.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import penstock
from scripts.bench.figures import Line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONFS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.maxResultSize": "0",  # toArrow at the driver would be refused from 1 GiB on
    "spark.driver.memory": "6g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.minBatchesToRetain": "100000",  # latencies are read from the logs of a query's batches
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
TENTH = "a tenth of the rows"
_WATCHED = {
    "server": ("the server", 32),
    "driver": ("the driver's Python", 16),
    "source": ("the source's driver side", 16),
}
"""Processes, and the MiB that count as no more: peaks of about 100 MiB differ by so much between rounds."""
_PARTITIONS = 8
_FEW = 100_000  # rows of a smoke run
_NOISE = 256 << 10  # bytes; blobs are cut out of it at places far apart, so that Parquet doesn't compress them away


@contextmanager
def running_spark(folder: Path, jars: Sequence[Path]) -> Iterator[SparkSession]:
    """Run Spark in this process, `local[2]`, as it comes but for addresses, heap and folders."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("penstock-bench")
    folders = {"spark.local.dir": folder / "spark", "spark.sql.warehouse.dir": folder / "warehouse"}
    with_jars = {"spark.jars": ",".join(map(str, jars))} if jars else {}
    for key, value in {**_CONFS, **folders, **with_jars}.items():
        builder = builder.config(key, str(value))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(penstock.DataSource)
    try:
        yield spark
    finally:
        spark.stop()


def lacks() -> str | None:
    """Say what Spark lacks here for the benchmarks, and the cure."""
    from scripts.demo_spark import missing  # here, as it needs this revision of penstock

    if (lack := missing()) is not None:
        return lack
    import pyspark

    since = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    return None if since >= (4, 2) else f"sources in Python have limits since Spark 4.2, this is {pyspark.__version__}"


def growth(name: str, *processes: str) -> Iterator[Line]:
    """Yield the lines of a side with ten times the rows: as many times as long at most, and no more memory."""
    yield Line("Growth", f"{name}: time", name, TENTH, ratio="time", promise=("<=", 11))
    for of in processes:
        process, more = _WATCHED[of]
        yield Line("Growth", f"{name}: memory of {process}", name, TENTH, "MiB", of=of, promise=("< more", more << 20))


def jvm(spark: SparkSession) -> Any:
    """Return py4j's view of the driver's JVM."""
    return spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public way to it


@dataclass(frozen=True, slots=True)
class Shape:
    """A frame of so many rows."""

    name: str
    rows: int
    columns: tuple[str, ...]
    """SQL over `id`."""
    sums: tuple[str, ...]
    """SQL that looks at every value of every column."""
    row: pa.Table
    """One row, for batches of the same shape without Spark."""
    partitions: int = _PARTITIONS

    def __str__(self) -> str:
        rows = f"{self.rows // 1_000_000} M" if self.rows % 1_000_000 == 0 else f"{self.rows // 1_000} k"
        return f"{rows} rows {self.name}"

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the frame, not evaluated yet."""
        partitions = self.partitions if self.rows >= _FEW else 2  # each costs its task 40 ms of Python, rows or not
        return spark.range(0, self.rows, 1, partitions).selectExpr(*self.columns)

    def summed(self, frame: DataFrame) -> Any:
        """Sum up every value of a frame of this shape, in Spark."""
        return frame.selectExpr(*self.sums).collect()


def integers(rows: int, partitions: int = _PARTITIONS) -> Shape:
    """Four columns of int64."""
    columns, sums = ("id", "id * 2 as a", "id + 7 as b", "id % 1000 as c"), ("sum(id)", "sum(a)", "sum(b)", "sum(c)")
    return Shape("of 4 int64", rows, columns, sums, pa.table({"id": [1], "a": [2], "b": [8], "c": [1]}), partitions)


def strings(rows: int) -> Shape:
    """A number, two more with a point, and a short text."""
    columns = ("id", "id * 0.5D as x", "id * 1.5D as y", "concat('city-', id % 1000) as s")
    row = pa.table({"id": [1], "x": [0.5], "y": [1.5], "s": ["city-123"]})
    return Shape("of int64, 2 float64, string", rows, columns, ("sum(id)", "sum(x)", "sum(y)", "sum(length(s))"), row)


def blobs(rows: int) -> Shape:
    """A number and 4 kB that look like noise."""
    noise = random.Random(0).randbytes(_NOISE)  # the same in every run
    cut = f"substring(X'{noise.hex()}', cast(id * 40961 % {_NOISE - 4096} as int) + 1, 4096) as blob"
    row = pa.table({"id": [1], "blob": [noise[:4096]]})
    return Shape("of int64, 4 kB binary", rows, ("id", cut), ("sum(id)", "sum(length(blob))"), row)


class CountRows:
    """The floor of a write: takes every batch from Spark and returns the number of rows."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


@dataclass(frozen=True)
class ReadyBatches:
    """The floor of a read: hands Spark so many rows in each task, in batches that are made once."""

    row: pa.Table
    rows: int
    batch_rows: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from repeated(self.row, self.rows, self.batch_rows)


def repeated(row: pa.Table, rows: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield so many equal rows, as slices of one batch."""
    (batch,) = row.take(pa.repeat(0, min(rows, batch_rows))).combine_chunks().to_batches()
    for first in range(0, rows, batch_rows):
        yield batch.slice(0, rows - first)
