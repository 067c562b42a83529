"""Parts of batches: some columns, some rows, pieces of a size. Server and client share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

PART_BYTES = 8 << 20
"""The size of a part."""
_BATCH_BYTES = 2 << 20
"""The largest batch on the wire. ADBC refuses 16 MiB; from 4 MiB on memory is mapped anew for every message, which
costs the receiver twice the time."""


def open_stream(stream: pa.Buffer, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """Read an IPC stream's batches without a copy; columns that are not chosen are never touched."""
    if columns is None:
        return pa.ipc.open_stream(stream)
    schema = pa.ipc.read_schema(stream)
    indices = [schema.get_field_index(name) for name in columns]
    reader = pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=sorted(indices)))
    if indices and indices == sorted(indices):  # Arrow takes no fields to mean all of them
        return reader
    # Arrow reads columns in the order of the schema; the caller's order is made here
    return pa.RecordBatchReader.from_batches(select(schema, columns), (batch.select(list(columns)) for batch in reader))


def select(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of these columns, in this order."""
    if columns is None:
        return schema
    metadata = {**schema.metadata} if schema.metadata else None
    return pa.schema([schema.field(name) for name in columns], metadata=metadata)


def first_rows(batches: Iterable[pa.RecordBatch], rows: int, *, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Give `rows` rows behind the skipped ones; no batch is read once these are complete."""
    if rows <= 0:
        return
    for batch in batches:
        piece = batch.slice(min(skip, batch.num_rows), rows)
        skip -= min(skip, batch.num_rows)
        rows -= piece.num_rows
        if piece.num_rows:
            yield piece
        if rows <= 0:
            return


def size_of(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch's rows, with its dictionaries.

    Not by `nbytes`: that ends the process where an array without values lacks a buffer, as Java sends it for the values
    of empty lists, and as no validation rejects it (pyarrow 26).
    """
    return sum(map(_size_of_array, batch.columns))


def size_of_table(table: pa.Table) -> int:
    """Return the bytes of a table's rows, as `size_of` counts them."""
    return sum(map(size_of, table.to_batches()))


def size_of_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Return the bytes of an IPC stream, nearly: those of a wide schema may be far more than those of the rows."""
    return int(schema.serialize().size) + sum(map(_size_of_message, batches))


def _size_of_message(batch: pa.RecordBatch) -> int:
    coded = (each for column in batch.columns for each in _dictionaries(column))
    return int(pa.ipc.get_record_batch_size(batch)) + sum(map(_size_of_array, coded))


def _size_of_array(array: Any) -> int:
    if not len(array):
        return 0
    if isinstance(array, pa.ExtensionArray):
        return _size_of_array(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return int(array.indices.nbytes) + _size_of_array(array.dictionary)
    if not array.type.num_fields:
        return int(array.nbytes)
    alone = pa.RecordBatch.from_arrays([array], [""])
    return int(pa.ipc.get_record_batch_size(alone)) + sum(map(_size_of_array, _dictionaries(array)))


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of at most _BATCH_BYTES, where rows allow it."""
    if size_of(batch) <= _BATCH_BYTES or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    first, second = batch.slice(0, half), batch.slice(half)
    if size_of(first) + size_of(second) > 1.5 * size_of(batch):  # most of it is a dictionary, which every slice repeats
        yield batch
        return
    yield from sliced(first)
    yield from sliced(second)


def cut(batch: pa.RecordBatch, first: int, most: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into its first rows, and then pieces of `most` rows at most."""
    at, size = 0, first
    while at < batch.num_rows:
        yield batch.slice(at, size)
        at, size = at + size, most


class Dictionaries:
    """The dictionaries of the batches of one stream, which has a dictionary once that many batches share."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def repeated(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of the batch's dictionaries that batches before it had."""
        size = 0
        for dictionary in chain.from_iterable(map(_dictionaries, batch.columns)):
            address = next((buffer.address for buffer in reversed(dictionary.buffers()) if buffer), 0)
            size += _size_of_array(dictionary) if address in self._known else 0
            self._known.add(address)
        return size


def repeated_bytes(batch: pa.RecordBatch, before: pa.RecordBatch | None) -> int:
    """Return the bytes of the dictionaries that a batch shares with the one before it, which lives: so do addresses."""
    dictionaries = Dictionaries()
    if before is not None:
        dictionaries.repeated(before)
    return dictionaries.repeated(batch)


def _dictionaries(array: Any) -> Iterator[pa.Array]:
    return (each.dictionary for each in _coded(array))


def _coded(array: Any) -> Iterator[pa.DictionaryArray]:
    """Yield an array that has a dictionary, or those within it."""
    if isinstance(array, pa.DictionaryArray):
        yield array
    elif isinstance(array, pa.StructArray):
        for at in range(array.type.num_fields):
            yield from _coded(array.field(at))
    elif isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray | pa.MapArray):
        yield from _coded(array.values)
    elif isinstance(array, pa.ExtensionArray):
        yield from _coded(array.storage)


def trimmed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose columns have dictionaries of only the values that its rows have."""
    return pa.RecordBatch.from_arrays([_trimmed(column) for column in batch.columns], schema=batch.schema)


def _trimmed(column: pa.Array) -> pa.Array:
    if not isinstance(column, pa.DictionaryArray) or len(column.dictionary) <= len(column):
        return column
    import pyarrow.compute as pc

    used = column.indices.unique().drop_null().sort()
    indices = pc.index_in(column.indices, used).cast(column.type.index_type)
    try:
        return pa.DictionaryArray.from_arrays(indices, column.dictionary.take(used), ordered=column.type.ordered)
    except pa.ArrowNotImplementedError:  # of values that Arrow can't choose
        return column


def spare_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of dictionaries, also within nested columns, that have more values than indices."""
    arrays = chain.from_iterable(map(_coded, batch.columns))
    return sum(_size_of_array(each.dictionary) for each in arrays if len(each.dictionary) > len(each))


def as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Combine batches of one schema; ArrowException where their dictionaries don't fit into one."""
    return pa.concat_batches(batches)  # type: ignore[attr-defined]  # the stubs lack it


def together(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine small batches: as few as the wire allows. A reader needed 50 times as long for 1,000 of one row each.

    Batches whose dictionaries do not fit into one, such as 200 values under one-byte indices, are left as they are.
    """
    try:
        combined = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    except pa.ArrowException:
        combined = batches
    for batch in combined:
        yield from sliced(batch)
