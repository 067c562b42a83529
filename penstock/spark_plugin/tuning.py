"""Spark's Arrow batches while a write runs: no size check after every row, rows per batch by the width of a row."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECK = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Since 4.0 the JVM adds up every Arrow buffer after every row to keep a batch below this; with a string column that
takes three quarters of the time. The largest number turns it off; types without a fixed width need it."""
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OFF = 2**31 - 1
_BATCH_BYTES = 8 << 20
_ROWS_AT_MOST = 10_000
"""Spark's default. It also holds for the batches of other Python functions that the frame passes through."""
_ROWS_OF_TEXT = 1_024
"""For rows with text of unknown width, whose bytes aren't checked: of 500 kB each they are 512 MB; 4,096 ended a JVM of
1 GiB. With short strings they cost a write a seventh of its time, so the width is that of the rows there."""
_MARGIN = 4
"""How many times as wide as the dataset's mean row the rows of a batch may be, for its bytes to stay within bounds."""
_ROWS_UNCHECKED = 256
"""For Spark 3.5, which checks no bytes: of 1 MB each they are 256 MB."""


@dataclass
class _TunedConfs:
    keys: set[str] = field(default_factory=set)
    """The confs that are set here: those that the user hasn't set."""
    writes: int = 0
    is_refused: bool = False
    """Whether confs can't be set in this session, which was said."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A session's own: one whose Connect server is gone takes ten minutes for each call."""


_lock = threading.Lock()  # _sessions
_sessions: WeakKeyDictionary[SparkSession, _TunedConfs] = WeakKeyDictionary()


@contextmanager
def tuned(spark: SparkSession, schema: pa.Schema | None, rows: int | None = None) -> Iterator[None]:
    """While the block runs, the session hands out batches of a size for writes, or of `rows`; the last write restores
    the confs.

    Spark reads them when an action begins. Confs that the user has set stay; where confs can't be set, a warning says
    once that this writes slower. Without a schema the width of a row is unknown: then Spark's own confs stay.
    """
    with _lock:
        confs = _sessions.setdefault(spark, _TunedConfs())
    with confs.lock:
        confs.writes += 1
    try:
        with confs.lock:
            if schema is not None:
                _tune(spark, confs, schema, rows or rows_per_batch(schema))
        yield
    finally:
        with confs.lock:
            confs.writes -= 1
            if confs.writes == 0:
                _restore(spark, confs)


def rows_per_batch(schema: pa.Schema, mean_bytes: float | None = None) -> int:
    """Return how many rows keep a batch of fixed widths below 8 MiB, and one of text bounded; with the mean bytes of
    rows that are there, so many that even rows of four times the width stay below 8 MiB.
    """
    leaves = list(_leaves(schema))
    width = sum(map(_width, leaves))
    if not has_text(schema):
        return max(1, min(_ROWS_AT_MOST, _BATCH_BYTES // max(1, width)))
    if mean_bytes is None:
        return max(1, min(_ROWS_OF_TEXT, _BATCH_BYTES // max(1, width)))
    return max(1, min(_ROWS_AT_MOST, _BATCH_BYTES // int(max(1, width, _MARGIN * mean_bytes))))


def has_text(schema: pa.Schema) -> bool:
    """Whether the width of a row depends on texts, whose bytes Spark doesn't check while a write runs."""
    return any(map(pa.types.is_string, _leaves(schema)))


def _tune(spark: SparkSession, confs: _TunedConfs, schema: pa.Schema, rows: int) -> None:
    grows = not all(map(_is_bounded, _leaves(schema)))
    try:
        if spark.version.startswith("3."):  # it has no check of bytes, but accepts any key
            _lower(spark, confs, _ROWS, min(rows, _ROWS_UNCHECKED) if grows else rows)
        else:
            _lower(spark, confs, _CHECK, _BATCH_BYTES if grows else _OFF)
            _lower(spark, confs, _ROWS, rows)
    except Exception as refused:  # py4j's, Connect's or a gateway's
        if not confs.is_refused:
            confs.is_refused = True
            warnings.warn(f"Spark's confs can't be set here, so this writes slower: {str(refused)[:200]}", stacklevel=6)


def _restore(spark: SparkSession, confs: _TunedConfs) -> None:
    """Unset the confs. The session may have ended, which its first call finds; and the write's own error counts."""
    with suppress(Exception):
        for key in confs.keys:
            spark.conf.unset(key)
    confs.keys.clear()


def _lower(spark: SparkSession, confs: _TunedConfs, key: str, value: int) -> None:
    """Set a conf that the user hasn't set, but not above the value that another running write needs."""
    now = spark.conf.get(key, None)
    if now is not None and key not in confs.keys:
        return
    confs.keys.add(key)  # before it is set, so that it is restored whatever interrupts that
    spark.conf.set(key, str(value if now is None else min(value, int(now))))


def _is_bounded(kind: pa.DataType) -> bool:
    """Whether a value has a fixed width, or is text, which `_ROWS_OF_TEXT` bounds."""
    return _width(kind) > 0 or pa.types.is_null(kind) or pa.types.is_struct(kind) or pa.types.is_string(kind)


def _width(kind: pa.DataType) -> int:
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return (kind.bit_width + 7) // 8 if fixed else 0


def _leaves(schema: pa.Schema) -> Iterator[pa.DataType]:
    """Yield the types of the columns, and the types nested in them."""
    waiting = [field.type for field in schema]
    while waiting:
        kind = waiting.pop()
        waiting += [kind.field(at).type for at in range(kind.num_fields)]
        yield kind
