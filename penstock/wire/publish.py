"""What a publisher asks the server and tells it: the parts of writes to publish/…, and which rows Pub/Sub has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.wire.body import Body

Compression = Literal["gzip"]


SchemaEncoding = Literal["avro", "protobuf"]


@dataclass(frozen=True, slots=True)
class TopicSchema(Body):
    """The schema of a topic of Pub/Sub's."""

    name: str
    """With its revision: projects/p/schemas/s@revision"""
    format: str
    definition: str
    json: bool
    """Whether payloads are its JSON, in place of bytes."""


@dataclass(frozen=True, slots=True)
class PublishOptions(Body):
    """How the rows of a write are published."""

    id_attribute: bool = False
    """Whether each message has the attribute `penstock-id`, which is the same however often it is published."""
    compression: Compression | None = None
    """Of the requests to Pub/Sub."""
    encoding: SchemaEncoding | None = None
    """What the server makes of rows, by the topic's own schema; None: they are messages."""
    schema: TopicSchema | None = None
    """The topic's schema at the write's beginning; the server fills it in."""


@dataclass(frozen=True, slots=True)
class AskParts(Body):
    """publish.next: the parts to publish next; waits a few seconds for them."""

    path: str
    write: str | None = None
    """The write that the publisher is at."""
    after: int | None = None
    """The last of its parts that the publisher has."""


@dataclass(frozen=True, slots=True)
class StagedPart(Body):
    """A part whose rows aren't all published."""

    number: int
    ticket: str
    rows: int
    published: tuple[tuple[int, ...], ...]
    """The first and the end of the positions that Pub/Sub has, in the order of the rows by their ordering key."""


@dataclass(frozen=True, slots=True)
class PartsToPublish(Body):
    """The answer of publish.next: parts of one write, in order; none if there are none at present."""

    write: str | None = None
    options: PublishOptions | None = None
    parts: tuple[StagedPart, ...] = ()
    local: str | None = None
    """The socket at which readers on the server's host get parts."""


@dataclass(frozen=True, slots=True)
class NotePublished(Body):
    """publish.note: Pub/Sub has these rows; or why it won't take others."""

    write: str
    published: tuple[tuple[int, ...], ...]
    """Part, first and end of positions."""
    code: str | None = None
    text: str | None = None
    bytes: int = 0
    """Of their requests."""
    retries: int = 0
    """Requests that were sent again since the last note."""


@dataclass(frozen=True, slots=True)
class PublishFigures(Body):
    """How a topic is published to. What is counted, is since the server's start."""

    writes: int = 0
    """Of which a finish has named what is published."""
    failed: int = 0
    """Of these, those that Pub/Sub has refused: they wait for a repeat of their runs."""
    waiting_rows: int = 0
    waiting_bytes: int = 0
    """Of their parts that aren't published whole."""
    oldest_seconds: float = 0.0
    """Since the first of them was opened."""
    published_rows: int = 0
    published_bytes: int = 0
    requests: int = 0
    retries: int = 0
    failures: int = 0
    """Writes that Pub/Sub has refused."""
