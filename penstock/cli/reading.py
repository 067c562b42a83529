"""Files and stdin as Arrow batches, one after the other, never whole in memory."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from penstock.cli.formats import by_beginning, by_extension
from penstock.errors import InvalidRequest, NotFound, SchemaMismatch

STDIN = "-"
_BLOCK = 4 << 20  # bytes of text that are parsed at once; the first block decides the columns' types
_BATCH_ROWS = 64 << 10
_HEAD = 64 << 10  # bytes that are looked at first


@dataclass(frozen=True, slots=True)
class Source:
    """An open file: its schema, its batches, and how much of it has been read (0 to 1)."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    part_read: Callable[[], float]


class Files:
    """Several files as the batches of one stream. They have one schema, the first one's."""

    def __init__(self, names: Sequence[str], format: str | None = None) -> None:  # noqa: A002  # as the option is called
        self._names = names
        self._format = format
        if names.count(STDIN) > 1:
            raise InvalidRequest("stdin (-) can be read once")
        self._sizes = [_size(name, format) for name in names]
        self._at = 0
        self._source = _open(names[0], format, None)
        self.schema = self._source.schema

    @property
    def total(self) -> float | None:
        """Bytes of all files; not known where stdin is one of them."""
        return None if STDIN in self._names else float(sum(self._sizes))

    @property
    def done(self) -> float:
        """Bytes that have been read."""
        return sum(self._sizes[: self._at]) + self._sizes[self._at] * self._source.part_read()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number, name in enumerate(self._names):
            if number:
                self._at = number
                self._source = _open(name, self._format, self.schema)
            with _faults_of(name):
                for batch in self._source.batches:
                    yield self._alike(name, batch)

    def _alike(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema is self.schema:
            return batch
        if not batch.schema.equals(self.schema):
            raise SchemaMismatch(
                f"{name} has other columns than {self._names[0]}: {_difference(self.schema, batch.schema)}"
            )
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)


def _open(name: str, format: str | None, like: pa.Schema | None) -> Source:  # noqa: A002
    """Open one file. Text is read as the types of `like`, so that a column is the same in all files."""
    with _faults_of(name):
        if name == STDIN:
            found, head = _stdin()
            format = format or by_beginning(head)  # noqa: A001
        else:
            format = format or by_extension(name)  # noqa: A001
            with open(name, "rb") as file:
                head = file.read(_HEAD)
            found = pa.OSFile(name) if format in ("csv", "json") else pa.memory_map(name)
        if not head:
            raise InvalidRequest("it is empty")
        return _OPENERS[format](found, head, like)


def _arrow(file: Any, head: bytes, _: pa.Schema | None) -> Source:
    if not head.startswith(b"ARROW1"):
        return _arrows(file, head, None)  # a stream under a file's name
    reader = pa.ipc.open_file(_seekable(file))
    count, at = reader.num_record_batches, 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal at
        for at in range(count):  # the progress reads it
            yield reader.get_batch(at)

    return Source(reader.schema, batches(), lambda: at / max(1, count))


def _arrows(file: Any, head: bytes, _: pa.Schema | None) -> Source:
    if head.startswith(b"ARROW1"):
        return _arrow(file, head, None)
    reader = pa.ipc.open_stream(file)
    return Source(reader.schema, reader, _position(file))


def _parquet(file: Any, _: bytes, __: pa.Schema | None) -> Source:
    found = pq.ParquetFile(_seekable(file))
    total, read = found.metadata.num_rows, 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in found.iter_batches(_BATCH_ROWS):
            read += batch.num_rows
            yield batch

    return Source(found.schema_arrow, batches(), lambda: read / max(1, total))


def _csv(file: Any, head: bytes, like: pa.Schema | None) -> Source:
    """An empty field is null, "" is an empty string. With one column an empty line is a null, too."""
    several = b"," in head.partition(b"\n")[0]
    reader = pyarrow.csv.open_csv(
        file,
        read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK),
        parse_options=pyarrow.csv.ParseOptions(ignore_empty_lines=several, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            column_types=None if like is None else {field.name: field.type for field in like},
        ),
    )
    return Source(reader.schema, reader, _position(file))


def _json(file: Any, head: bytes, like: pa.Schema | None) -> Source:
    if head.lstrip().startswith(b"["):
        raise InvalidRequest("it is one JSON array: expected an object per line (jq -c '.[]' makes them)")
    reader = pyarrow.json.open_json(
        file,
        read_options=pyarrow.json.ReadOptions(block_size=_BLOCK),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=like, unexpected_field_behavior="infer" if like is None else "error"
        ),
    )
    return Source(reader.schema, reader, _position(file))


_OPENERS: dict[str, Callable[[Any, bytes, pa.Schema | None], Source]] = {
    "arrow": _arrow,
    "arrows": _arrows,
    "parquet": _parquet,
    "csv": _csv,
    "json": _json,
}


class _Rejoined(io.RawIOBase):
    """A stream whose beginning has been read already."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        given = bytes(self._head[: len(target)]) or self._rest.read(len(target))
        self._head = self._head[len(given) :]
        target[: len(given)] = given
        return len(given)


def _stdin() -> tuple[Any, bytes]:
    head = sys.stdin.buffer.read(_HEAD)
    return pa.PythonFile(io.BufferedReader(_Rejoined(head, sys.stdin.buffer), _BLOCK), "r"), head


def _seekable(file: Any) -> Any:
    """The file itself, or a temporary copy of a pipe: these formats have their index at the end."""
    if not isinstance(file, pa.PythonFile):
        return file
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(file, copy, _BLOCK)
        copy.flush()
        return pa.memory_map(copy.name)  # which has it still when its name is gone


def _position(file: Any) -> Callable[[], float]:
    size = 0 if isinstance(file, pa.PythonFile) else file.size()
    return lambda: 1.0 if file.closed or not size else file.tell() / size


def _size(name: str, format: str | None) -> int:  # noqa: A002
    """Bytes of a file; refuses early what couldn't be read later."""
    if name == STDIN:
        return 0
    with _faults_of(name):
        if os.path.isdir(name):
            raise InvalidRequest("it is a folder: name the files in it")
        size = os.stat(name).st_size
    if format is None:
        by_extension(name)
    return size


def _difference(expected: pa.Schema, found: pa.Schema) -> str:
    if expected.names != found.names:
        return f"{', '.join(found.names[:20])}, not {', '.join(expected.names[:20])}"
    unlike = next(
        ((a, b) for a, b in zip(expected, found, strict=True) if not a.equals(b)), (expected.field(0), found.field(0))
    )
    return f"{unlike[1]}, not {unlike[0]}"


@contextmanager
def _faults_of(name: str) -> Iterator[None]:
    """What is wrong with a file, told with its name: the client would take it for the server's."""
    name = "stdin" if name == STDIN else name
    try:
        yield
    except FileNotFoundError as missing:
        raise NotFound(f"{name}: no such file") from missing
    except InvalidRequest as wrong:
        raise type(wrong)(str(wrong) if name in str(wrong) else f"{name}: {wrong}") from wrong
    except (pa.ArrowException, OSError, UnicodeDecodeError) as broken:
        said = getattr(broken, "strerror", None) or str(broken).splitlines()[0]
        raise InvalidRequest(f"{name} can't be read: {said}") from broken
