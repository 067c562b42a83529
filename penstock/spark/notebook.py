"""What a notebook shows: a frame's columns, first rows and plan; a query's progress."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.client.display import open_display
from penstock.spark.client import RETRY_FOR
from penstock.spark.errors import Transport
from penstock.spark.functions import fn
from penstock.spark.rows import python_columns
from penstock.spark.types import is_number
from penstock.text import counted, cut, format_html_table, format_size, format_table, printable

if TYPE_CHECKING:
    from penstock.spark.frame import Frame, Mode
    from penstock.spark.results import Progress

SHOWN = 20
"""Rows of a frame that is shown by its name alone."""
_CELL = 60
_MOST_BYTES = 64 << 20
_PATIENCE = 3.0
"""Seconds for which a server that is away is tried again: a cell that ends with a frame's name waits for it."""


class Preview:
    """Some rows of a frame, which print as a table."""

    def __init__(self, table: pa.Table, note: str) -> None:
        self.table = table
        """The rows, as Arrow."""
        self.note = note

    def __repr__(self) -> str:
        return f"{format_table(self._heads(), self._cells(), right=self._numbers())}\n{self.note}"

    def _repr_html_(self) -> str:
        body = format_html_table(self._heads(), self._cells(), right=self._numbers())
        return f"{body}<small>{html.escape(self.note)}</small>"

    def _heads(self) -> list[str]:
        return [cut(printable(name), _CELL) for name in self.table.column_names]

    def _cells(self) -> list[tuple[str, ...]]:
        return list(zip(*([_text(value) for value in column] for column in python_columns(self.table)), strict=True))

    def _numbers(self) -> list[str]:
        return [head for head, each in zip(self._heads(), self.table.schema, strict=True) if is_number(each.type)]


class Text(str):
    """Text that a notebook shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def preview(frame: Frame, n: int = 100) -> Preview:
    """Return the first rows, by one query of at most n + 1."""
    table = frame.limit(n + 1).to_arrow(max_bytes=_MOST_BYTES)
    there = f"the first {counted(n, 'row')} of more" if table.num_rows > n else counted(table.num_rows, "row")
    return Preview(table.slice(0, n), there)


def sample(frame: Frame, n: int = 1_000) -> Preview:
    """Return rows chosen at random, each as likely as any other; Spark reads them all for that."""
    table = frame.order_by(fn.rand()).limit(n).to_arrow(max_bytes=_MOST_BYTES)
    return Preview(table, f"{counted(table.num_rows, 'row')}, chosen at random")


def explain(frame: Frame, mode: Mode = "extended") -> Text:
    """Return how Spark would compute the rows."""
    return Text(frame.explain_string(mode))


def mimebundle(frame: Frame) -> dict[str, str]:
    """Return a frame as a notebook shows it: its columns, its first rows, its plan."""
    token = RETRY_FOR.set(_PATIENCE)
    try:
        rows, explained = preview(frame, SHOWN), frame.explain_string()
    except Transport as away:
        line = printable(f"{frame!r}: {away}")
        return {"text/plain": line, "text/html": _pre(line)}
    finally:
        RETRY_FOR.reset(token)
    fields = (f"{each.name}: {each.type}{'' if each.nullable else ' not null'}" for each in rows.table.schema)
    columns = "\n".join(map(printable, fields))
    plan = "\n".join(map(printable, explained.split("\n")))
    details = (
        f"<details{' open' if name == 'rows' else ''}><summary>{name}</summary>{body}</details>"
        for name, body in (("schema", _pre(columns)), ("rows", rows._repr_html_()), ("plan", _pre(plan)))
    )
    return {"text/plain": f"{columns}\n\n{rows!r}\n\n{plan}", "text/html": f"<div>{''.join(details)}</div>"}


class ProgressBar:
    """Shows what the server says of a query, every two seconds, until the query ends."""

    def __init__(self) -> None:
        self._show = open_display(always=False)

    def __call__(self, progress: Progress) -> None:
        """Show how far a query is, or nothing any more."""
        if self._show is None:
            return
        if progress.ended:
            self._show("", "")
            return
        line = f"{progress.done:,} of {counted(progress.tasks, 'task')}, {progress.running:,} running"
        if progress.bytes_read:
            line += f", {format_size(progress.bytes_read)} read"
        bar = f'<progress value="{progress.done}" max="{max(progress.tasks, 1)}"></progress>'
        self._show(line, f"{bar} <small>{line}</small>")


def _text(value: object) -> str:
    return "null" if value is None else cut(printable(str(value)), _CELL)


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
