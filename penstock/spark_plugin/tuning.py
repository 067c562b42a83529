"""Spark's Arrow batches while a write runs: no size check after every row, rows per batch by the width of a row."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECK = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Since 4.0 the JVM adds up every Arrow buffer after every row to keep a batch below this; with a string column that
takes three quarters of the time. The largest number turns it off; blobs need it, as nothing else knows their size."""
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OFF = 2**31 - 1
_BATCH_BYTES = 8 << 20
_ROWS_AT_MOST = 65_536
_ROWS_OF_TEXT = 4_096
"""Where a row has text: Spark's own 10,000 are no faster, and 4,096 texts of 500 kB still fit a column's 2 GiB."""
_ROWS_OF_BLOBS = 256
"""Where Spark 3.5 has no check of bytes: then 1 MB each are 256 MB."""


@dataclass
class _Tuned:
    before: dict[str, str | None]
    """The confs that were changed, as they were."""
    writes: int = 0


_lock = threading.Lock()  # _sessions, _refused
_sessions: WeakKeyDictionary[SparkSession, _Tuned] = WeakKeyDictionary()
_refused: WeakSet[SparkSession] = WeakSet()


@contextmanager
def tuned(spark: SparkSession, schema: pa.Schema | None) -> Iterator[None]:
    """While the block runs, the session's batches are as a write wants them; the last write puts the confs back.

    Spark reads them when an action begins. A user who has set the rows of a batch keeps that; one who may not set
    confs is warned once, and writes slower.
    """
    with _lock:
        held = _sessions.setdefault(spark, _Tuned({}))
        held.writes += 1
        _tune(spark, held, schema)
    try:
        yield
    finally:
        with _lock:
            held.writes -= 1
            if held.writes == 0:
                del _sessions[spark]
                for key, value in held.before.items():
                    _put(spark, key, value)


def rows_per_batch(schema: pa.Schema) -> int:
    """So many that a batch of fixed widths stays below 8 MiB, and one of text bounded."""
    most = _ROWS_OF_TEXT if _holds(schema, pa.types.is_string) else _ROWS_AT_MOST
    width: int = sum((kind.bit_width + 7) // 8 for kind in _leaves(schema) if pa.types.is_primitive(kind))
    return max(1, min(most, _BATCH_BYTES // max(1, width)))


def _tune(spark: SparkSession, held: _Tuned, schema: pa.Schema | None) -> None:
    try:
        blobs = schema is not None and _holds(schema, pa.types.is_binary)
        checks = not spark.version.startswith("3.")  # which has no check, but takes any key
        if checks:
            _lower(spark, held, _CHECK, _BATCH_BYTES if blobs else _OFF)
        if schema is not None and (_ROWS in held.before or spark.conf.get(_ROWS, None) is None):
            rows = rows_per_batch(schema)
            _lower(spark, held, _ROWS, rows if checks or not blobs else min(rows, _ROWS_OF_BLOBS))
    except Exception as refused:  # py4j's, Connect's or a gateway's
        if spark not in _refused:
            _refused.add(spark)
            warnings.warn(f"Spark's confs can't be set here, so this writes slower: {str(refused)[:200]}", stacklevel=5)


def _lower(spark: SparkSession, held: _Tuned, key: str, value: int) -> None:
    """Set the conf, but not above what another write that runs needs."""
    now = spark.conf.get(key, None)
    spark.conf.set(key, str(min(value, int(now)) if now and key in held.before else value))
    held.before.setdefault(key, now)


def _put(spark: SparkSession, key: str, value: str | None) -> None:
    if value is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, value)


def _holds(schema: pa.Schema, kind: Callable[[pa.DataType], bool]) -> bool:
    return any(map(kind, _leaves(schema)))


def _leaves(schema: pa.Schema) -> Iterator[pa.DataType]:
    """The types of the columns, and of what is nested in them."""
    waiting = [field.type for field in schema]
    while waiting:
        kind = waiting.pop()
        waiting += [kind.field(at).type for at in range(kind.num_fields)]
        yield kind
