"""What a person at a terminal meets: tables, facts, progress, Ctrl-C. In a pipe all of it is plain text."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import click

from penstock.text import counted, format_size, printable


def is_terminal(stream: IO[Any] | None = None) -> bool:
    """Tell whether a person reads what is written to `stream` (stdout)."""
    return (sys.stdout if stream is None else stream).isatty()


def print_json(*values: Mapping[str, Any]) -> None:
    """Print a line of JSON for each value."""
    for value in values:
        click.echo(json.dumps(value, separators=(",", ":")))


def print_table(table: str) -> None:
    """Print a table with nothing cut, as paths are there to be copied; heads dim and folders blue on a terminal."""
    heads, *rows = table.split("\n")
    click.secho(heads, dim=True)
    for row in rows:
        click.secho(printable(row), fg="blue" if row.partition(" ")[0].endswith("/") else None)


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print a title and the facts that have a value, aligned."""
    click.secho(printable(title), bold=True)
    longest = max(map(len, facts), default=0)
    for name, value in facts.items():
        if value:
            click.echo(f"  {click.style(name.ljust(longest), dim=True)}  {value}")


def print_transfer(name: str, answer: Mapping[str, Any], began: float, *, as_json: bool) -> None:
    """Print how much was transferred since `began`, and how fast."""
    seconds = time.monotonic() - began
    if as_json:
        print_json({**answer, "seconds": round(seconds, 3)})
    else:
        size, rate = format_size(answer["bytes"]), format_size(answer["bytes"] / max(seconds, 1e-6))
        click.echo(f"{name}: {counted(answer['rows'], 'row')}, {size} in {seconds:.2f} s ({rate}/s)")


@contextmanager
def progress_bar(label: str, total: float | None, *, wanted: bool = True) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr, if that is a terminal.

    Yields a function that takes the bytes that are done so far and, if it changes, the label.
    """
    if not (wanted and is_terminal(sys.stderr)):
        yield lambda *_: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    text = rich.TextColumn("{task.description}", markup=False)
    with rich.Progress(text, *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(label), total=total)
        yield lambda done, label=label: bar.update(task, completed=done, description=printable(label))


@contextmanager
def on_signal(action: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """Run `action` at the first of these signals within the block; it may raise. The second interrupts at once."""

    def handle(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.default_int_handler)
        action()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
