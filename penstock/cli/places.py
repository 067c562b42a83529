"""Where in a topic, as people say it: earliest, latest, 10m, 2026-11-18T20:00, 0:500,1:70."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.client import Client

_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days"}
_EXPECTED = (
    "expected earliest, latest, a time (2026-11-18T20:00, here if it has no zone), how long ago (90s, 10m, 12h, 2d), "
    "or offsets by shard (0:500,1:70)"
)
Where = Mapping[int, int] | datetime | None
"""Offsets (of shards that aren't named the oldest), a time, or the end (None)."""


def parse(text: str, option: str) -> Where:
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
    return moment(text, option)


def moment(text: str, option: str) -> datetime:
    """A time, or how long ago."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)", text.strip())
    try:
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        return datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as wrong:
        raise InvalidRequest(f"{option} {text[:80]!r}: {_EXPECTED}") from wrong


def wanted(client: Client, path: str, start: str | None, end: str | None, since: str | None) -> dict[str, Any]:
    """What `get` and `info` take of these options, if any was given."""
    if (start, end, since) == (None, None, None):
        return {}
    check(path, "--start, --end and --since are")
    found: dict[str, Any] = {"start": begin(start, since)}
    if found["start"] is None and (start, since) != (None, None):
        found["start"] = client.follow(path).position
    if end is not None:
        last = parse(end, "--end")  # offsets as they are: a shard that isn't named ends where it ends
        found["end"] = last if isinstance(last, Mapping) and last else client.follow(path, start=last).position
    return found


def begin(start: str | None, since: str | None) -> Where:
    """--start or --since."""
    if start is not None and since is not None:
        raise InvalidRequest("--start and --since both say where to begin: give one")
    if since is not None:
        return moment(since, "--since")
    return None if start is None else parse(start, "--start")


def check(path: str, what: str) -> None:
    """Only a topic has places."""
    if not path.startswith("topic/"):
        raise InvalidRequest(f"{path}: {what} for topic/…, whose rows have offsets")
