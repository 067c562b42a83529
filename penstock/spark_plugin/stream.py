"""The streaming source: batches of a topic's rows, each a range of offsets that reads the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import datasource as sql

from penstock.client.client import Client
from penstock.client.views import Info
from penstock.spark_plugin import carry, options
from penstock.spark_plugin.consumption import Consumption
from penstock.spark_plugin.offsets import MAX_DELAY, SETTLE, StreamOffset, StreamOptions
from penstock.spark_plugin.read import split_tickets
from penstock.spark_plugin.spark_types import check_schema_matches, to_arrow
from penstock.spark_plugin.worker.pieces import StreamPartitionReader
from penstock.spark_plugin.worker.tasks import GetTickets
from penstock.wire.position import Position
from penstock.wire.read import EndpointNote

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StreamReader(StreamPartitionReader):
    """Plans batches, in one process of the driver's for as long as the query runs."""

    def __init__(self, client: Client, values: Mapping[str, str], schema: StructType) -> None:
        self._client, self._schema = client, schema
        self._arrow = to_arrow(schema)
        self._decoding, self._at_server = options.decoding(client, values, self._arrow)
        self._names = schema.names if self._decoding is None else list(self._decoding.columns)
        self._min_tasks = options.count(values, "minPartitions") or 1
        self._consumption = Consumption(
            client,
            values["path"],
            StreamOptions(
                values.get("startingoffsets", "earliest"),
                options.count(values, "maxRowsPerTrigger"),
                options.count(values, "maxBytesPerTrigger"),
                options.count(values, "minRowsPerTrigger"),
                options.seconds(values, "maxTriggerDelay", MAX_DELAY),
                options.switch(values, "failOnDataLoss", True),
                options.seconds(values, "settle", SETTLE),
                values.get("consumer"),
            ),
            decoding=self._at_server if self._decoding is None else self._decoding.to_wire(),
        )
        self._schema_matches = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return self._consumption.initial().to_json()

    def commit(self, end: dict[str, Any]) -> None:
        self._consumption.committed(StreamOffset.from_json(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[sql.InputPartition]:
        begin, until = self._consumption.planned(StreamOffset.from_json(start), StreamOffset.from_json(end))
        partitions: list[sql.InputPartition] = []
        for info in self._infos(begin, until):
            self._check_schema(info)
            settings = self._client.settings.for_tasks(info.location)
            local = None if self._at_server else info.local
            get = GetTickets(settings, self._arrow, local, self._decoding and self._decoding.reading(info.schema))
            partitions += [sql.InputPartition((get, tickets)) for tickets in self._tickets(info)]
        return partitions

    def _infos(self, begin: StreamOffset, end: StreamOffset) -> Iterator[Info]:
        """Yield a batch's tickets. For more tasks its shards are cut into ranges, where they have no order to keep."""
        begins = {s: begin.position.get(s, 0) for s in end.position}  # a shard that came meanwhile begins at 0
        ranges = {s: (begins[s], until) for s, until in end.position.items() if begins[s] < until}
        if not ranges:
            return
        cuts = 1 if self._consumption.is_ordered() else self._min_tasks  # else a task gets several small shards
        for cut in range(cuts):
            starts, ends = dict(end.position), dict(end.position)
            for shard, (first, until) in ranges.items():
                starts[shard] = first + (until - first) * cut // cuts
                ends[shard] = first + (until - first) * (cut + 1) // cuts
            info = self._client.info(
                self._consumption.path, columns=None if self._at_server else self._names, start=starts,
                end=Position(ends, end.position.life), journal=end.journal, decoding=self._at_server,
            )  # fmt: skip
            in_batch = (e for e in info.endpoints if EndpointNote.decode(e.app_metadata).shard in ends)
            yield replace(info, endpoints=tuple(in_batch))  # a shard that came after the batch was planned isn't in it

    def _tickets(self, info: Info) -> Iterator[pa.RecordBatch]:
        """Yield each task's tickets. A shard with an order is one task's, as a key's rows are in order within it."""
        if not self._consumption.is_ordered():
            yield from split_tickets(info.endpoints, filtered=False)
            return
        by_shard: dict[int | None, list[Any]] = {}
        for endpoint in info.endpoints:
            by_shard.setdefault(EndpointNote.decode(endpoint.app_metadata).shard, []).append(endpoint)
        for endpoints in by_shard.values():
            yield pa.Table.from_batches(split_tickets(endpoints, filtered=False)).combine_chunks().to_batches()[0]

    def _check_schema(self, info: Info) -> None:
        if not self._schema_matches and self._decoding is None and self._at_server is None:
            check_schema_matches(self._consumption.path, self._schema, info.schema)
            self._schema_matches = True

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.pack(StreamPartitionReader(), decoding=self._decoding is not None)


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
        """For Spark before 4.2, which tells neither start nor limit."""

        def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
            return self._consumption.latest().to_json()

    reader: type[StreamReader] = UnlimitedReader
else:

    class AdmittingReader(StreamReader, SupportsTriggerAvailableNow):
        """Limits a batch, and so stops at the topic's end as AvailableNow found it. For Spark from 4.2 on."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            limits = self._consumption.options
            if limits.max_rows is not None:
                return ReadMaxRows(limits.max_rows)
            if limits.max_bytes is not None:
                return ReadMaxBytes(limits.max_bytes)
            return ReadAllAvailable() if limits.min_rows is None else ReadMinRows(limits.min_rows)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            everything = isinstance(limit, ReadAllAvailable)  # also Trigger.Once's limit, whatever our own are
            return self._consumption.latest(StreamOffset.from_json(start), everything=everything).to_json()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._consumption.pin()

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            return self._consumption.behind()

    reader = AdmittingReader
