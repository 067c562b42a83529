"""The deadlines of leases and delays: in memory, by the monotonic clock, so that no jump of the clock ends a lease.

Rows say which messages are claimed, and with which token; a start gives each of them a full lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

_CLAIMS_KNOWN = 600.0
"""Seconds for which a claim that is repeated is recognized, after its last message is done."""
_ENDED_IN_ORDER = 10_000
"""Ended leases that may stay in the heap, besides as many as there are live ones."""


@dataclass(slots=True)
class _Deadline:
    queue: str
    time: float
    claim: str | None = None
    is_delay: bool = False
    """Whether the message is no worker's until then."""


@dataclass(slots=True)
class _Claim:
    tokens: dict[str, None]
    """Of leases that haven't ended, in the order of the claim."""
    until: float
    is_durable: bool


class Leases:
    """The deadlines of a server's leases by token; any thread may call it."""

    def __init__(self, lease: float, now: Callable[[], float]) -> None:
        self.lease = lease
        self._now = now
        self._lock = threading.Lock()
        self._deadlines: dict[str, _Deadline] = {}
        self._order: list[tuple[float, str]] = []
        """A heap; a deadline that was moved is in it again when its first time has come."""
        self._over: dict[str, set[str]] = {}
        """Queue -> the tokens whose time has come. They stay until the rows say so, too."""
        self._claims: dict[str, _Claim] = {}

    def begin(self, queue: str, claim: str, tokens: Iterable[str], *, is_durable: bool) -> None:
        """Start the leases of a claim; a token whose row is rolled back does no harm, as it is never used again."""
        with self._lock:
            now = self._now()
            own = dict.fromkeys(tokens)
            for token in own:
                self._set(token, _Deadline(queue, now + self.lease, claim))
            self._claims[claim] = _Claim(own, now + _CLAIMS_KNOWN, is_durable)

    def confirm(self, claim: str) -> None:
        """Note that a claim is durable."""
        with self._lock:
            if claim in self._claims:
                self._claims[claim].is_durable = True

    def tokens_of(self, claim: str) -> tuple[list[str], bool] | None:
        """Return the tokens of an earlier claim whose leases last, and whether it is durable; None for a new one."""
        with self._lock:
            known = self._claims.get(claim)
            return None if known is None else (list(known.tokens), known.is_durable)

    def is_live(self, token: str) -> bool:
        """Whether a lease lasts."""
        with self._lock:
            return self._is_live(token)

    def extend(self, token: str) -> bool:
        """Let a lease last for its full time from now on; False if it is over."""
        with self._lock:
            if not self._is_live(token):
                return False
            self._deadlines[token].time = self._now() + self.lease
            return True

    def delay(self, queue: str, token: str, seconds: float) -> None:
        """End a lease, whose message is to be pending after some time."""
        with self._lock:
            self._set(token, _Deadline(queue, self._now() + seconds, is_delay=True))

    def end(self, tokens: Iterable[str]) -> None:
        """Forget leases: their rows say what became of them."""
        with self._lock:
            for token in tokens:
                ended = self._deadlines.pop(token, None)
                if ended is None:
                    continue
                self._over.get(ended.queue, set()).discard(token)
                if ended.claim in self._claims:
                    self._claims[ended.claim].tokens.pop(token, None)
            if len(self._order) > 2 * len(self._deadlines) + _ENDED_IN_ORDER:
                self._order = [(deadline.time, token) for token, deadline in self._deadlines.items()]
                heapify(self._order)

    def over(self, queue: str, most: int) -> list[str]:
        """Return tokens of a queue whose time has come."""
        with self._lock:
            self._collect()
            tokens = self._over.get(queue)
            return sorted(tokens)[:most] if tokens else []

    def queues_with_some_over(self) -> list[str]:
        """Return the queues that have leases or delays whose time has come."""
        with self._lock:
            self._collect()
            self._over = {queue: tokens for queue, tokens in self._over.items() if tokens}
            now = self._now()
            self._claims = {claim: known for claim, known in self._claims.items() if self._is_needed(known, now)}
            return list(self._over)

    def _is_needed(self, claim: _Claim, now: float) -> bool:
        return claim.until > now or bool(claim.tokens)

    def _is_live(self, token: str) -> bool:
        deadline = self._deadlines.get(token)
        return deadline is not None and not deadline.is_delay and self._now() < deadline.time

    def _set(self, token: str, deadline: _Deadline) -> None:
        self._deadlines[token] = deadline
        heappush(self._order, (deadline.time, token))

    def _collect(self) -> None:
        now = self._now()
        while self._order and self._order[0][0] <= now:
            _, token = heappop(self._order)
            deadline = self._deadlines.get(token)
            if deadline is None:
                continue
            if deadline.time > now:
                heappush(self._order, (deadline.time, token))
            else:
                self._over.setdefault(deadline.queue, set()).add(token)
