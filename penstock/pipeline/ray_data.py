"""Ray Data reads and writes datasets of a server.

from penstock.pipeline.ray_data import Datasink, Datasource

ds = ray.data.read_datasource(Datasource("store/x", columns=["id", "fare"], filter="fare > 10"))
ds.write_datasink(Datasink("store/y", mode="overwrite"))
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from penstock.client import client as clients
from penstock.client.client import ServerArguments
from penstock.client.get import read_tickets
from penstock.client.put import open_attempt
from penstock.client.settings import ConnectSettings
from penstock.client.views import WriteSummary
from penstock.errors import PenstockError
from penstock.spark_plugin.worker.connection_cache import CONNECTIONS
from penstock.spark_plugin.worker.open_put import Run
from penstock.spark_plugin.worker.tasks import PutPartition
from penstock.spark_plugin.write import DoPut, Splits
from penstock.wire.put import Mode
from penstock.wire.read import EndpointNote

try:
    from ray.data import Datasource as RayDatasource
    from ray.data import ReadTask
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasink as RayDatasink
except ImportError as missing:
    raise ImportError("penstock.pipeline.ray_data needs Ray Data: pip install 'penstock-flight[ray]'") from missing

if TYPE_CHECKING:
    from ray.data import DataContext
    from ray.data.block import Block
    from ray.data.datasource import WriteResult


class Datasource(RayDatasource):
    """A dataset as it is now, for `ray.data.read_datasource`. Rows that are deleted or overwritten meanwhile stay
    readable for 12 hours (the server's --ticket-life); after that reading is an error that says to read again.

    Columns and filter (`"fare > 10 and city in ('Oslo', 'Bergen')"`) are applied at the server. Ray's workers map the
    parts into memory on the server's host, and get them elsewhere. `url` and others as in `penstock.connect`.
    """

    def __init__(
        self,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        **server: Unpack[ServerArguments],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        with clients.connect(**server) as client:
            info = client.info(path, columns=columns, filter=filter)
            self._settings = client.settings.for_tasks(info.location)
        self.path = path
        self.schema = info.schema
        self._tickets = [(each.ticket.ticket, EndpointNote.decode(each.app_metadata)) for each in info.endpoints]
        self._local = info.local if filter is None else None  # mapped parts would have to be filtered there
        self._filtered = filter is not None

    def __repr__(self) -> str:
        return f"Datasource({self.path!r})"

    def get_name(self) -> str:
        """Return what Ray's progress and statistics call it."""
        return f"Penstock({self.path})"

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all rows, those included that a filter drops."""
        return sum(note.bytes for _, note in self._tickets)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """Return a task for each endpoint, which has 32 MiB; for several ones where Ray wants fewer tasks."""
        count = max(1, -(-len(self._tickets) // parallelism))
        firsts = range(0, len(self._tickets), count)
        return [self._task(self._tickets[first : first + count], per_task_row_limit) for first in firsts]

    def _task(self, some: Sequence[tuple[bytes, EndpointNote]], row_limit: int | None) -> ReadTask:
        tickets = [(ticket, note.rows) for ticket, note in some]
        read = partial(_read, self._settings, tickets, self.schema, self._local)
        metadata = BlockMetadata(
            num_rows=None if self._filtered else sum(note.rows for _, note in some),
            size_bytes=sum(note.bytes for _, note in some), exec_stats=None, input_files=None,
        )  # fmt: skip
        update_wrapper(read, _read)  # Ray warns of a large task by its name
        return ReadTask(read, metadata, schema=self.schema, per_task_row_limit=row_limit)


def _read(
    settings: ConnectSettings, tickets: Iterable[tuple[bytes, int]], schema: pa.Schema, local: str | None
) -> Iterator[pa.Table]:
    """Yield the rows of tickets batch by batch, which Ray joins to blocks; without rows a table that has the schema."""
    yield schema.empty_table()
    with CONNECTIONS.connect(settings) as connection:
        for batch in read_tickets(connection, tickets, local=local, columns=schema.names or None):
            yield pa.Table.from_batches([batch], schema)


class Datasink(RayDatasink[list[dict[str, Any]]]):
    """A write for `ds.write_datasink`: all or nothing, each row once, whatever Ray retries.

    1. The driver opens the write, before Ray's first write task.
    2. Each evaluation of a task puts its rows as an attempt of its own; the receipt is what the task returns to Ray.
    3. The driver finishes the write with exactly the receipts of Ray's own write results. Attempts of tasks that were
       killed, or evaluated again, are not among them, and never count.

    If Ray fails, the write is aborted and nothing of it is visible. `mode`, `run` and the server's arguments are those
    of `penstock.do_put`.
    """

    def __init__(
        self, path: str, *, mode: Mode = "error", run: Run | None = None, **server: Unpack[ServerArguments]
    ) -> None:
        self.path = path
        self.finished: WriteSummary | None = None
        self._mode, self._run = mode, run
        self._client: clients.Client | None = clients.connect(**server)
        self._put: DoPut | None = None
        self._task: PutPartition | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A task has the write's ticket alone, no token."""
        return {**self.__dict__, "_client": None, "_put": None}

    def __repr__(self) -> str:
        return f"Datasink({self.path!r})"

    def get_name(self) -> str:
        """Return what Ray's progress and statistics call it."""
        return f"Penstock({self.path})"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Open the write. Ray's schema isn't looked at: it is that of the rows before the maps that Ray fuses with the
        write.
        """
        assert self._client is not None
        self._put = DoPut(self._client, self.path, self._mode, self._run, None, Splits())
        self._task = self._put.task

    def write(self, blocks: Iterable[Block], ctx: object) -> list[dict[str, Any]]:
        """Put the rows of a task, of which Ray holds all blocks anyway; return the receipt."""
        assert self._task is not None
        tables = [table for table in map(_to_arrow, blocks) if table.num_columns]
        if self._task.ticket is None or not tables:
            return []
        table = pa.concat_tables(tables, promote_options="default")
        with CONNECTIONS.connect(self._task.settings) as connection:
            with open_attempt(connection, self._task.ticket, table.schema) as writer:
                writer.write(table)
            return [writer.close().to_json()]

    def on_write_complete(self, write_result: WriteResult[list[dict[str, Any]]]) -> None:
        """Finish the write with the receipts of Ray's write results."""
        if self._put is None:  # a frame without blocks
            self.on_write_start()
        assert self._put is not None
        self.finished = self._put.finish([receipt for some in write_result.write_returns for receipt in some])

    def on_write_failed(self, error: Exception) -> None:
        """Abort the write. Its own error would hide Ray's; a write that can't be aborted shows nothing, and expires."""
        if self._put is not None:
            with contextlib.suppress(PenstockError):
                self._put.abort()


def _to_arrow(block: Block) -> pa.Table:
    return BlockAccessor.for_block(block).to_arrow()
