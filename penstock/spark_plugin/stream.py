"""The streaming source: batches of a topic's rows, each a range of offsets that reads the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import datasource as sql

from penstock.client.client import Client
from penstock.client.views import Info
from penstock.spark_plugin import asked, carry, options
from penstock.spark_plugin.consumption import Consumption
from penstock.spark_plugin.offsets import MAX_DELAY, Limits, Offset
from penstock.spark_plugin.read import pieces
from penstock.spark_plugin.worker import types
from penstock.spark_plugin.worker.tasks import GetTickets
from penstock.wire.read import EndpointNote

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StreamPieces(sql.DataSourceStreamReader):
    """What is left of a reader in the tasks: each partition has its tickets, and how to get them."""

    def read(self, partition: sql.InputPartition) -> Iterator[pa.RecordBatch]:
        get, piece = partition.value
        yield from get([piece])


class StreamReader(StreamPieces):
    """Plans batches, in one process of the driver's for as long as the query runs."""

    def __init__(self, client: Client, given: Mapping[str, str], schema: StructType) -> None:
        self._client, self._schema = client, schema
        self._tasks = options.count(given, "minPartitions") or 1
        self._way = Consumption(
            client,
            given["path"],
            Limits(
                given.get("startingoffsets", "earliest"),
                options.count(given, "maxRowsPerTrigger"),
                options.count(given, "maxBytesPerTrigger"),
                options.count(given, "minRowsPerTrigger"),
                options.seconds(given, "maxTriggerDelay", MAX_DELAY),
                options.switch(given, "failOnDataLoss", True),
            ),
        )
        self._checked = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return self._way.initial().to_json()

    def commit(self, end: dict[str, Any]) -> None:
        self._way.committed(Offset.of(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[sql.InputPartition]:
        begin, until = self._way.planned(Offset.of(start), Offset.of(end))
        found: list[sql.InputPartition] = []
        for info in self._infos(begin, until):
            self._check(info)
            get = GetTickets(self._client.settings.for_tasks(info.location), types.stored(self._schema), info.local)
            found += [sql.InputPartition((get, piece)) for piece in self._pieces(info)]
        return found

    def _infos(self, begin: Offset, end: Offset) -> Iterator[Info]:
        """The tickets of a batch. For more tasks its shards are cut into ranges, if they have no order to keep."""
        ranges = {shard: (begin.shards[shard], until) for shard, until in end.shards.items()}
        ranges = {shard: (first, until) for shard, (first, until) in ranges.items() if first < until}
        if not ranges:
            return
        cuts = 1 if self._way.is_ordered() else self._tasks  # small tickets of several shards are one task's
        for cut in range(cuts):
            some = {
                int(s): (a + (b - a) * cut // cuts, a + (b - a) * (cut + 1) // cuts) for s, (a, b) in ranges.items()
            }
            others = {int(shard): offset for shard, offset in end.shards.items() if shard not in ranges}
            yield self._client.info(
                self._way.path,
                columns=self._schema.names,
                start=others | {shard: first for shard, (first, _) in some.items()},
                end=others | {shard: until for shard, (_, until) in some.items()},
                journal=end.journal,
            )

    def _pieces(self, info: Info) -> Iterator[pa.RecordBatch]:
        if not self._way.is_ordered():
            yield from pieces(info.endpoints, filtered=False)
            return
        by_shard: dict[int | None, list[Any]] = {}
        for endpoint in info.endpoints:
            by_shard.setdefault(EndpointNote.decode(endpoint.app_metadata).shard, []).append(endpoint)
        for endpoints in by_shard.values():  # one task each, as a key's rows have their order within a shard
            yield pa.Table.from_batches(pieces(endpoints, filtered=False)).combine_chunks().to_batches()[0]

    def _check(self, info: Info) -> None:
        if not self._checked:
            asked.check(self._way.path, self._schema, info.schema)
            asked.same_values(self._schema, info.schema)
            self._checked = True

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.packed(StreamPieces())


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class UnlimitedReader(StreamReader):
        """As it was before Spark 4.2, which tells neither start nor limit."""

        def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
            return self._way.latest().to_json()

    reader: type[StreamReader] = UnlimitedReader
else:

    class AdmittingReader(StreamReader, SupportsTriggerAvailableNow):
        """Tells how much a batch takes, and so stops where AvailableNow began. From Spark 4.2 on."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            most = self._way.limits
            if most.max_rows is not None:
                return ReadMaxRows(most.max_rows)
            if most.max_bytes is not None:
                return ReadMaxBytes(most.max_bytes)
            return ReadAllAvailable() if most.min_rows is None else ReadMinRows(most.min_rows)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            everything = isinstance(limit, ReadAllAvailable)  # also what Trigger.Once asks for, whatever our limits say
            return self._way.latest(Offset.of(start), everything=everything).to_json()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._way.pin()

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            return self._way.behind()

    reader = AdmittingReader
