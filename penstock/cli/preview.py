"""The first rows of a dataset as a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import click

from penstock.cli import tables

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import Client

ROWS = 20
"""What a bare `get` shows."""
_GRID_ROWS = 1_000  # rows of one table: its columns are as wide as these need


def show(client: Client, path: str, rows: int | None, columns: list[str] | None) -> None:
    """The first rows of a dataset, and how many there are; all of those that were asked for, if they were."""
    import pyarrow as pa

    from penstock.cli import writing

    total = client.call("describe", {"path": path})["rows"]
    limit = min(ROWS if rows is None else rows, total)
    with closing(client.get(path, limit=limit, columns=columns)) as reader:
        schema = reader.schema
        numbers = [
            pa.types.is_integer(f.type) or pa.types.is_floating(f.type) or pa.types.is_decimal(f.type) for f in schema
        ]
        grid = tables.Grid(schema.names, [str(field.type) for field in schema], numbers=numbers)
        hidden: Iterable[str] = []
        for start, batch in enumerate(_slices(reader, limit)):
            if start:
                click.echo()
            hidden = grid.show(list(zip(*(writing.cells(column) for column in batch.columns), strict=True)))
    _footer(limit, total, bounded=rows is None, hidden=list(hidden))


def _slices(reader: pa.RecordBatchReader, limit: int) -> Iterator[pa.RecordBatch]:
    """What one table shows at a time; the heads alone if there is no row."""
    import pyarrow as pa

    if limit == 0:
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        return
    held: list[pa.RecordBatch] = []
    left = _GRID_ROWS
    for batch in reader:
        start = 0
        while start < batch.num_rows:
            held.append(batch.slice(start, left))
            start, left = start + held[-1].num_rows, left - held[-1].num_rows
            if left == 0:
                yield pa.concat_batches(held)  # type: ignore[attr-defined]  # since pyarrow 19
                held, left = [], _GRID_ROWS
    if held:
        yield pa.concat_batches(held)  # type: ignore[attr-defined]


def _footer(shown: int, total: int, *, bounded: bool, hidden: list[str]) -> None:
    more = "; -n N shows more, -o FILE takes them all" if bounded and shown < total else ""
    click.secho(f"{shown:,} of {total:,} rows{more}", dim=True, err=True)
    if hidden:
        names = tables.cut(", ".join(hidden), 200)
        click.secho(
            f"no room for {tables.counted(len(hidden), 'more column')}: {names}; -c A,B chooses", dim=True, err=True
        )
