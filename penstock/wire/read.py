"""What a reader sends and is answered: commands for info and lists, lines of a listing, notes on endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.wire.body import Body
from penstock.wire.position import Position


@dataclass(frozen=True, slots=True)
class PayloadSchema(Body):
    """How a consumer, or a reader, makes columns of payloads."""

    format: str
    schema: str | None = None
    """Its columns, the IPC message of an Arrow schema in base64; None: those of `writer`, or the newest revision."""
    mode: str = "PERMISSIVE"
    payload: str = "data"
    """The topic's column that has the payloads."""
    writer: str | None = None
    """Of Avro and protobuf, the schema with which all payloads were written; None where each message names its own."""


@dataclass(frozen=True, slots=True)
class ReadCommand(Body):
    """A descriptor's command for get_flight_info: a path, some of its columns, some of its rows."""

    path: str
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    """The first so many rows; with a filter, at most so many from each endpoint."""
    part: int | None = None
    """Of a dataset, only this part, counted from 0."""
    filter: str | None = None
    """Only the rows for which this is true: `fare > 10 and city in ('Oslo', 'Bergen')`."""
    start: Position | None = None
    """Of a topic, the first offset of each shard, {"0": 5}; a shard that is not named begins with its oldest row."""
    end: Position | None = None
    """Of a topic, the first offset of each shard that is not read; by default the shard's end at this moment."""
    since: float | None = None
    """In place of `start`: rows appended at this time or later, in seconds since 1970. The rows of one put have one
    time."""
    journal: str | None = None
    """The id of the journal that the offsets belong to; refused if the topic has another one by now."""
    decoding: PayloadSchema | None = None
    """Of a topic, the columns that the server makes of Avro or protobuf, in place of `columns`."""
    shards: tuple[int, ...] | None = None
    """Of a topic, only these shards."""


@dataclass(frozen=True, slots=True)
class ListCommand(Body):
    """list_flights' criteria: everything below the path; with `folders`, only what lies directly in it."""

    path: str
    folders: bool = False


@dataclass(frozen=True, slots=True)
class Entry(Body):
    """A line of a listing, in a FlightInfo's app_metadata."""

    path: str
    kind: str
    """dataset, topic, write or folder."""
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    changed: float | None = None
    state: str | None = None
    local: str | None = None
    """The abstract Unix socket where processes of this host get file descriptors for parts."""
    life: str | None = None
    """Of a topic that is read: the life of the server (see Position) that wrote the last of its rows."""


@dataclass(frozen=True, slots=True)
class EndpointNote(Body):
    """An endpoint's size before it is read, in FlightEndpoint.app_metadata. A filter is not counted."""

    rows: int
    bytes: int
    parts: int
    shard: int | None = None
    start: int | None = None
    """Of a topic, the offset of the first row."""
