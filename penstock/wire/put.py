"""What a put says and is answered: its command, its trailer, its receipt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.wire.body import Body

Mode = Literal["error", "append", "overwrite"]
State = Literal["open", "finished", "aborted", "expired"]


@dataclass(frozen=True, slots=True)
class PutCommand(Body):
    """A descriptor's command for do_put: one attempt of an open write (`ticket`), or a write of its own (`path`)."""

    attempt: str
    ticket: str | None = None
    path: str | None = None
    mode: Mode | None = None
    run: str | None = None
    ready: bool | None = None
    """Wait for the server's word `{"v":1}`, before the first batch, that it takes this put."""


@dataclass(frozen=True, slots=True)
class Trailer(Body):
    """The sender's word that its stream is whole. (A checksum over buffers differs for a slice at the two ends.)"""

    batches: int
    rows: int


@dataclass(frozen=True, slots=True)
class Receipt(Body):
    """The server's word that an attempt is whole and durable. The list of receipts is what a write commits."""

    write: str
    attempt: str
    rows: int
    bytes: int
    parts: int
    digest: str
