"""Out of Spark: `df.mapInArrow(put, put.schema)`, and `write(df, path)`, which is the same in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock import client as clients
from penstock.errors import InvalidRequest, PenstockError
from penstock.spark_plugin import carry, tuning, types
from penstock.spark_plugin.opened import OpenPut, Run
from penstock.spark_plugin.progress import shown
from penstock.views import Written
from penstock.wire import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class DoPut(OpenPut):
    """A write that Spark's tasks make: give it to mapInArrow, and `finish` it with the receipts that come back.

    As a context manager it is aborted when the block ends by an exception, or without `finish`.
    """

    schema = "write string, attempt string, rows long, bytes long, parts int, digest string"
    """What mapInArrow gives back: a receipt for each evaluation of a partition."""

    def finish(self, receipts: DataFrame | pa.Table | Iterable[Any]) -> Written:
        """Make what these receipts name the dataset, all or nothing.

        They come as rows (`.collect()`), as an Arrow table, or as the frame itself, which is then evaluated here. Again
        with the same receipts: the same answer.
        """
        return self.finished or super().finish(self._records(receipts))

    def _records(self, receipts: Any) -> Iterable[Any]:
        if isinstance(receipts, pa.Table):
            return list(receipts.to_pylist())
        if hasattr(receipts, "sparkSession"):
            with tuning.tuned(receipts.sparkSession, self._schema):
                return list(receipts.collect())
        return list(receipts)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.packed(self.task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.finished is None:
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
    if dotted := [name for name in df.columns if "." in name]:
        raise InvalidRequest(
            f"column {dotted[0]!r} has a dot in its name, which Spark's mapInArrow doesn't find: rename it "
            "(df.withColumnRenamed), or use df.write.format('penstock')"
        )
    with do_put(path, mode=mode, run=run, schema=df.schema, url=url, token=token, ca=ca) as put:
        if put.finished is None:
            with shown(path, put.so_far, wanted=progress):
                put.finish(df.mapInArrow(put, put.schema))
        assert put.finished is not None
        return put.finished
