"""`put topic/…`: files that are one write, and lines from stdin that are durable as they are counted."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from typing import Any

import click
import pyarrow as pa
import pyarrow.json
import pyarrow.types as types

from penstock import readable
from penstock.cli import lines, tables
from penstock.cli.ending import CTRL_C, heeding
from penstock.cli.fitting import Fitter, Line
from penstock.cli.reading import STDIN, Files, faults_of
from penstock.cli.rows import FittedFiles, kind_of
from penstock.client import Client
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.wire import Mode, Receipt

_EVERY = 0.2  # seconds between two looks of the progress line


def comes_bit_by_bit(files: Sequence[str], kind: str | None, run: str | None, mode: Mode) -> bool:
    """Whether this is stdin with JSON lines; under the name of a run, all of them happen once, and so together."""
    alone = list(files) == [STDIN] and run is None and mode != "overwrite"  # which the server refuses
    return alone and (kind or kind_of(STDIN)) == "json"


def schema_at(client: Client, path: str) -> pa.Schema | None:
    """The columns of the topic, if there is one."""
    try:
        return client.info(path, limit=0).schema
    except NotFound:
        return None


def source(client: Client, path: str, files: Sequence[str], kind: str | None) -> FittedFiles | Files:
    """The files as the topic has its rows; where there is none, as they are."""
    topic = schema_at(client, path)
    if topic is not None:
        return FittedFiles(path, topic, files, kind)
    found = Files(files, kind)
    _check_types(path, found.schema)
    return found


def _check_types(path: str, schema: pa.Schema) -> None:
    """A topic keeps its types, so they aren't made of nothing."""
    untold = [field.name for field in schema if types.is_null(field.type)]
    if untold:
        raise InvalidRequest(
            f"{path} would be made by this put, and the type of {untold[0]!r} isn't known, as it has no value yet: "
            f'make it first: penstock call topic.create \'{{"path": "{path}", "schema": '
            '[{"name": …, "type": "string"}, …]}\''
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
                for some in lines.batches():
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
        """Ctrl-C waits for a put that is under way, so that what is counted is what is in; the second one doesn't."""
        if not self._putting or self._asked_to_end:
            raise KeyboardInterrupt
        self._asked_to_end = True

    def _put(self, some: list[Line]) -> None:
        with faults_of(STDIN):
            good, wrong = self._fitted(some)
        if good is not None:
            self._putting = True
            self._count(self._client.put(self._path, good))
            self._putting = False
        if self._asked_to_end:
            raise KeyboardInterrupt
        if wrong is not None:
            with faults_of(STDIN):
                raise wrong

    def _count(self, receipt: Receipt) -> None:
        self.rows, self.bytes, self.puts = self.rows + receipt.rows, self.bytes + receipt.bytes, self.puts + 1
        now = time.monotonic()
        if now >= self._shown + _EVERY:
            self._shown = now
            rate = f"{self.rows / (now - self._began):,.0f} rows/s"
            self._line(f"\r\x1b[K{self._path}: {self.rows:,} rows, {readable.size(self.bytes)} durable, {rate}")

    def _line(self, text: str) -> None:
        if not self._silent:
            click.echo(text, nl=False, err=True)

    # --- lines as rows -------------------------------------------------------------------------

    def _fitted(self, some: list[Line]) -> tuple[pa.RecordBatch | None, PenstockError | None]:
        """The rows of these lines; if one isn't a row, those before it and what is wrong with it."""
        before = self._fitter and self._fitter.schema
        try:
            return self._rows(some), None
        except PenstockError as wrong:
            if len(some) == 1:
                return None, wrong
        good, bad = 0, len(some)  # the first that is wrong is in good..bad
        error: PenstockError | None = None
        while good < bad:
            middle = (good + bad) // 2
            try:
                self._rows(some[good : middle + 1])
                good = middle + 1
            except PenstockError as wrong:
                bad, error = middle, wrong
        self._fitter = before and Fitter(self._path, before, grows=True)  # no column of a line that isn't put
        return (self._rows(some[:good]) if good else None), error

    def _rows(self, some: list[Line]) -> pa.RecordBatch:
        if self._fitter is None:
            topic = schema_at(self._client, self._path) or self._guessed(some)
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
