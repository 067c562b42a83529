"""The fake's bookkeeping over random operations: what streams have is what is leased, and nothing is ever lost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.kit.clock import Clock
from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.log import PublishedLog
from tests.kit.pubsub.subscription import LEASED, PULL, Outstanding, Subscription

STREAMS = (PULL, 1, 2)


class Run:
    """A subscription, its streams, and what clients know of it."""

    def __init__(self, clock: Clock, seed: int, *, ordering: bool, exactly_once: bool) -> None:
        about = pb.Subscription(
            name="s",
            enable_message_ordering=ordering,
            enable_exactly_once_delivery=exactly_once,
            retain_acked_messages=True,
        )
        self.dice, self.clock, self.log = random.Random(seed), clock, PublishedLog(1_001)
        self.subscription = Subscription(about, 1_002, self.log, first=0, clock=clock.now, ack_id_bytes=32)
        self.subscription.streams.update({1: Outstanding(max_messages=7), 2: Outstanding(max_bytes=600)})
        self.received = list[Any]()
        self.newest = dict[str, str]()
        """The last ack id of each message."""
        self.acked, self.published = set[str](), set[str]()
        self.operations = {
            self.publish: 1,
            self.take: 3,
            self.ack_some: 2,
            self.extend_some: 1,
            self.nack_some: 1,
            self.pass_time: 1,
            self.subscription.expire: 1,
            self.subscription.deliver_again: 1,
        }

    def step(self) -> None:
        """Do something, and compare what each stream is said to have with what is leased to it."""
        [operation] = self.dice.choices(list(self.operations), weights=list(self.operations.values()))
        operation()
        subscription = self.subscription
        subscription._scan_at = 0.0
        subscription.expire_due(self.clock.now())
        leased = np.flatnonzero(subscription._of["state"] == LEASED)
        for stream, limits in subscription.streams.items():
            own = leased[subscription._of["stream"][leased] == stream]
            assert (limits.messages, limits.bytes) == (len(own), subscription.log.sizes(own).sum())
        keys = {self.log.key(number) for number in leased.tolist()} - {""}
        assert set(subscription._key_owner) == (keys if subscription.about.enable_message_ordering else set())

    def publish(self) -> None:
        key = self.dice.choice(["", "a", "b", "c"])
        messages = [pb.PubsubMessage(data=b"x" * self.dice.randrange(1, 90), ordering_key=key) for _ in range(4)]
        self.published |= set(self.log.publish(messages, self.clock.now()))

    def take(self) -> None:
        self.take_from(self.dice.choice(STREAMS), self.dice.randrange(1, 12))

    def take_from(self, stream: int, most: int) -> list[Any]:
        response = self.subscription.take(stream, 10.0, most)
        messages = [] if response is None else list(pb.PullResponse.FromString(response).received_messages)
        self.received += messages
        self.newest.update((each.message.message_id, each.ack_id) for each in messages)
        return messages

    def some(self) -> list[Any]:
        """Return deliveries of any age."""
        return self.dice.sample(self.received[-60:], min(5, len(self.received)))

    def ack_some(self) -> None:
        self.ack(self.some())

    def ack(self, received: list[Any]) -> None:
        """Ack deliveries, of which only a message's newest may have an effect."""
        failed = self.subscription.acknowledge([each.ack_id for each in received])
        newest = [each for each in received if each.ack_id == self.newest[each.message.message_id]]
        if self.subscription.about.enable_exactly_once_delivery:
            assert {each.ack_id for each in received} - {each.ack_id for each in newest} <= set(failed)
        self.acked.update(each.message.message_id for each in newest if each.ack_id not in failed)

    def extend_some(self) -> None:
        self.subscription.modify([each.ack_id for each in self.some()], self.dice.randrange(1, 30))

    def nack_some(self) -> None:
        self.subscription.modify([each.ack_id for each in self.some()], 0)

    def pass_time(self) -> None:
        self.clock.advance(self.dice.random() * 6)


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("ordering", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_random_operations_lose_nothing(clock: Clock, seed: int, *, ordering: bool, exactly_once: bool) -> None:
    """At the end all that is left can be taken and acked, in order; a seek back brings everything."""
    run = Run(clock, seed, ordering=ordering, exactly_once=exactly_once)
    run.publish()
    for _ in range(300):
        run.step()
    run.subscription.expire()
    last = list[Any]()
    while messages := run.take_from(PULL, 10):
        run.ack(messages)
        last += messages
    assert run.acked == run.published
    if ordering:
        for key in "abc":
            numbers = [int(each.message.message_id) for each in last if each.message.ordering_key == key]
            assert numbers == sorted(numbers)
    run.subscription.seek(0.0)
    again = list[Any]()
    while messages := run.take_from(PULL, 1_000):
        again += messages
    assert sorted(each.message.message_id for each in again) == sorted(run.published)
