"""`get`, `put` and `rm`: rows out, rows in, and away with them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import app, tables
from penstock.cli.formats import FORMATS, by_extension
from penstock.cli.session import Session, completed, example, pass_session, shared
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.text import format_size

if TYPE_CHECKING:
    from penstock.cli.reading import Files
    from penstock.client.client import Client
    from penstock.wire.put import Mode

_START = (
    "A topic's rows from here on: earliest, latest, a time (2026-11-18T20:00), how long ago (10m), or offsets by shard "
    "(0:500,1:70)."
)
_OUTPUT = "Write to FILE: .arrow .feather .arrows .parquet .csv .json .jsonl .ndjson; - is stdout."
_INPUT_FORMAT = "Instead of what a file's extension, or stdin's beginning, says."
_MODES = ("error", "append", "overwrite")


@click.command(
    epilog=example(
        "penstock get store/demo/trips -n 5",
        "penstock get store/demo/trips --filter 'fare > 40' -c id,fare -o fares.parquet",
        "penstock get topic/orders -c id,_offset,_time --since 10m",
        "penstock get -f topic/orders",
    ),
    short_help="Show a dataset or a topic, or write it to a file or stdout.",
)
@click.argument("path", shell_complete=completed)
@click.option("-n", "--rows", metavar="N", type=click.IntRange(min=0), help="The first N rows only.")
@click.option("-c", "--columns", metavar="A,B", help="These columns, in this order.")
@click.option("--filter", metavar="TEXT", help="Rows for which this is true: \"fare > 10 and city = 'Oslo'\".")
@click.option("--start", metavar="WHERE", help=_START)
@click.option("--end", metavar="WHERE", help="A topic's rows before this, said as for --start.")
@click.option("--since", metavar="TIME", help="A topic's rows from this time on: 10m, or 2026-11-18T20:00.")
@click.option("-f", "--follow", is_flag=True, help="A topic's rows as they come, until Ctrl-C.")
@click.option("-o", "--output", metavar="FILE", help=_OUTPUT)
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Instead of what FILE's extension says.")
@shared
@pass_session
def get(
    session: Session, path: str, *, rows: int | None, columns: str | None, filter: str | None, start: str | None,
    end: str | None, since: str | None, follow: bool, output: str | None, kind: str | None,
) -> None:  # fmt: skip
    """Read the dataset or topic PATH.

    On a terminal it shows the first 20 rows (or -n); into a pipe go all rows (or -n) as CSV. With -o they go to a
    file, which appears when it is whole. In CSV and JSON times are text, bytes are base64; nested values are JSON.

    A topic's columns _shard, _offset and _time (when it was appended) are there for -c. With -f rows are written as
    they come, as JSON, from now on or from --start; it takes none from anybody, and waits for a server that is away.
    """
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    file = None if output in ("-", "/dev/stdout") else output
    kind = _kind(session, kind, output, file, follow=follow)
    from penstock.cli import tail, writing

    if follow:
        chosen = {"columns": wanted, "filter": filter}
        tail.follow(session, path, chosen, (start, end, since), kind=kind or "json", rows=rows, file=file)
        return
    with session.connect() as client:
        asked: dict[str, Any] = {"columns": wanted, "filter": filter, **tail.wanted(client, path, (start, end, since))}
        if kind is None:
            from penstock.cli import preview

            preview.show(client, path, rows, asked)
            return
        whole = file and rows is None and not any(asked.values())
        total = client.call("describe", {"path": path})["bytes"] if whole else None
        began = time.monotonic()
        with (
            contextlib.closing(client.get(path, limit=rows, **asked)) as reader,
            tables.progress(path, total, wanted=file is not None) as done,
        ):
            found = writing.save(file, kind, reader.schema, reader, done)
    if file is not None:
        tables.moved(session.json, file, {"path": path, "file": file, **found}, began)


def _kind(session: Session, kind: str | None, output: str | None, file: str | None, *, follow: bool) -> str | None:
    """The format that is written; None for a table on the terminal."""
    if kind is None and file:
        return by_extension(file)
    if kind is None and (session.json or follow):
        return "json"
    if kind is None and not (output is None and tables.on_terminal()):
        return "csv"
    if kind in ("arrow", "arrows", "parquet") and not file and tables.on_terminal():
        raise InvalidRequest(f"{kind} is no text for a terminal: -o FILE, or a pipe")
    return kind


@click.command(
    epilog=example(
        "penstock put store/demo/trips trips.parquet",
        "zcat june.csv.gz | penstock put store/demo/trips - --mode append",
        "penstock put topic/orders orders.jsonl",
        "tail -F app.jsonl | penstock put topic/log -",
    ),
    short_help="Write files or stdin to a dataset or a topic.",
)
@click.argument("path", shell_complete=completed)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--mode", type=click.Choice(_MODES), default="error", show_default=True, help="If the dataset exists.")
@click.option("--run", metavar="NAME", help="Do this once: the same run again writes nothing.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help=_INPUT_FORMAT)
@shared
@pass_session
def put(session: Session, path: str, files: tuple[str, ...], *, mode: Mode, run: str | None, kind: str | None) -> None:
    """Write files to the dataset PATH, all or nothing; several files are one write, `-` is stdin.

    It reads Parquet, Arrow files and streams, CSV with a line of heads, and JSON lines. The types of text come from
    its first 4 MB; an empty field of CSV is null.

    To a topic rows are appended. Text is read as the topic's types, where nothing is lost. JSON lines from stdin are
    put as they come, 1,000 at a time or what came in 0.2 s: what was counted is durable, whatever ends it.
    """
    from penstock.cli import publish, reading

    began = time.monotonic()
    options: dict[str, Any] = {"mode": mode, "run": run, "silent": session.json}
    with session.connect() as client:
        if not path.startswith("topic/"):
            found = _put(client, path, reading.Files(files, kind), **options)
        elif publish.comes_bit_by_bit(files, kind, run, mode):
            found = publish.Pour(client, path, silent=session.json).run()
        else:
            found = _put(client, path, publish.source(client, path, files, kind), **options)
    tables.moved(session.json, path, {"path": path, **found}, began)


def _put(client: Client, path: str, rows: Files, *, mode: Mode, run: str | None, silent: bool) -> dict[str, Any]:
    """One write of all of them, with a bar."""

    def watched() -> Iterator[Any]:
        for batch in rows:
            yield batch
            done(rows.done)

    with tables.progress(path, rows.total, wanted=not silent) as done:
        return client.put(path, watched(), mode=mode, run=run, schema=rows.schema).to_json()


@click.command(
    epilog=example("penstock rm store/demo/trips"), short_help="Delete datasets, topics and folders, end writes."
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, shell_complete=completed)
@click.option("-r", "--recursive", is_flag=True, help="Folders too, with all that lies in them.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@shared
@pass_session
def rm(session: Session, paths: tuple[str, ...], *, recursive: bool, yes: bool) -> int:
    """Delete datasets and topics; with -r folders; `rm write/ID` ends an open write.

    Whoever is reading one may end doing so. On a terminal it asks before it deletes a folder.
    """
    code = 0
    with session.connect() as client:
        for path in paths:
            try:
                for each in _meant(client, path, recursive=recursive, ask=not yes):
                    _deleted(session, client.delete(each))
            except PenstockError as error:
                failed = app.failed(str(error), app.code_of(error))
                code = code or failed
    return code


def _meant(client: Client, path: str, *, recursive: bool, ask: bool) -> list[str]:
    """The path itself, or what lies in a folder once that is what the user wants."""
    found = []
    if not path.startswith("write/"):
        with contextlib.suppress(NotFound):  # it is one thing or nothing: the server's answer to delete says which
            found = [entry.path for entry in client.list(path, recursive=True)]
    if found in ([], [path]):
        return [path]
    kind = "topic" if path.startswith("topic") else "dataset"
    folder, datasets = path.rstrip("/") + "/", tables.counted(len(found), kind)
    if not recursive:
        raise InvalidRequest(f"{folder} is a folder with {datasets}: penstock rm -r {folder}")
    ask = ask and tables.on_terminal(sys.stdin)
    return [] if ask and not click.confirm(f"Delete {datasets} in {folder}?", err=True) else found


def _deleted(session: Session, gone: dict[str, Any]) -> None:
    if session.json:
        tables.lines(gone)
    elif "write" in gone:
        click.echo(f"ended write/{gone['write']} to {gone['path']}")
    else:
        click.echo(f"deleted {gone['path']}: {gone['rows']:,} rows, {format_size(gone['bytes'])}")
