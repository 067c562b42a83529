"""`get`, `put` and `rm`: rows out, rows in, and away with them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import IO, TYPE_CHECKING, Any, cast

import click

from penstock import readable
from penstock.cli import app, preview, tables
from penstock.cli.formats import FORMATS, by_extension
from penstock.cli.session import Session, completed, example, pass_session, shared
from penstock.errors import InvalidRequest, NotFound, PenstockError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import Client
    from penstock.wire import Mode, Receipt


@click.command(
    epilog=example("penstock get store/demo/trips -n 5", "penstock get store/demo/trips -c id,fare -o fares.parquet"),
    short_help="Show a dataset, or write it to a file or stdout.",
)
@click.argument("path", shell_complete=completed)
@click.option("-n", "--rows", metavar="N", type=click.IntRange(min=0), help="The first N rows only.")
@click.option("-c", "--columns", metavar="A,B", help="These columns, in this order.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write to FILE: .arrow .feather .arrows .parquet .csv .json .jsonl .ndjson; - is stdout.",
)
@click.option(
    "--format", "format_", type=click.Choice(["table", *FORMATS]), help="Instead of what FILE's extension says."
)
@shared
@pass_session
def get(
    session: Session, path: str, *, rows: int | None, columns: str | None, output: str | None, format_: str | None
) -> None:
    """Read the dataset PATH.

    On a terminal it shows the first 20 rows (or -n); into a pipe go all rows (or -n) as CSV. With -o they go to a
    file, which appears when it is whole. In CSV and JSON times are text, bytes are base64; nested values are JSON.
    """
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    to_file = output not in (None, "-")
    kind = format_ or (by_extension(output) if output and to_file else _stdout_format(session, output))
    if to_file and kind == "table":
        raise InvalidRequest("--format table is for the terminal: give a format that a file can have")
    if kind not in ("table", "csv", "json") and not to_file and tables.on_terminal():
        raise InvalidRequest(f"{kind} is no text for a terminal: -o FILE, or a pipe")
    with session.connect() as client:
        if kind == "table":
            preview.show(client, path, rows, wanted)
        else:
            _save(session, client, path, rows, wanted, output if to_file else None, kind)


def _stdout_format(session: Session, output: str | None) -> str:
    if session.json:
        return "json"
    return "table" if output is None and tables.on_terminal() else "csv"


def _save(
    session: Session,
    client: Client,
    path: str,
    rows: int | None,
    columns: list[str] | None,
    file: str | None,
    kind: str,
) -> None:
    from penstock.cli import writing

    began = time.monotonic()
    if file is None:
        with closing(client.get(path, limit=rows, columns=columns)) as reader:
            _copy(reader, sys.stdout.buffer, kind, "", None)
            sys.stdout.buffer.flush()
        return
    known = client.call("describe", {"path": path})
    share = 1.0 if rows is None or not known["rows"] else min(1.0, rows / known["rows"])
    with closing(client.get(path, limit=rows, columns=columns)) as reader, writing.whole_file(file) as sink:
        copied, size = _copy(reader, sink, kind, path, None if columns else known["bytes"] * share)
        written = sink.tell() if sink.seekable() else size
    seconds = time.monotonic() - began
    if session.json:
        tables.line({"path": path, "file": file, "rows": copied, "bytes": written, "seconds": round(seconds, 3)})
    else:
        click.echo(f"{file}: {copied:,} rows, {readable.size(written)}{_rate(size, seconds)}")


def _copy(reader: pa.RecordBatchReader, sink: IO[bytes], kind: str, what: str, total: float | None) -> tuple[int, int]:
    """Batch by batch into the sink; the rows, and the bytes that they have in Arrow."""
    from penstock.cli import writing

    rows = size = 0
    with tables.progress(what, total, wanted=bool(what)) as done, writing.writer(kind, sink, reader.schema) as write:
        for batch in reader:
            write(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            done(size)
    return rows, size


@click.command(
    epilog=example(
        "penstock put store/demo/trips trips.parquet",
        "zcat june.csv.gz | penstock put store/demo/trips - --mode append",
    ),
    short_help="Write files or stdin to a dataset.",
)
@click.argument("path", shell_complete=completed)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--mode",
    type=click.Choice(["error", "append", "overwrite"]),
    default="error",
    show_default=True,
    help="If the dataset exists.",
)
@click.option("--run", metavar="NAME", help="Do this once: the same run again writes nothing.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="Instead of what a file's extension, or stdin's beginning, says.",
)
@shared
@pass_session
def put(
    session: Session, path: str, files: tuple[str, ...], *, mode: str, run: str | None, format_: str | None
) -> None:
    """Write files to the dataset PATH, all or nothing; several files are one write, `-` is stdin.

    It reads Parquet, Arrow files and streams, CSV with a line of heads, and JSON lines. The types of text come from
    its first 4 MB; an empty field of CSV is null.
    """
    from penstock.cli.reading import Files

    began = time.monotonic()
    rows = Files(files, format_)

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield batch
            done(rows.done)

    with session.connect() as client, tables.progress(path, rows.total, wanted=not session.json) as done:
        receipt = client.put(path, watched(), mode=cast("Mode", mode), run=run, schema=rows.schema)
    _report(session, path, receipt, time.monotonic() - began)


def _report(session: Session, path: str, receipt: Receipt, seconds: float) -> None:
    if session.json:
        tables.line({"path": path, **receipt.to_json(), "seconds": round(seconds, 3)})
    else:
        click.echo(f"{path}: {receipt.rows:,} rows, {readable.size(receipt.bytes)}{_rate(receipt.bytes, seconds)}")


def _rate(size: float, seconds: float) -> str:
    return f" in {seconds:.2f} s ({readable.size(size / max(seconds, 1e-6))}/s)"


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
                app.say(str(error))
                code = code or app.code_of(error)
    return code


def _meant(client: Client, path: str, *, recursive: bool, ask: bool) -> list[str]:
    """The path itself, or the datasets of a folder once that is what the user wants."""
    if path.startswith("write/"):
        return [path]
    try:
        found = [entry.path for entry in client.list(path, recursive=True)]
    except NotFound:
        return [path]  # it is a dataset or nothing: the server's own answer says which
    if found == [path] or not found:
        return [path]
    folder = path.rstrip("/") + "/"
    if not recursive:
        raise InvalidRequest(
            f"{folder} is a folder with {tables.counted(len(found), 'dataset')}: penstock rm -r {folder}"
        )
    if (
        ask
        and tables.on_terminal(sys.stdin)
        and not click.confirm(f"Delete {tables.counted(len(found), 'dataset')} in {folder}?", err=True)
    ):
        return []
    return found


def _deleted(session: Session, gone: dict[str, Any]) -> None:
    if session.json:
        tables.line(gone)
    elif "write" in gone:
        click.echo(f"ended write/{gone['write']} to {gone['path']}")
    else:
        click.echo(f"deleted {gone['path']}: {gone['rows']:,} rows, {readable.size(gone['bytes'])}")
