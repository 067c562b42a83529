"""Files and stdin as Arrow batches, one after the other, never whole in memory."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.cli.formats import format_by_extension, format_by_head
from penstock.errors import InvalidRequest, NotFound, SchemaMismatch
from penstock.rows.converter import Converter
from penstock.rows.exact import time_type
from penstock.rows.fitting import fit_batches
from penstock.rows.json_lines import Lines, infer_schema
from penstock.rows.schemas import DATASET

STDIN = "-"
_BLOCK = 4 << 20  # bytes of text that are parsed at once; the first block decides the columns' types
_BATCH_ROWS = 64 << 10
_HEAD = 64 << 10  # bytes by which a format is recognised


class _Source(NamedTuple):
    """An open file: its schema, its batches, and the share of the file (0 to 1) that so many batches are."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    share: Callable[[int], float]


class InputFiles:
    """Several files as one stream of batches: in the schema of the first file, or in that of a converter."""

    def __init__(
        self, names: Sequence[str], file_format: str | None = None, converter: Converter | None = None, *,
        stdin_format: str | None = None,
    ) -> None:  # fmt: skip
        if names.count(STDIN) > 1:
            raise InvalidRequest("stdin (-) can be read once")
        self._names, self._converter = names, converter
        self._sizes = [0 if name == STDIN else _size_of(name) for name in names]
        formats = (stdin_format if name == STDIN else format_by_extension(name) for name in names)
        self._formats = [file_format] * len(names) if file_format else list(formats)
        self._schema: pa.Schema | None = None
        self.total = None if STDIN in names else float(sum(self._sizes))  # bytes
        self._done = 0.0  # bytes of them that have been read
        self._batches = self._read()
        self._first = [*islice(self._batches, 1)]  # from here on the schema is known

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._converter.schema if self._converter else self._schema

    def batches(self, show: Callable[[float], None] = lambda done: None) -> Iterator[pa.RecordBatch]:
        """Yield all batches; `show` is told how many bytes have been read."""
        for batch in chain(self._first, self._batches):
            yield batch
            show(self._done)

    def _read(self) -> Iterator[pa.RecordBatch]:
        before = 0
        for name, size, file_format in zip(self._names, self._sizes, self._formats, strict=True):
            with file_errors(name):
                source = self._source(name, *_open_file(name, file_format))
                self._schema = source.schema if self._schema is None else self._schema
                for number, batch in enumerate(source.batches, 1):
                    self._done = before + size * source.share(number)
                    yield from [batch] if self._converter else self._fit(name, batch)
            before += size

    def _fit(self, name: str, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return a batch in the schema of the first file, if its columns mean the same."""
        if batch.schema.equals(self._schema):
            return [batch]
        with suppress(SchemaMismatch):
            if DATASET.fit(self._schema, batch.schema, name).equals(self._schema):
                return fit_batches([batch], self._schema)
        pairs = zip_longest(_columns(batch.schema), _columns(self._schema), fillvalue="nothing")
        column, first = next(pair for pair in pairs if pair[0] != pair[1])
        raise SchemaMismatch(f"{name} has other columns than {self._names[0]}: {column}, not {first}")

    def _source(self, name: str, file: Any, head: bytes, file_format: str) -> _Source:
        """Open a file. Its text is read in the types of the first file, so that a column is the same in all."""
        converter = self._converter
        if file_format == "json":
            blocks = _blocks(file)
            first = next(blocks)
            converter = converter or Converter(name, infer_schema(first) if self._schema is None else self._schema)
            return _Source(converter.schema, map(converter.convert_json, chain([first], blocks)), _position(file))
        if file_format == "csv":
            first_file = self._schema or pa.schema([])
            known = dict(zip(first_file.names, first_file.types, strict=True))
            texts = dict.fromkeys(converter.schema.names, pa.string()) if converter else known
            source = _open_csv(name, file, head, texts)
        else:
            source = _open_parquet(file) if file_format == "parquet" else _open_arrow(file, head)
        if converter is None:
            return source
        return source._replace(batches=converter.convert_batches(source.batches, is_text=file_format == "csv"))


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema]


def _blocks(file: Any) -> Iterator[Lines]:
    """Yield the lines of a file that isn't empty block by block."""
    number, buffered = 1, io.BufferedReader(file, _HEAD)
    while text := buffered.read(_BLOCK) + buffered.readline():
        yield Lines(text, number)
        number += text.count(b"\n")


def _open_file(name: str, file_format: str | None) -> tuple[Any, bytes, str]:
    """Return an open file, its beginning, and its format, which for stdin the beginning tells."""
    if name == STDIN:
        stdin = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer), _HEAD)
        file, head = pa.PythonFile(stdin, "r"), stdin.peek()
    else:
        with open(name, "rb") as begun:
            head = begun.read(_HEAD)
        file = pa.OSFile(name) if file_format in ("csv", "json") else pa.memory_map(name) if head else None
    if not head:
        raise InvalidRequest("it is empty")
    return file, head, file_format or format_by_head(head)


def _open_arrow(file: Any, head: bytes) -> _Source:
    """Open a file or a stream, whatever its name says."""
    if not head.startswith(b"ARROW1"):
        stream = pa.ipc.open_stream(file)
        return _Source(stream.schema, stream, _position(file))
    reader = pa.ipc.open_file(_seekable(file))
    count = reader.num_record_batches
    return _Source(reader.schema, map(reader.get_batch, range(count)), lambda batches: batches / max(1, count))


def _open_parquet(file: Any) -> _Source:
    reader = pq.ParquetFile(_seekable(file))
    rows = max(1, reader.metadata.num_rows)
    batches = reader.iter_batches(_BATCH_ROWS)
    return _Source(reader.schema_arrow, batches, lambda batches: min(1.0, batches * _BATCH_ROWS / rows))


def _open_csv(name: str, file: Any, head: bytes, known: Mapping[str, pa.DataType]) -> _Source:
    """Open CSV: an empty field is null, "" is an empty string. In a single column an empty line is a null, too.

    Columns that aren't known have Arrow's types, but for times: see `time_type`.
    """
    several = b"," in head.partition(b"\n")[0]
    read = pyarrow.csv.ReadOptions(block_size=_BLOCK)
    parse = pyarrow.csv.ParseOptions(ignore_empty_lines=several, newlines_in_values=True)
    convert = pyarrow.csv.ConvertOptions(
        null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False, column_types=known
    )
    reader = pyarrow.csv.open_csv(file, read, parse, convert)
    first = [*islice(reader, 1)]
    fields = zip(reader.schema, first[0].columns if first else (), strict=bool(first))
    schema = pa.schema([each if each.name in known else each.with_type(time_type(column)) for each, column in fields])
    converter = Converter(name, schema if first else reader.schema)
    return _Source(converter.schema, converter.convert_batches(chain(first, reader), is_text=True), _position(file))


def _seekable(file: Any) -> Any:
    """Return the file, or a temporary copy of a pipe: these formats have their index at the end."""
    if not isinstance(file, pa.PythonFile):
        return file
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(file, copy, _BLOCK)
        copy.flush()
        return pa.memory_map(copy.name)  # which stays when the name is removed


def _position(file: Any) -> Callable[[int], float]:
    size = 0 if isinstance(file, pa.PythonFile) else file.size()
    return lambda _: 1.0 if file.closed or not size else file.tell() / size


def _size_of(name: str) -> int:
    """Return the bytes of a file; refuse at once what couldn't be read later."""
    with file_errors(name):
        if os.path.isdir(name):
            raise InvalidRequest("it is a folder: name the files in it")
        return os.stat(name).st_size


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Name the file in errors about it, which the client would take for errors of the server."""
    name = "stdin" if name == STDIN else name
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{name}: no such file") from error
    except InvalidRequest as error:
        raise type(error)(str(error) if str(error).startswith(name) else f"{name}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InvalidRequest(f"{name} can't be read: {reason}") from error
