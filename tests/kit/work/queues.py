"""A ledger's queues in a folder, and what tests push to them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from penstock.ledger.ledger import Ledger
from penstock.queue.destinations import DESTINATIONS, TABLES
from penstock.queue.work import work_queues
from penstock.queue.work.lease_queue import Claim, LeaseQueue, NewMessage
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.store.database import Database
from penstock.wire.message import QueueMessage
from penstock.wire.queue import LeaseKey, LeaseOutcome
from tests.kit.clock import Clock

IN, OUT, LAST = "queue/j/in", "queue/j/out", "queue/j/last"
LEASE = 30.0


class LedgerQueues:
    """A ledger and its queues, opened as a process that has just started does; the clock outlives it."""

    def __init__(self, folder: Path, clock: Clock, monotonic: Clock | None = None) -> None:
        self.database = Database(folder / "ledger.db", *TABLES)
        steady = (monotonic or clock).now
        self.ledger = Ledger(self.database, DESTINATIONS, work_queues, now=clock.now, monotonic=steady)
        self.queue = LedgerQueue(self.ledger, now=steady)

    def close(self) -> None:
        self.database.close()


def new(path: str, *names: str, size: int = 0, key: str = "") -> list[NewMessage]:
    """Return messages for a queue."""
    return [NewMessage(path, QueueMessage(name, name, key, {"n": name}, 1.5), size) for name in names]


_CLAIMS = itertools.count()


def claim(queue: LeaseQueue, path: str, most: int = 1, to: Sequence[str] = ()) -> Claim:
    """Claim with an id that nobody has used."""
    return queue.claim(path, f"claim-{next(_CLAIMS)}", worker="host:1", most=most, to=to)


def claimed(queue: LeaseQueue, path: str, most: int = 1, to: Sequence[str] = ()) -> list[LeaseKey]:
    """Return the keys of newly claimed messages."""
    return [lease.key for lease in claim(queue, path, most, to).leases]


def names(claim: Claim) -> list[str]:
    return [lease.message.message_id for lease in claim.leases]


def results(outcomes: Sequence[LeaseOutcome]) -> list[str | None]:
    """Return the state or the error's code of each outcome."""
    return [outcome.code or outcome.state for outcome in outcomes]
