"""`get`: a dataset or a topic on the terminal, into a file, or into a pipe."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import click

from penstock.cli import terminal
from penstock.cli.formats import FORMATS, format_by_extension
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.errors import InvalidRequest

_START = "A topic's rows from here on: earliest, latest, a time, how long ago (10m), or offsets by shard (0:500,1:70)."
_MODE = "Of a payload that doesn't decode: PERMISSIVE (nulls and _error), DROPMALFORMED (no row) or FAILFAST."
_WRITER = "The schema, .avsc or .proto, of Avro or protobuf payloads whose messages don't name theirs."
_GROUP = "With -f: share the rows with all that follow as this group; the server keeps the position."
_OUTPUT = "Write to FILE: .arrow .feather .arrows .parquet .csv .json .jsonl .ndjson; - is stdout."


@command(
    "Show a dataset or a topic, or write it to a file or stdout.",
    "penstock get store/demo/trips -n 5",
    "penstock get store/demo/trips --filter 'fare > 40' -c id,fare -o fares.parquet",
    "penstock get topic/orders -c id,_offset,_time --since 10m",
    "penstock get -f topic/orders",
    "penstock get -f topic/orders --group billing",
    "penstock get topic/orders --decode json --schema 'id long, customer struct<name: string>'",
    "penstock get subscription/p/orders --decode avro",
)
@click.argument("path", shell_complete=complete_path)
@click.option("-n", "--rows", metavar="N", type=click.IntRange(min=0), help="The first N rows only.")
@click.option("-c", "--columns", metavar="A,B", help="These columns, in this order.")
@click.option("--filter", metavar="TEXT", help="Rows for which this is true: \"fare > 10 and city = 'Oslo'\".")
@click.option("--start", metavar="WHERE", help=_START)
@click.option("--end", metavar="WHERE", help="A topic's rows before this, written as --start is.")
@click.option("--since", metavar="TIME", help="A topic's rows from this time on: 10m, or 2026-11-18T20:00.")
@click.option("--decode", metavar="FORMAT", help="Make columns of a topic's payloads: json, avro or protobuf.")
@click.option("--schema", metavar="COLUMNS", help="The columns, as Spark's .schema takes them: id long, name string.")
@click.option("--mode", metavar="MODE", help=_MODE)
@click.option("--writer-schema", metavar="FILE", help=_WRITER)
@click.option("-f", "--follow", is_flag=True, help="A topic's rows as they come, until Ctrl-C.")
@click.option("--group", metavar="NAME", help=_GROUP)
@click.option("-o", "--output", metavar="FILE", help=_OUTPUT)
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="The format, whatever FILE's extension says.")
def get(
    invocation: Invocation, path: str, *, rows: int | None, columns: str | None, filter: str | None, start: str | None,
    end: str | None, since: str | None, decode: str | None, schema: str | None, mode: str | None,
    writer_schema: str | None, follow: bool, group: str | None, output: str | None, file_format: str | None,
) -> None:  # fmt: skip
    """Read the dataset or topic PATH.

    On a terminal it shows the first 20 rows (or -n); into a pipe go all rows (or -n) as JSON lines, which put takes
    again, or in another --format. With -o they go to a file, which appears when it is whole. In CSV and JSON times are
    text, bytes are base64; nested values are JSON.

    A topic's columns _shard, _offset and _time (when it was appended) are there for -c. With -f rows are written as
    they come, from now on or from --start; other readers get them all the same. -f waits for a server that is away.
    With --group the server keeps the position: a new group begins with the oldest row, or at --start, each row
    comes to one of those that name the group, and is committed once it is written. -n ends behind a whole batch then.
    """
    file = None if output in ("-", "/dev/stdout") else output
    if file_format is None and file:
        file_format = format_by_extension(file)
    elif file_format is None and (output or not terminal.is_terminal() or invocation.json or follow):
        file_format = "json"
    if file_format in ("arrow", "arrows", "parquet") and not file and terminal.is_terminal():
        raise InvalidRequest(f"{file_format} is no text for a terminal: -o FILE, or a pipe")
    from penstock.cli import preview, tail, writers
    from penstock.client.typed import Decoded

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    selection: dict[str, Any] = {"columns": names, "filter": filter}
    span = tail.Range(start, end, since)
    typed: Decoded = {"decode": decode, "schema": schema, "mode": mode, "writer_schema": writer_schema}
    if follow:
        if option := next((name for name, value in typed.items() if value), None):
            raise InvalidRequest(
                f"--{option.replace('_', '-')} isn't for --follow, which has rows as they are: leave one of them out"
            )
        tail.follow(
            invocation, path, selection, span, file_format=file_format or "json", rows=rows, file=file, group=group
        )
        return
    if group is not None:
        raise InvalidRequest(f"--group {group}: a group follows a topic: -f --group {group}")
    with invocation.connect() as client:
        selection |= span.arguments(client, path)
        if file_format is None:
            preview.show(client, path, rows, selection, typed)
            return
        whole = file and rows is None and not any(selection.values())
        total = client.call("describe", {"path": path})["bytes"] if whole else None
        began = time.monotonic()
        with (
            contextlib.closing(client.get(path, limit=rows, **selection, **typed)) as reader,
            terminal.progress_bar(path, total, wanted=file is not None) as show,
        ):
            size = writers.save(file, file_format, reader.schema, reader, show)
    if file is not None:
        terminal.print_transfer(file, {"path": path, "file": file, **size}, began, as_json=invocation.json)
