"""Many payloads in one do_put: what each batch says of itself; and payloads by key, as actions ask for them.

The descriptor's path is the folder `store/`; the schema of the stream is that of all its payloads. A payload is one or
more consecutive batches, each with a note as its app_metadata, which says `more` on all but the payload's last. The
stream ends with the trailer of every put, and all its payloads become readable in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.wire.body import Body

MOST_PAYLOADS = 10_000
"""Payloads of one stream."""
MOST_KEYS = 1_000
"""Keys of one request: an answer has up to 43 kB for each."""


@dataclass(frozen=True, slots=True)
class PayloadNote(Body):
    """A batch's app_metadata. What a payload's first batch says counts for all of it; others say `more`, or nothing."""

    key: str | None = None
    """The key under which the payload is kept."""
    split_id: str | None = None
    """By default the key."""
    metadata: dict[str, Any] | None = None
    ttl: float | None = None
    """Seconds after which the payload is deleted."""
    queue: str | None = None
    """Of a put to a queue: the one that gets the message, by default the put's path."""
    message_id: str | None = None
    """Of a pushed message; those of a forward, and by default all, are named by the server."""
    lease: int | None = None
    """Of a put with `each`: which lease of `forward` the payload was made of, the first by default."""
    payload_key: str | None = None
    """The payload is stored under this key already, or there is none (''); the batch has no rows then."""
    adopt: bool | None = None
    """The payload of `payload_key` goes with the last message that names it, and not before."""
    timestamp: float | None = None
    """The message's, by default now."""
    more: bool | None = None
    """Whether the next batch belongs to this payload, too."""


@dataclass(frozen=True, slots=True)
class FindPayloads(Body):
    """payload.find: the payloads of these keys, at most 1,000."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundPayload(Body):
    """Where the bytes of one key are: in the answer, behind a ticket, or in a dataset (neither), read by its path."""

    key: str
    inline: str | None = None
    """An IPC stream in base64."""
    ticket: str | None = None
    """A read ticket, for do_get or the local socket, which is good for ten minutes."""
    rows: int | None = None
    """The rows behind the ticket."""


@dataclass(frozen=True, slots=True)
class FoundPayloads(Body):
    """The answer of payload.find: those that exist, in the order of the keys."""

    payloads: tuple[FoundPayload, ...]
    local: str | None = None
    """The abstract Unix socket where processes of this host get file descriptors for tickets."""


@dataclass(frozen=True, slots=True)
class ListPayloads(Body):
    """payload.keys: the keys of payloads that begin with a prefix, those behind `after` in their order."""

    prefix: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class PayloadKeys(Body):
    """The answer of payload.keys: an empty list is the end."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearPayloads(Body):
    """payload.clear: delete all payloads whose keys begin with a prefix; datasets stay."""

    prefix: str = ""


@dataclass(frozen=True, slots=True)
class ClearedPayloads(Body):
    """The answer of payload.clear."""

    payloads: int
