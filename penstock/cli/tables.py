"""What people look at: tables, descriptions, progress. Plain text in a pipe, colours on a terminal."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click

from penstock import readable

LONGEST_CELL = 40
_GAP = 2  # spaces between columns


def on_terminal(stream: IO[Any] | None = None) -> bool:
    """Whether a person reads what is written to `stream` (stdout)."""
    return (sys.stdout if stream is None else stream).isatty()


def width() -> int:
    """Columns of the terminal, or enough for a file."""
    return shutil.get_terminal_size().columns if on_terminal() else 160


def printable(text: str) -> str:
    """The text without control characters, which a terminal might obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def line(value: Mapping[str, Any]) -> None:
    """One line of JSON."""
    click.echo(json.dumps(value, separators=(",", ":")))


def ago(when: float | None) -> str:
    """How long ago; nothing where it isn't known."""
    return "" if when is None else f"{readable.age(time.time() - when)} ago"


def counted(number: int, thing: str) -> str:
    """1 part, 2 parts."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listing(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table with nothing cut: paths are there to be copied. On a terminal heads are dim and folders blue."""
    clean = [[printable(cell) for cell in row] for row in rows]
    head, *body = readable.table(heads, clean, right=right).splitlines()
    click.secho(head, dim=True)
    for row, text in zip(clean, body, strict=True):
        click.secho(text, fg="blue" if row[0].endswith("/") else None)


def description(title: str, facts: Mapping[str, str]) -> None:
    """A thing and what is known of it, aligned."""
    click.secho(printable(title), bold=True)
    longest = max(len(name) for name in facts)
    for name, value in facts.items():
        if value:
            click.echo(f"  {click.style(name.ljust(longest), dim=True)}  {printable(value)}")


class Grid:
    """Rows of a dataset as a table that fits the terminal: long cells are cut, columns that don't fit are named."""

    def __init__(self, names: Sequence[str], types: Sequence[str], *, numbers: Sequence[bool]) -> None:
        self._names = [cut(printable(name), LONGEST_CELL) for name in names]
        self._types = [cut(kind, max(len(name), 16)) for kind, name in zip(types, self._names, strict=True)]
        self._numbers = numbers

    def show(self, rows: Sequence[Sequence[str | None]]) -> Sequence[str]:
        """Print the rows; the names of the columns that had no room."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        cells = [[None if c is None else cut(printable(c), LONGEST_CELL) for c in row] for row in rows]
        shown = self._fitting(cells)
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
        for at in range(shown):
            head = Text.assemble((self._names[at], "bold"), "\n", (self._types[at], "dim"))
            table.add_column(head, justify="right" if self._numbers[at] else "left", no_wrap=True)
        for row in cells:
            table.add_row(*(Text("null", "dim") if cell is None else Text(cell) for cell in row[:shown]))
        Console(width=width(), highlight=False).print(table)
        return self._names[shown:]

    def _fitting(self, cells: Sequence[Sequence[str | None]]) -> int:
        """How many columns have room beside each other; one at least."""
        from rich.cells import cell_len

        room = width()
        for at, (name, kind) in enumerate(zip(self._names, self._types, strict=True)):
            widest = max([cell_len(name), cell_len(kind), *(cell_len(row[at] or "null") for row in cells)])
            room -= widest + _GAP
            if room < -_GAP and at:
                return at
        return len(self._names)


@contextmanager
def progress(what: str, total: float | None, *, wanted: bool = True) -> Iterator[Callable[[float], None]]:
    """A bar in bytes on stderr while the block runs, if that is a terminal; call it with what is done so far."""
    if not (wanted and on_terminal(sys.stderr)):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=total)
        yield lambda done: bar.update(task, completed=done)
