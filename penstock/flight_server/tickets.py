"""Tickets: signed permissions for one verb on one thing.

JSON, a dot, and HMAC-SHA256 over the JSON. A ticket suffices for its own verb, so that
tasks never carry the bearer token; it names parts or a write, never a file.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from penstock.errors import Denied, Expired, InvalidRequest
from penstock.flight_server.tokens import Tokens
from penstock.store.medium import OpenPart
from penstock.store.payloads import Store
from penstock.wire.body import MAX_BODY, Body
from penstock.wire.read import PayloadSchema


@dataclass(frozen=True, slots=True)
class ReadTicket(Body):
    """Rows of a run of parts, as the FlightInfo described them."""

    get: tuple[str, ...]
    """The parts."""
    path: str
    expires: float
    columns: tuple[str, ...] | None = None
    skip: int | None = None
    """Rows of the first part before the first one that is read."""
    rows: int | None = None
    """How many rows are read from there on; None for all."""
    filter: str | None = None
    limit: int | None = None
    """How many rows that the filter keeps are sent at most."""
    schema: str | None = None
    """The schema of the path, where the parts were written with a narrower one."""
    shard: int | None = None
    """For the column `_shard`."""
    offset: int | None = None
    """The first row's, for the column `_offset`."""
    since: tuple[float, ...] | None = None
    """When each part was appended, for the column `_time`."""
    inline: str | None = None
    """A small payload in place of parts: its IPC stream in base64."""

    decoding: PayloadSchema | None = None
    """How the server decodes the rows; its columns are sent, those of the ticket are read."""
    journal: str | None = None
    """The journal that has the revisions of the rows' schemas."""
    written: tuple[int, ...] | None = None
    """The rows of each part, as the ledger has them. A ticket of before format 6 lacks them."""
    digests: tuple[str, ...] | None = None
    """The digest of each part; empty of one that was written before format 6."""
    by: str | None = None
    """The id of the caller who got the ticket, whose rights decide as long as it is used; None with all rights."""
    through: str | None = None
    """The queue that gave the ticket to a worker: the right to read is needed there, not at `path`."""

    def open_parts(self, store: Store) -> Iterator[OpenPart]:
        """Open the parts one by one; Lost if one is another than was written."""
        path = self.path.partition("@")[0]  # of a split: the dataset's
        for number, name in enumerate(self.get):
            yield store.open(
                name, path=path, rows=self.written[number] if self.written else None,
                digest=self.digests[number] or None if self.digests else None,
            )  # fmt: skip

    @property
    def names_parts_as_stored(self) -> bool:
        """Whether its reader may have the parts themselves: it reads some of their rows, and nothing is added."""
        changes = (self.filter, self.schema, self.shard, self.since, self.decoding)
        return all(change is None for change in changes)


@dataclass(frozen=True, slots=True)
class WriteTicket(Body):
    """One open write. The ledger knows whether it is still open; `opener` is the id of its last opener."""

    put: str
    opener: str
    path: str = ""
    """Where the write leads to."""
    by: str | None = None
    """The id of the caller who has opened it; None with all rights."""


_CARRIED = re.compile(rb'"ticket"\s*:\s*("(?:[ !#-\[\]-~]|\\["\\/]|\\u00[0-9A-Fa-f]{2}){1,1024}")')
"""A write ticket in a JSON body: ASCII, some of it escaped."""
_REMEMBERED = 4_096
"""Read tickets whose signature was checked; many small gets with one ticket are 1.1 times as fast."""
_SHORT = 1_024
"""Bytes of a ticket that is remembered: one that carries a schema may be long."""
_T = TypeVar("_T", ReadTicket, WriteTicket)


class Signer:
    """Signs and opens tickets with the key that lies beside the ledger, so that tickets outlive a restart.

    A ticket is opened only while its caller may do what it is for.
    """

    __slots__ = ("_checked", "_key", "_tokens")

    def __init__(self, key: bytes, tokens: Tokens) -> None:
        self._key = key
        self._tokens = tokens
        self._checked = lru_cache(maxsize=_REMEMBERED)(self._open)

    def sign(self, ticket: ReadTicket | WriteTicket) -> bytes:
        """Return the ticket's bytes, ASCII."""
        body = ticket.encode()
        return body + b"." + self._mac(body)

    def open_read(self, raw: bytes, *, now: float) -> ReadTicket:
        """Return a read ticket; reject one of another server, or past its time."""
        ticket = self._checked(raw, ReadTicket) if len(raw) <= _SHORT else self._open(raw, ReadTicket)
        if now > ticket.expires:
            raise Expired(f"the ticket for {ticket.path} expired {now - ticket.expires:,.0f} s ago: read again")
        self._tokens.check_ticket(ticket.by, "read", ticket.through or ticket.path)
        return ticket

    def open_write(self, raw: bytes) -> WriteTicket:
        """Return a write ticket; reject one of another server."""
        ticket = self._open(raw, WriteTicket)
        self._tokens.check_ticket(ticket.by, "write", ticket.path)
        return ticket

    def open_carried(self, body: bytes) -> WriteTicket | None:
        """Return the write ticket that a JSON body carries, without parsing the body; None if there is none."""
        carried = _CARRIED.search(body, 0, MAX_BODY)
        return self.open_write(json.loads(carried[1]).encode()) if carried else None

    def _open(self, raw: bytes, kind: type[_T]) -> _T:
        body, _, mac = raw.rpartition(b".")
        if not hmac.compare_digest(self._mac(body), mac):
            raise Denied("the ticket is not one of this server's: get a new one (get_flight_info or write.open)")
        try:
            return kind.decode(body)
        except InvalidRequest as other:
            raise Denied(f"the ticket is not one for this call: expected a {kind.__name__}") from other

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256").hex().encode()
