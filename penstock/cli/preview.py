"""The first rows of a dataset or a topic as a table that fits the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import click
import pyarrow as pa
import pyarrow.types as types
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli import writers
from penstock.client.client import Client
from penstock.client.typed import Decoded
from penstock.text import counted, cut, printable

_ROWS = 20  # what `get` shows by itself
_TABLE_ROWS = 1_000  # rows of one table: its columns are as wide as these need
_CELL, _GAP = 40, 2  # characters of a cell, and between columns


def show(client: Client, path: str, rows: int | None, selection: Mapping[str, Any], typed: Decoded) -> None:
    """Print the first rows, decoded as `typed` says, and how many there are."""
    if "start" in selection:
        total = client.info(path, **{**selection, "filter": None}).rows
    else:
        total = client.call("describe", {"path": path})["rows"]
    limit = min(_ROWS if rows is None else rows, total)
    table = client.get(path, limit=limit, **selection, **typed).read_all()
    hidden: list[str] = []
    for start in range(0, max(1, table.num_rows), _TABLE_ROWS):  # the heads alone if there is no row
        if start:
            click.echo()
        hidden = _print(table.slice(start, _TABLE_ROWS))
    more = "; -n N shows more, -o FILE takes them all" if rows is None and limit == table.num_rows < total else ""
    click.secho(f"{table.num_rows:,} of {counted(total, 'row')}{more}", dim=True, err=True)
    if hidden:
        names = cut(", ".join(hidden), 200)
        click.secho(f"no room for {counted(len(hidden), 'more column')}: {names}; -c A,B chooses", dim=True, err=True)


def _print(table: pa.Table) -> list[str]:
    """Print the rows, long cells cut; return the names of the columns that had no room."""
    width = shutil.get_terminal_size().columns
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
    room = width + _GAP
    names = [cut(printable(name), _CELL) for name in table.column_names]
    columns: list[list[Text]] = []
    for name, column in zip(names, table.columns, strict=True):
        kind = cut(str(column.type), max(len(name), 16))
        texts = [None if text is None else cut(printable(text), _CELL) for text in writers.cells(column)]
        room -= max(map(cell_len, (name, kind, *(text or "null" for text in texts)))) + _GAP
        if columns and room < 0:
            break
        number = types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)
        head = Text.assemble((name, "bold"), "\n", (kind, "dim"))
        grid.add_column(head, justify="right" if number else "left", no_wrap=True)
        columns.append([Text("null", "dim") if text is None else Text(text) for text in texts])
    for row in zip(*columns, strict=True):
        grid.add_row(*row)
    Console(width=width, highlight=False).print(grid)
    return names[len(columns) :]
