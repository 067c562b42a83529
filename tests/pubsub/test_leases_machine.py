"""Any sequence of deliveries, answers, releases, failures and waits, against a Pub/Sub made of dicts."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.queue.pubsub.leases import Leases, Outcome, Request
from tests.kit.profiles import examples

pytestmark = pytest.mark.faults  # seconds of them

DEADLINE = 60.0
SHARDS = 2


@dataclass
class Delivery:
    """One message sent to one puller, with the id that acks it."""

    message: int
    until: float


@dataclass
class FakePubSub:
    """Delivers what is neither acked nor leased. Only a message's newest id counts, and only until its lease ends."""

    confirms: bool
    unacked: set[int] = field(default_factory=set)
    newest: dict[int, str] = field(default_factory=dict)
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    lapsed: int = 0

    def waiting(self, now: float) -> list[int]:
        """Return the messages that may be sent now."""
        return [each for each in sorted(self.unacked) if each not in self.newest or not self.lease(each, now)]

    def lease(self, message: int, now: float) -> bool:
        return now < self.deliveries[self.newest[message]].until

    def deliver(self, message: int, now: float, ack_id: str) -> None:
        if message in self.newest:
            self.lapsed += 1
        self.newest[message] = ack_id
        self.deliveries[ack_id] = Delivery(message, now + DEADLINE)

    def take(self, request: Request, now: float) -> dict[str, str]:
        """Apply a request; return the failures of single ids, if this subscription has them."""
        failures: dict[str, str] = {}
        for ack_id in request.ack_ids:
            delivery = self.deliveries[ack_id]
            stale = self.newest[delivery.message] != ack_id or now >= delivery.until
            if stale or delivery.message not in self.unacked:
                failures[ack_id] = "PERMANENT_FAILURE_INVALID_ACK_ID"
            elif request.verb == "ack":
                self.unacked.discard(delivery.message)
            else:
                delivery.until = now + request.seconds
        return failures if self.confirms else {}


@dataclass
class Batch:
    """Messages on their way to the server."""

    first: int
    messages: list[int]


class LeasesMachine(RuleBasedStateMachine):
    """The puller's leases, and a server that deduplicates and releases."""

    @initialize(confirms=st.booleans(), seed=st.integers(0, 2**32))
    def begin(self, confirms: bool, seed: int) -> None:
        self.random = random.Random(seed)
        self.pubsub = FakePubSub(confirms)
        self.core = Leases(seconds=DEADLINE, random=random.Random(seed))
        self.now, self.ids, self.messages = 1_000.0, 0, 0
        self.batches: deque[Batch] = deque()
        self.under_way: list[Request] = []
        self.places: dict[int, tuple[int, int]] = {}
        self.ends = [0] * SHARDS
        self.released = [0] * SHARDS
        self.troubled = False
        """Whether an extension failed or wasn't answered in time."""
        self.reported: list[set[int]] = [set() for _ in range(SHARDS)]

    # --- Pub/Sub ----------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 2, 30, 1_200]))
    def publish(self, count: int) -> None:
        self.pubsub.unacked |= set(range(self.messages, self.messages + count))
        self.messages += count

    @rule(most=st.sampled_from([1, 7, 1_500]), length=st.sampled_from([6, 184, 900]), again=st.booleans())
    def respond(self, most: int, length: int, again: bool) -> None:
        messages = self.pubsub.waiting(self.now)[:most]
        if again and messages:
            messages.append(messages[0])  # twice in one response
        self.take(messages, length)

    @rule(pick=st.integers(0, 1 << 20))
    def deliver_what_is_leased(self, pick: int) -> None:
        """Pub/Sub may do that, and then the id before this one is stale."""
        leased = sorted(self.pubsub.unacked & set(self.pubsub.newest))
        if leased:
            lapsed = self.pubsub.lapsed
            self.take([leased[pick % len(leased)]], 184)
            self.pubsub.lapsed = lapsed

    def take(self, messages: list[int], length: int) -> None:
        ids = []
        lapsed = self.pubsub.lapsed
        for message in messages:
            self.ids += 1
            ids.append(f"{self.ids:06}".ljust(length, "x"))
            repeated = message in self.pubsub.newest and self.pubsub.lease(message, self.now)
            self.pubsub.deliver(message, self.now, ids[-1])
            lapsed += not repeated and self.pubsub.lapsed > lapsed
        self.pubsub.lapsed = lapsed
        first = self.core.received(ids, arrived=self.now)
        self.batches.append(Batch(first, messages))

    # --- the server -------------------------------------------------------------------------

    @precondition(lambda self: self.batches)
    @rule()
    def answer(self) -> None:
        batch = self.batches.popleft()
        shards, offsets, duplicates = [], [], []
        for message in batch.messages:
            duplicates.append(message in self.places)
            if message not in self.places:
                shard = self.random.randrange(SHARDS)
                self.places[message] = (shard, self.ends[shard])
                self.ends[shard] += 1
            shard, offset = self.places[message]
            shards.append(shard)
            offsets.append(offset)
        self.core.placed(
            batch.first, np.array(shards, np.int64), np.array(offsets, np.int64), np.array(duplicates, np.bool_)
        )

    @rule(shard=st.integers(0, SHARDS - 1), share=st.floats(0, 1))
    def release(self, shard: int, share: float) -> None:
        self.released[shard] += int((self.ends[shard] - self.released[shard]) * share)
        self.core.released({shard: self.released[shard]})

    # --- calls ------------------------------------------------------------------------------

    def send(self) -> None:
        for request in self.core.due(self.now):
            size = sum(len(ack_id) + 3 for ack_id in request.ack_ids)
            assert len(request.ack_ids) <= 1_000, "too many ids"
            assert size < 500 * 1024, "too many bytes"
            for ack_id in request.ack_ids if request.verb == "ack" else ():
                shard, offset = self.places[self.pubsub.deliveries[ack_id].message]
                assert offset < self.released[shard], "acked before it was released"
            self.under_way.append(request)
        assert sum(each.verb == "extend" for each in self.under_way) <= 8

    def settle(self, outcome: Outcome, *, arrives: bool = True) -> None:
        """Answer everything that is under way."""
        for request in self.under_way:
            failures = self.pubsub.take(request, self.now) if arrives else {}
            if outcome != "ok" and request.verb == "extend":
                self.troubled = True
            self.core.settle(request, self.now, outcome, failures)
        self.under_way = []

    @rule(seconds=st.sampled_from([0.0, 1.0, 20.0, 200.0]))
    def work(self, seconds: float) -> None:
        """Let time pass while all calls succeed."""
        for _ in self.steps(seconds):
            self.send()
            self.settle("ok")

    @rule(seconds=st.sampled_from([0.0, 5.0, 70.0]), arrives=st.booleans())
    def fail(self, seconds: float, arrives: bool) -> None:
        """Let time pass while calls fail, or while only their answers are lost."""
        for _ in self.steps(seconds):
            self.send()
            self.settle("transient", arrives=arrives)

    @rule(seconds=st.sampled_from([0.5, 40.0, 100.0]))
    def hang(self, seconds: float) -> None:
        """Let time pass without an answer to any call."""
        self.send()
        self.now += seconds
        self.troubled = self.troubled or seconds > 10
        self.settle("ok")

    @rule()
    def forget(self) -> None:
        self.core.forget()
        self.troubled = True
        assert len(self.core) == 0

    def steps(self, seconds: float) -> Iterator[None]:
        until = self.now + seconds
        yield
        while self.now < until:
            wait = self.core.wait(self.now)
            self.now = min(until, self.now + max(0.001, 1.0 if wait is None else min(wait, 1.0)))
            yield

    # --- what holds -------------------------------------------------------------------------

    @invariant()
    def nothing_lapses_while_extensions_work(self) -> None:
        if not self.troubled:
            assert self.pubsub.lapsed == 0
            assert self.core.counters["lapses"] == 0 or self.pubsub.confirms

    @invariant()
    def reports_name_released_rows_once(self) -> None:
        for shard, ranges in self.core.take_acked().items():
            for first, end in ranges:
                assert end <= self.released[shard]
                self.reported[shard] |= set(range(first, end))

    def teardown(self) -> None:
        """Once everything works, all that is released is acked, and only that."""
        if not hasattr(self, "core"):
            return
        for _ in range(4):
            self.work(150.0)
            self.respond(1 << 20, 6, again=False)
            while self.batches:
                self.answer()
        for _ in range(12):  # an ack may have failed for so long that its next try is minutes away
            self.work(60.0)
        unreleased = {m for m, (shard, offset) in self.places.items() if offset >= self.released[shard]}
        assert self.pubsub.unacked == unreleased, "released rows are acked in the end, others are not"
        assert len(self.core) == len(unreleased)
        assert not self.pubsub.waiting(self.now), "all others are leased"
        self.reports_name_released_rows_once()
        for shard, offset in (place for message, place in self.places.items() if message not in unreleased):
            assert offset in self.reported[shard] or self.pubsub.confirms, "an ack that counts may have been refused"


TestLeases = LeasesMachine.TestCase
TestLeases.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
