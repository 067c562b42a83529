"""Out of Spark: `df.mapInArrow(put, put.schema)`, and `write(df, path)`, which is the same in one line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock.client import client as clients
from penstock.client.views import Written
from penstock.errors import InvalidRequest, PenstockError, TimedOut, Unavailable
from penstock.spark_plugin import carry, tuning
from penstock.spark_plugin.opened import OpenPut, Run
from penstock.spark_plugin.progress import shown
from penstock.spark_plugin.worker import types
from penstock.spark_plugin.worker.tasks import RECEIPTS
from penstock.wire.put import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class DoPut(OpenPut):
    """A write that Spark's tasks make: give it to mapInArrow, and `finish` it with the receipts that come back.

    As a context manager it is aborted when the block ends by an exception, or without `finish`.
    """

    schema = "write string, attempt string, rows long, bytes long, parts int, digest string"
    """What mapInArrow gives back: a receipt for each evaluation of a partition."""
    _given: object = None
    """What it was finished with; the same frame isn't evaluated again."""

    def finish(self, receipts: DataFrame | pa.Table | Iterable[Any]) -> Written:
        """Make what these receipts name the dataset, all or nothing.

        They come as rows (`.collect()`), as an Arrow table, or as the frame itself, which is then evaluated here. Again
        with the same receipts: the same answer.
        """
        if self.finished is None or receipts is not self._given:
            super().finish(self._records(receipts))
            self._given = receipts
        assert self.finished is not None
        return self.finished

    def _records(self, receipts: Any) -> Iterable[Any]:
        if self.before is not None:
            return ()
        if isinstance(receipts, pa.Table):
            return list(receipts.to_pylist())
        if hasattr(receipts, "sparkSession"):
            if receipts.columns != RECEIPTS.names:
                raise InvalidRequest(
                    f"finish of {self.path}: expected the frame of receipts, df.mapInArrow(put, put.schema), got one "
                    f"of {', '.join(receipts.columns[:6])}"
                )
            with tuning.tuned(receipts.sparkSession, self._schema):
                return list(receipts.collect())
        if not isinstance(receipts, Iterable):
            raise InvalidRequest(f"finish of {self.path}: expected receipts, got {receipts!r}")
        return receipts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.packed(self.task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Where the server was away at finish, or didn't answer, the write may be whole, and finish may be asked again
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
    url: str | None = None,
    token: str | None = None,
    ca: str | None = None,
) -> DoPut:
    """Open a write whose attempts Spark's tasks make: `put.finish(df.mapInArrow(put, put.schema).collect())`.

    With `schema` (`df.schema`) a frame without rows keeps its columns, and rows that don't fit are refused before a
    task runs. A `run` such as `(query, batch)` is written once: in foreachBatch a batch that is repeated adds nothing.
    """
    wanted = schema if schema is None or isinstance(schema, pa.Schema) else types.stored(schema)
    return DoPut(clients.connect(url, token=token, ca=ca), path, mode, run, wanted)


def write(
    df: DataFrame,
    path: str,
    *,
    mode: Mode = "error",
    run: Run | None = None,
    progress: bool | None = None,
    url: str | None = None,
    token: str | None = None,
    ca: str | None = None,
) -> Written:
    """Write a frame to a dataset, all or nothing, whatever Spark retries: once.

    Shows its progress on a terminal and in a notebook (`progress=False` doesn't). `run` as in `do_put`.
    """
    _check(df)
    with do_put(path, mode=mode, run=run, schema=df.schema, url=url, token=token, ca=ca) as put:
        if put.finished is None:
            with shown(path, put.so_far, wanted=progress):
                put.finish(df.mapInArrow(put, put.schema))
        assert put.finished is not None
        if put.before is not None:
            log.info("%s: nothing more was written", put.before)
        return put.finished


def _check(df: DataFrame) -> None:
    """Refuse what Spark refuses later, and with less of a cure."""
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
