"""Into Spark: tickets from the driver, do_get in the tasks; `read(spark, path)` is the same in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import client as clients
from penstock.client.arguments import Start, check_undecoded
from penstock.client.typed import Decoded, plan_decoding
from penstock.errors import InvalidRequest
from penstock.spark_plugin import carry
from penstock.spark_plugin.spark_types import to_arrow, to_spark
from penstock.spark_plugin.worker.tasks import TICKETS, GetNumberedTickets, GetTickets, NumberedTickets, make_batch
from penstock.wire.read import EndpointNote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TASK_BYTES = 32 << 20
"""The most that one task gets, unless one endpoint has more: the size of an endpoint."""
_FILTERED_TASK_BYTES = 256 << 20
"""The same where the server filters first: it scans so much in 50 ms, about what a task's Python costs."""


class DoGet:
    """A dataset to read by mapInArrow: `get.tickets(spark).mapInArrow(get, get.schema)`.

    Rows that are deleted or overwritten meanwhile stay readable for the life of the tickets, counted from here.
    """

    def __init__(
        self,
        client: clients.Client,
        path: str,
        filter: str | None,
        *,
        columns: Sequence[str] | None = None,
        decoded: Decoded | None = None,
        **options: Any,
    ) -> None:
        self.path = path
        arguments = decoded or Decoded()
        schema: Any = arguments.get("schema")
        if hasattr(schema, "fieldNames"):
            arguments = {**arguments, "schema": to_arrow(schema)}
        decoding, at_server = plan_decoding(client, path, arguments)
        if decoding is not None or at_server is not None:
            check_undecoded(columns)
        if decoding is not None:
            columns = decoding.columns
        info = client.info(path, columns=columns, filter=filter, decoding=at_server, **options)
        decoding = decoding and decoding.reading(info.schema)
        self.schema: StructType
        """The schema for mapInArrow; as exact as the dataset's own."""
        self.schema, arrow = to_spark(decoding.schema if decoding else info.schema)
        self._tickets = list(split_tickets(info.endpoints, filtered=filter is not None))
        self._decodes = decoding is not None
        settings = client.settings.for_tasks(info.location)
        mapped = filter is None and at_server is None
        self._task = GetTickets(settings, arrow, info.local if mapped else None, decoding)

    def tickets(self, spark: SparkSession) -> DataFrame:
        """Return a frame of the tickets, in partitions of about the same bytes."""
        numbered = carry.CarriedTask(NumberedTickets(self._tickets))
        return self._numbers(spark).mapInArrow(numbered, "ticket binary, rows long, bytes long")

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the frame `tickets(spark).mapInArrow(self, self.schema)`, in one step."""
        task = carry.CarriedTask(GetNumberedTickets(NumberedTickets(self._tickets), self._task), decoding=self._decodes)
        return self._numbers(spark).mapInArrow(task, self.schema)

    def _numbers(self, spark: SparkSession) -> DataFrame:
        count = len(self._tickets)
        return spark.range(0, count, 1, max(1, count))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.pack(self._task, decoding=self._decodes)

    def __repr__(self) -> str:
        return f"penstock.do_get({self.path!r}): tickets for {len(self._tickets)} tasks"


def split_tickets(endpoints: Sequence[flight.FlightEndpoint], *, filtered: bool) -> Iterator[pa.RecordBatch]:
    """Yield the tickets of each task: of endpoints that follow each other, up to the bytes that a task is worth."""
    most = _FILTERED_TASK_BYTES if filtered else _TASK_BYTES
    task: list[tuple[bytes, int, int]] = []
    for endpoint in endpoints:
        note = EndpointNote.decode(endpoint.app_metadata)
        if task and sum(size for *_, size in task) + note.bytes > most:
            yield make_batch(TICKETS, *zip(*task, strict=True))
            task = []
        task.append((endpoint.ticket.ticket, note.rows, note.bytes))
    if task:
        yield make_batch(TICKETS, *zip(*task, strict=True))


def do_get(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    start: Start | None = None,
    end: Mapping[int, int] | None = None,
    journal: str | None = None,
    **others: Unpack[ReadArguments],
) -> DoGet:
    """Return the tickets of a dataset, for Spark's tasks: `get.tickets(spark).mapInArrow(get, get.schema)`.

    Columns and filter (`"fare > 10 and city in ('Oslo', 'Bergen')"`) are applied at the server. Of a topic, the rows
    from `start` up to `end`: offsets by shard, `{0: 500}`, or for `start` a time; `journal`, which `describe` has,
    names the journal of these offsets: a topic that was deleted and created again is rejected. `decode`, `schema`,
    `mode` and `writer_schema` as in `c.get`. `url` and others as in `penstock.connect`.
    """
    decoded, server = _split(others)
    return DoGet(
        clients.connect(**server), path, filter, columns=columns, start=start, end=end, journal=journal, decoded=decoded
    )


class ReadArguments(clients.ServerArguments, Decoded, total=False):
    """The arguments of a read that say which server, and how payloads become columns."""


def _split(others: ReadArguments) -> tuple[Decoded, clients.ServerArguments]:
    server: Any = {name: value for name, value in others.items() if name in clients.ServerArguments.__annotations__}
    decoded: Any = {name: value for name, value in others.items() if name not in server}
    return decoded, server


def read(
    spark: SparkSession,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    start: Start | None = None,
    end: Mapping[int, int] | None = None,
    journal: str | None = None,
    **others: Unpack[ReadArguments],
) -> DataFrame:
    """Return a dataset as a frame, as it is now: later changes aren't seen, and deleted rows stay readable for 12 hours
    (the server's --ticket-life). After that evaluating the frame is an error that says to read again.

    Of a topic, the rows from `start` up to `end`, offsets by shard, `{0: 500}`; a shard that isn't named is read to its
    end. `journal`, which `describe` has, names the journal of these offsets: a topic that was deleted and created again
    is rejected. `decode="json"` makes columns of its payloads: those of `schema`, "id long, total decimal(10,2)" or
    Spark's own types; "avro", "protobuf", `mode` and `writer_schema` as in `c.get`.
    """
    if not hasattr(spark, "range"):
        raise InvalidRequest(f"read: expected the session, then the path, got {type(spark).__name__}")
    get = do_get(path, columns=columns, filter=filter, start=start, end=end, journal=journal, **others)
    return get.rows(spark)
