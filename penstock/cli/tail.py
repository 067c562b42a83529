"""`get -f`: a topic's rows as they come, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pyarrow as pa

from penstock.cli import places, tables, writing
from penstock.cli.ending import ASKED_TO_END, heeding
from penstock.cli.session import Session
from penstock.errors import InvalidRequest
from penstock.following import Follower
from penstock.projection import first_rows

PATIENCE = 600.0
"""Seconds for which a server that is away is waited for."""


def follow(
    session: Session, path: str, asked: Mapping[str, Any], place: tuple[str | None, str | None, str | None], *,
    kind: str, rows: int | None, file: str | None,
) -> None:  # fmt: skip
    """What comes from a place on (--start, --end, --since), with the columns and the filter that were asked for."""
    start, end, since = place
    if end is not None:
        raise InvalidRequest("-f has no --end: -n N ends it after N rows, and without -f --end is where to end")
    places.check(path, "-f is")
    began = time.monotonic()
    with session.connect() as client:  # who is looked for at the first moment isn't waited for
        schema = client.info(path, columns=asked["columns"], limit=0).schema
    if kind != "json":
        asked = {**asked, "columns": schema.names}
    with session.connect(retry_for=PATIENCE) as client:
        follower = client.follow(path, start=places.begin(start, since), **asked)
        _say(path, follower)
        found = _run(path, follower, _nullable(schema), kind=kind, rows=rows, file=file)
    if file is not None:
        tables.moved(session.json, file, {**found, "file": file}, began)


def _run(
    path: str, follower: Follower, schema: pa.Schema, *, kind: str, rows: int | None, file: str | None
) -> dict[str, Any]:
    """Write what comes to stdout at once, or to a file that is whole when it ends; how much it was.

    The end is Ctrl-C, SIGTERM, or so many rows. A second Ctrl-C waits for nothing.
    """
    taken = size = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal taken, size
        if rows == 0:
            return
        for batch in follower if rows is None else first_rows(follower, rows):
            taken, size = taken + batch.num_rows, size + batch.nbytes
            yield batch
            if file is None:
                sys.stdout.buffer.flush()  # whoever follows waits for it
            if rows is not None and taken >= rows:
                return

    def ended() -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        follower.stop()

    asked: list[bool] = []
    batches = counted() if kind == "json" else (_as(batch, schema) for batch in counted())
    with heeding(ASKED_TO_END, ended):
        if file is None:
            writing.write(kind, sys.stdout.buffer, schema, batches)
        else:
            with writing.whole_file(file) as sink:
                writing.write(kind, sink, schema, batches)
    return {"path": path, "rows": taken, "bytes": size}


def _nullable(schema: pa.Schema) -> pa.Schema:
    """A column may get nulls while the topic is followed."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _say(path: str, follower: Follower) -> None:
    """On a terminal: what is followed, and from where."""
    if tables.on_terminal(sys.stderr):
        at = ", ".join(f"{shard}:{offset}" for shard, offset in follower.position.items())
        click.secho(f"following {path} from {tables.cut(at, 80)}; Ctrl-C ends it", dim=True, err=True)
