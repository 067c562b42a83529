"""Datasets without a server: a ledger, a store and a clock over one folder, and what a reader gets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from penstock.ledger import merging
from penstock.ledger.attempts import Attempt
from penstock.ledger.parts import Slice
from penstock.store.medium import Medium
from penstock.wire.put import DatasetOptions, Mode
from tests.kit.rows import numbers
from tests.kit.topics import Reach

PATH = "store/a"


class Datasets(Reach):
    """Each write is one attempt of one part, as a small put is."""

    def start(self, medium: Medium) -> None:
        super().start(medium)
        self.compactor = merging.Compactor(self.ledger, self.store)

    def write(
        self, *tables: pa.Table, path: str = PATH, mode: Mode = "append", run: str | None = None,
        partition: str | None = None, ttl: float | None = None,
    ) -> str:  # fmt: skip
        """Finish a write with a part for each table, unless its run is finished; return its id."""
        write = self.ledger.open_write(path, mode=mode, run=run, dataset=DatasetOptions(partition, ttl))
        if write.state == "open":
            name = uuid.uuid4().hex
            parts = [
                self.store.write(f"{name}-{uuid.uuid4().hex[:8]}-{at:06}", table.schema, table.to_batches(), path=path)
                for at, table in enumerate(tables)
            ]
            rows = sum(table.num_rows for table in tables)
            self.ledger.finish_single(write.id, Attempt(name, tables[0].schema, rows, tuple(parts)))
        return write.id

    def append(self, count: int, *, start: int = 0, path: str = PATH) -> None:
        """Finish so many writes of one row each, whose numbers follow each other."""
        for number in range(start, start + count):
            self.write(numbers(1, number), path=path)

    def slices(self, path: str = PATH, *, ticketed_until: float = 0) -> list[Slice]:
        return self.ledger.snapshot(path, ticketed_until=ticketed_until)[1]

    def parts(self, path: str = PATH) -> list[str]:
        return [each.part for each in self.slices(path)]

    def table(self, path: str = PATH) -> pa.Table:
        """Return all rows, checked as a read does."""
        return self.table_of(self.slices(path), path)

    def table_of(self, slices: Sequence[Slice], path: str = PATH) -> pa.Table:
        opened = [self.store.open(each.part, path=path, rows=each.rows, digest=each.digest) for each in slices]
        return pa.concat_tables([part.reader().read_all() for part in opened], promote_options="default")
