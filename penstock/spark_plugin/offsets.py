"""A place in a topic as Spark keeps it, and how a query is told where to begin and how much to take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from penstock.client.client import Client
from penstock.errors import InvalidRequest

VERSION = 1
MAX_DELAY = 900.0
"""Seconds after which a batch has fewer rows than it was to wait for."""


@dataclass(frozen=True, slots=True)
class Offset:
    """What Spark keeps in its checkpoint: the next row of each shard, of which journal, and who reads."""

    journal: str
    epoch: int
    consumer: str
    initial: dict[str, int]
    shards: dict[str, int]
    v: int = VERSION

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Offset:
        """An offset as it comes from the checkpoint."""
        if found.get("v") != VERSION:
            raise InvalidRequest(
                f"the checkpoint has an offset of version {found.get('v')!r}, this penstock reads {VERSION}: "
                "take a new checkpoint, and startingOffsets"
            )
        return cls(**found)

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a batch has."""

    starting: str = "earliest"
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay: float = MAX_DELAY
    fail_on_loss: bool = True


def check_start(path: str, at: Mapping[str, Any]) -> None:
    """Refuse a start that the topic hasn't come to: the query would wait for it, and nobody would know for what."""
    for shard, offset in at["start"].items():
        if not at["first"][shard] <= offset <= at["next"][shard]:
            raise InvalidRequest(
                f"startingOffsets: shard {shard} of {path} has the offsets {at['first'][shard]} to "
                f"{at['next'][shard]}, asked for {offset}"
            )


def a_range(client: Client, given: Mapping[str, str]) -> dict[str, Any]:
    """What a batch read is told of a topic's range, as `Client.info` takes it; nothing if nothing is said."""
    path, start, end = given["path"], given.get("startingoffsets"), given.get("endingoffsets")
    if start is None and end is None:
        return {}

    def ask(asked: Mapping[str, Any]) -> dict[str, Any]:
        return client.call("consumer.offsets", {"path": path, **asked})

    at = ask(starting(start or "earliest"))
    check_start(path, at)
    until = at["next"]
    if end == "earliest":
        raise InvalidRequest("endingOffsets='earliest': nothing comes before that; expected latest, a time or offsets")
    if end not in (None, "latest"):
        asked = starting(end, "endingOffsets")
        named = asked.get("start", until)
        until |= {shard: offset for shard, offset in ask(asked)["start"].items() if shard in named}
    return {"start": _by_number(at["start"]), "end": _by_number(until), "journal": at["journal"]}


def _by_number(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(shard): offset for shard, offset in offsets.items()}


def starting(text: str, option: str = "startingOffsets") -> dict[str, Any]:
    """What `startingOffsets` says, as the server is asked for it: earliest, latest, a time, or {"0": 5}."""
    if text == "earliest":
        return {}
    if text == "latest":
        return {"since": 1e12}
    try:
        if text.startswith("{"):
            found = json.loads(text)
            if all(type(offset) is int for offset in found.values()):
                return {"start": found}
        return {"since": datetime.fromisoformat(text).timestamp()}
    except ValueError:
        raise InvalidRequest(
            f"{option}={text[:80]!r}: expected earliest, latest, a time such as 2026-11-18T20:00:00Z, or "
            'offsets by shard such as {"0": 500}'
        ) from None


def gaps(start: Mapping[str, int], first: Mapping[str, int]) -> dict[str, int]:
    """How many rows before a start are gone, shard by shard."""
    return {shard: first[shard] - offset for shard, offset in start.items() if offset < first[shard]}
