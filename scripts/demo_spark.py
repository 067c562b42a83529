"""Spark's part of `make demo`: two million rows out to the server at PENSTOCK_URL, in again, and what that took.

A job and a stream follow, in the same Spark: to start it takes longer than each of them computes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

import penstock
from penstock.text import format_size, format_table
from scripts import java
from scripts.demo import ZONES, paint, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.views import WriteSummary

ROWS = 2_000_000
PARTITIONS = 8
PATH = "store/demo/spark"
TRIPS = {
    "id": "id",
    "picked_up": "timestamp_seconds(1780272000 + id)",
    "zone": f"element_at(array({', '.join(map(repr, ZONES))}), int(1 + pmod(hash(id), {len(ZONES)})))",
    "passengers": "tinyint(1 + pmod(hash(id, 'p'), 6))",
    "fare": "3 + pmod(hash(id, 'f'), 5000) / 100",
}
FILTER = "zone = 'Harbour' and fare >= 43"
"""One row in ninety."""
SUMS = ("count(*)", "sum(id)", f"bit_xor(xxhash64({', '.join(TRIPS)}))")
"""Of two frames with the same rows these are the same, in whatever order the rows come."""
JAVA = 17


def missing() -> str | None:
    """What Spark lacks here, and how to get it."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark isn't installed: pip install 'penstock-flight[spark]'"
    return java.missing("Spark", JAVA)


@contextmanager
def session() -> Iterator[SparkSession]:
    """A Spark in this process, on two cores, with this Python for its workers too; a task may fail three times."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2, 4]").appName("penstock-demo").config("spark.ui.enabled", "false")
    with tempfile.TemporaryFile("w+") as log:
        try:
            with _stderr_in(log.fileno()):
                spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
        except Exception as failed:
            log.seek(0)
            raise SystemExit(f"Spark didn't start: {failed}\n{log.read()[-3000:]}") from failed
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stderr_in(log: int) -> Iterator[None]:
    """What is started in here tells its story to a file: the JVM's log is no part of what is shown."""
    screen = os.dup(2)
    os.dup2(log, 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def started(spark: SparkSession) -> None:
    """Have the first task run, which starts the workers' Python, so that the figures are of the rows alone."""
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()


def code(*lines: str) -> None:
    """Lines of Python, as somebody types them."""
    for line in lines:
        say(paint(f"{'...' if line.startswith(' ') else '>>>'} {line}", "1;36"))


def summed(frame: DataFrame) -> tuple[tuple[Any, ...], float]:
    """The sums over all rows of a frame, and the seconds that they took."""
    began = time.perf_counter()
    sums = tuple(frame.selectExpr(*SUMS).first() or ())
    return sums, time.perf_counter() - began


def shown(spark: SparkSession) -> tuple[WriteSummary, list[tuple[str, int, float]]]:
    """Write, read, read filtered; for each its rows and seconds. Ends the demo where a row isn't Spark's own."""
    df = spark.range(0, ROWS, 1, PARTITIONS).selectExpr(*(f"{made} AS {name}" for name, made in TRIPS.items()))
    columns = ", ".join(f'"… AS {name}"' for name in TRIPS if name != "id")
    code(f'df = spark.range(0, {ROWS:_}, 1, {PARTITIONS}).selectExpr("id", {columns})', f'penstock.write(df, "{PATH}")')
    written = penstock.write(df, PATH, mode="overwrite")
    say(f"{written}\n")
    assert written.seconds is not None
    measured = [("write", written.rows, written.seconds)]
    code(f'back = penstock.read(spark, "{PATH}")', f'few = penstock.read(spark, "{PATH}", filter="{FILTER}")')
    frames = {
        "read all": (penstock.read(spark, PATH), df),
        "read filtered": (penstock.read(spark, PATH, filter=FILTER), df.where(FILTER)),
    }
    for name, (ours, own) in frames.items():
        sums, seconds = summed(ours)
        if sums != summed(own)[0]:
            raise SystemExit(f"{name}: what came back isn't what Spark computes itself")
        measured.append((name, sums[0], seconds))
    say("what came back is what Spark computes itself\n")
    return written, measured


def figures(written: WriteSummary, measured: list[tuple[str, int, float]]) -> str:
    """The three ways, as a table. What a filter leaves at the server counts as worked through, not as moved."""
    lines = [
        (name, f"{rows:,}", f"{seconds:.2f}", f"{written.rows / seconds:,.0f}", f"{written.bytes / seconds / 1e6:,.0f}")
        for name, rows, seconds in measured
    ]
    heads = ("", "rows moved", "seconds", "rows/s", "MB/s")
    return format_table(heads, lines, right=heads[1:])


def main() -> None:
    """Show it, or say what is missing."""
    if lack := missing():
        say(f"Without Spark this is all, there is no job and no stream: {lack}.")
        return
    from scripts import demo_job, demo_stream  # which have the frame and the session from here

    say("starting Spark, on two cores here")
    began = time.perf_counter()
    with session() as spark:
        started(spark)
        say(f"Spark {spark.version} is there after {time.perf_counter() - began:.1f} s\n")
        written, measured = shown(spark)
        say(figures(written, measured))
        say(f"rows/s and MB/s are of the dataset's {written.rows:,} rows and {format_size(written.bytes)}")
        with penstock.connect() as c:
            c.delete(PATH)
        demo_job.show(spark)
        demo_stream.show(spark)


if __name__ == "__main__":
    main()
