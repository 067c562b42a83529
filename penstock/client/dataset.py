"""A dataset as pyarrow's: lazy and repeatable for DuckDB, polars, pandas and whatever else scans one.

    trips = c.dataset("store/demo/trips")
    duckdb.sql("SELECT city, max(fare) FROM trips WHERE fare > 10 GROUP BY city")
    pl.scan_pyarrow_dataset(trips).filter(pl.col("fare") > 10).select("city").collect()
    trips.to_table(columns=["city"], filter=pc.field("fare") > 10).to_pandas()

Columns and filters go to the server. What a filter means is Arrow's, or DuckDB's and polars's: it is evaluated again
over the rows that come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as arrow
import pyarrow.fs as fs

from penstock.errors import InvalidRequest, NotFound
from penstock.rows.filter.arrow import columns_of, to_filter
from penstock.rows.filter.parse import parse_filter
from penstock.wire.read import Entry, ListCommand

if TYPE_CHECKING:
    from penstock.client.client import Client

PATH = "_path"
"""The column with each row's path in a folder that is read as one."""
_FORMAT, _FILES = arrow.IpcFileFormat(), fs.LocalFileSystem()


class Dataset(arrow.FileSystemDataset):
    """The rows at a path, or of all datasets below a folder's, read anew by each scan.

    DuckDB and others know a dataset by pyarrow's class. Its own methods that don't call `scanner` read files: here one
    that doesn't exist, so that they raise, rather than find no rows.
    """

    def __init__(self, client: Client, path: str, condition: pc.Expression | None = None) -> None:
        """`condition` is one that every scan has, beside its own."""
        self._client, self._path, self._condition = client, path, condition
        self._is_folder = path.endswith("/")
        schema = _together(path, self._members()) if self._is_folder else client.info(path).schema
        file = _FORMAT.make_fragment(f"/{path}, which only its scanner reads", _FILES)
        super().__init__([file], schema, _FORMAT, _FILES)

    def __repr__(self) -> str:
        columns = "".join(f"\n  {each.name}: {each.type}" for each in self.schema)
        return f"{self._client}.dataset({self._path!r}){columns}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._client, self._path, self._condition)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    def filter(self, expression: pc.Expression) -> Dataset:
        """Return the dataset of the rows for which this is true, too."""
        return Dataset(self._client, self._path, self._with(expression))

    def scanner(  # type: ignore[override]  # its options are passed on, whichever there are
        self,
        columns: list[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> arrow.Scanner:
        """Return a scanner of the rows that there are now, for one use."""
        condition = self._with(filter)
        names = list(columns) if isinstance(columns, list | tuple) else self.schema.names
        if condition is not None:
            names = [*names, *columns_of(condition, self.schema)]
        names = list(dict.fromkeys(names)) or self.schema.names[:1]  # rows are counted by a column
        schema = pa.schema([self.schema.field(name) for name in names], self.schema.metadata)
        reads = list(self._reads(schema, condition))
        batches = (_fitted(_aligned(batch), path, schema) for path, reader in reads for batch in reader)
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        return arrow.Scanner.from_batches(reader, columns=columns, filter=condition, **options)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:  # type: ignore[override]  # as above
        return self.scanner(columns=[], filter=filter, **options).count_rows()

    def _with(self, expression: pc.Expression | None) -> pc.Expression | None:
        if self._condition is None or expression is None:
            return self._condition if expression is None else expression
        return self._condition & expression

    def _members(self) -> list[tuple[str, pa.Schema]]:
        """Return the datasets that there are now below the folder, each with its columns."""
        connection, criteria = self._client.connection, ListCommand(self._path).encode()
        infos = connection.retry(lambda: list(connection.flight.list_flights(criteria, connection.options())))
        entries = [(Entry.decode(info.app_metadata), info.schema) for info in infos]
        return [(entry.path, schema) for entry, schema in entries if entry.kind == "dataset"]

    def _reads(self, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[tuple[str, pa.RecordBatchReader]]:
        """Read these columns, and at least the rows of the filter, of each dataset."""
        members = [(self._path, self.schema)]
        if self._is_folder:
            members = _chosen(self._members(), filter)
        for path, own in members:
            read = pa.schema([own.field(name) for name in schema.names if name in own.names] or [*own][:1])
            try:
                reader = self._client.get(
                    path, columns=read.names, filter=None if filter is None else to_filter(filter, read)
                )
            except NotFound:
                if self._is_folder:  # it was deleted meanwhile
                    continue
                raise
            for field in reader.schema:
                if field.name in schema.names and field.type != schema.field(field.name).type:
                    raise InvalidRequest(
                        f"{path}: the column {field.name!r} is {field.type} by now, where {self._path} was opened with "
                        f"{schema.field(field.name).type}: open it again, by c.dataset"
                    )
            yield path, reader


def _together(folder: str, members: list[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the columns of all datasets below a folder, nullable where some lack them, and that of their paths."""
    if not members:
        raise NotFound(f"no dataset below {folder}: penstock ls lists the datasets")
    fields: dict[str, pa.Field] = {}
    for path, schema in members:
        for field in schema:
            known = fields.setdefault(field.name, field)
            if known.type != field.type or field.name == PATH:
                other = "the column of paths" if field.name == PATH else f"{known.type} in others"
                raise InvalidRequest(
                    f"{folder} can't be read as one: {path} has the column {field.name!r} as {field.type}, which is "
                    f"{other}"
                )
            fields[field.name] = known.with_nullable(known.nullable or field.nullable)
    everywhere = set(fields).intersection(*(schema.names for _, schema in members))
    merged = [field.with_nullable(field.nullable or name not in everywhere) for name, field in fields.items()]
    return pa.schema([*merged, pa.field(PATH, pa.string(), nullable=False)], members[0][1].metadata)


def _chosen(members: list[tuple[str, pa.Schema]], filter: pc.Expression | None) -> list[tuple[str, pa.Schema]]:
    """Return the datasets that a filter's conditions on the path leave."""
    paths = pa.table({PATH: pa.array([path for path, _ in members], pa.string())})
    text = None if filter is None else to_filter(filter, paths.schema)
    if text is None:
        return members
    kept = set(parse_filter(text, paths.schema).kept(paths)[PATH].to_pylist())
    return [(path, schema) for path, schema in members if path in kept]


def _aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose buffers begin at multiples of 8. For each other one, as gRPC hands them out, Arrow's scanner
    writes a warning to stderr.
    """
    dictionaries = [column.dictionary for column in batch.columns if isinstance(column, pa.DictionaryArray)]
    buffers = (buffer for array in (*batch.columns, *dictionaries) for buffer in array.buffers())
    if all(buffer is None or buffer.address % 8 == 0 for buffer in buffers):
        return batch
    copy = pa.BufferOutputStream()
    with pa.ipc.new_stream(copy, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(copy.getvalue()).read_next_batch()


def _fitted(batch: pa.RecordBatch, path: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return a dataset's rows with these columns: what it lacks is null."""

    def column(field: pa.Field) -> pa.Array:
        if field.name in batch.schema.names:
            return batch.column(field.name)
        return pa.repeat(path, batch.num_rows) if field.name == PATH else pa.nulls(batch.num_rows, field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)
