"""`put topic/…`: files that are one write, and lines from stdin that are durable as they are counted."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import pyarrow as pa
import pyarrow.json
import pyarrow.types as types

from penstock.cli import tables
from penstock.cli.fitting import Fitter, Line
from penstock.cli.formats import by_beginning
from penstock.cli.reading import STDIN, Files, faults_of
from penstock.cli.session import CTRL_C, heeding
from penstock.cli.values import first_wrong
from penstock.client.client import Client
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.text import format_size
from penstock.wire.put import Mode, Receipt

_EVERY = 0.2  # seconds between two looks of the progress line
_MOST = 1_000  # lines of a batch
_WITHIN = 0.2  # seconds after which what has come is a batch
_CHUNK = 256 << 10
_LONGEST = 16 << 20


def comes_bit_by_bit(files: Sequence[str], kind: str | None, run: str | None, mode: Mode) -> bool:
    """Whether this is stdin with JSON lines; under the name of a run, all of them happen once, and so together."""
    stdin: Any = sys.stdin.buffer
    alone = list(files) == [STDIN] and run is None and mode != "overwrite"  # which the server refuses
    with faults_of(STDIN):
        return alone and (kind or by_beginning(stdin.peek())) == "json"


def source(client: Client, path: str, files: Sequence[str], kind: str | None) -> Files:
    """The files as the topic has its rows; where there is none, as they are."""
    topic = _schema_at(client, path)
    if topic is not None:
        return Files(files, kind, Fitter(path, topic))
    found = Files(files, kind)
    _check_types(path, found.schema)
    return found


def _schema_at(client: Client, path: str) -> pa.Schema | None:
    """The columns of the topic, if there is one."""
    try:
        return client.info(path, limit=0).schema
    except NotFound:
        return None


def _check_types(path: str, schema: pa.Schema) -> None:
    """A topic keeps its types, so they aren't made of nothing."""
    untold = [field.name for field in schema if types.is_null(field.type)]
    if untold:
        raise InvalidRequest(
            f"{path} would be made by this put, and the type of {untold[0]!r} isn't known, as it has no value yet: "
            "put rows that have one first (a Parquet or Arrow file has types), or make the topic from Python with "
            f"create_topic({path!r}, schema)"
        )


class Pour:
    """Puts batches of lines, one after the other, and counts what the server has answered for."""

    def __init__(self, client: Client, path: str, *, silent: bool) -> None:
        self._client, self._path = client, path
        self._silent = silent or not tables.on_terminal(sys.stderr)
        self._fitter: Fitter | None = None
        self.rows = self.bytes = self.puts = 0
        self._putting = self._asked_to_end = False
        self._began = self._shown = time.monotonic()

    def run(self) -> dict[str, Any]:
        """All of stdin; what is durable then. A line that isn't a row ends it, behind the rows before it."""
        try:
            with heeding(CTRL_C, self._end):
                for some in _batches():
                    self._put(some)
        except PenstockError as error:
            raise type(error)(f"{error}. {self.rows:,} rows are in {self._path}") from error
        except KeyboardInterrupt:
            self._line("\n")
            unsure = ", and maybe those of a put that wasn't answered" if self._putting else ""
            click.echo(f"{self._path}: {self.rows:,} rows are in{unsure}", err=True)
            raise
        self._line("\r\x1b[K")
        return {"rows": self.rows, "bytes": self.bytes, "puts": self.puts}

    def _end(self) -> None:
        """Ctrl-C waits for a put that is under way, so that what is counted is what is in."""
        if not self._putting:
            raise KeyboardInterrupt
        self._asked_to_end = True

    def _put(self, some: list[Line]) -> None:
        good, wrong = self._fitted(some)
        if good is not None:
            self._putting = True
            self._count(self._client.put(self._path, good))
            self._putting = False
        if self._asked_to_end:
            raise KeyboardInterrupt
        if wrong is not None:
            raise wrong

    def _count(self, receipt: Receipt) -> None:
        self.rows, self.bytes, self.puts = self.rows + receipt.rows, self.bytes + receipt.bytes, self.puts + 1
        now = time.monotonic()
        if now >= self._shown + _EVERY:
            self._shown = now
            rate = f"{self.rows / (now - self._began):,.0f} rows/s"
            self._line(f"\r\x1b[K{self._path}: {self.rows:,} rows, {format_size(self.bytes)} durable, {rate}")

    def _line(self, text: str) -> None:
        if not self._silent:
            click.echo(text, nl=False, err=True)

    def _fitted(self, some: list[Line]) -> tuple[pa.RecordBatch | None, Exception | None]:
        """The rows of these lines; if one isn't a row, those before it and what is wrong with it."""
        before = self._fitter and Fitter(self._path, self._fitter.schema, grows=True)
        try:
            return self._rows(some), None
        except InvalidRequest:
            at, wrong = first_wrong(self._rows, some, InvalidRequest)
        self._fitter = before  # no column of a line that isn't put
        return (self._rows(some[:at]) if at else None), wrong

    def _rows(self, some: list[Line]) -> pa.RecordBatch:
        with faults_of(STDIN):
            if self._fitter is None:
                topic = _schema_at(self._client, self._path) or self._guessed(some)
                self._fitter = Fitter(self._path, topic, grows=True)
            return self._fitter.json(some)

    def _guessed(self, some: list[Line]) -> pa.Schema:
        text = b"\n".join(line.text for line in some)
        read = pyarrow.json.ReadOptions(block_size=len(text) + 1)
        try:
            schema = pyarrow.json.read_json(io.BytesIO(text), read_options=read).schema
            _ = schema.names  # which must be UTF-8
        except (pa.ArrowException, UnicodeDecodeError) as wrong:
            Fitter(self._path, pa.schema([]), grows=True).json(some)  # which knows the line
            raise InvalidRequest(f"these lines are no table: {str(wrong).splitlines()[0]}") from wrong
        _check_types(self._path, schema)
        return schema


def _batches() -> Iterator[list[Line]]:
    """The lines of stdin as they come, those without a word left out; the last one may lack its end."""
    stdin: Any = sys.stdin.buffer
    held: list[Line] = []
    number, rest, due = 0, b"", 0.0
    come = True  # what was looked at before lies in the buffer, where select doesn't see it
    while True:
        chunk = stdin.read1(_CHUNK) if come else b""
        if come and not chunk:
            break
        if not held:
            due = time.monotonic() + _WITHIN
        *lines, rest = (rest + chunk).split(b"\n")
        held += [Line(number + at, text) for at, text in enumerate(lines, 1) if text and not text.isspace()]
        number += len(lines)
        if len(rest) > _LONGEST:
            raise InvalidRequest(f"stdin: line {number + 1} has more than {_LONGEST >> 20} MiB")
        while len(held) >= _MOST or (held and time.monotonic() >= due):
            yield held[:_MOST]
            held, due = held[_MOST:], time.monotonic() + _WITHIN
        come = _has_come(stdin, max(0.0, due - time.monotonic()) if held else None)
    if rest and not rest.isspace():
        held.append(Line(number + 1, rest))
    for start in range(0, len(held), _MOST):
        yield held[start : start + _MOST]


def _has_come(stdin: Any, seconds: float | None) -> bool:
    """Wait so long (None: for ever) for something to read, or the end; whether it has come."""
    try:
        number = stdin.fileno()
    except (OSError, AttributeError):  # a text in its place: all of it has come
        return True
    return os.name != "posix" or bool(select.select([number], [], [], seconds)[0])
