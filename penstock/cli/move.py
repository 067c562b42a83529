"""`get`, `put` and `rm`: rows out, rows in, and away with them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock import readable
from penstock.cli import app, tables
from penstock.cli.formats import FORMATS, by_extension
from penstock.cli.session import Session, completed, example, pass_session, shared
from penstock.errors import InvalidRequest, NotFound, PenstockError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import Client
    from penstock.wire import Mode

_OUTPUT = "Write to FILE: .arrow .feather .arrows .parquet .csv .json .jsonl .ndjson; - is stdout."
_INPUT_FORMAT = "Instead of what a file's extension, or stdin's beginning, says."
_MODES = ("error", "append", "overwrite")


@click.command(
    epilog=example(
        "penstock get store/demo/trips -n 5",
        "penstock get store/demo/trips --filter 'fare > 40' -c id,fare -o fares.parquet",
    ),
    short_help="Show a dataset, or write it to a file or stdout.",
)
@click.argument("path", shell_complete=completed)
@click.option("-n", "--rows", metavar="N", type=click.IntRange(min=0), help="The first N rows only.")
@click.option("-c", "--columns", metavar="A,B", help="These columns, in this order.")
@click.option("--filter", metavar="TEXT", help="Rows for which this is true: \"fare > 10 and city = 'Oslo'\".")
@click.option("-o", "--output", metavar="FILE", help=_OUTPUT)
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Instead of what FILE's extension says.")
@shared
@pass_session
def get(
    session: Session,
    path: str,
    *,
    rows: int | None,
    columns: str | None,
    filter: str | None,
    output: str | None,
    kind: str | None,
) -> None:
    """Read the dataset PATH.

    On a terminal it shows the first 20 rows (or -n); into a pipe go all rows (or -n) as CSV. With -o they go to a
    file, which appears when it is whole. In CSV and JSON times are text, bytes are base64; nested values are JSON.
    """
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    file = None if output in ("-", "/dev/stdout") else output
    if kind is None and file:
        kind = by_extension(file)
    elif kind is None and session.json:
        kind = "json"
    elif kind is None and not (output is None and tables.on_terminal()):
        kind = "csv"
    elif kind in ("arrow", "arrows", "parquet") and not file and tables.on_terminal():
        raise InvalidRequest(f"{kind} is no text for a terminal: -o FILE, or a pipe")
    with session.connect() as client:
        if kind is None:
            from penstock.cli import preview

            preview.show(client, path, rows, wanted, filter)
            return
        from penstock.cli import writing

        with contextlib.closing(client.get(path, limit=rows, columns=wanted, filter=filter)) as reader:
            if file is None:
                writing.write(kind, sys.stdout.buffer, reader.schema, reader)
            else:
                whole = rows is None and columns is None and filter is None
                total = client.call("describe", {"path": path})["bytes"] if whole else None
                _save(session, path, reader, file, kind, total)


def _save(session: Session, path: str, reader: pa.RecordBatchReader, file: str, kind: str, total: float | None) -> None:
    from penstock.cli import writing

    began, rows, size = time.monotonic(), 0, 0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal rows, size
        for batch in reader:
            yield batch
            rows, size = rows + batch.num_rows, size + batch.nbytes
            done(size)

    with writing.whole_file(file) as sink, tables.progress(path, total) as done:
        writing.write(kind, sink, reader.schema, watched())
        written = sink.tell() if sink.seekable() else size
    _report(session, file, {"path": path, "file": file, "rows": rows, "bytes": written}, began)


@click.command(
    epilog=example(
        "penstock put store/demo/trips trips.parquet",
        "zcat june.csv.gz | penstock put store/demo/trips - --mode append",
    ),
    short_help="Write files or stdin to a dataset.",
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
    """
    from penstock.cli.reading import Files

    began = time.monotonic()
    rows = Files(files, kind)

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield batch
            done(rows.done)

    with session.connect() as client, tables.progress(path, rows.total, wanted=not session.json) as done:
        receipt = client.put(path, watched(), mode=mode, run=run, schema=rows.schema)
    _report(session, path, {"path": path, **receipt.to_json()}, began)


def _report(session: Session, what: str, found: dict[str, Any], began: float) -> None:
    """What was moved, and how fast."""
    seconds = time.monotonic() - began
    if session.json:
        tables.lines({**found, "seconds": round(seconds, 3)})
    else:
        rate = readable.size(found["bytes"] / max(seconds, 1e-6))
        click.echo(f"{what}: {found['rows']:,} rows, {readable.size(found['bytes'])} in {seconds:.2f} s ({rate}/s)")


@click.command(epilog=example("penstock rm store/demo/trips"), short_help="Delete datasets and folders, end writes.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, shell_complete=completed)
@click.option("-r", "--recursive", is_flag=True, help="Folders too, with all that lies in them.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@shared
@pass_session
def rm(session: Session, paths: tuple[str, ...], *, recursive: bool, yes: bool) -> int:
    """Delete datasets; with -r folders; `rm write/ID` ends an open write.

    Whoever is reading a dataset may end doing so. On a terminal it asks before it deletes a folder.
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
    """The path itself, or the datasets of a folder once that is what the user wants."""
    found = []
    if not path.startswith("write/"):
        with contextlib.suppress(NotFound):  # it is a dataset or nothing: the server's answer to delete says which
            found = [entry.path for entry in client.list(path, recursive=True)]
    if found in ([], [path]):
        return [path]
    folder, datasets = path.rstrip("/") + "/", tables.counted(len(found), "dataset")
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
        click.echo(f"deleted {gone['path']}: {gone['rows']:,} rows, {readable.size(gone['bytes'])}")
