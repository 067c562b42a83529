"""The first rows of a dataset as a table that fits the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import pyarrow as pa
import pyarrow.types as types
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli import tables, writing
from penstock.client.client import Client

ROWS = 20
"""What a bare `get` shows."""
_GRID_ROWS = 1_000  # rows of one table: its columns are as wide as these need
_LONGEST_CELL = 40
_GAP = 2  # spaces between columns


def show(client: Client, path: str, rows: int | None, asked: Mapping[str, Any]) -> None:
    """The first rows of a dataset, and how many there are; all of those that were asked for, if they were."""
    if "start" in asked:
        total = client.info(path, **{**asked, "filter": None}).rows
    else:
        total = client.call("describe", {"path": path})["rows"]
    limit = min(ROWS if rows is None else rows, total)
    table = client.get(path, limit=limit, **asked).read_all()
    hidden: list[str] = []
    for start in range(0, max(1, table.num_rows), _GRID_ROWS):  # the heads alone if there is no row
        if start:
            click.echo()
        hidden = _grid(table.slice(start, _GRID_ROWS))
    more = "; -n N shows more, -o FILE takes them all" if rows is None and limit == table.num_rows < total else ""
    click.secho(f"{table.num_rows:,} of {total:,} rows{more}", dim=True, err=True)
    if hidden:
        room = f"no room for {tables.counted(len(hidden), 'more column')}: "
        click.secho(f"{room}{tables.cut(', '.join(hidden), 200)}; -c A,B chooses", dim=True, err=True)


def _grid(table: pa.Table) -> list[str]:
    """Print the rows, long cells cut; the names of the columns that had no room."""
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
    room = tables.width() + _GAP
    names = [tables.cut(tables.printable(name), _LONGEST_CELL) for name in table.column_names]
    shown: list[list[Text]] = []
    for name, column in zip(names, table.columns, strict=True):
        kind = tables.cut(str(column.type), max(len(name), 16))
        cells = [_cell(text) for text in writing.cells(column)]
        room -= max(cell_len(text) for text in (name, kind, *(cell.plain for cell in cells))) + _GAP
        if shown and room < 0:
            break
        head = Text.assemble((name, "bold"), "\n", (kind, "dim"))
        number = types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)
        grid.add_column(head, justify="right" if number else "left", no_wrap=True)
        shown.append(cells)
    for row in zip(*shown, strict=True):
        grid.add_row(*row)
    Console(width=tables.width(), highlight=False).print(grid)
    return names[len(shown) :]


def _cell(text: str | None) -> Text:
    return Text("null", "dim") if text is None else Text(tables.cut(tables.printable(text), _LONGEST_CELL))
