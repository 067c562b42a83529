"""The data source: `spark.dataSource.register(penstock.DataSource)`, then `format("penstock")`.

Spark uses it in processes of its own, each with an object that the one before has pickled; penstock's modules travel
along (`carry`). Only the first two processes of a read or a write have the server's token.

    analysis    schema()                      planning    reader(), partitions()          tasks   read()
    planning    writer() opens the write      tasks       write() puts an attempt each    commit() or abort()
"""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from penstock.client import client as clients
from penstock.client.settings import LONG_RETRY_FOR, RETRY_FOR, ConnectSettings
from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.spark_plugin import carry, options, subscriptions
from penstock.spark_plugin.consumption import end_offsets, start_offsets
from penstock.spark_plugin.read import split_tickets
from penstock.spark_plugin.spark_types import check_schema_matches, to_arrow, to_spark
from penstock.spark_plugin.worker.tasks import GetTickets
from penstock.spark_plugin.write import open_put, task_of
from penstock.wire.put import Mode

try:
    from pyspark.sql import datasource as sql
except ImportError as missing:
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise ImportError("penstock.DataSource needs Spark: pip install 'penstock-flight[spark]'") from missing
    import pyspark

    raise ImportError(
        f"penstock.DataSource needs Spark 4.0 or newer, this is {pyspark.__version__}: "
        "use penstock.read(spark, path) and penstock.write(df, path), which work here too"
    ) from missing

from penstock.spark_plugin import sink, stream  # they need Spark 4.0, too
from penstock.spark_plugin.worker.pieces import PartitionReader, PartitionWriter, SourceName, without_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class _Registered(ABCMeta):
    """The class of DataSource: registering pickles DataSource, as the call that makes it again elsewhere."""


class DataSource(sql.DataSource, metaclass=_Registered):
    """Datasets for `spark.read.format("penstock").load(path)` and `df.write.format("penstock").mode(…).save(path)`.

    PENSTOCK_URL, PENSTOCK_TOKEN and the variables of certificates are read when it is registered: Spark's own processes
    don't see what a notebook sets later. Options go before.
    """

    here: ClassVar[ConnectSettings | None] = None
    """How the process that registered the class reaches the server."""
    _planned = False

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @without_traceback
    def schema(self) -> StructType:
        values = options.checked(self.options, "read", "stream")
        with self._client(values) as client:
            subscriptions.attach(client, values)
            if values.get("decode") == "json":
                raise InvalidRequest("decode='json' needs a schema: .schema('id long, total decimal(10,2)')")
            _, at_server = options.decoding(client, values, None)
            columns = options.columns(values.get("columns"))
            info = client.info(values["path"], columns=columns, filter=values.get("filter"), decoding=at_server)
            return to_spark(info.schema)[0]

    @without_traceback
    def reader(self, schema: StructType) -> sql.DataSourceReader:
        values = options.checked(self.options, "read")
        client = self._client(values)
        subscriptions.attach(client, values)
        if "decode" in values and "columns" in values:
            raise InvalidRequest("the option 'columns' is for a read that doesn't decode: leave it out")
        reader = BatchReader(client, values, schema)
        self._planned = True
        return reader

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> sql.DataSourceWriter:
        values = options.checked(self.options, "write")
        mode: Mode = "overwrite" if overwrite else "append"
        client, arrow = self._client(values), to_arrow(schema)
        publishing = options.publishing(values)
        put = open_put(client, values["path"], mode, values.get("run"), arrow, publishing=publishing)
        self._planned = True
        task = task_of(put, client, arrow, publishing=publishing)
        return BatchWriter(put, task, client.settings.retry_seconds())

    @without_traceback
    def streamReader(self, schema: StructType) -> sql.DataSourceStreamReader:  # noqa: N802  # Spark's name
        values = options.checked(self.options, "stream")
        client = self._client(values, LONG_RETRY_FOR)
        subscriptions.attach(client, values)
        self._planned = True
        return stream.reader(client, values, schema)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> sql.DataSourceStreamWriter:  # noqa: N802
        values = options.checked(self.options, "sink")
        mode: Mode = "overwrite" if overwrite else "append"
        self._planned = True
        client = self._client(values, LONG_RETRY_FOR)
        return sink.EpochWriter(client, values["path"], mode, schema, options.publishing(values))

    def _client(self, values: Mapping[str, str], retry_for: float = RETRY_FOR) -> clients.Client:
        here = self.here or _settings_here()
        named = {name: values[name] for name in ("url", "token", "ca", "cert", "key") if values.get(name)}
        retry_for = options.seconds(values, "retry_for", retry_for)
        return clients.Client(replace(here, **named, retry_for=retry_for))  # type: ignore[arg-type]  # names of its fields

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the source for planning; planning pickles it for the tasks, which need only its name."""
        if self._planned:
            return carry.pack(SourceName({}))
        return carry.pack(carry.PickledCall(_made, self.here, dict(self.options)), planning=True)


def registered(here: ConnectSettings | None) -> type[DataSource]:
    """Return the class, with the settings of the process that registered it."""
    kind: Any = _Registered("DataSource", (DataSource,), {"here": here})
    return kind  # type: ignore[no-any-return]


def _made(here: ConnectSettings | None, values: dict[str, str]) -> DataSource:
    return registered(here)(values)


def _pickled(kind: type[DataSource]) -> tuple[Any, ...]:
    return carry.pack(carry.PickledCall(registered, kind.here or _settings_here()), planning=True)


copyreg.pickle(_Registered, _pickled)  # type: ignore[arg-type]  # how a class is pickled goes by its metaclass


def _settings_here() -> ConnectSettings:
    """Return the environment's settings; certificates as text, as their file needn't be on Spark's host."""
    with clients.connect() as client:
        return client.settings.with_texts()


class BatchReader(PartitionReader):
    """Plans a read: partitions of tickets, about the same bytes each."""

    def __init__(self, client: clients.Client, values: Mapping[str, str], schema: StructType) -> None:
        self._client, self._values, self._path, self._filter = client, values, values["path"], values.get("filter")
        self._arrow = to_arrow(schema)
        """The very schema in which Spark takes batches: from 4.2 on it compares."""
        self._decoding, self._at_server = options.decoding(client, values, self._arrow)
        columns = options.columns(values.get("columns")) if self._decoding is None else self._decoding.columns
        dataset = client.info(self._path, columns=columns, decoding=self._at_server).schema
        if self._decoding is None:
            check_schema_matches(self._path, schema, dataset)
            dataset = pa.schema([dataset.field(name) for name in schema.names])
        else:
            self._decoding = self._decoding.reading(dataset)
        self._dataset = dataset

    @without_traceback
    def partitions(self) -> list[sql.InputPartition]:
        names = None if self._at_server else self._dataset.names or None
        info = self._client.info(
            self._path, columns=names, filter=self._filter, decoding=self._at_server, **self._range()
        )
        if not info.schema.equals(self._dataset):
            raise SchemaMismatch(f"{self._path} was replaced by rows of another schema meanwhile: load it again")
        settings = self._client.settings.for_tasks(info.location)
        mapped = not (self._filter or self._at_server)
        get = GetTickets(settings, self._arrow, info.local if mapped else None, self._decoding)
        tickets = split_tickets(info.endpoints, filtered=self._filter is not None)
        return [sql.InputPartition((get, each)) for each in tickets] or [sql.InputPartition(None)]

    def _range(self) -> dict[str, Any]:
        """Return the range of a topic that the options name, as arguments of `Client.info`; nothing without them."""
        start, end = self._values.get("startingoffsets"), self._values.get("endingoffsets")
        if start is None and end is None:
            return {}
        first = start_offsets(self._client, self._path, start or "earliest")
        until = dict(first.next) if end is None else end_offsets(self._client, self._path, end, first.next)
        return {"start": first.start, "end": until, "journal": first.journal}

    def __reduce__(self) -> tuple[Any, ...]:
        return carry.pack(PartitionReader(), decoding=self._decoding is not None)


class BatchWriter(PartitionWriter):
    """A planned write; in tasks and at the commit it is a PartitionWriter."""

    def __reduce__(self) -> tuple[Any, ...]:
        task = PartitionWriter(self._put, self._task, self._retry_for)
        return carry.pack(task, decoding=self._task.encoding is not None)
