"""The floor of a streaming source in Python: batches that are ready, and no server to ask for anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as sql
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from scripts.bench_topics_client import message

_BATCH_BYTES = 1 << 20


class Ready(sql.DataSource):
    """`format("ready")` with so many `rows` of a `kind`, in partitions of `each`, at most `most` in a batch."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return {"json": "value binary", "integers": "id long, a long, b long, c long"}[self.options["kind"]]

    def streamReader(self, schema: StructType) -> sql.DataSourceStreamReader:  # noqa: N802  # Spark's names
        numbers = {name: int(self.options.get(name, 0)) for name in ("rows", "each", "most")}
        return ReadyReader(self.options["kind"], **numbers)


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
        begun = range(start["rows"], end["rows"], self._each)
        return [sql.InputPartition(min(self._each, end["rows"] - first)) for first in begun]

    def commit(self, end: dict[str, int]) -> None:
        pass

    def read(self, partition: sql.InputPartition) -> Iterator[pa.RecordBatch]:
        rows: int = partition.value
        batch = _batch(self._kind, rows)
        for begun in range(0, rows, batch.num_rows):
            yield batch.slice(0, rows - begun)


def _batch(kind: str, rows: int) -> pa.RecordBatch:
    """A batch of the size that the topic's have, made once in a task."""
    columns: dict[str, Any]
    if kind == "json":
        text = message(0)
        columns = {"value": pa.repeat(pa.scalar(text, pa.binary()), min(rows, _BATCH_BYTES // len(text)))}
    else:
        columns = {
            name: pa.repeat(pa.scalar(7, pa.int64()), min(rows, _BATCH_BYTES // 32)) for name in ["id", "a", "b", "c"]
        }
    return pa.RecordBatch.from_pydict(columns)
