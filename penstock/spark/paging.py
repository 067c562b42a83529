"""A result in pages of whole partitions: the driver holds one page at a time, not the whole result."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import TimedOut
from penstock.spark import protos
from penstock.spark.batches import Batches
from penstock.spark.functions import fn
from penstock.spark.plans import encode, node
from penstock.spark.results import Progress, Result

if TYPE_CHECKING:
    from penstock.spark.collecting import Rows

_PAGE = 64 << 20
"""Bytes of a page; a partition that has more is a page of its own."""


class PagedResult(Batches):
    """The batches of a query, as those of a `Result`. For one thread.

    1. The rows are computed once and kept at Spark's executors (a local checkpoint), as a plan that is run again for
       each page need not compute the same rows in the same partitions.
    2. Each page is a query for the rows of some of the kept partitions.
    3. At the end, or where the loop or the `with` block is left, the query is interrupted and what was kept is removed.

    The tag is that of all these queries, and the timeout is for all of them together.
    """

    def __init__(
        self, frame: Rows, *, tag: str | None, timeout: float | None, on_progress: Callable[[Progress], object]
    ) -> None:
        self.rows = self.bytes = 0
        self._is_open = False
        self._tag, self._timeout, self._on_progress = tag, timeout, on_progress
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._earlier_reattaches = 0
        self._partitions: deque[tuple[int, int]] = deque()
        self._page: Result | None = None
        self._kept = frame.local_checkpoint(**self._options())
        self._is_open = True
        try:
            counts = self._kept.group_by(fn.spark_partition_id().alias("partition")).count().order_by("partition")
            for batch in counts.stream(**self._options()):
                self._partitions.extend(zip(batch["partition"].to_pylist(), batch["count"].to_pylist(), strict=True))
            self._page = self._next_page()
        except BaseException:
            self.close()
            raise

    @property
    def operation_id(self) -> str:
        """The id of the page's query at the server."""
        assert self._page is not None
        return self._page.operation_id

    @property
    def reattaches(self) -> int:
        """How often the pages' queries went on over another stream."""
        return self._earlier_reattaches + (self._page.reattaches if self._page is not None else 0)

    @property
    def progress(self) -> Progress | None:
        """What the server has done of the page's query."""
        return None if self._page is None else self._page.progress

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
                    self.close()
                    break
                self._page = self._next_page()
            else:
                self.rows += batch.num_rows
                return batch
        raise StopIteration

    def close(self) -> None:
        """Interrupt the page's query, and have removed what the executors keep."""
        self._leave(Result.close)

    def abandon(self) -> None:
        """The same, without waiting: for a destructor."""
        self._leave(Result.abandon)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.abandon()

    def _leave(self, leave: Callable[[Result], None]) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._page is not None:
                leave(self._page)
        finally:
            request = protos.ExecutePlanRequest()
            relation = node("", relation_id=self._kept.plan.fields["relation_id"])
            encode(node("remove_cached_remote_relation_command", relation=relation), request.plan.command)
            self._kept.session.client.call_later("ExecutePlan", request)

    def _options(self) -> dict[str, Any]:
        """Return what the next query is sent with."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            self.close()
            raise TimedOut(f"the query took more than timeout={self._timeout:g} s, and was interrupted")
        return {"tag": self._tag, "timeout": left, "on_progress": self._on_progress}

    def _next_page(self) -> Result:
        """Ask for the next partitions: one at first, then as many as a page holds by the bytes of the rows so far."""
        first, rows = self._partitions.popleft() if self._partitions else (0, 0)
        last, width = first, self.bytes / self.rows if self.rows else float(_PAGE)
        while self._partitions and (rows + self._partitions[0][1]) * width <= _PAGE:
            last, more = self._partitions.popleft()
            rows += more
        if self._page is not None:
            self._earlier_reattaches += self._page.reattaches
        page: Result = self._kept.filter(fn.spark_partition_id().between(first, last)).stream(**self._options())
        return page
