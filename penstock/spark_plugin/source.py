"""The data source: `spark.dataSource.register(penstock.DataSource)`, then `format("penstock")`.

Spark works with it in processes of its own, each with an object that the one before has pickled; what they pickle
brings penstock's text along. None but the first two of a read or a write ever has the server's token.

    analysis    schema()                      planning    reader(), pushFilters(), partitions()    tasks   read()
    planning    writer() opens the write      tasks       write() puts an attempt each             commit() or abort()
"""

from __future__ import annotations

import contextlib
import copyreg
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import pyarrow as pa

from penstock.client import client as clients
from penstock.client.settings import Settings
from penstock.errors import Internal, PenstockError, SchemaMismatch
from penstock.spark_plugin import asked, carry, options
from penstock.spark_plugin.offsets import a_range
from penstock.spark_plugin.opened import OpenPut
from penstock.spark_plugin.pushing import Pushed
from penstock.spark_plugin.read import pieces
from penstock.spark_plugin.worker import types
from penstock.spark_plugin.worker.tasks import GetTickets
from penstock.wire.put import Mode

try:
    from pyspark.sql import datasource as sql
except ImportError as missing:
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise ImportError("penstock.DataSource needs Spark: pip install 'penstock[spark]'") from missing
    import pyspark

    raise ImportError(
        f"penstock.DataSource needs Spark 4.0 or newer, this is {pyspark.__version__}: "
        "use penstock.read(spark, path) and penstock.write(df, path), which work here too"
    ) from missing

from penstock.spark_plugin import sink, stream  # which are of classes that were looked for above

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_P = ParamSpec("_P")
_T = TypeVar("_T")
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""The process that plans a read with filters has this module. In the other one, where the conf
spark.sql.python.filterPushdown.enabled is off, Spark takes no reader that has pushFilters.

Only with the option `pushdown`, as Spark 4.1 to 4.3 keep what the last query pushed for the whole loaded frame: after
`frame.filter(…).count()` a `frame.count()` has the filtered rows, and in a union of two filters both get the second."""


def _in_short(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Spark shows its user the traceback: our own errors say what to do, and where they were raised says no more."""

    @wraps(method)
    def within(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return method(*args, **named)
        except Internal:
            raise
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return within


class _Registered(ABCMeta):
    """A class that is pickled, which is what registering does, as the call that makes it again elsewhere."""


class DataSource(sql.DataSource, metaclass=_Registered):
    """Datasets for `spark.read.format("penstock").load(path)` and `df.write.format("penstock").mode(…).save(path)`.

    PENSTOCK_URL, PENSTOCK_TOKEN and PENSTOCK_CA are read when it is registered: Spark's own processes don't see what a
    notebook sets later. Options go before.
    """

    here: ClassVar[Settings | None] = None
    """How the process that registered the class reaches the server."""
    _planned = False

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @_in_short
    def schema(self) -> StructType:
        given = options.checked(self.options, "read", "stream")
        with self._client(given) as client:
            wanted = options.columns(given.get("columns"))
            return types.readable(client.info(given["path"], columns=wanted, filter=given.get("filter")).schema)[0]

    @_in_short
    def reader(self, schema: StructType) -> sql.DataSourceReader:
        given = options.checked(self.options, "read")
        pushing = options.switch(given, "pushdown", False) and _PUSHING in sys.modules
        kind = PushingReader if pushing else Reader
        found = kind(self._client(given), given, schema)
        self._planned = True
        return found

    @_in_short
    def writer(self, schema: StructType, overwrite: bool) -> sql.DataSourceWriter:
        given = options.checked(self.options, "write")
        mode: Mode = "overwrite" if overwrite else "append"
        put = OpenPut(self._client(given), given["path"], mode, given.get("run"), types.stored(schema))
        self._planned = True
        return Writer(put)

    @_in_short
    def streamReader(self, schema: StructType) -> sql.DataSourceStreamReader:  # noqa: N802  # Spark's name
        given = options.checked(self.options, "stream")
        self._planned = True
        return stream.reader(self._client(given), given, schema)

    @_in_short
    def streamWriter(self, schema: StructType, overwrite: bool) -> sql.DataSourceStreamWriter:  # noqa: N802
        given = options.checked(self.options, "sink")
        self._planned = True
        return sink.EpochWriter(self._client(given), given["path"], "overwrite" if overwrite else "append", schema)

    def _client(self, given: Mapping[str, str]) -> clients.Client:
        here = self.here or _settings_here()
        named = {name: given[name] for name in ("url", "token", "ca") if given.get(name)}
        waits = options.seconds(given, "retry_for", here.retry_for)
        return clients.Client(replace(here, **named, retry_for=waits))  # type: ignore[arg-type]  # names of its fields

    def __reduce__(self) -> tuple[Any, ...]:
        """Analysis hands the object to planning. Planning hands it to the tasks, which want no more than its name."""
        if self._planned:
            return carry.packed(carry.Call(_made, None, {}))
        return carry.packed(carry.Call(_made, self.here, dict(self.options)))


def registered(here: Settings | None) -> type[DataSource]:
    """The class, as the process that registered it reaches the server."""
    found: Any = _Registered("DataSource", (DataSource,), {"here": here})
    return found  # type: ignore[no-any-return]


def _made(here: Settings | None, given: dict[str, str]) -> DataSource:
    return registered(here)(given)


def _pickled(kind: type[DataSource]) -> tuple[Any, ...]:
    return carry.packed(carry.Call(registered, kind.here or _settings_here()))


copyreg.pickle(_Registered, _pickled)  # type: ignore[arg-type]  # what reduces a class is asked for by its metaclass


def _settings_here() -> Settings:
    """The environment's; certificates as text, as their file needn't be on Spark's host."""
    with clients.connect() as client:
        return replace(client.settings, ca=client.settings.for_tasks(None).ca)


class Pieces(sql.DataSourceReader):
    """What is left of a reader in the tasks: each partition has its tickets, and how to get them."""

    def read(self, partition: sql.InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            get, piece = partition.value
            yield from get([piece])


class Reader(Pieces):
    """Plans a read: partitions of tickets, about the same bytes each."""

    def __init__(self, client: clients.Client, given: Mapping[str, str], schema: StructType) -> None:
        self._client, self._given, self._path, self._filter = client, given, given["path"], given.get("filter")
        self._held = client.info(self._path, columns=options.columns(given.get("columns"))).schema
        asked.check(self._path, schema, self._held)
        self._held = pa.schema([self._held.field(name) for name in schema.names])
        self._arrow = types.stored(schema)
        """What Spark takes for this schema, to the letter: from 4.2 on it compares."""
        self._kinds = asked.same_values(schema, self._held)

    @_in_short
    def partitions(self) -> list[sql.InputPartition]:
        some = a_range(self._client, self._given)
        info = self._client.info(self._path, columns=self._held.names or None, filter=self._filter, **some)
        if not info.schema.equals(self._held):
            raise SchemaMismatch(f"{self._path} was replaced by rows of another schema meanwhile: load it again")
        get = GetTickets(
            self._client.settings.for_tasks(info.location), self._arrow, None if self._filter else info.local
        )
        found = pieces(info.endpoints, filtered=self._filter is not None)
        return [sql.InputPartition((get, piece)) for piece in found] or [sql.InputPartition(None)]

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.packed(Pieces())


class PushingReader(Reader):
    """A reader for the process that has filters to push; what the server can't do exactly goes back to Spark."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802  # Spark's name
        pushed = Pushed(self._held, self._kinds, self._filter)
        left = list(pushed.take(filters))
        self._filter = pushed.text()
        return left


class Writer(sql.DataSourceArrowWriter):
    """A write of `mode("append")` or `mode("overwrite")`: once, whatever Spark retries."""

    def __init__(self, put: OpenPut) -> None:
        self._put = put

    def write(self, iterator: Iterator[pa.RecordBatch]) -> sql.WriterCommitMessage:
        message = sql.WriterCommitMessage()
        receipts = [receipt for batch in self._put.task(iterator) for receipt in batch.to_pylist()]
        message.receipts = receipts  # type: ignore[attr-defined]  # a class of ours wouldn't be found at the commit
        return message

    @_in_short
    def commit(self, messages: list[Any]) -> None:
        self._put.finish(receipt for message in messages for receipt in message.receipts)

    def abort(self, messages: list[Any]) -> None:
        """Spark calls this after a failed commit, too; then the write may be finished, and stays so.

        An error here would hide the one that is the cause. A write that can't be aborted shows nothing, and expires.
        """
        if self._put.finished is None:
            with contextlib.suppress(PenstockError):
                self._put.abort()

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.packed(carry.Call(Writer, self._put))
