"""Spark as the benchmark runs it, the frames that it writes and reads, and what memory processes take meanwhile."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scripts.bench_rows import Timed
from scripts.bench_servers import ROOT, Penstock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONFS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.maxResultSize": "0",  # toArrow at the driver would be refused from 1 GiB on
    "spark.driver.memory": "6g",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_PARTITIONS = 8
_FEW = 100_000  # rows of a smoke run
_NOISE = 256 << 10  # bytes; blobs are cut out of it at places far apart, so that Parquet doesn't compress them away


@dataclass(frozen=True, slots=True)
class Shape:
    """A frame: so many rows of columns that cost Spark next to nothing to make."""

    name: str
    rows: int
    columns: tuple[str, ...]
    """SQL over `id`."""
    sums: tuple[str, ...]
    """SQL that looks at every value of every column, for who reads it."""
    schema: pa.Schema
    like: tuple[Any, ...]
    """A value for each column, for batches of the same shape that need no Spark."""
    row_bytes: int
    partitions: int = _PARTITIONS

    def __str__(self) -> str:
        return f"{_short(self.rows)} rows {self.name}"

    def frame(self, spark: SparkSession) -> DataFrame:
        """The frame, not evaluated yet."""
        partitions = self.partitions if self.rows >= _FEW else 2  # each costs its task 40 ms of Python, rows or not
        return spark.range(0, self.rows, 1, partitions).selectExpr(*self.columns)

    @property
    def megabytes(self) -> float:
        """What its values take in Arrow."""
        return self.rows * self.row_bytes / 1e6


def integers(rows: int, partitions: int = _PARTITIONS) -> Shape:
    """Four columns of int64."""
    return Shape(
        "of 4 int64",
        rows,
        ("id", "id * 2 as a", "id + 7 as b", "id % 1000 as c"),
        ("sum(id)", "sum(a)", "sum(b)", "sum(c)"),
        pa.schema(dict.fromkeys(("id", "a", "b", "c"), pa.int64())),
        (1, 2, 3, 4),
        32,
        partitions,
    )


def strings(rows: int) -> Shape:
    """A number, two more with a point, and a short text."""
    return Shape(
        "of int64, 2 float64, string",
        rows,
        ("id", "id * 0.5D as x", "id * 1.5D as y", "concat('city-', id % 1000) as s"),
        ("sum(id)", "sum(x)", "sum(y)", "sum(length(s))"),
        pa.schema({"id": pa.int64(), "x": pa.float64(), "y": pa.float64(), "s": pa.string()}),
        (1, 0.5, 1.5, "city-123"),
        36,
    )


def blobs(rows: int) -> Shape:
    """A number and 4 kB that look like noise."""
    noise = random.Random(0).randbytes(_NOISE)  # the same in every run
    cut = f"substring(X'{noise.hex()}', cast(id * 40961 % {_NOISE - 4096} as int) + 1, 4096) as blob"
    schema = pa.schema({"id": pa.int64(), "blob": pa.binary()})
    return Shape(
        "of int64, 4 kB binary", rows, ("id", cut), ("sum(id)", "sum(length(blob))"), schema, (1, noise[:4096]), 4108
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """What every side is measured with."""

    spark: SparkSession
    disk: Penstock
    memory: Penstock
    folder: Path
    settles: bool = True

    def timed(self, work: Callable[[], object], clear: Callable[[], object] = lambda: None) -> Timed:
        """A side, what it leaves behind cleared up outside of the measurement."""

        def once() -> float:
            self.settle()
            began = time.perf_counter()
            work()
            taken = time.perf_counter() - began
            clear()
            return taken

        return once

    def settle(self) -> None:
        """Garbage in the JVM and dirty pages aren't on the next one's account."""
        if self.settles:
            _jvm(self.spark).System.gc()
            os.sync()


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """Spark in this process, `local[2]`, as it comes but for its addresses, its heap and its folders."""
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONPATH=str(ROOT),  # workers take the floors' functions, and penstock, from this checkout
        SPARK_LOCAL_IP="127.0.0.1",
    )
    from pyspark.sql import SparkSession

    folders = {"spark.local.dir": folder / "spark", "spark.sql.warehouse.dir": folder / "warehouse"}
    builder = SparkSession.builder.master("local[2]").appName("penstock-bench")
    for key, value in {**_CONFS, **folders}.items():
        builder = builder.config(key, str(value))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def versions(spark: SparkSession) -> str:
    """Of Spark and its Java."""
    return f"Spark {spark.version}, Java {_jvm(spark).System.getProperty('java.version')}, local[2], driver heap 6 GiB"


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public way to it


def _short(rows: int) -> str:
    if rows % 1_000_000 == 0:
        return f"{rows // 1_000_000} M"
    return f"{rows // 1_000} k" if rows % 1_000 == 0 else f"{rows:,}"
