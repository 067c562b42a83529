"""`put`: files or stdin into a dataset or a topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Unpack

import click

from penstock.cli import terminal
from penstock.cli.formats import FORMATS
from penstock.cli.invocation import Invocation, command, complete_path, duration
from penstock.cli.kinds import kind_at

if TYPE_CHECKING:
    from penstock.client.publish import PublishArguments
    from penstock.wire.put import Mode

_FORMAT = "The format, whatever a file's extension or stdin's first bytes say."
_ENCODINGS = ("json", "avro", "protobuf")
_MODES = ("error", "append", "overwrite")


@command(
    "Write files or stdin to a dataset or a topic, or publish them.",
    "penstock put store/demo/trips trips.parquet",
    "zcat june.csv.gz | penstock put store/demo/trips - --mode append",
    "penstock put topic/orders orders.jsonl",
    "tail -F app.jsonl | penstock put topic/log -",
    "penstock put publish/my-project/clean orders.parquet --encode json",
)
@click.argument("path", shell_complete=complete_path)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--mode", type=click.Choice(_MODES), default="error", show_default=True, help="If the dataset exists.")
@click.option("--run", metavar="NAME", help="Do this once: the same run again writes nothing.")
@click.option("--partition", metavar="NAME", help="Of a dataset: the rows that --mode overwrite replaces.")
@click.option("--ttl", type=duration, metavar="TIME", help="Of a dataset: delete it so long after its last put.")
@click.option("--encode", type=click.Choice(_ENCODINGS), help="Publish each row as one payload, to publish/….")
@click.option("--id-attribute", is_flag=True, help="Publish with the attribute penstock-id.")
@click.option("--compression", type=click.Choice(("gzip",)), help="Of requests to Pub/Sub.")
@click.option("--format", "file_format", type=click.Choice(FORMATS), help=_FORMAT)
def put(
    invocation: Invocation, path: str, files: tuple[str, ...], *, mode: Mode, run: str | None,
    file_format: str | None, partition: str | None, ttl: float | None, **how: Unpack[PublishArguments],
) -> None:  # fmt: skip
    """Write files to the dataset PATH, all or nothing; several files are one write, `-` is stdin.

    It reads Parquet, Arrow files and streams, CSV with a header line, and JSON lines. The types of text come from
    its first 4 MB; an empty field of CSV is null.

    To a topic rows are appended. Text is read as the topic's types, where nothing is lost. stdin is JSON lines unless
    --format says otherwise: they are put as they come, 1,000 at a time or what came in 0.2 s. Rows that
    were counted are durable, however the command ends; a line that is no row ends it.

    To publish/PROJECT/TOPIC rows are published, with the columns data, attributes and ordering_key, or as
    JSON, Avro or protobuf, the last two by the topic's own schema.
    """
    from penstock.cli import append, readers

    began = time.monotonic()
    with invocation.connect() as client:
        appends = kind_at(path).appends
        lines = files == (readers.STDIN,) and file_format in (None, "json")
        if appends and lines and (run, partition, ttl) == (None, None, None) and mode != "overwrite":
            answer = append.LineAppender(client, path).run(silent=invocation.json)
        else:
            converter = append.topic_converter(client, path) if appends else None
            rows = readers.InputFiles(files, file_format, converter, stdin_format="json" if appends else None)
            if appends and converter is None:
                append.check_types(path, rows.schema)
            with terminal.progress_bar(path, rows.total, wanted=not invocation.json) as show:
                receipt = client.put(
                    path, rows.batches(show), mode=mode, run=run, schema=rows.schema, partition=partition, ttl=ttl,
                    **how,
                )  # fmt: skip
            answer = receipt.to_json()
    terminal.print_transfer(path, {"path": path, **answer}, began, as_json=invocation.json)
