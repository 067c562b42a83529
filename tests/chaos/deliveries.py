"""What became of each lease, by the notes of the workers, and why a message was delivered again."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

Event = Mapping[str, Any]


class Fault(NamedTuple):
    """A fault, and how long it lasted."""

    kind: str
    began: float
    ended: float


@dataclass
class Lease:
    """A claim of a message, and how it ended."""

    queue: str
    message: str
    token: str
    worker: str
    tries: int
    began: float
    """Before the server began the lease."""
    claimed: float
    """After that."""
    extended: float = 0.0
    """Before the server extended it last."""
    slowest: float = 0.0
    """Seconds until a claim or an extension was answered: on a busy machine more than a third of a lease."""
    endings: dict[str, float] = field(default_factory=dict)
    """When the worker began to end it, by how."""
    outcomes: dict[str, str | None] = field(default_factory=dict)
    """The answers: by how, the code of an error or None."""
    error: str | None = None
    """The class of the error with which it was given back or dropped."""

    @property
    def is_done(self) -> bool:
        return any(self.outcomes.get(how, "") is None for how in ("ack", "forward"))

    @property
    def is_refused(self) -> bool:
        return any(self.outcomes.get(how) == "lease-lost" for how in ("ack", "forward"))


def order(lease: Lease, other: Lease) -> int:
    """Compare two leases of a message: an answer may come after that to a later claim, of the next try."""
    if max(lease.began, other.began) < min(lease.claimed, other.claimed):
        return lease.tries - other.tries
    return 1 if lease.claimed > other.claimed else -1


@dataclass
class Deliveries:
    """All leases of a run, and what fell on them."""

    leases: list[Lease]
    faults: Sequence[Fault]
    deaths: Mapping[str, float]
    """When workers were killed, at the earliest."""
    away: Mapping[str, Sequence[tuple[float, float]]]
    """When a worker was stopped, or had no core."""
    completions: list[tuple[str, float]]
    """The queues that workers were told to be complete, and when."""
    lease: float
    """Seconds of a lease."""

    def by_message(self) -> dict[tuple[str, str], list[Lease]]:
        """Return the leases of each message, in their order."""
        leases = defaultdict(list)
        for each in self.leases:
            leases[each.queue, each.message].append(each)
        return {message: sorted(some, key=cmp_to_key(order)) for message, some in leases.items()}

    def pairs(self) -> Iterator[tuple[Lease, Lease]]:
        """Return each lease of a message that was delivered again, with the next one."""
        for leases in self.by_message().values():
            yield from pairwise(leases)

    def cause(self, lease: Lease, following: Lease) -> str | None:
        """Return why a message was delivered again after this lease; None for no reason."""
        if "fail" in lease.endings or "drop" in lease.endings:
            return "an error"
        if "release" in lease.endings:
            return "given back"
        if self.deaths.get(lease.worker, math.inf) < following.claimed:
            return "its worker killed"
        since, until = max(lease.began, lease.extended), following.claimed
        if any(began < until and ended > since for began, ended in self.away.get(lease.worker, ())):
            return "its worker stopped"
        if self.fell(since, until):
            return "server or wire away"
        if lease.slowest > self.lease / 3:
            return "a slow answer"
        return None

    def fell(self, since: float, until: float) -> bool:
        """Whether a fault kept calls from their answers for a while."""
        return any(fault.began < until and fault.ended > since for fault in self.faults)

    def causes(self) -> Counter[str]:
        """Count the causes of what was delivered again."""
        return Counter(self.cause(*pair) or "no reason" for pair in self.pairs())

    def unanswered(self) -> Iterator[tuple[Lease, int]]:
        """Return the leases before which the message was claimed, and nobody got the answer; and how often."""
        for leases in self.by_message().values():
            tries = 0
            for each in leases:
                if each.tries > tries + 1:
                    yield each, each.tries - tries - 1
                tries = each.tries - ("release" in each.endings)


def read_deliveries(
    logs: Iterable[Path],
    faults: Sequence[Fault],
    deaths: Mapping[str, float],
    stops: Mapping[str, Sequence[tuple[float, float]]],
    seconds: float,
) -> Deliveries:
    """Read what workers noted."""
    leases: dict[str, Lease] = {}
    away = {worker: list(times) for worker, times in stops.items()}
    completions: list[tuple[str, float]] = []
    died = dict(deaths)
    events = [(log.stem, json.loads(line)) for log in logs for line in log.read_text().splitlines()]
    for worker, event in sorted(events, key=lambda each: each[1]["event"] != "claimed"):  # a driver ends its workers'
        match event["event"]:
            case "dying":
                died[worker] = event["began"]
            case "late":
                away.setdefault(worker, []).append((event["began"], event["ended"]))
            case "complete":
                completions.append((event["queue"], event["ended"]))
            case _:
                _note(leases, worker, event)
    return Deliveries(list(leases.values()), faults, died, away, completions, seconds)


def _note(leases: dict[str, Lease], worker: str, event: Event) -> None:
    """Add what a worker noted to the leases, by token."""
    token, began = event.get("token", ""), event["began"]
    match event["event"]:
        case "claimed":
            about = (event["queue"], event["id"], token, worker, event["tries"])
            leases[token] = Lease(*about, began, event["ended"], slowest=event["ended"] - began)
        case "extended":
            for each in event["tokens"]:
                leases[each].extended = began
                leases[each].slowest = max(leases[each].slowest, event["ended"] - began)
        case "ending":
            leases[token].endings.setdefault(event["how"], began)
            leases[token].error = event.get("error", leases[token].error)
        case "ended":
            leases[token].outcomes[event["how"]] = event["code"]
