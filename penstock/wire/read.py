"""What a reader sends and is told: commands for info and lists, lines of a listing, notes of endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.wire.body import Body
from penstock.wire.position import Position


@dataclass(frozen=True, slots=True)
class ReadCommand(Body):
    """A descriptor's command for get_flight_info: a dataset, some of its columns, some of its rows."""

    path: str
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    """The first so many rows; with a filter, at most so many from each endpoint."""
    part: int | None = None
    """Only this part, counted from 0."""
    filter: str | None = None
    """Only the rows for which this is true: `fare > 10 and city in ('Oslo', 'Bergen')`."""
    start: Position | None = None
    """A topic's: the first offset of each shard, {"0": 5}; shards that aren't named begin with their oldest row."""
    end: Position | None = None
    """The first offset of each shard that isn't wanted; by default its end as it is now."""
    since: float | None = None
    """In place of `start`: rows that were appended at this time or later, in seconds since 1970, as parts have it."""
    journal: str | None = None
    """Which journal the offsets are of; another one is refused."""


@dataclass(frozen=True, slots=True)
class ListCommand(Body):
    """list_flights' criteria. Without `folders` everything below the path, else what stands directly in it."""

    path: str
    folders: bool = False


@dataclass(frozen=True, slots=True)
class Entry(Body):
    """A line of a listing, in a FlightInfo's app_metadata."""

    path: str
    kind: Literal["dataset", "topic", "folder", "write"]
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    changed: float | None = None
    state: str | None = None
    local: str | None = None
    """The abstract Unix socket that hands out descriptors to this host."""


@dataclass(frozen=True, slots=True)
class EndpointNote(Body):
    """What a reader may know of an endpoint before it fetches it: FlightEndpoint.app_metadata. A filter takes less."""

    rows: int
    bytes: int
    parts: int
    shard: int | None = None
    start: int | None = None
    """Of a topic: where its rows lie, the first one's offset."""
