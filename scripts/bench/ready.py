"""The floor of a streaming source in Python: rows that are ready, and no server to ask for anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import datasource as sql
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from scripts.bench.publisher import rows
from scripts.bench.session import repeated

_BATCH_BYTES = 1 << 20


class Ready(sql.DataSource):
    """`format("ready")` with so many `rows` of a `kind`, in partitions of `each`, at most `most` in a batch."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return {"json": "value binary", "integers": "id long, a long, b long, c long"}[self.options["kind"]]

    def streamReader(self, schema: StructType) -> sql.DataSourceStreamReader:  # noqa: N802  # Spark's names
        return ReadyReader(self.options["kind"], *(int(self.options[name]) for name in ("rows", "each", "most")))


class ReadyReader(sql.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are counts of rows."""

    def __init__(self, kind: str, rows: int, each: int, most: int) -> None:
        self._kind, self._rows, self._each, self._most = kind, rows, each, most

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows
        return {"rows": min(self._rows, start["rows"] + most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[sql.InputPartition]:
        firsts = range(start["rows"], end["rows"], self._each)
        return [sql.InputPartition(min(self._each, end["rows"] - first)) for first in firsts]

    def commit(self, end: dict[str, int]) -> None:
        pass

    def read(self, partition: sql.InputPartition) -> Iterator[pa.RecordBatch]:
        row = rows(self._kind, range(1))
        yield from repeated(row, partition.value, _BATCH_BYTES // row.nbytes)
