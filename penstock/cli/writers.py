"""Arrow batches into files and stdout, one after the other; a file appears when it is whole."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types as types

from penstock.errors import InvalidRequest, NotFound
from penstock.rows.slices import size_of

_ROW_GROUP = 64 << 20  # bytes of Arrow data that make a Parquet row group: batches of 8 MiB would make small ones
_TEXT_ROWS = 10_000  # rows that are Python objects at a time
_WRITERS: dict[str, Callable[[Any, pa.Schema], Any]] = {
    "arrow": pa.ipc.new_file, "arrows": pa.ipc.new_stream, "parquet": pq.ParquetWriter, "csv": pyarrow.csv.CSVWriter,
}  # fmt: skip
_NO_FRACTION = re.compile(r"\.0+(?=$|Z|[+-])")  # of a second


def save(
    file: str | None, file_format: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch],
    show: Callable[[float], None] = lambda _: None,
) -> dict[str, int]:  # fmt: skip
    """Write all batches to a file, or to stdout; return the rows and bytes."""
    rows = size = 0

    def count() -> Iterator[pa.RecordBatch]:
        nonlocal rows, size
        for batch in batches:
            yield batch
            rows, size = rows + batch.num_rows, size + size_of(batch)
            show(size)

    with _whole_file(file) if file else nullcontext(sys.stdout.buffer) as sink:
        write(file_format, sink, schema, count())
        return {"rows": rows, "bytes": sink.tell() if file and sink.seekable() else size}


@contextmanager
def _whole_file(name: str) -> Iterator[IO[bytes]]:
    """Open a file that gets its name once it is complete: nobody sees half of it, and a failure leaves the old one."""
    path, target = Path(name), Path(os.path.realpath(name))
    if path.exists() and not (path.is_file() or path.is_dir()):  # /dev/null, a named pipe, a shell's >(…), which is
        with path.open("wb") as file:  # a link to what has no path at all
            yield file
        return
    if target.is_dir():
        raise InvalidRequest(f"{name} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise NotFound(f"{name}: there is no folder {target.parent}")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write(file_format: str, sink: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all batches in a format, with its end."""
    pieces: Iterable[pa.RecordBatch | pa.Table] = batches
    if file_format == "csv":
        schema = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        pieces = (_flatten(batch, schema) for batch in batches)
    elif file_format == "parquet":
        pieces = _row_groups(batches)
    try:
        if file_format == "json":
            sink.writelines(_json_lines(batches))
            return
        with _WRITERS[file_format](sink, schema) as writer:
            for piece in pieces:
                writer.write(piece)
    except (pa.ArrowException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequest(f"{file_format} can't hold these rows: {reason}. Arrow streams (.arrows) can") from error


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += size_of(batch)
        if size >= _ROW_GROUP:
            yield pa.Table.from_batches(group)
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group)


def _json_lines(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        for start in range(0, batch.num_rows, _TEXT_ROWS):
            columns = [c.cast(_exact(c.type)).to_pylist() for c in batch.slice(start, _TEXT_ROWS).columns]
            for row in zip(*columns, strict=True):
                yield _dump(dict(zip(batch.schema.names, row, strict=True))).encode() + b"\n"


def cells(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Return the values as text: times and decimals as they are, bytes as base64, nested values as JSON."""
    values = column.cast(_exact(column.type)).to_pylist()
    texts = [value if value is None else _text(value) for value in values]
    return [text and _NO_FRACTION.sub("", text) for text in texts] if types.is_temporal(column.type) else texts


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value) if isinstance(value, bytes) else _dump(value)


def _dump(value: Any) -> str:
    """Return a value as JSON, which has no NaN: null stands for it."""
    try:
        return json.dumps(value, default=_encode, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=_encode, ensure_ascii=False)


def _encode(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(child) for name, child in value.items()}
    return [_finite(child) for child in value] if isinstance(value, list | tuple) else value


def _exact(kind: pa.DataType) -> pa.DataType:
    """Return the type with text for what Python's values or JSON's would round: nanoseconds, decimals."""
    if (types.is_temporal(kind) and not types.is_interval(kind)) or types.is_decimal(kind):
        return pa.string()
    if types.is_dictionary(kind):
        return _exact(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_exact(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_exact(kind.value_type)))
    return kind


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in CSV: numbers, times and text as they are, a dictionary as its values, all else as text."""
    if types.is_dictionary(kind):
        return _csv_type(kind.value_type)
    flat = types.is_primitive(kind) or types.is_decimal(kind) or types.is_large_string(kind) or types.is_null(kind)
    return kind if flat and not types.is_interval(kind) and not types.is_float16(kind) else pa.string()


def _flatten(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [c.dictionary_decode() if isinstance(c, pa.DictionaryArray) else c for c in batch.columns]
    texts = [c if c.type == kind else pa.array(cells(c), kind) for c, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(texts, schema=schema)
