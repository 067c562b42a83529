"""Some rows of a part, in the columns that its path has by now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.rows import slices
from penstock.rows.casting import cast, reinterpret
from penstock.store.medium import OpenPart


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows of a part that are read, and what the server adds to them."""

    part: OpenPart
    skip: int
    rows: int
    shard: int | None
    offset: int | None
    since: float | None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read these rows in this schema: columns that were added later are null, the server's own are filled in."""
        names = [name for name in schema.names if self.part.schema.get_field_index(name) >= 0]
        row = self.skip
        for batch in slices.first_rows(self.part.reader(names), self.rows, skip=self.skip):
            yield pa.RecordBatch.from_arrays([self._column(field, batch, row) for field in schema], schema=schema)
            row += batch.num_rows

    def is_whole(self) -> bool:
        """Return whether these are all rows of the part."""
        return (self.skip, self.rows) == (0, self.part.rows)

    def _column(self, field: pa.Field, batch: pa.RecordBatch, row: int) -> pa.Array:
        index = batch.schema.get_field_index(field.name)
        if index >= 0:
            column = batch.column(index)
            if column.type.equals(field.type):
                return column
            return reinterpret(cast(column, field.type, field.name), field.type)  # a struct has more fields by now
        if field.name == "_offset" and self.offset is not None:
            start = self.offset + row - self.skip
            return pa.arange(start, start + batch.num_rows)  # type: ignore[attr-defined]  # the stubs lack it
        if field.name == "_shard" and self.shard is not None:
            return pa.repeat(pa.scalar(self.shard, field.type), batch.num_rows)
        if field.name == "_time" and self.since is not None:
            return pa.repeat(pa.scalar(round(self.since * 1e6), field.type), batch.num_rows)
        return pa.nulls(batch.num_rows, field.type)
