"""What people look at: listings, descriptions, progress. Plain text in a pipe, colours on a terminal."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import click

from penstock.text import format_age, format_size


def on_terminal(stream: IO[Any] | None = None) -> bool:
    """Whether a person reads what is written to `stream` (stdout)."""
    return (sys.stdout if stream is None else stream).isatty()


def width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size().columns


def printable(text: str) -> str:
    """The text without control characters, which a terminal might obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def lines(*values: Mapping[str, Any]) -> None:
    """A line of JSON for each."""
    for value in values:
        click.echo(json.dumps(value, separators=(",", ":")))


def ago(when: float | None) -> str:
    """How long ago; nothing where it isn't known."""
    return "" if when is None else f"{format_age(time.time() - when)} ago"


def lag(consumer: Mapping[str, Any]) -> tuple[str, str, str]:
    """How far a consumer is behind: rows, bytes, and since when."""
    behind = consumer["lag_rows"]
    return f"{behind:,}", format_size(consumer["lag_bytes"]), format_age(consumer["lag_seconds"]) if behind else ""


def counted(number: int, thing: str) -> str:
    """1 part, 2 parts."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listing(table: str) -> None:
    """A table with nothing cut: paths are there to be copied. On a terminal heads are dim and folders blue."""
    heads, *rows = table.split("\n")
    click.secho(heads, dim=True)
    for row in rows:
        click.secho(printable(row), fg="blue" if row.partition(" ")[0].endswith("/") else None)


def description(title: str, facts: Mapping[str, str]) -> None:
    """A thing and what is known of it, aligned."""
    click.secho(printable(title), bold=True)
    longest = max(len(name) for name in facts)
    for name, value in facts.items():
        if value:
            click.echo(f"  {click.style(name.ljust(longest), dim=True)}  {printable(value)}")


@contextmanager
def progress(what: str, total: float | None, *, wanted: bool = True) -> Iterator[Callable[[float], None]]:
    """A bar in bytes on stderr while the block runs, if that is a terminal; call it with what is done so far."""
    if not (wanted and on_terminal(sys.stderr)):
        yield lambda done: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    name = rich.TextColumn("{task.description}", markup=False)
    with rich.Progress(name, *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=total)
        yield lambda done: bar.update(task, completed=done)


def moved(as_json: bool, what: str, found: dict[str, Any], began: float) -> None:
    """What was moved, and how fast."""
    seconds = time.monotonic() - began
    if as_json:
        lines({**found, "seconds": round(seconds, 3)})
    else:
        rate = format_size(found["bytes"] / max(seconds, 1e-6))
        click.echo(f"{what}: {found['rows']:,} rows, {format_size(found['bytes'])} in {seconds:.2f} s ({rate}/s)")
