"""A result in pages of whole partitions: the driver holds one page at a time, not the whole result."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock.spark.functions import fn
from penstock.spark.plans import node

if TYPE_CHECKING:
    from penstock.spark.frame import Frame
    from penstock.spark.results import Result

_PAGE = 64 << 20
"""Bytes of a page; a partition that has more is a page of its own."""


class PagedResult:
    """The batches of a query, as those of a `Result`. For one thread.

    1. The rows are computed once and kept at Spark's executors (a local checkpoint), as a plan that is run again for
       each page need not compute the same rows in the same partitions.
    2. Each page is a query for the rows of some of the kept partitions.
    3. At the end, or where the loop or the `with` block is left, the query is interrupted and what was kept is removed.
    """

    def __init__(self, kept: Frame, **options: Any) -> None:
        self.rows = self.bytes = 0
        self._options = options
        self._kept = kept
        counts = self._kept.group_by(fn.spark_partition_id().alias("partition")).count().order_by("partition")
        self._partitions = deque((row["partition"], row["count"]) for row in counts.collect())
        self._page: Result | None = None
        self._page = self._next_page()
        self._is_open = True

    @property
    def schema(self) -> pa.Schema:
        """The schema."""
        assert self._page is not None
        return self._page.schema

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch that has rows; StopIteration after the last one."""
        while self._is_open and self._page is not None:
            try:
                batch = self._page.read_next_batch()
            except StopIteration:
                self.bytes += self._page.bytes
                if not self._partitions:
                    break
                self._page = self._next_page()
            else:
                self.rows += batch.num_rows
                return batch
        raise StopIteration

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Return the batches; a loop that is left interrupts the query."""
        try:
            while True:
                try:
                    batch = self.read_next_batch()
                except StopIteration:
                    return
                yield batch
        finally:
            self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the batches as a C stream."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Interrupt the page's query, and remove what the executors keep."""
        if self._is_open:
            self._is_open = False
            if self._page is not None:
                self._page.close()
            relation = node("", relation_id=self._kept.plan.fields["relation_id"])
            self._kept.session.run(node("remove_cached_remote_relation_command", relation=relation))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _next_page(self) -> Result:
        """Ask for the next partitions: one at first, then as many as a page holds by the bytes of the rows so far."""
        first, rows = self._partitions.popleft() if self._partitions else (0, 0)
        last, width = first, self.bytes / self.rows if self.rows else float(_PAGE)
        while self._partitions and (rows + self._partitions[0][1]) * width <= _PAGE:
            last, more = self._partitions.popleft()
            rows += more
        page: Result = self._kept.filter(fn.spark_partition_id().between(first, last)).stream(**self._options)
        return page
