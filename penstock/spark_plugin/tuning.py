"""Spark's Arrow batches while a write runs: no size check after every row, rows per batch by the width of a row."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECK = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Since 4.0 the JVM adds up every Arrow buffer after every row to keep a batch below this; with a string column that
takes three quarters of the time. The largest number turns it off; what has no width of its own needs it."""
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OFF = 2**31 - 1
_BATCH_BYTES = 8 << 20
_ROWS_AT_MOST = 10_000
"""Spark's own. A frame may have passed through other Python before, whose batches these are, too."""
_ROWS_OF_TEXT = 1_024
"""Where a row has text, which keeps no check: of 500 kB each they are 512 MB; 4,096 ended a JVM of 1 GiB."""
_ROWS_UNCHECKED = 256
"""Where Spark 3.5 has no check of bytes: then 1 MB each are 256 MB."""


@dataclass
class _Tuned:
    keys: set[str] = field(default_factory=set)
    """The confs that were set, which the user hadn't."""
    writes: int = 0


_lock = threading.Lock()  # _sessions, _refused
_sessions: WeakKeyDictionary[SparkSession, _Tuned] = WeakKeyDictionary()
_refused: WeakSet[SparkSession] = WeakSet()


@contextmanager
def tuned(spark: SparkSession, schema: pa.Schema | None) -> Iterator[None]:
    """While the block runs, the session's batches are as a write wants them; the last write puts the confs back.

    Spark reads them when an action begins. What a user has set stays; one who may not set confs is warned once, and
    writes slower. Without a schema nobody knows how wide the rows are: then Spark's own confs stay.
    """
    with _lock:
        held = _sessions.setdefault(spark, _Tuned())
        held.writes += 1
    try:
        with _lock:
            _tune(spark, held, schema)
        yield
    finally:
        with _lock:
            held.writes -= 1
            if held.writes == 0:
                del _sessions[spark]
                for key in held.keys:
                    with suppress(Exception):  # of a session that has ended; and the write's own error is what counts
                        spark.conf.unset(key)


def rows_per_batch(schema: pa.Schema) -> int:
    """So many that a batch of fixed widths stays below 8 MiB, and one of text bounded."""
    leaves = list(_leaves(schema))
    most = _ROWS_OF_TEXT if any(map(pa.types.is_string, leaves)) else _ROWS_AT_MOST
    return max(1, min(most, _BATCH_BYTES // max(1, sum(map(_width, leaves)))))


def _tune(spark: SparkSession, held: _Tuned, schema: pa.Schema | None) -> None:
    if schema is None:
        return
    grows = not all(map(_is_bounded, _leaves(schema)))
    rows = rows_per_batch(schema)
    try:
        if spark.version.startswith("3."):  # which has no check, but takes any key
            _lower(spark, held, _ROWS, min(rows, _ROWS_UNCHECKED) if grows else rows)
        else:
            _lower(spark, held, _CHECK, _BATCH_BYTES if grows else _OFF)
            _lower(spark, held, _ROWS, rows)
    except Exception as refused:  # py4j's, Connect's or a gateway's
        if spark not in _refused:
            _refused.add(spark)
            warnings.warn(f"Spark's confs can't be set here, so this writes slower: {str(refused)[:200]}", stacklevel=6)


def _lower(spark: SparkSession, held: _Tuned, key: str, value: int) -> None:
    """Set the conf where the user hasn't, but not above what another write that runs needs."""
    now = spark.conf.get(key, None)
    if now is not None and key not in held.keys:
        return
    held.keys.add(key)  # before it is set: whatever interrupts that, it is put back
    spark.conf.set(key, str(value if now is None else min(value, int(now))))


def _is_bounded(kind: pa.DataType) -> bool:
    """Whether a value has a width of its own, or is text, which `_ROWS_OF_TEXT` is for."""
    return _width(kind) > 0 or pa.types.is_null(kind) or pa.types.is_struct(kind) or pa.types.is_string(kind)


def _width(kind: pa.DataType) -> int:
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return (kind.bit_width + 7) // 8 if fixed else 0


def _leaves(schema: pa.Schema) -> Iterator[pa.DataType]:
    """The types of the columns, and of what is nested in them."""
    waiting = [field.type for field in schema]
    while waiting:
        kind = waiting.pop()
        waiting += [kind.field(at).type for at in range(kind.num_fields)]
        yield kind
