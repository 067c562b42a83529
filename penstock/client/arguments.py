"""Arguments of the client's calls: rejected by name, before anything is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Literal

from penstock.errors import InvalidRequest
from penstock.wire.actions import AFTER_ALL
from penstock.wire.position import Position

Start = Mapping[int, int] | datetime | Literal["earliest", "latest"]
"""Where to start in a topic: the first offset of each shard, a time at which rows were appended, or a word."""


def check_path(path: object) -> None:
    """Reject a path that is no text, such as a pathlib.Path."""
    if not isinstance(path, str):
        raise InvalidRequest(f"path={path!r:.80}: expected text such as 'store/demo/trips', a path at the server")


def check_read(path: object, columns: object, filter: object) -> None:
    """Reject a path, columns or a filter that are no text, such as Spark's own columns."""
    check_path(path)
    if isinstance(columns, str):
        raise InvalidRequest(f"columns={columns!r:.80}: expected a list of names: columns=[{columns!r:.80}]")
    names = isinstance(columns, Collection) and all(isinstance(name, str) for name in columns)
    if columns is not None and not names:
        raise InvalidRequest(f"columns={columns!r:.80}: expected a list of names, such as ['id', 'fare']")
    if filter is not None and not isinstance(filter, str):
        raise InvalidRequest(f"filter={filter!r:.80}: expected text such as \"fare > 10 and city = 'Oslo'\"")


def check_undecoded(columns: object) -> None:
    """Reject columns of a read that decodes: its schema names them."""
    if columns is not None:
        raise InvalidRequest(f"columns={columns!r:.80}: with decode the schema names the columns; leave them out")


def to_start(start: Start | None) -> tuple[Position | None, float | None]:
    """Return a start as a position or as a time."""
    if isinstance(start, datetime):
        return None, start.timestamp()
    if start == "latest":
        return None, AFTER_ALL
    return to_position({} if start == "earliest" else start, "start"), None


def to_position(offsets: object, argument: str) -> Position | None:
    """Return offsets by shard as a position; numpy's whole numbers are accepted, too."""
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        or_time = ", a time (datetime.datetime), 'earliest' or 'latest'" if argument == "start" else ""
        raise InvalidRequest(f"{argument}={offsets!r:.80}: expected offsets by shard, such as {{0: 500}}{or_time}")
    try:
        life = offsets.life if isinstance(offsets, Position) else None
        return Position({int(shard): offset.__index__() for shard, offset in offsets.items()}, life)
    except (TypeError, ValueError, AttributeError) as wrong:
        raise InvalidRequest(
            f"{argument}={offsets!r:.80}: expected a whole number for each shard: {{0: 500}}"
        ) from wrong
