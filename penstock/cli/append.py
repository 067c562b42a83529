"""Rows for a topic: its types, and lines from stdin that are appended as they come."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

import click
import pyarrow as pa

from penstock.cli import terminal
from penstock.cli.readers import STDIN, file_errors
from penstock.client.client import Client
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.rows.converter import Converter, is_untyped
from penstock.rows.json_lines import Lines, infer_schema
from penstock.text import counted

_BATCH_LINES = 1_000
_BATCH_SECONDS = 0.2  # after which the lines that have come are a batch
_CHUNK = 256 << 10
_LONGEST_LINE = 16 << 20


def topic_converter(client: Client, path: str, *, grows: bool = False) -> Converter | None:
    """Return a converter to the types of a topic; None if it doesn't exist."""
    try:
        return Converter(path, client.info(path, limit=0).schema, grows=grows)
    except NotFound:
        return None


def check_types(path: str, schema: pa.Schema) -> None:
    """Refuse to make a topic with a column of unknown type, as a topic keeps its types."""
    unknown = [field.name for field in schema if is_untyped(field.type)]
    if unknown:
        raise InvalidRequest(
            f"{path} does not exist, and {unknown[0]!r} has no value that tells its type: put rows that have one first "
            f"(a Parquet or Arrow file has types), or make it: penstock topic create {path} --schema 'id long, …'"
        )


class LineAppender:
    """Appends batches of lines, one after the other, and counts the rows that the server has answered for."""

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, path
        self._converter: Converter | None = None
        self._rows = self._bytes = self._puts = 0
        self._putting = self._stopping = False

    def run(self, *, silent: bool) -> dict[str, Any]:
        """Append all of stdin; return what is durable. A line that is no row ends it, after the rows before it."""
        bar = terminal.progress_bar(self._path, None, wanted=not silent)
        try:
            with bar as show, terminal.on_signal(self._stop, signal.SIGINT):
                for batch in (batch for lines in _batches() for batch in self._convert_lines(lines)):
                    self._append(batch)
                    show(self._bytes, f"{self._path}: {counted(self._rows, 'row')} durable")
        except PenstockError as error:
            other_format = "isn't JSON" in str(error) and not self._puts
            hint = ". stdin to a topic is JSON lines, unless --format says otherwise" if other_format else ""
            raise type(error)(f"{error}. {counted(self._rows, 'row')} in {self._path}{hint}") from error
        except KeyboardInterrupt:
            unsure = ", and maybe those of a put that wasn't answered" if self._putting else ""
            click.echo(f"{self._path}: {counted(self._rows, 'row')} in{unsure}", err=True)
            raise
        if not self._puts:
            raise InvalidRequest("stdin: it is empty")
        return {"rows": self._rows, "bytes": self._bytes, "puts": self._puts}

    def _stop(self) -> None:
        """Wait at Ctrl-C for the put that is under way, so that the count is right."""
        if not self._putting:
            raise KeyboardInterrupt
        self._stopping = True

    def _append(self, batch: pa.RecordBatch) -> None:
        self._putting = True
        receipt = self._client.put(self._path, batch)
        self._rows, self._bytes, self._puts = self._rows + receipt.rows, self._bytes + receipt.bytes, self._puts + 1
        self._putting = False
        if self._stopping:
            raise KeyboardInterrupt

    def _convert_lines(self, lines: Lines) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the lines; if one is no row those before it, then raise its error: the exit code is 1."""
        if not lines.text.strip():
            return
        before = copy(self._converter)
        try:
            batch = self._convert(lines)
        except InvalidRequest as error:
            texts = lines.text.split(b"\n")
            if len(texts) == 1:
                raise PenstockError(str(error)) from error
            self._converter, half = before, len(texts) // 2  # without columns of lines that aren't put
            yield from self._convert_lines(Lines(b"\n".join(texts[:half]), lines.number))
            yield from self._convert_lines(Lines(b"\n".join(texts[half:]), lines.number + half))
        else:
            yield batch

    def _convert(self, lines: Lines) -> pa.RecordBatch:
        with file_errors(STDIN):
            self._converter = self._converter or topic_converter(self._client, self._path, grows=True)
            if self._converter is None:
                check_types(self._path, schema := infer_schema(lines))
                self._converter = Converter(self._path, schema, grows=True)
            return self._converter.convert_json(lines)


def _batches() -> Iterator[Lines]:
    """Yield the lines of stdin as they come."""
    texts: list[bytes] = []
    number, rest, due = 1, b"", 0.0
    for chunk in _chunks(sys.stdin.buffer):
        due = due if texts else time.monotonic() + _BATCH_SECONDS
        *more, rest = (rest + chunk).split(b"\n")
        texts += more
        if len(rest) > _LONGEST_LINE:
            raise PenstockError(f"stdin: line {number + len(texts)} has more than {_LONGEST_LINE >> 20} MiB")
        while len(texts) >= _BATCH_LINES or (texts and (not chunk or time.monotonic() >= due)):
            text = b"\n".join(texts[:_BATCH_LINES])
            yield Lines(text, number)
            number, texts = number + len(texts[:_BATCH_LINES]), texts[_BATCH_LINES:]


def _chunks(stdin: Any) -> Iterator[bytes]:
    """Yield what comes, and nothing after a pause; then the end of the last line, which may lack it."""
    while chunk := stdin.read1(_CHUNK):  # at first what was peeked at, which select doesn't see
        yield chunk
        pauses = False
        with suppress(OSError, AttributeError):  # of what is no file: all of it is there
            pauses = os.name == "posix" and not select.select([stdin.fileno()], [], [], _BATCH_SECONDS)[0]
        if pauses:
            yield b""
    yield from (b"\n", b"")
