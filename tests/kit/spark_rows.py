"""Rows that tell which ones they are: what went into Spark, against what a client without our code reads."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from tests.kit import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = Counter[tuple[int, str]]


def source(spark: SparkSession, rows: int, partitions: int, start: int = 0) -> DataFrame:
    """Rows `start` to `rows`, each with a text that goes with its number."""
    return spark.range(start, rows, 1, partitions).selectExpr("id", "concat('row ', id) as text")


def batch(*ids: int) -> pa.RecordBatch:
    """Such rows, as a task gets them."""
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "text": [f"row {one}" for one in ids]})


def expected(rows: int, start: int = 0) -> Rows:
    """What must be there, each once."""
    return Counter((one, f"row {one}") for one in range(start, rows))


def counted(found: pa.Table) -> Rows:
    """What is there, with how many times."""
    return Counter(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))


def collected(frame: DataFrame) -> Rows:
    """What Spark reads."""
    return Counter((row.id, row.text) for row in frame.collect())


def held(path: str, url: str | None = None) -> Rows:
    """A dataset's rows by plain pyarrow."""
    with flight.connect(url or os.environ["PENSTOCK_URL"]) as bare:
        return counted(plain.read(bare, path))


def names(url: str | None = None, criteria: bytes = b"") -> list[str]:
    """The datasets, or with `write/` the open writes."""
    with flight.connect(url or os.environ["PENSTOCK_URL"]) as bare:
        return plain.names(bare, criteria)
