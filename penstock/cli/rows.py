"""Files as rows of a topic that exists: one file after the other, never whole in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pyarrow as pa

from penstock.cli.fitting import Fitter, Line
from penstock.cli.formats import by_beginning, by_extension
from penstock.cli.reading import STDIN, faults_of, head_of_stdin, open_source, size_of
from penstock.errors import InvalidRequest

_BLOCK = 4 << 20  # bytes of lines that become a batch


class FittedFiles:
    """The batches of several files in a topic's schema, which the first batch may widen."""

    def __init__(self, path: str, topic: pa.Schema, names: Sequence[str], kind: str | None) -> None:
        if names.count(STDIN) > 1:
            raise InvalidRequest("stdin (-) can be read once")
        self._names = names
        self._sizes = [size_of(name) for name in names]
        self._kinds = [kind or kind_of(name) for name in names]
        self._fitter = Fitter(path, topic)
        self.done = 0.0
        """Bytes that have been read."""
        self._batches = self._all()
        first = next(self._batches, None)
        self._first = [] if first is None else [first]

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""
        return self._fitter.schema

    @property
    def total(self) -> float | None:
        """Bytes of all files; not known where stdin is one of them."""
        return None if STDIN in self._names else float(sum(self._sizes))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._first
        self._first = []
        yield from self._batches

    def _all(self) -> Iterator[pa.RecordBatch]:
        for at, (name, kind) in enumerate(zip(self._names, self._kinds, strict=True)):
            before = sum(self._sizes[:at])
            with faults_of(name):
                for batch, share in (
                    self._of_json(name, self._sizes[at]) if kind == "json" else self._of_others(name, kind)
                ):
                    self.done = before + self._sizes[at] * share
                    yield batch

    def _of_json(self, name: str, size: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        done = number = 0
        with nullcontext(sys.stdin.buffer) if name == STDIN else open(name, "rb") as file:
            while lines := file.readlines(_BLOCK):
                rows = [Line(at, text) for at, text in enumerate(lines, number + 1) if not text.isspace()]
                number += len(lines)
                done += sum(map(len, lines))
                if rows:
                    yield self._fitter.json(rows), done / max(1, size)
        if not number:
            raise InvalidRequest("it is empty")

    def _of_others(self, name: str, kind: str) -> Iterator[tuple[pa.RecordBatch, float]]:
        is_text = kind == "csv"
        known = pa.schema([(field.name, pa.string()) for field in self.schema]) if is_text else None
        source = open_source(name, kind, known)
        rows = 0
        for number, batch in enumerate(source.batches, 1):
            yield (self._fitter.csv if is_text else self._fitter.typed)(batch, rows), source.share(number)
            rows += batch.num_rows


def kind_of(name: str) -> str:
    """The format of a file by its name, of stdin by its beginning."""
    if name != STDIN:
        return by_extension(name)
    with faults_of(name):
        head = head_of_stdin()
        if not head:
            raise InvalidRequest("it is empty")
        return by_beginning(head)
