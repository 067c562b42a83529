"""`get` of a topic: a range, said as people say it, or its rows as they come, until Ctrl-C."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pyarrow as pa

from penstock.cli import tables, writing
from penstock.cli.session import ASKED_TO_END, Session, heeding
from penstock.client.client import Client
from penstock.client.follow import Follower
from penstock.errors import InvalidRequest
from penstock.rows.slices import first_rows
from penstock.text import parse_duration

_PATIENCE = 600.0  # seconds for which a server that is away is waited for
_EXPECTED = (
    "expected earliest, latest, a time (2026-11-18T20:00, here if it has no zone), how long ago (90s, 10m, 12h, 2d), "
    "or offsets by shard (0:500,1:70)"
)
Where = Mapping[int, int] | datetime | None
"""Offsets (of shards that aren't named the oldest), a time, or the end (None)."""
Place = tuple[str | None, str | None, str | None]
"""--start, --end, --since."""


def wanted(client: Client, path: str, place: Place) -> dict[str, Any]:
    """What `get` and `info` take of these options, if any was given."""
    start, end, since = place
    if place == (None, None, None):
        return {}
    _check(path, "--start, --end and --since are")
    found: dict[str, Any] = {"start": _begin(start, since)}
    if found["start"] is None and (start, since) != (None, None):
        found["start"] = client.follow(path).position
    if end is not None:
        last = _where(end, "--end")  # offsets as they are: a shard that isn't named ends where it ends
        found["end"] = last if isinstance(last, Mapping) and last else client.follow(path, start=last).position
    return found


def follow(
    session: Session, path: str, asked: Mapping[str, Any], place: Place, *,
    kind: str, rows: int | None, file: str | None,
) -> None:  # fmt: skip
    """What comes from a place on (--start, --end, --since), with the columns and the filter that were asked for."""
    start, end, since = place
    if end is not None:
        raise InvalidRequest("-f has no --end: -n N ends it after N rows, and without -f --end is where to end")
    _check(path, "-f is")
    began = time.monotonic()
    with session.connect() as client:  # who is looked for at the first moment isn't waited for
        found = client.info(path, columns=asked["columns"], limit=0).schema
    schema = pa.schema([field.with_nullable(True) for field in found])  # nulls may come while it is followed
    if kind != "json":
        asked = {**asked, "columns": schema.names}
    with session.connect(retry_for=_PATIENCE) as client:
        follower = client.follow(path, start=_begin(start, since), **asked)
        if tables.on_terminal(sys.stderr):
            at = ", ".join(f"{shard}:{offset}" for shard, offset in follower.position.items())
            click.secho(f"following {path} from {tables.cut(at, 80)}; Ctrl-C ends it", dim=True, err=True)
        batches = _batches(follower, rows, at_once=file is None)
        if kind != "json":
            batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
        with heeding(ASKED_TO_END, follower.stop):
            done = writing.save(file, kind, schema, batches)
    if file is not None:
        tables.moved(session.json, file, {"path": path, "file": file, **done}, began)


def _batches(follower: Follower, rows: int | None, *, at_once: bool) -> Iterator[pa.RecordBatch]:
    """What comes, up to so many rows; what is written of it is flushed at once for who looks on."""
    taken = 0
    for batch in () if rows == 0 else follower if rows is None else first_rows(follower, rows):
        yield batch
        if at_once:
            sys.stdout.buffer.flush()
        taken += batch.num_rows
        if taken == rows:
            return


# --- where in a topic -----------------------------------------------------------------------


def _begin(start: str | None, since: str | None) -> Where:
    """--start or --since."""
    if start is not None and since is not None:
        raise InvalidRequest("--start and --since both say where to begin: give one")
    if since is not None:
        return _moment(since, "--since")
    return None if start is None else _where(start, "--start")


def _check(path: str, what: str) -> None:
    """Only a topic has places."""
    if not path.startswith("topic/"):
        raise InvalidRequest(f"{path}: {what} for topic/…, whose rows have offsets")


def _where(text: str, option: str) -> Where:
    """What a person said."""
    text = text.strip()
    if text == "earliest":
        return {}
    if text == "latest":
        return None
    if re.fullmatch(r"\d+:\d+(\s*,\s*\d+:\d+)*", text):
        pairs = [pair.split(":") for pair in text.split(",")]
        if len({int(shard) for shard, _ in pairs}) < len(pairs):
            raise InvalidRequest(f"{option} {text}: a shard is there twice")
        return {int(shard): int(offset) for shard, offset in pairs}
    if text.isdecimal():
        raise InvalidRequest(f"{option} {text}: an offset of which shard? 0:{text}; or {text}s, so many seconds ago")
    return _moment(text, option)


def _moment(text: str, option: str) -> datetime:
    """A time, or how long ago."""
    ago = parse_duration(text)
    try:
        return datetime.fromisoformat(text.strip()) if ago is None else datetime.now(UTC) - timedelta(seconds=ago)
    except (ValueError, OverflowError) as wrong:
        raise InvalidRequest(f"{option} {text[:80]!r}: {_EXPECTED}") from wrong
