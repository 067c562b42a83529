"""Arrow batches into files and stdout, one after the other; a file appears when it is whole."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.errors import InvalidRequest, NotFound

Write = Callable[[pa.RecordBatch], None]
_ROW_GROUP = 64 << 20  # bytes of Arrow data that make a Parquet row group: batches of 8 MiB would make small ones
_TEXT_ROWS = 10_000  # rows that are Python objects at a time


@contextmanager
def whole_file(name: str) -> Iterator[IO[bytes]]:
    """A file that gets its name once it is complete: nobody finds half of it, and a failure leaves the old one."""
    target = Path(os.path.realpath(name))
    if target.exists() and not target.is_file():  # /dev/null, a named pipe
        if target.is_dir():
            raise InvalidRequest(f"{name} is a folder: name a file in it")
        with target.open("wb") as file:
            yield file
        return
    if not target.parent.is_dir():
        raise NotFound(f"{name}: there is no folder {target.parent}")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writer(format: str, sink: IO[bytes], schema: pa.Schema) -> Iterator[Write]:  # noqa: A002  # as the option is called
    """A function that writes batches to `sink` in this format; leaving the block ends the format, not the sink."""
    with _refusals(format), _WRITERS[format](sink, schema) as write:
        yield write


@contextmanager
def _arrow(sink: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    with pa.ipc.new_file(_Counted(sink).file(), schema) as out:
        yield out.write_batch


@contextmanager
def _arrows(sink: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    with pa.ipc.new_stream(_Counted(sink).file(), schema) as out:
        yield out.write_batch


@contextmanager
def _parquet(sink: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    held: list[pa.RecordBatch] = []
    size = 0
    with pq.ParquetWriter(_Counted(sink).file(), schema) as out:

        def write(batch: pa.RecordBatch) -> None:
            nonlocal size
            held.append(batch)
            size += batch.nbytes
            if size >= _ROW_GROUP:
                out.write_table(pa.Table.from_batches(held, schema))
                held.clear()
                size = 0

        yield write
        if held:
            out.write_table(pa.Table.from_batches(held, schema))


@contextmanager
def _csv(sink: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    flat = pa.schema([pa.field(field.name, _flat(field.type)) for field in schema])
    with pyarrow.csv.CSVWriter(_Counted(sink).file(), flat) as out:

        def write(batch: pa.RecordBatch) -> None:
            columns = [column if _flat(column.type) == column.type else _as_text(column) for column in batch.columns]
            out.write_batch(pa.RecordBatch.from_arrays(columns, schema=flat))

        yield write


@contextmanager
def _json(sink: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    def write(batch: pa.RecordBatch) -> None:
        for row in json_rows(batch):
            sink.write(row.encode() + b"\n")

    yield write


_WRITERS = {"arrow": _arrow, "arrows": _arrows, "parquet": _parquet, "csv": _csv, "json": _json}


_NO_FRACTION = re.compile(r"\.0+(?=$|Z|[+-])")  # of a second


# --- rows as text --------------------------------------------------------------------------


def json_rows(batch: pa.RecordBatch) -> Iterator[str]:
    """Each row as a JSON object. Times and decimals are strings, which are exact; bytes are base64; NaN is null."""
    for start in range(0, batch.num_rows, _TEXT_ROWS):
        columns = [_values(column) for column in batch.slice(start, _TEXT_ROWS).columns]
        for values in zip(*columns, strict=True):
            yield dump(dict(zip(batch.schema.names, values, strict=True)))


def cells(column: pa.Array) -> list[str | None]:
    """The values for people, one text each; None where they are null."""
    plain = (_plain(value) if isinstance(value, bytes) else value for value in _values(column))
    texts = [None if value is None else value if isinstance(value, str) else dump(value) for value in plain]
    if pa.types.is_temporal(column.type):
        return [text and _NO_FRACTION.sub("", text) for text in texts]
    return texts


def dump(value: Any) -> str:
    """A value as JSON."""
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=_plain, ensure_ascii=False)


def _values(column: pa.Array) -> list[Any]:
    told = _exact(column.type)
    values: list[Any] = (column if told == column.type else column.cast(told)).to_pylist()
    return values


def _exact(kind: pa.DataType) -> pa.DataType:
    """The type with text for what Python's values or JSON's would round: nanoseconds, decimals."""
    if (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _exact(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_exact(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_exact(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_exact(kind.value_type)))
    return kind


def _flat(kind: pa.DataType) -> pa.DataType:
    """The type that CSV can have: what is nested or no text becomes JSON or base64."""
    simple = pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    simple = simple or pa.types.is_decimal(kind) or pa.types.is_null(kind)
    if pa.types.is_dictionary(kind):
        return _flat(kind.value_type) if _flat(kind.value_type) == kind.value_type else pa.string()
    return kind if simple and not pa.types.is_interval(kind) and not pa.types.is_float16(kind) else pa.string()


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type) and _flat(column.type) == column.type.value_type:
        return column.cast(column.type.value_type)
    return pa.array(cells(column), pa.string())


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(held) for name, held in value.items()}
    return [_finite(held) for held in value] if isinstance(value, list | tuple) else value


# --- the sink ------------------------------------------------------------------------------


class _Counted:
    """A sink that knows its position, as Arrow's formats ask for it and a pipe doesn't have one."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._at = 0
        self.closed = False

    def file(self) -> pa.NativeFile:
        """As Arrow takes it."""
        return pa.PythonFile(self, mode="w")

    def write(self, data: bytes) -> int:
        self._sink.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self.closed = True


@contextmanager
def _refusals(format: str) -> Iterator[None]:  # noqa: A002
    """What a format can't hold, said with the formats that can."""
    try:
        yield
    except (pa.ArrowException, ValueError) as wrong:
        raise InvalidRequest(
            f"{format} can't hold these rows: {str(wrong).splitlines()[0]}. Arrow streams (.arrows) hold everything"
        ) from wrong
