"""Batches of a query as they come, in one result or in pages: how they are read, and what leaving them means."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa


class Batches:
    """A context manager; leaving it before the end, or a loop over it, ends what computes the batches.

    Arrow's libraries read it through `__arrow_c_stream__`: polars.DataFrame(result), pyarrow.table(result).
    """

    @property
    def schema(self) -> pa.Schema:
        """The schema; waits for the first batch."""
        raise NotImplementedError

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch that has rows; StopIteration after the last one."""
        raise NotImplementedError

    def close(self) -> None:
        """End what computes the batches, unless it is complete."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The same, without waiting: for a destructor."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Return the batches; a loop that is left interrupts the query."""
        try:
            while True:
                try:
                    batch = self.read_next_batch()
                except StopIteration:
                    break
                yield batch
        except GeneratorExit:  # perhaps while Python collects garbage: nothing is waited for
            self._leave_loop()
            raise
        except BaseException:
            self.close()
            raise
        self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the batches as a C stream."""
        reader = pa.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _leave_loop(self) -> None:
        self.abandon()
