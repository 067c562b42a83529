"""Into Spark: tickets from the driver, do_get in the tasks; `read(spark, path)` is the same in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import client as clients
from penstock.errors import InvalidRequest
from penstock.spark_plugin import carry
from penstock.spark_plugin.worker import types
from penstock.spark_plugin.worker.tasks import TICKETS, GetPieces, GetTickets, HandOut, plain
from penstock.wire.read import EndpointNote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TASK_BYTES = 32 << 20
"""What one task gets at most, unless one endpoint has more: the size of an endpoint."""
_FILTERED_BYTES = 256 << 20
"""The same of what the server filters first: it looks through so much in 50 ms, about what a task's Python costs."""


class DoGet:
    """A dataset to read by mapInArrow: `get.tickets(spark).mapInArrow(get, get.schema)`.

    What is deleted or overwritten meanwhile stays readable for the life of the tickets, counted from here.
    """

    def __init__(
        self,
        client: clients.Client,
        path: str,
        columns: Sequence[str] | None,
        filter: str | None,
        start: clients.Position | None = None,
        end: Mapping[int, int] | None = None,
        journal: str | None = None,
    ) -> None:
        self.path = path
        info = client.info(path, columns=columns, filter=filter, start=start, end=end, journal=journal)
        self.schema: StructType
        """What mapInArrow is told; as exact as the dataset's own."""
        self.schema, self._arrow = types.readable(info.schema)
        self._pieces = list(pieces(info.endpoints, filtered=filter is not None))
        self._task = GetTickets(
            client.settings.for_tasks(info.location), self._arrow, info.local if filter is None else None
        )

    def tickets(self, spark: SparkSession) -> DataFrame:
        """The tickets, in partitions of about the same bytes."""
        hand_out = carry.Carried(HandOut(self._pieces))
        return self._numbers(spark).mapInArrow(hand_out, "ticket binary, rows long, bytes long")

    def rows(self, spark: SparkSession) -> DataFrame:
        """`tickets(spark).mapInArrow(self, self.schema)` in one step."""
        both = carry.Carried(GetPieces(HandOut(self._pieces), self._task))
        return self._numbers(spark).mapInArrow(both, self.schema)

    def _numbers(self, spark: SparkSession) -> DataFrame:
        count = len(self._pieces)
        return spark.range(0, count, 1, max(1, count))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.packed(self._task)

    def __repr__(self) -> str:
        return f"penstock.do_get({self.path!r}): {len(self._pieces)} tasks' tickets"


def pieces(endpoints: Sequence[flight.FlightEndpoint], *, filtered: bool) -> Iterator[pa.RecordBatch]:
    """The endpoints' tickets, small ones that follow each other together, up to what a task is worth."""
    most = _FILTERED_BYTES if filtered else _TASK_BYTES
    task: list[tuple[bytes, int, int]] = []
    for endpoint in endpoints:
        note = EndpointNote.decode(endpoint.app_metadata)
        if task and sum(size for *_, size in task) + note.bytes > most:
            yield plain(TICKETS, *zip(*task, strict=True))
            task = []
        task.append((endpoint.ticket.ticket, note.rows, note.bytes))
    if task:
        yield plain(TICKETS, *zip(*task, strict=True))


def do_get(  # noqa: PLR0913  # as `read`
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    start: clients.Position | None = None,
    end: Mapping[int, int] | None = None,
    journal: str | None = None,
    url: str | None = None,
    token: str | None = None,
    ca: str | None = None,
) -> DoGet:
    """Tickets of a dataset, for Spark's tasks: `get.tickets(spark).mapInArrow(get, get.schema)`.

    Columns and filter (`"fare > 10 and city in ('Oslo', 'Bergen')"`) are applied at the server. Of a topic, the rows
    from `start` up to `end`: offsets by shard, `{0: 500}`, or for `start` a time; `journal`, which `describe` has, is
    whose offsets they are: a topic that was deleted and made again is refused.
    """
    return DoGet(clients.connect(url, token=token, ca=ca), path, columns, filter, start, end, journal)


def read(  # noqa: PLR0913  # two by position, and what each of a read and a server may be told
    spark: SparkSession,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    start: clients.Position | None = None,
    end: Mapping[int, int] | None = None,
    journal: str | None = None,
    url: str | None = None,
    token: str | None = None,
    ca: str | None = None,
) -> DataFrame:
    """A dataset as a frame, as it is now: later changes aren't seen, and what is deleted stays readable for 12 hours
    (the server's --ticket-life). After that evaluating the frame is an error that says so; read again. Of a topic, the
    rows from `start` up to `end`, offsets by shard, `{0: 500}`; a shard that isn't named is read as far as it goes.
    `journal`, which `describe` has, is whose offsets they are: a topic that was deleted and made again is refused.
    """
    if not hasattr(spark, "range"):
        raise InvalidRequest(f"read: expected the session, then the path, got {type(spark).__name__}")
    get = do_get(
        path, columns=columns, filter=filter, start=start, end=end, journal=journal, url=url, token=token, ca=ca
    )
    return get.rows(spark)
