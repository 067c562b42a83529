"""State: what the handlers of a running server share, and its table of kinds."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.gate import Call, Streams
from penstock.flight_server.journals import Journals
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.metrics import Metrics
from penstock.flight_server.queue_bound import QueueBound
from penstock.flight_server.tickets import Signer
from penstock.flight_server.tokens import Tokens
from penstock.flight_server.watch import Watch
from penstock.ledger.ledger import Ledger
from penstock.ledger.reserve import Reserve
from penstock.ledger.sweep import Sweeper
from penstock.store.payloads import Store
from penstock.wire.paths import Path, parse, parse_folder
from penstock.wire.rights import Right

if TYPE_CHECKING:
    from penstock.flight_server.kinds.kind import Kind


@dataclass(frozen=True, slots=True)
class State:
    """Made once, when the server listens; its fields refer to the same objects for the server's life."""

    config: ServerConfig
    url: str | None
    """The address that endpoints name; None if clients go on with the one that they have."""
    port: int
    """The one that it listens at."""
    ledger: Ledger
    store: Store
    tokens: Tokens
    signer: Signer
    metrics: Metrics
    journals: Journals
    streams: Streams
    watch: Watch
    queue_bound: QueueBound
    sweeper: Sweeper
    reserve: Reserve
    pool: Executor
    """Threads that store parts, for all puts together."""
    local: str | None
    """The name of the socket of the local door, where the system has such sockets."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    """The kinds by name, registered before the first call."""
    began: float = field(default_factory=time.monotonic)

    @property
    def limits(self) -> ServerLimits:
        """The limits of streams and puts."""
        return self.config.limits

    def locate(self, text: str, *, splits: bool = False) -> tuple[Kind, Path]:
        """Parse the path of one thing, with `splits` also that of a split; return the kind that answers for it."""
        path = parse(text, splits=splits)
        return self.kind_of(path), path

    def kind_of(self, path: Path) -> Kind:
        """Return the kind that answers for a path or a folder."""
        kind = self.kinds.get(path.kind)
        if kind is None:
            names = " or ".join(f"{name}/" for name in self.kinds)
            raise InvalidRequest(f"path {str(path)[:80]!r}: expected one that begins with {names}")
        return kind

    def check(self, call: Call, right: Right, text: str) -> None:
        """Reject a caller who lacks a right at a path or a folder; of a split, at its dataset's."""
        if self.tokens.file is None:
            call.check_known()
            return
        path = parse_folder(text.partition("@")[0])
        call.check(right, self.kind_of(path).deciding(path))

    def totals(self) -> dict[str, int]:
        """Return the counts of the ledger and of every kind."""
        return {name: count for kind in self.kinds.values() for name, count in kind.totals().items()} | (
            self.ledger.totals()
        )

    def why_full(self) -> str | None:
        """Return why puts are refused for want of room; None where they aren't, or something may go for it."""
        may_make_room = self.config.evict is not None or self.ledger.keeps_deleted()
        return None if may_make_room else self.store.why_full()

    def ticket_expiry(self) -> float:
        """Return when a read ticket expires that is issued now."""
        return time.time() + self.config.ticket_life
