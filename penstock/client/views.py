"""The client's answers about datasets and writes, as values that print well."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

import pyarrow as pa
import pyarrow.flight as flight

from penstock.text import counted, format_age, format_html_table, format_size, format_table
from penstock.wire.actions import Summary
from penstock.wire.read import Entry

_HEADS = ("path", "rows", "size", "parts", "changed", "")
_RIGHT = ("rows", "size", "parts", "changed")


@dataclass(frozen=True, slots=True, repr=False)
class Info:
    """A dataset, or a range of a topic: its schema, its size, and endpoints with a ticket for each run of parts.

    Rows and bytes are -1, Flight's "unknown", where a filter decides.
    """

    path: str
    schema: pa.Schema
    rows: int
    bytes: int
    parts: int
    changed: float | None
    endpoints: tuple[flight.FlightEndpoint, ...]
    local: str | None = None
    kind: str = "dataset"
    """dataset or topic."""

    @classmethod
    def of(cls, info: flight.FlightInfo) -> Info:
        """Return the view of a FlightInfo."""
        entry = Entry.decode(info.app_metadata)
        return cls(
            entry.path, info.schema, info.total_records, info.total_bytes, entry.parts, entry.changed,
            tuple(info.endpoints), entry.local, entry.kind,
        )  # fmt: skip

    @property
    def location(self) -> str | None:
        """The address at which the server advertises its tickets; None for the client's own."""
        return next((place.uri.decode() for endpoint in self.endpoints for place in endpoint.locations), None)

    def __repr__(self) -> str:
        amount = "some rows" if self.rows < 0 else f"{counted(self.rows, 'row')}, {format_size(self.bytes)}"
        columns = (f"\n  {each.name}: {each.type}{'' if each.nullable else ' not null'}" for each in self.schema)
        return f"{self.path}: {amount} in {counted(self.parts, 'part')}{''.join(columns)}"


@dataclass(frozen=True, slots=True, repr=False)
class WriteSummary(Summary):
    """A finished write; prints as a line, in a notebook as HTML."""

    seconds: float | None = None
    """How long the write took; None where an earlier write of the same run had written the rows."""

    @classmethod
    def of(cls, summary: Summary, seconds: float | None = None) -> WriteSummary:
        """Return the view of the server's summary."""
        return cls(**{field.name: getattr(summary, field.name) for field in fields(summary)}, seconds=seconds)

    def __repr__(self) -> str:
        amount = f"{counted(self.rows, 'row')}, {format_size(self.bytes)} in {counted(self.parts, 'part')}"
        if self.seconds is None:
            return f"{self.path}: {amount}, written before by run {self.run!r}"
        return f"{self.path}: {amount}, {self.seconds:.1f} s ({format_size(self.bytes / max(self.seconds, 1e-6))}/s)"

    def _repr_html_(self) -> str:
        heads = ("path", "rows", "size", "parts", "attempts", "took", "write")
        took = "before, by its run" if self.seconds is None else f"{self.seconds:.1f} s"
        row = (self.path, f"{self.rows:,}", format_size(self.bytes), f"{self.parts:,}", f"{self.attempts:,}", took)
        return format_html_table(heads, [(*row, f"write/{self.write}")], right=heads[1:6])


class Listing(tuple[Entry, ...]):
    """A folder's entries; prints as a table, in a notebook as HTML."""

    __slots__ = ()

    def __repr__(self) -> str:
        return format_table(_HEADS, self._rows(), right=_RIGHT) if self else "nothing here"

    def _repr_html_(self) -> str:
        return format_html_table(_HEADS, self._rows(), right=_RIGHT)

    def _rows(self) -> list[tuple[str, ...]]:
        now = time.time()
        return [
            (entry.path, f"{entry.rows:,}", format_size(entry.bytes), f"{entry.parts:,}",
             "" if entry.changed is None else f"{format_age(now - entry.changed)} ago", entry.state or "")
            for entry in self
        ]  # fmt: skip
