"""Where a query's rows go: a stream, memory within limits, a file, penstock."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from penstock.errors import InvalidRequest, LimitExceeded
from penstock.spark.results import Progress, Result, too_many_bytes

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from penstock.spark.frame import Frame
    from penstock.spark.paging import PagedResult
    from penstock.spark.session import Session
    from penstock.wire.put import Mode, Receipt

Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]
OnProgress = Callable[[Progress], object]

MAX_ROWS = 10_000_000
MAX_BYTES = 1 << 30
"""What `to_arrow` and its kind hold at most unless they are told otherwise."""


class Rows:
    """What a frame does with its rows."""

    __slots__ = ()
    _session: Session

    def _message(self) -> Any:
        """Return the plan."""
        raise NotImplementedError

    def local_checkpoint(self, eager: bool = True, **options: Any) -> Frame:
        """Compute the rows, and keep them at Spark's executors."""
        raise NotImplementedError

    @overload
    def stream(
        self,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        paged: None = None,
    ) -> Result: ...

    @overload
    def stream(
        self, *, tag: str | None = None, timeout: float | None = None, on_progress: OnProgress | None = None,
        paged: Literal["partition"],
    ) -> PagedResult: ...  # fmt: skip

    def stream(
        self,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        paged: Literal["partition"] | None = None,
    ) -> Result | PagedResult:
        """Run the query, and return its batches as they come; memory holds one of them.

        A loop over them, or a `with` block, that is left before their end interrupts the query. `on_progress` takes the
        server's reports instead of the bar that a notebook, or a terminal, shows. With `paged="partition"` Spark's
        driver doesn't hold the whole result: its rows are computed and kept at the executors, and come in pages.
        """
        from penstock.spark.notebook import ProgressBar
        from penstock.spark.paging import PagedResult

        on_progress = on_progress or ProgressBar()
        if paged is None:
            return self._session.execute(self._message(), tag=tag, timeout=timeout, on_progress=on_progress)
        if paged != "partition":
            raise InvalidRequest(f"stream(paged={paged!r:.80}): expected 'partition'")
        return PagedResult(self, tag=tag, timeout=timeout, on_progress=on_progress)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Run the query, and return its batches as a C stream."""
        return self.stream().__arrow_c_stream__(requested_schema)

    def to_arrow(self, *, max_rows: int | None = MAX_ROWS, max_bytes: int | None = MAX_BYTES) -> pa.Table:
        """Return all rows as a table of Arrow, LimitExceeded if they are too many. None lifts a limit."""
        with self.stream() as result:
            return collect_within(result, max_rows, max_bytes)

    def to_polars(self, *, max_rows: int | None = MAX_ROWS, max_bytes: int | None = MAX_BYTES) -> pl.DataFrame:
        """Return all rows as a frame of Polars, with the limits of `to_arrow`."""
        import polars as pl

        return pl.DataFrame(self.to_arrow(max_rows=max_rows, max_bytes=max_bytes))

    def to_pandas(self, *, max_rows: int | None = MAX_ROWS, max_bytes: int | None = MAX_BYTES) -> pd.DataFrame:
        """Return all rows as a frame of pandas, with the limits of `to_arrow`."""
        return self.to_arrow(max_rows=max_rows, max_bytes=max_bytes).to_pandas()

    def to_parquet(self, path: str | os.PathLike[str], *, compression: Compression = "zstd") -> int:
        """Write all rows to a file of Parquet, in constant memory; return how many.

        The file appears when it is whole, and replaces one of its name.
        """
        with self.stream() as result:
            return write_parquet(result, Path(path), compression)

    def put(self, path: str, *, url: str | None = None, mode: Mode = "error", run: str | None = None) -> Receipt:
        """Put all rows to a path of penstock, in constant memory, all or nothing."""
        from penstock.client.client import connect

        with self.stream() as result, connect(url) as client:
            return client.put(path, pa.RecordBatchReader.from_batches(result.schema, iter(result)), mode=mode, run=run)


def collect_within(result: Result, max_rows: int | None, max_bytes: int | None) -> pa.Table:
    """Return all rows of a result; LimitExceeded, before more than a batch too many is held."""
    batches: list[pa.RecordBatch] = []
    result.max_bytes = max_bytes
    schema, held = result.schema, 0
    while True:
        try:
            batch = result.read_next_batch()
        except StopIteration:
            return pa.Table.from_batches(batches, schema)
        if max_rows is not None and result.rows > max_rows:
            raise LimitExceeded(
                f"the result has more than max_rows={max_rows:,} rows: limit(…) the frame, stream() it, "
                "or pass a larger max_rows (None lifts it)"
            )
        held += batch.nbytes  # not what was received: that may have been compressed
        if max_bytes is not None and held > max_bytes:
            raise too_many_bytes(max_bytes)
        batches.append(batch)


def write_parquet(result: Result, path: Path, compression: Compression) -> int:
    """Write a result to a file, which appears when it is whole."""
    import pyarrow.parquet as pq

    if path.is_dir():
        raise InvalidRequest(f"{path} is a folder: expected the name of a file")
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with pq.ParquetWriter(unfinished, result.schema, compression=compression) as writer:
            for batch in row_groups(iter(result)):
                writer.write_table(batch)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return result.rows


def row_groups(batches: Iterator[pa.RecordBatch], size: int = 64 << 20) -> Iterator[pa.Table]:
    """Return batches together, in tables of about `size` bytes: Spark's own batches make too small row groups."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        waiting.append(batch)
        held += batch.nbytes
        if held >= size:
            yield pa.Table.from_batches(waiting)
            waiting, held = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
