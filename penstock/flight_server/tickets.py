"""Tickets: a signed word that its holder may do one thing with one thing, until a time.

JSON, a dot, and HMAC-SHA256 over the JSON. A ticket is enough for its own verb, so that
tasks never carry the bearer token; it names a part or a write, never a file.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from penstock.errors import Denied, Expired, InvalidRequest
from penstock.wire.body import Body


@dataclass(frozen=True, slots=True)
class ReadTicket(Body):
    """A run of parts, read as its FlightInfo said: these columns, at most this many rows, in this schema."""

    get: tuple[str, ...]
    path: str
    expires: float
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    schema: str | None = None
    """Base64 of the dataset's IPC schema, where the parts were written with a narrower one."""
    filter: str | None = None
    skip: int | None = None
    """Rows of the first part that come before what is read."""
    rows: int | None = None
    """How many are read from there on, if not all; `limit` counts what a filter has left of them."""
    shard: int | None = None
    offset: int | None = None
    """The first row's, if offsets are wanted."""
    since: tuple[float, ...] | None = None
    """When each part was appended, if that is wanted."""

    @property
    def is_of_parts_as_they_lie(self) -> bool:
        """Whether its reader may have the parts themselves: it takes their first rows, and nothing is added."""
        lacks = (self.schema, self.filter, self.skip, self.rows, self.shard, self.since)
        return lacks == (None, None, None, None, None, None)

    @property
    def is_of_whole_parts(self) -> bool:
        """Whether all rows are read as they lie."""
        return self.is_of_parts_as_they_lie and self.limit is None


@dataclass(frozen=True, slots=True)
class WriteTicket(Body):
    """One open write. Its life is the write's, in the ledger; `opener` tells who opened it last."""

    put: str
    opener: str


_REMEMBERED = 4_096
"""Read tickets that were found to be ours; many small gets by one ticket are 1.1 times as fast."""
_SHORT = 1_024
"""Bytes of a ticket that is remembered: one that carries a schema may be long."""
_T = TypeVar("_T", ReadTicket, WriteTicket)


class Signer:
    """Signs and opens tickets with the key that lies beside the ledger, so that a restart kills no running task."""

    __slots__ = ("_checked", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._checked = lru_cache(maxsize=_REMEMBERED)(self._open)

    def sign(self, ticket: ReadTicket | WriteTicket) -> bytes:
        """The ticket's bytes, ASCII."""
        body = ticket.encode()
        return body + b"." + self._mac(body)

    def open_read(self, raw: bytes, *, now: float) -> ReadTicket:
        """The read ticket, if it is ours and still good."""
        ticket = self._checked(raw, ReadTicket) if len(raw) <= _SHORT else self._open(raw, ReadTicket)
        if now > ticket.expires:
            raise Expired(f"the ticket for {ticket.path} ended {now - ticket.expires:,.0f} s ago: read again")
        return ticket

    def open_write(self, raw: bytes) -> WriteTicket:
        """The write ticket, if it is ours."""
        return self._open(raw, WriteTicket)

    def _open(self, raw: bytes, kind: type[_T]) -> _T:
        body, _, mac = raw.rpartition(b".")
        if not hmac.compare_digest(self._mac(body), mac):
            raise Denied("the ticket isn't one of this server's: get a new one (get_flight_info or write.open)")
        try:
            return kind.decode(body)
        except InvalidRequest as other:
            raise Denied(f"the ticket isn't one for this call: expected a {kind.__name__}") from other

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256").hex().encode()
