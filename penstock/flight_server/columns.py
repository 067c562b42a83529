"""The columns and the filter that a reader names, held against what there is."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.ledger.datasets import Dataset
from penstock.queue.topics.journal import ADDED
from penstock.queue.topics.topic import Topic
from penstock.rows import slices
from penstock.rows.filter.parse import parse_filter
from penstock.text import suggest
from penstock.wire.read import ReadCommand


@dataclass(frozen=True, slots=True)
class Columns:
    """What there is to read at a path."""

    path: str
    own: pa.Schema
    all: pa.Schema
    """With what the server adds for who names it."""

    @classmethod
    def of(cls, found: Dataset | Topic) -> Columns:
        """A dataset has its own; a topic knows the place and the time of each row too."""
        return cls(found.path, found.schema, with_places(found.schema) if isinstance(found, Topic) else found.schema)

    def check(self, command: ReadCommand) -> None:
        """Refuse columns and a filter that don't fit, before a ticket is given for them."""
        if command.columns is not None:
            self._check_names(command.columns)
        if command.filter is not None:
            parse_filter(command.filter, self.all).check(self.all, command.columns)

    def named(self, command: ReadCommand) -> tuple[str, ...] | None:
        """The columns that come; None for those that the parts have."""
        return command.columns or (None if self.all is self.own else tuple(self.own.names))

    def schema(self, command: ReadCommand) -> pa.Schema:
        """What comes."""
        return slices.select(self.all, self.named(command))

    def added(self, command: ReadCommand) -> set[str]:
        """Which of the server's own columns come, or are asked about by the filter."""
        wanted = set(command.columns or ())
        if command.filter is not None:
            wanted |= set(parse_filter(command.filter, self.all).needed(self.all, self.named(command)))
        return wanted & set(ADDED.names) if self.all is not self.own else set()

    def _check_names(self, columns: tuple[str, ...]) -> None:
        if not columns or len(set(columns)) < len(columns):
            raise InvalidRequest(f"columns {list(columns)}: expected one or more names of {self.path}, each once")
        known = dict.fromkeys(self.all.names)
        for name in columns:
            if name not in known:
                raise InvalidRequest(f"{self.path} has no column {name[:80]!r}; {suggest(name, known)}")


def with_places(schema: pa.Schema) -> pa.Schema:
    """A topic's columns, and behind them what the server adds for who asks."""
    own = [field for field in schema if field.name not in ADDED.names]  # a part that was compacted holds `_time`
    return pa.schema([*own, *ADDED], metadata=schema.metadata)
