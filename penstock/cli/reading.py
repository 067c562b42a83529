"""Files and stdin as Arrow batches, one after the other, never whole in memory."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Literal, NamedTuple, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from penstock.cli.fitting import Fitter, Line
from penstock.cli.formats import by_beginning, by_extension
from penstock.cli.values import first_wrong
from penstock.errors import InvalidRequest, NotFound, SchemaMismatch

STDIN = "-"
_BLOCK = 4 << 20  # bytes of text that are parsed at once; the first block decides the columns' types
_BATCH_ROWS = 64 << 10
_HEAD = 64 << 10  # bytes that are looked at first


class Source(NamedTuple):
    """An open file: its schema, its batches, and how much of it (0 to 1) so many batches are."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    share: Callable[[int], float]


class Files:
    """Several files as the batches of one stream: of the first one's schema or, with a fitter, of a topic's."""

    def __init__(self, names: Sequence[str], kind: str | None = None, fitter: Fitter | None = None) -> None:
        if names.count(STDIN) > 1:
            raise InvalidRequest("stdin (-) can be read once")
        self._names, self._fitter = names, fitter
        self._sizes = [_size_of(name) for name in names]
        self._kinds = [kind or (None if name == STDIN else by_extension(name)) for name in names]
        self._schema: pa.Schema | None = None
        self.total = None if STDIN in names else float(sum(self._sizes))
        """Bytes of all files; not known where stdin is one of them."""
        self.done = 0.0
        """Bytes that have been read."""
        self._batches = self._all()
        self._first = [*islice(self._batches, 1)]  # by then the schema is known

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""
        return self._fitter.schema if self._fitter else self._schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return chain(self._first, self._batches)

    def _all(self) -> Iterator[pa.RecordBatch]:
        for at, (name, size) in enumerate(zip(self._names, self._sizes, strict=True)):
            before = sum(self._sizes[:at])
            with faults_of(name):
                source = self._source(name, *_opened(name, self._kinds[at]))
                for number, batch in enumerate(source.batches, 1):
                    self.done = before + size * source.share(number)
                    yield batch

    def _source(self, name: str, file: Any, head: bytes, kind: str) -> Source:
        """Text is read as the types of the first file, so that a column is the same in all, or fitted."""
        if self._fitter is None:
            source = _OPENERS[kind](file, head, self._schema)
            self._schema = source.schema if self._schema is None else self._schema
            return source._replace(batches=self._alike(name, source.batches))
        if kind == "json":
            return Source(self.schema, _fitted_lines(self._fitter, file), _position(file))
        is_text = kind == "csv"
        known = pa.schema([(field.name, pa.string()) for field in self.schema]) if is_text else None
        source = _OPENERS[kind](file, head, known)
        return source._replace(batches=_fitted(self._fitter, source.batches, is_text=is_text))

    def _alike(self, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.schema.equals(self._schema):
                unlike = _unlike(self.schema, batch.schema)
                raise SchemaMismatch(f"{name} has other columns than {self._names[0]}: {unlike}")
            yield batch


def _fitted(fitter: Fitter, batches: Iterable[pa.RecordBatch], *, is_text: bool) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in batches:
        yield fitter.batch(batch, rows, is_text=is_text)
        rows += batch.num_rows


def _fitted_lines(fitter: Fitter, file: Any) -> Iterator[pa.RecordBatch]:
    number, buffered = 0, io.BufferedReader(file, _HEAD)
    while texts := buffered.readlines(_BLOCK):
        lines = [Line(at, text) for at, text in enumerate(texts, number + 1) if not text.isspace()]
        number += len(texts)
        if lines:
            yield fitter.json(lines)


def _unlike(expected: pa.Schema, found: pa.Schema) -> str:
    if expected.names != found.names:
        return f"{', '.join(found.names[:20])}, not {', '.join(expected.names[:20])}"
    return next(f"{b}, not {a}" for a, b in zip(expected, found, strict=True) if not a.equals(b))


# --- one file ------------------------------------------------------------------------------


def _opened(name: str, kind: str | None) -> tuple[Any, bytes, str]:
    """A file, its beginning and its format, which for stdin its beginning tells."""
    if name == STDIN:
        stdin = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer), _HEAD)
        file, head = pa.PythonFile(stdin, "r"), stdin.peek()
    else:
        with open(name, "rb") as begun:
            head = begun.read(_HEAD)
        file = pa.OSFile(name) if kind in ("csv", "json") else pa.memory_map(name) if head else None
    if not head:
        raise InvalidRequest("it is empty")
    return file, head, kind or by_beginning(head)


def _arrow(file: Any, head: bytes, _: pa.Schema | None) -> Source:
    """A file or a stream, whatever its name says."""
    if not head.startswith(b"ARROW1"):
        stream = pa.ipc.open_stream(file)
        return Source(stream.schema, stream, _position(file))
    found = pa.ipc.open_file(_seekable(file))
    count = found.num_record_batches
    return Source(found.schema, map(found.get_batch, range(count)), lambda batches: batches / max(1, count))


def _parquet(file: Any, _: bytes, __: pa.Schema | None) -> Source:
    found = pq.ParquetFile(_seekable(file))
    rows = max(1, found.metadata.num_rows)
    batches = found.iter_batches(_BATCH_ROWS)
    return Source(found.schema_arrow, batches, lambda batches: min(1.0, batches * _BATCH_ROWS / rows))


def _csv(file: Any, head: bytes, like: pa.Schema | None) -> Source:
    """An empty field is null, "" is an empty string. With one column an empty line is a null, too."""
    several = b"," in head.partition(b"\n")[0]
    reader = pyarrow.csv.open_csv(
        file,
        read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK),
        parse_options=pyarrow.csv.ParseOptions(ignore_empty_lines=several, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False, column_types=like
        ),
    )
    return Source(reader.schema, reader, _position(file))


def _json(file: Any, head: bytes, like: pa.Schema | None) -> Source:
    if head.lstrip().startswith(b"["):
        raise InvalidRequest("it is one JSON array: expected an object per line (jq -c '.[]' makes them)")
    others: Literal["infer", "error"] = "infer" if like is None else "error"
    reader = pyarrow.json.open_json(
        file,
        read_options=pyarrow.json.ReadOptions(block_size=_BLOCK),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=like, unexpected_field_behavior=others),
    )
    _ = reader.schema.names  # which must be UTF-8
    return Source(reader.schema, _of_text(reader), _position(file))


def _of_text(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of JSON, whose reader takes any bytes for text."""

    def check(columns: Iterable[pa.Array]) -> None:
        for column in columns:
            column.validate(full=True)

    before = 0
    for batch in batches:
        try:
            check(batch.columns)
        except pa.ArrowInvalid as wrong:
            row, _ = first_wrong(lambda some: check(some.columns), batch, pa.ArrowInvalid)
            column, _ = first_wrong(check, batch.slice(row, 1).columns, pa.ArrowInvalid)
            name = batch.schema.names[column][:80]
            raise InvalidRequest(f"row {before + row + 1}: {name!r} isn't text in UTF-8") from wrong
        before += batch.num_rows
        yield batch


_OPENERS: dict[str, Callable[[Any, bytes, pa.Schema | None], Source]] = {
    "arrow": _arrow, "arrows": _arrow, "parquet": _parquet, "csv": _csv, "json": _json,
}  # fmt: skip


def _seekable(file: Any) -> Any:
    """The file itself, or a temporary copy of a pipe: these formats have their index at the end."""
    if not isinstance(file, pa.PythonFile):
        return file
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(file, copy, _BLOCK)
        copy.flush()
        return pa.memory_map(copy.name)  # which has it still when its name is gone


def _position(file: Any) -> Callable[[int], float]:
    size = 0 if isinstance(file, pa.PythonFile) else file.size()
    return lambda _: 1.0 if file.closed or not size else file.tell() / size


def _size_of(name: str) -> int:
    """Bytes of a file; refuses early what couldn't be read later."""
    if name == STDIN:
        return 0
    with faults_of(name):
        if os.path.isdir(name):
            raise InvalidRequest("it is a folder: name the files in it")
        return os.stat(name).st_size


@contextmanager
def faults_of(name: str) -> Iterator[None]:
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
