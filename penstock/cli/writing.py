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

_ROW_GROUP = 64 << 20  # bytes of Arrow data that make a Parquet row group: batches of 8 MiB would make small ones
_TEXT_ROWS = 10_000  # rows that are Python objects at a time
_NO_FRACTION = re.compile(r"\.0+(?=$|Z|[+-])")  # of a second


def save(
    file: str | None, kind: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch],
    done: Callable[[float], None] = lambda _: None,
) -> dict[str, int]:  # fmt: skip
    """All batches to a file that appears when it is whole, or to stdout; how much it was."""
    rows = size = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows, size
        for batch in batches:
            yield batch
            rows, size = rows + batch.num_rows, size + batch.nbytes
            done(size)

    with _whole_file(file) if file else nullcontext(sys.stdout.buffer) as sink:
        write(kind, sink, schema, counted())
        return {"rows": rows, "bytes": sink.tell() if file and sink.seekable() else size}


@contextmanager
def _whole_file(name: str) -> Iterator[IO[bytes]]:
    """A file that gets its name once it is complete: nobody finds half of it, and a failure leaves the old one."""
    given, target = Path(name), Path(os.path.realpath(name))
    if given.exists() and not (given.is_file() or given.is_dir()):  # /dev/null, a named pipe, a shell's >(…), which is
        with given.open("wb") as file:  # a link to what has no path at all
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


def write(kind: str, sink: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """All batches to `sink` in this format, with its end."""
    try:
        if kind == "json":
            sink.writelines(_lines(batches))
        elif kind == "csv":
            flat = pa.schema([(field.name, _flat(field.type)) for field in schema])
            _all(pyarrow.csv.CSVWriter(sink, flat), (_flattened(batch, flat) for batch in batches))
        elif kind == "parquet":
            _all(pq.ParquetWriter(sink, schema), _row_groups(batches))
        else:
            _all((pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream)(sink, schema), batches)
    except (pa.ArrowException, ValueError) as wrong:
        raise InvalidRequest(
            f"{kind} can't hold these rows: {str(wrong).splitlines()[0]}. Arrow streams (.arrows) hold everything"
        ) from wrong


def _all(writer: Any, pieces: Iterable[pa.RecordBatch | pa.Table]) -> None:
    """Each of Arrow's writers takes pieces in the same way."""
    with writer as out:
        for piece in pieces:
            out.write(piece)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _lines(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        for start in range(0, batch.num_rows, _TEXT_ROWS):
            columns = [c.cast(_exact(c.type)).to_pylist() for c in batch.slice(start, _TEXT_ROWS).columns]
            for row in zip(*columns, strict=True):
                yield _dump(dict(zip(batch.schema.names, row, strict=True))).encode() + b"\n"


# --- values as text: times and decimals as they are, bytes as base64, what is nested as JSON ----


def cells(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """The values for people, one text each; None where they are null."""
    values = column.cast(_exact(column.type)).to_pylist()
    texts = [value if value is None or isinstance(value, str) else _cell(value) for value in values]
    return [text and _NO_FRACTION.sub("", text) for text in texts] if types.is_temporal(column.type) else texts


def _cell(value: Any) -> str:
    return _plain(value) if isinstance(value, bytes) else _dump(value)


def _dump(value: Any) -> str:
    """A value as JSON, which has no NaN: that is null."""
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=_plain, ensure_ascii=False)


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(held) for name, held in value.items()}
    return [_finite(held) for held in value] if isinstance(value, list | tuple) else value


def _exact(kind: pa.DataType) -> pa.DataType:
    """The type with text for what Python's values or JSON's would round: nanoseconds, decimals."""
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


def _flat(kind: pa.DataType) -> pa.DataType:
    """The type that CSV has: numbers, times and text as they are, a dictionary as its values, all else as text."""
    if types.is_dictionary(kind):
        return _flat(kind.value_type)
    simple = types.is_primitive(kind) or types.is_decimal(kind) or types.is_large_string(kind) or types.is_null(kind)
    return kind if simple and not types.is_interval(kind) and not types.is_float16(kind) else pa.string()


def _flattened(batch: pa.RecordBatch, flat: pa.Schema) -> pa.RecordBatch:
    columns = [c.dictionary_decode() if isinstance(c, pa.DictionaryArray) else c for c in batch.columns]
    texts = [c if c.type == kind else pa.array(cells(c), kind) for c, kind in zip(columns, flat.types, strict=True)]
    return pa.RecordBatch.from_arrays(texts, schema=flat)
