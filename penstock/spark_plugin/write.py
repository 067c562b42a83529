"""Out of Spark: `df.mapInArrow(put, put.schema)`, and `write(df, path)`, which is the same in one line."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import pyarrow as pa

from penstock.client import client as clients
from penstock.client.arguments import check_path
from penstock.client.publish import PublishArguments, Publishing
from penstock.client.put import dataset_options, describe_write
from penstock.client.views import WriteSummary
from penstock.errors import InvalidRequest, PenstockError, TimedOut, Unavailable
from penstock.spark_plugin import carry, tuning
from penstock.spark_plugin.heartbeat import Heartbeat
from penstock.spark_plugin.progress import show_progress
from penstock.spark_plugin.spark_types import to_arrow
from penstock.spark_plugin.worker.open_put import OpenPut, Run, abort_put, finish_put, run_name
from penstock.spark_plugin.worker.tasks import RECEIPTS, PutPartition
from penstock.text import counted
from penstock.wire.actions import DESCRIBE, OPEN_WRITE, OpenWrite, Summary, Target
from penstock.wire.kafka import KafkaAddress
from penstock.wire.put import DatasetOptions, Mode, Release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)
_SKIPPED = (
    "Rows that are not the same again need another run: a new checkpoint counts its batches from 0, "
    "penstock.foreach_batch names them by the checkpoint"
)

NOT_PUBLISHED = Publishing(None, None)


class WriteArguments(clients.ServerArguments, PublishArguments, total=False):
    """The arguments of `write` that say which server, how messages are published, how Spark hands out rows, and which
    rows of a dataset they are.
    """

    batch_rows: int | None
    partition: str | None
    ttl: float | None


@dataclass(frozen=True, slots=True)
class Splits:
    """What becomes of a write's rows: splits of a queue, a partition of the dataset."""

    queue: str | None = None
    rows: int | None = None
    """Of a split at most."""
    release: Release = "finish"
    dataset: DatasetOptions | None = None


def open_put(
    client: clients.Client,
    path: str,
    mode: Mode,
    run: Run | None,
    schema: pa.Schema | None,
    *,
    put_schema: bool = True,
    splits: Splits | None = None,
    publishing: Publishing = NOT_PUBLISHED,
) -> OpenPut:
    """Open a write. With `put_schema` an attempt without rows goes ahead of the tasks': a frame without rows has its
    columns, and a schema that doesn't fit is rejected before a task runs.
    """
    check_path(path)
    splits = splits or Splits()
    if splits.queue is not None:
        splits = replace(splits, queue=_queue_of(client, splits.queue))
        check_path(splits.queue)
    if schema is not None and not schema.names:
        raise InvalidRequest(f"{path}: a frame without columns can't be written, as Spark hands out none of its rows")
    name = f"put-{uuid.uuid4().hex}" if run is None else run_name(run)  # so that it can be retried
    sent = schema if schema is None or publishing.encoding is None else publishing.encoding.schema(schema)
    request = OpenWrite(
        path, mode, None, name, splits.queue, splits.rows, splits.release, publishing.options, splits.dataset
    )
    opened = client.call(OPEN_WRITE, request)
    put = OpenPut.of(path, opened, named=run is not None)
    if put_schema and sent is not None and not put.repeated:
        try:
            return replace(put, schema_attempt=client.attempt(put.ticket, sent).close().attempt)
        except BaseException:
            with contextlib.suppress(PenstockError):  # the first error is the cause
                abort_put(client.connection, put)
            raise
    return put


def _queue_of(client: clients.Client, queue: str) -> str:
    """Return a queue's path; that of kafka://host:port/topic, which is made, is queue/topic."""
    if not queue.startswith("kafka://"):
        return queue
    address = KafkaAddress.parse(queue)
    if address.topic is None:
        raise InvalidRequest(f"{queue} names no topic: expected such as {queue.rstrip('/')}/splits")
    client.create_queue(f"queue/{address.topic}", queue)
    return f"queue/{address.topic}"


def task_of(
    put: OpenPut,
    client: clients.Client,
    schema: pa.Schema | None,
    release: Release = "finish",
    publishing: Publishing = NOT_PUBLISHED,
) -> PutPartition:
    """Return the task that puts a partition."""
    ticket = None if put.repeated else put.ticket
    return PutPartition(
        client.settings.for_tasks(put.location), ticket, schema, releases=release == "partition",
        encoding=publishing.encoding,
    )  # fmt: skip


class DoPut:
    """A write that Spark's tasks make: give it to mapInArrow, and `finish` it with the receipts that come back.

    As a context manager it is aborted when the block ends by an exception, or without `finish`.
    """

    schema = "write string, attempt string, rows long, bytes long, parts int, digest string"
    """The columns that mapInArrow returns: a receipt for each evaluation of a partition."""

    def __init__(
        self,
        client: clients.Client,
        path: str,
        mode: Mode,
        run: Run | None,
        schema: pa.Schema | None,
        splits: Splits,
        publishing: Publishing = NOT_PUBLISHED,
        batch_rows: int | None = None,
    ) -> None:
        if batch_rows is not None and (type(batch_rows) is not int or batch_rows < 1):
            raise InvalidRequest(f"batch_rows={batch_rows!r:.80}: expected a whole number from 1, such as 10_000")
        self._client, self._schema, self._release, self._publishing = client, schema, splits.release, publishing
        self._batch_rows = batch_rows
        self._began = time.monotonic()
        self._put = open_put(client, path, mode, run, schema, splits=splits, publishing=publishing)
        self._heartbeat = Heartbeat(client.connection, self._put) if splits.queue is not None else None
        self.path = path
        self.write = self._put.write
        """The write's id: `penstock show write/ID`."""
        self._receipts: object = None
        """The receipts, or the frame of them, of the last finish: the same frame isn't evaluated again."""
        self.finished = WriteSummary.of(self._put.summary) if self._put.summary is not None else None

    @property
    def task(self) -> PutPartition:
        """The task that puts a partition."""
        return task_of(self._put, self._client, self._schema, self._release, self._publishing)

    def finish(self, receipts: DataFrame | pa.Table | Iterable[Any]) -> WriteSummary:
        """Make the attempts of these receipts the dataset, all or nothing.

        They come as rows (`.collect()`), as an Arrow table, or as the frame itself, which is then evaluated here. Again
        with the same receipts: the same answer.
        """
        if self._put.repeated:
            log.warning("%s: these tasks have put nothing. %s", self.finished, _SKIPPED)
        elif self.finished is None or receipts is not self._receipts:
            self._put = finish_put(self._client.connection, self._put, self._rows(receipts))
            self._receipts = receipts
            self._end_heartbeat()
            assert self._put.summary is not None
            seconds = None if self._put.repeated else time.monotonic() - self._began
            self.finished = self.finished or WriteSummary.of(self._put.summary, seconds)
        assert self.finished is not None
        return self.finished

    def abort(self) -> None:
        """Abort the write: nothing of it becomes visible. A finished one stays, and this is rejected."""
        self._end_heartbeat()
        abort_put(self._client.connection, self._put)

    def _end_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()

    def progress(self) -> Summary:
        """Return what the server has of the tasks' part so far."""
        return self._put.tasks_part(describe_write(self._client.connection, self._put.write))

    def _rows(self, receipts: Any) -> Iterable[Any]:
        if isinstance(receipts, pa.Table):
            return list(receipts.to_pylist())
        if hasattr(receipts, "sparkSession"):
            if receipts.columns != RECEIPTS.names:
                raise InvalidRequest(
                    f"finish of {self.path}: expected the frame of receipts, df.mapInArrow(put, put.schema), got one "
                    f"of {', '.join(receipts.columns[:6])}"
                )
            with tuning.tuned(receipts.sparkSession, self._schema, self._rows_per_batch()):
                return list(receipts.collect())
        if not isinstance(receipts, Iterable):
            raise InvalidRequest(f"finish of {self.path}: expected receipts, got {receipts!r}")
        return receipts

    def _rows_per_batch(self) -> int | None:
        """Return the rows of Spark's batches: as the caller says, or by the width of the rows that the path has; None
        where the schema tells. Rows without one of the frame's columns say nothing of its width.
        """
        if self._batch_rows is not None or self._schema is None or not tuning.has_text(self._schema):
            return self._batch_rows
        try:
            there = self._client.call(DESCRIBE, Target(self.path))
        except PenstockError:  # there is nothing yet, or nothing that is known
            return None
        names = {column["name"] for column in there.schema or ()}
        if not there.rows or not there.bytes or not names.issuperset(self._schema.names):
            return None
        return tuning.rows_per_batch(self._schema, there.bytes / there.rows)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.pack(self.task, decoding=self._publishing.encoding is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # If the server was away at finish, or didn't answer, the write may be whole, and can be finished again
        if self.finished is None and not isinstance(error, Unavailable | TimedOut):
            try:
                self.abort()
            except PenstockError:
                if error is None:
                    raise

    def __repr__(self) -> str:
        return f"penstock.do_put({self.path!r}): write/{self.write}, {'finished' if self.finished else 'open'}"


def do_put(
    path: str,
    *,
    mode: Mode = "error",
    run: Run | None = None,
    schema: StructType | pa.Schema | None = None,
    queue: str | None = None,
    split_rows: int | None = None,
    batch_rows: int | None = None,
    **server: Unpack[clients.ServerArguments],
) -> DoPut:
    """Open a write whose attempts Spark's tasks make: `put.finish(df.mapInArrow(put, put.schema).collect())`.

    With `schema` (`df.schema`) a frame without rows keeps its columns, and rows that don't fit are rejected before a
    task runs. A `run` such as `(query, batch)` is written once: in foreachBatch a batch that is repeated adds nothing.
    At finish a `queue` gets a split for each 8 MiB of the rows, or for each `split_rows` of them: workers claim it.
    `batch_rows` as in `write`, for a `finish` of the frame itself. `url` and others as in `penstock.connect`.
    """
    arrow = schema if schema is None or isinstance(schema, pa.Schema) else to_arrow(schema)
    splits = Splits(queue, split_rows)
    return DoPut(clients.connect(**server), path, mode, run, arrow, splits, batch_rows=batch_rows)


def write(
    df: DataFrame,
    path: str,
    *,
    mode: Mode = "error",
    run: Run | None = None,
    queue: str | None = None,
    split_rows: int | None = None,
    release: Release = "finish",
    progress: bool | None = None,
    **more: Unpack[WriteArguments],
) -> WriteSummary:
    """Write a frame to a dataset, all or nothing, whatever Spark retries: once.

    With a `queue`, workers claim the rows as splits: `penstock.write(df, "store/j/in", queue="queue/j/in")`; with
    `queue="kafka://host:port/splits"` their messages are records of that topic, and workers claim `queue/splits`. Shows
    its progress on a terminal and in a notebook (`progress=False` doesn't). `run` and `split_rows` as in `do_put`.

    With `release="partition"` workers get each partition once it is whole, while Spark still writes the others. That is
    weaker: if Spark computes one again with other rows, the write fails at its end, and what workers made of it is to
    be discarded.

    `batch_rows` is how many rows Spark hands out at a time. It is chosen by the width of a row, for texts by that of
    the rows that the path has: `batch_rows=10_000` makes a first write of short strings faster.

    `publish/PROJECT/TOPIC` takes messages for Pub/Sub, and returns once it has them; `encode`, `id_attribute`,
    `compression`, `partition` and `ttl` as in `Client.put`. The others are those of `penstock.connect`.
    """
    _check_frame(df)
    batch_rows = more.pop("batch_rows", None)
    dataset = dataset_options(path, more.pop("partition", None), more.pop("ttl", None))
    server, publishing = _parted(path, more)
    if release != "finish" and run is not None:
        raise InvalidRequest(
            f"{path}: a run may be written by several drivers, whose partitions aren't the same: omit run, or "
            f"release={release!r}"
        )
    client = clients.connect(**server)
    splits = Splits(queue, split_rows, release, dataset)
    with DoPut(client, path, mode, run, to_arrow(df.schema), splits, publishing, batch_rows) as put:
        if put.finished is not None:
            # The rows of a stream's batch are counted; those of a job aren't, as that may take as long as the job
            rows = f"the batch of {counted(df.count(), 'row')}" if isinstance(run, tuple) else "this frame"
            log.warning("%s: %s is skipped. %s", put.finished, rows, _SKIPPED)
            return put.finished
        with show_progress(path, put.progress, wanted=progress):
            return put.finish(df.mapInArrow(put, put.schema))


def _parted(path: str, arguments: Mapping[str, Any]) -> tuple[clients.ServerArguments, Publishing]:
    """Part the arguments that say which server from those that say how messages are published."""
    of_server = clients.ServerArguments.__annotations__
    server: Any = {name: value for name, value in arguments.items() if name in of_server}
    publish: Any = {name: value for name, value in arguments.items() if name not in of_server}
    return server, Publishing.of(path, publish)


def foreach_batch(
    path: str, *, mode: Mode = "append", batch_rows: int | None = None, **server: Unpack[clients.ServerArguments]
) -> Callable[[DataFrame, int], None]:
    """Return a function that writes each batch of a stream, once: `df.writeStream.foreachBatch(foreach_batch(path))`.

    A batch is the run (query, batch). Spark keeps the query's id in the checkpoint: a batch that is repeated adds
    nothing, and a query with a new checkpoint has runs of its own.
    """
    check_path(path)
    clients.connect(**server).close()  # a wrong argument fails here, not in the first batch

    def write_batch(df: DataFrame, batch: int) -> None:
        query = None
        with contextlib.suppress(AttributeError, NotImplementedError):  # Spark Connect's sessions have no context
            query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise InvalidRequest(
                f"foreach_batch({path!r}): Spark Connect does not tell a batch its query: use format('penstock'), or a "
                "function that names the run: penstock.write(df, path, mode='append', run=('orders', batch))"
            )
        write(df, path, mode=mode, run=(query, batch), progress=False, batch_rows=batch_rows, **server)

    return write_batch


def _check_frame(df: DataFrame) -> None:
    """Reject frames that Spark rejects later, and with less of a cure."""
    if not hasattr(df, "mapInArrow"):
        raise InvalidRequest(
            f"write: expected Spark's frame, then the path, got {type(df).__name__}. pandas-on-Spark has "
            ".to_spark(); tables, pandas and polars go in by penstock.connect().put(path, data)"
        )
    if df.isStreaming:
        raise InvalidRequest("write: this frame is a stream: write its batches, in df.writeStream.foreachBatch(…)")
    odd = [name for name in df.columns if set(name) & set(".`*")]
    twins = len({name.lower() for name in df.columns}) < len(set(df.columns))
    if odd or (twins and df.sparkSession.conf.get("spark.sql.caseSensitive") != "true"):
        raise InvalidRequest(
            f"{f'column {odd[0]!r} has . ` or * in its name' if odd else 'two columns differ in case alone'}, which "
            "Spark's mapInArrow doesn't find: rename (df.withColumnRenamed), or use df.write.format('penstock')"
        )
