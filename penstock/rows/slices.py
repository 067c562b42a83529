"""A part as its reader asked for it: some columns, the first rows, the dataset's schema. Server and client share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

PART_BYTES = 8 << 20
"""Where a part is cut."""
_BATCH_BYTES = 2 << 20
"""The most that a batch has on the wire. ADBC refuses 16 MiB; from 4 MiB on memory is mapped anew for every message,
which costs the receiver twice the time."""


def open_stream(stream: pa.Buffer, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """An IPC stream's batches without a copy; columns that aren't wanted are never touched."""
    if columns is None:
        return pa.ipc.open_stream(stream)
    schema = pa.ipc.read_schema(stream)
    wanted = [schema.get_field_index(name) for name in columns]
    found = pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=sorted(wanted)))
    if wanted and wanted == sorted(wanted):  # Arrow takes no fields to mean all of them
        return found
    # It reads columns in the order of the schema; the caller's order is put in afterwards
    return pa.RecordBatchReader.from_batches(select(schema, columns), (batch.select(list(columns)) for batch in found))


def select(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The schema of these columns, in this order."""
    if columns is None:
        return schema
    metadata = {**schema.metadata} if schema.metadata else None
    return pa.schema([schema.field(name) for name in columns], metadata=metadata)


def first_rows(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Batches until so many rows have passed."""
    left = limit
    for batch in batches:
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows


def rows_of(batches: Iterable[pa.RecordBatch], skip: int, rows: int) -> Iterator[pa.RecordBatch]:
    """So many rows behind those that are skipped."""
    for batch in batches:
        if rows <= 0:
            return
        found = batch.slice(min(skip, batch.num_rows), rows)
        skip -= min(skip, batch.num_rows)
        rows -= found.num_rows
        if found.num_rows:
            yield found


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most _BATCH_BYTES, where rows allow it."""
    if batch.nbytes <= _BATCH_BYTES or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    first, second = batch.slice(0, half), batch.slice(half)
    if first.nbytes + second.nbytes > 1.5 * batch.nbytes:  # most of it is a dictionary, which every slice has whole
        yield batch
        return
    yield from sliced(first)
    yield from sliced(second)


def together(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in as few batches as may cross the wire: 1,000 of one row each took a reader 50 times as long.

    Dictionaries that don't fit into one, such as 200 values under one-byte indices, stay what they are.
    """
    try:
        found = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    except pa.ArrowException:
        found = batches
    for batch in found:
        yield from sliced(batch)
