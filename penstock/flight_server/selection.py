"""A selection: the columns and the filter of a read command, checked against the columns of a path."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.queue.topics.journal import ADDED
from penstock.rows import slices
from penstock.rows.filter.parse import parse_filter
from penstock.text import suggest
from penstock.wire.read import PayloadSchema, ReadCommand

_META = frozenset(ADDED.names)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a reader gets of each row at a path."""

    path: str
    stored: pa.Schema
    """The path's own columns. A part that was written before a column was added lacks that column."""
    columns: tuple[str, ...] | None
    """The names of the columns that are sent; None for those that are stored."""
    schema: pa.Schema
    """The columns that are sent."""
    meta: frozenset[str]
    """Which of the server's own columns are sent, or needed by the filter."""
    filter: str | None
    limit: int | None
    decoding: PayloadSchema | None = None
    """How the server makes the columns that are sent of those that are read."""
    journal: str | None = None


def select(command: ReadCommand, path: str, stored: pa.Schema, *, meta: bool = False) -> Selection:
    """Return the selection; reject columns and a filter that do not fit.

    With `meta` the columns that the server adds to a topic may be named. The filter is parsed here, before a ticket is
    issued for it, and nowhere else in this request.
    """
    offered = with_meta(stored) if meta else stored
    if command.columns is not None:
        _check_names(command.columns, path, offered)
    columns = command.columns or (tuple(stored.names) if meta else None)
    needed = set(command.columns or ())
    if command.filter is not None:
        wanted = parse_filter(command.filter, offered)
        wanted.check(offered, command.columns)
        needed.update(wanted.columns)
    return Selection(
        path, stored, columns, slices.select(offered, columns), _META & needed if meta else frozenset(),
        command.filter, command.limit,
    )  # fmt: skip


def _check_names(columns: tuple[str, ...], path: str, offered: pa.Schema) -> None:
    if not columns or len(set(columns)) < len(columns):
        raise InvalidRequest(f"columns {list(columns)}: expected one or more names of {path}, each once")
    known = dict.fromkeys(offered.names)
    for name in columns:
        if name not in known:
            raise InvalidRequest(f"{path} has no column {name[:80]!r}; {suggest(name, known)}")


def with_meta(schema: pa.Schema) -> pa.Schema:
    """Return a topic's columns, followed by those that the server adds for readers who name them."""
    own = [field for field in schema if field.name not in _META]  # a part that was compacted holds `_time`
    return pa.schema([*own, *ADDED], metadata=schema.metadata)
