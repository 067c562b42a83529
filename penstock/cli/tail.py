"""`get` of a topic: a range that people put into words, or the rows as they come, until Ctrl-C."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click
import pyarrow as pa

from penstock.cli import terminal, writers
from penstock.cli.invocation import Invocation
from penstock.client.arguments import Start
from penstock.client.client import Client
from penstock.client.follow import Follower
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import InvalidRequest
from penstock.rows.fitting import fit_batches
from penstock.rows.slices import first_rows
from penstock.text import cut, parse_duration

_TIMES = "a time (2026-11-18T20:00, here if it has no zone), or how long ago (90s, 10m, 12h, 2d)"
Bound = Mapping[int, int] | datetime | None
"""Offsets by shard (without one a shard's oldest row), a time, or the end (None)."""


class Range(NamedTuple):
    """The options --start, --end and --since."""

    start: str | None
    end: str | None
    since: str | None

    def begin(self) -> Bound:
        """Return where the range begins."""
        if self.start is not None and self.since is not None:
            raise InvalidRequest("--start and --since both say where to begin: give one")
        text, option = (self.start, "--start") if self.since is None else (self.since, "--since")
        return None if text is None else parse_bound(text, option)

    def arguments(self, client: Client, path: str) -> dict[str, Any]:
        """Return what `Client.get` and `Client.info` take."""
        arguments: dict[str, Any] = {}
        if (self.start, self.since) != (None, None):
            begin = self.begin()
            arguments["start"] = client.follow(path).position if begin is None else begin
        if self.end is not None:
            end = parse_bound(self.end, "--end")  # a shard without an offset ends at its end
            arguments["end"] = end if isinstance(end, Mapping) and end else client.follow(path, start=end).position
        return arguments


def parse_bound(text: str, option: str) -> Bound:
    """Parse --start or --end, or --since, which takes times only."""
    text, ago = text.strip(), parse_duration(text)
    if option != "--since":
        if text in ("earliest", "latest"):
            return {} if text == "earliest" else None
        if re.fullmatch(r"\d+:\d+(\s*,\s*\d+:\d+)*", text):
            pairs = [pair.split(":") for pair in text.split(",")]
            offsets = {int(shard): int(offset) for shard, offset in pairs}
            if len(offsets) < len(pairs):
                raise InvalidRequest(f"{option} {text}: a shard is there twice")
            return offsets
        if text.isdecimal():
            raise InvalidRequest(
                f"{option} {text}: expected an offset with its shard (0:{text}), or how long ago ({text}s)"
            )
    try:
        return datetime.fromisoformat(text) if ago is None else datetime.now(UTC) - timedelta(seconds=ago)
    except (ValueError, OverflowError) as error:
        expected = _TIMES if option == "--since" else f"earliest, latest, offsets by shard (0:500,1:70), {_TIMES}"
        raise InvalidRequest(f"{option} {text[:80]!r}: expected {expected}") from error


def follow(
    invocation: Invocation, path: str, selection: Mapping[str, Any], span: Range, *,
    file_format: str, rows: int | None, file: str | None, group: str | None,
) -> None:  # fmt: skip
    """Write the rows as they come, with the selected columns and the filter; as a member of a group those of its share,
    which are committed when they are written: of a file when all of it is.
    """
    if span.end is not None:
        raise InvalidRequest("-f takes no --end: -n N ends it after N rows; a range is read without -f")
    began = time.monotonic()
    with invocation.connect() as client:  # a server that is away now isn't waited for
        schema = client.info(path, columns=selection["columns"], limit=0).schema
    if file_format != "json":
        selection = {**selection, "columns": schema.names}
    with invocation.connect(retry_for=LONG_RETRY_FOR) as client, contextlib.ExitStack() as block:
        begin = span.begin()
        if group is None:
            follower = client.follow(path, start=begin, **selection)
            position = cut(", ".join(f"{shard}:{offset}" for shard, offset in follower.position.items()), 80)
            batches = _flushed(follower if rows is None else first_rows(follower, rows))
        else:
            where: Start | None = begin if begin is not None or span.start is None else "latest"
            is_text = file is None and file_format in ("json", "csv")
            follower = consumer = client.consume(path, group=group, start=where, auto_commit=is_text, **selection)
            block.enter_context(consumer)
            position = f"where group {group} is"
            batches = _flushed(follower if rows is None else _first_batches(follower, rows))
        if terminal.is_terminal(sys.stderr):
            click.secho(f"following {path} from {position}; Ctrl-C ends it", dim=True, err=True)
        if file_format != "json":
            batches = fit_batches(batches, schema, reading=True)  # structs may get more fields
        with terminal.on_signal(follower.stop, signal.SIGINT, signal.SIGTERM):
            size = writers.save(file, file_format, schema, batches)
        if group is not None:
            consumer.commit()
    if file is not None:
        terminal.print_transfer(file, {"path": path, "file": file, **size}, began, as_json=invocation.json)


def _flushed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Flush stdout after each batch, as somebody may look on, and a group's rows are committed then."""
    for batch in batches:
        yield batch
        sys.stdout.buffer.flush()


def _first_batches(follower: Follower, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield whole batches until there are so many rows: a group commits nothing less."""
    while rows > 0 and (batch := next(follower, None)) is not None:
        yield batch
        rows -= batch.num_rows
