"""LedgerQueue: queues of work as rows of the ledger, whose changes share transactions with all others'."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial

from penstock import steps
from penstock.errors import InvalidRequest, LimitExceeded
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.work import messages, queues
from penstock.queue.work.lease_queue import LEASE, MOST_MESSAGES, Claim, Forward, NewMessage
from penstock.queue.work.leases import Leases
from penstock.queue.work.messages import Bind, FullPartitions, PeekedMessage, Row, Settling
from penstock.queue.work.work_queues import splits_of
from penstock.wire.queue import Failure, LeaseKey, LeaseOutcome, QueueCounts, QueueRoom, QueueState

_MOST_DELAY = 24 * 3600.0
_SOME_OVER = 1_000  # leases that one transaction ends


def _bind_nothing(index: int, t: Transaction) -> None:
    """Store no payload: those that the messages name are there."""


class LedgerQueue:
    """The queues of a ledger: a LeaseQueue. One object of a process, as deadlines are in its memory.

    `bind` of push and forward stores payloads in the same transaction; it is given the index of the Forward, or 0.
    """

    def __init__(self, ledger: Ledger, *, lease: float = LEASE, now: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._leases = Leases(lease, now)
        self._numbers = itertools.count(1)
        self._recover()

    @property
    def lease(self) -> float:
        """Seconds that a lease lasts."""
        return self._leases.lease

    def _recover(self) -> None:
        """Give each claimed message a full lease, as nobody could extend it while there was no server; end delays."""
        rows = self._ledger.database.rows(
            "SELECT path, claim, token, messages.state AS state FROM messages JOIN queues ON queues.id = queue"
            " WHERE messages.state IN ('claimed', 'delayed') AND path IS NOT NULL ORDER BY messages.id"
        )
        claims: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            if row["state"] == "claimed":
                claims.setdefault((row["path"], row["claim"]), []).append(row["token"])
            else:
                self._leases.delay(row["path"], row["token"], 0)
        for (path, claim), tokens in claims.items():
            self._leases.begin(path, claim, tokens, is_durable=True)

    # --- verbs ------------------------------------------------------------------------------

    def push(self, new: Sequence[NewMessage], *, bind: Bind = _bind_nothing) -> int:
        """Make messages pending, and return how many of them are new."""
        _check_number(new)
        rows = [Row.of(each) for each in new]
        if not rows:
            return 0

        def push(t: Transaction) -> int:
            bind(0, t)
            settling = Settling(t)
            settling.check_sizes(rows)
            number = settling.push(rows, queues.CLIENTS)
            settling.finish()
            steps.passed("push.pushed")
            return number

        number = self._ledger.change(push)
        steps.passed("push.done")
        return number

    def push_dataset(self, path: str, dataset: str, last: str | None) -> int:
        """Make a message pending for each part of a dataset, or those up to one; return how many of them are new."""

        def push(t: Transaction) -> int:
            rows = [Row.of(NewMessage(path, message, size)) for message, size in splits_of(t, dataset, path, last)]
            settling = Settling(t)
            number = settling.push(rows, queues.CLIENTS) if rows else 0
            settling.finish()
            return number

        return self._ledger.change(push)

    def claim(
        self,
        path: str,
        claim: str,
        *,
        worker: str,
        most: int = 1,
        to: Sequence[str] = (),
        room: QueueRoom | None = None,
    ) -> Claim:
        """Lease the oldest pending messages, after those whose time is over were given back."""
        if not 1 <= most <= MOST_MESSAGES:
            raise InvalidRequest(f"{path}: expected a claim of 1 to {MOST_MESSAGES:,} messages, got {most}")
        prefix = f"{self._ledger.life}.{next(self._numbers)}."
        over: list[str] = []

        def claim_some(t: Transaction) -> tuple[sqlite3.Row, list[sqlite3.Row]]:
            over[:] = self._end_over(path, t)
            for below in to:
                queues.add_upstream(t, below, path)
            queue = queues.by_path(t, path)
            known = self._leases.tokens_of(claim)
            rows = [] if known is None else messages.claimed(t, queue["id"], filter(self._leases.is_live, known[0]))
            if not rows and (known is None or not known[1]) and queue["state"] != "failed":
                number = most if room is None else min(most, queues.room_below(t, queue, to, room))
                rows = messages.claim(t, queue, claim, worker, number, prefix, self._full_partitions(path))
                if rows:
                    self._leases.begin(path, claim, [row["token"] for row in rows], is_durable=False)
            steps.passed("claim.claimed")
            return queue, rows

        queue, rows = self._ledger.change(claim_some)
        self._leases.end(over)
        self._leases.confirm(claim)
        steps.passed("claim.done")
        return Claim(queue["state"], tuple(messages.to_lease(path, row) for row in rows), queue["cause"])

    def _full_partitions(self, path: str) -> FullPartitions | None:
        """Return what holds back messages of a queue on a topic."""
        return None

    def ack(self, leases: Sequence[LeaseKey]) -> list[LeaseOutcome]:
        """Note messages as done."""
        return self._settle(leases, "ack", lambda settling: [settling.ack(key) for key in leases])

    def forward(self, forwards: Sequence[Forward], *, bind: Bind = _bind_nothing) -> list[LeaseOutcome]:
        """Push what was made of leased messages, and note these as done.

        In one transaction, for each Forward: 1. Its leases last. 2. The outputs' payloads are stored. 3. The outputs
        are pending. 4. The leased messages are done, and hold their payloads no more.
        """
        rows = [[Row.of(output) for output in forward.outputs] for forward in forwards]
        _check_number([row for some in rows for row in some])
        leases = [key for forward in forwards for key in forward.leases]
        if any(not forward.leases or len(set(forward.leases)) < len(forward.leases) for forward in forwards):
            raise InvalidRequest("expected one or more leases in a forward, each once: a push needs none")

        def forward_all(settling: Settling) -> list[LeaseOutcome]:
            both = enumerate(zip(forwards, rows, strict=True))
            return [settling.forward(forward, some, partial(bind, index)) for index, (forward, some) in both]

        return self._settle(leases, "forward", forward_all)

    def release(
        self, leases: Sequence[LeaseKey], *, delay: float = 0.0, failure: Failure | None = None
    ) -> list[LeaseOutcome]:
        """Give messages back; the delay is at most a day."""
        if not 0 <= delay <= _MOST_DELAY:
            raise InvalidRequest(f"expected a delay of 0 to {_MOST_DELAY:g} s, got {delay:g}")

        def release(settling: Settling) -> list[LeaseOutcome]:
            return [settling.release(key, failure, delayed=delay > 0) for key in leases]

        return self._settle(leases, "release", release, delay=delay)

    def release_worker(self, path: str, worker: str) -> int:
        """Give back all messages that a worker has claimed; return how many."""
        with self._ledger.reading() as reader:
            leases = messages.leases_of(reader, path, worker)
        some = (leases[start : start + MOST_MESSAGES] for start in range(0, len(leases), MOST_MESSAGES))
        return sum(outcome.code is None for keys in some for outcome in self.release(keys))

    def extend(self, leases: Sequence[LeaseKey]) -> list[LeaseOutcome]:
        """Let leases last for their full time from now on; nothing is written, as deadlines are in memory."""
        _check_number(leases)
        return [LeaseOutcome("claimed") if self._leases.extend(key.token) else messages.lost(key) for key in leases]

    def drop(self, leases: Sequence[LeaseKey], failure: Failure) -> list[LeaseOutcome]:
        """Set messages aside as dead."""
        return self._settle(leases, "drop", lambda settling: [settling.drop(key, failure) for key in leases])

    def _settle(
        self,
        leases: Sequence[LeaseKey],
        verb: str,
        settle: Callable[[Settling], list[LeaseOutcome]],
        *,
        delay: float = 0.0,
    ) -> list[LeaseOutcome]:
        """Carry out what ends leases: rows first, then memory."""
        _check_number(leases)
        if not leases:
            return []

        def change(t: Transaction) -> tuple[list[LeaseOutcome], Settling]:
            settling = Settling(t, self._leases.is_live)
            outcomes = settle(settling)
            settling.finish()
            steps.passed(f"{verb}.settled")
            return outcomes, settling

        outcomes, settling = self._ledger.change(change)
        self._leases.end(settling.ended)
        for key in settling.delayed:
            self._leases.delay(key.queue, key.token, delay)
        steps.passed(f"{verb}.done")
        return outcomes

    def redrive(self, path: str, message_ids: Sequence[str] = ()) -> int:
        """Make dead messages pending with no tries; without names all, in steps that others needn't wait for."""
        _check_number(message_ids)
        total = 0
        while True:
            number = self._ledger.change(lambda t: messages.redrive(t, path, message_ids, MOST_MESSAGES))
            total += number
            if message_ids or number < MOST_MESSAGES:
                return total

    def finish(self, path: str) -> QueueCounts:
        """Note that clients push no more."""

        def finish(t: Transaction) -> QueueCounts:
            queues.finish(t, path)
            return queues.counts(t, path)

        return self._ledger.change(finish)

    def counts(self, path: str) -> QueueCounts:
        """Return a queue's state and counts."""
        with self._ledger.reading() as reader:
            return queues.counts(reader, path)

    # --- what the ledger's queues have besides ----------------------------------------------

    def below(self, folder: str) -> list[QueueCounts]:
        """Return the queues below a folder's path."""
        with self._ledger.reading() as reader:
            return [queues.counts(reader, path) for path in queues.below(reader, folder)]

    def upstreams(self, path: str) -> list[tuple[str, QueueState]]:
        """Return what fills a queue: each upstream and its state."""
        return queues.upstreams(self._ledger.database, path)

    def count(self) -> int:
        """Return how many queues there are."""
        return queues.number(self._ledger.database)

    def peek(self, path: str, *, dead: bool = False, most: int = 1_000) -> list[PeekedMessage]:
        """Return the first messages that aren't done, or the dead ones, without a lease."""
        return messages.peek(self._ledger.database, path, dead=dead, most=most)

    def remove(self, path: str) -> None:
        """Remove a queue: its leases are over, and `tend` drops its messages."""
        self._ledger.change(lambda t: queues.remove(t, path))

    def tend(self, stop: Callable[[], bool]) -> None:
        """End leases past their deadlines where nobody claims, forget what is done for long, drop what was removed."""
        for path in self._leases.queues_with_some_over():
            while not stop() and (over := self._ledger.change(partial(self._end_over, path))):
                self._leases.end(over)
        while not stop() and (ids := self._outlived()):
            self._ledger.change(partial(messages.forget, ids))
        while not stop() and self._ledger.change(messages.drop_removed):
            pass

    def _outlived(self) -> list[int]:
        with self._ledger.reading() as reader:
            return messages.outlived(reader, self._ledger.now())

    def _end_over(self, path: str, t: Transaction) -> list[str]:
        """Give back messages whose leases are over, and those whose delays are; return the tokens."""
        over = self._leases.over(path, _SOME_OVER)
        if over:
            settling = Settling(t, self._leases.is_live)
            settling.end_over(over)
            settling.finish()
        return over


def _check_number(given: Sequence[object]) -> None:
    if len(given) > MOST_MESSAGES:
        raise LimitExceeded(f"expected at most {MOST_MESSAGES:,} messages in one call, got {len(given):,}")
