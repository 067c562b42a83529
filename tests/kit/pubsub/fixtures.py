"""Fixtures of the fake in this process, and of both brokers for what must hold at either."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.kit.clock import Clock
from tests.kit.pubsub.emulator import Names

if TYPE_CHECKING:
    from tests.kit.pubsub.client import PubSub
    from tests.kit.pubsub.fake import FakePubSub


@dataclass(frozen=True)
class Broker:
    """A client of the emulator or of the fake, and how time passes there."""

    client: PubSub
    names: Names
    address: str
    let_pass: Callable[[float], None]
    fake: FakePubSub | None = None

    def create(self, **settings: object) -> None:
        """Create the topic and the subscription of this test."""
        self.client.create_topic(self.names.topic)
        self.client.create_subscription(self.names.subscription, self.names.topic, **settings)  # type: ignore[arg-type]

    def publish(self, first: int, count: int) -> None:
        """Publish messages whose data are so many numbers."""
        self.client.publish(self.names.topic, [b"%d" % number for number in range(first, first + count)])

    def is_empty(self) -> bool:
        """Whether every message is acked; at the emulator, whether none comes for longer than its shortest lease."""
        if self.fake is None:
            return not self.client.pull(self.names.subscription, within=13.0)
        totals = self.fake.totals(self.names.subscription)
        return totals["ready"] == totals["leased"] == 0


@pytest.fixture
def fake_pubsub() -> FakePubSub:
    """A fake whose leases are in real time."""
    from tests.kit.pubsub.fake import FakePubSub  # a second of imports, and for these tests alone

    return FakePubSub()


@pytest.fixture
def faked(fake_pubsub: FakePubSub) -> Iterator[PubSub]:
    """A client of `fake_pubsub`."""
    from tests.kit.pubsub.client import connected
    from tests.kit.pubsub.fake import served

    with served(fake_pubsub) as address, connected(address) as client:
        yield client


@pytest.fixture(params=["fake"])
def broker(request: pytest.FixtureRequest, pubsub_names: Names, clock: Clock) -> Iterator[Broker]:
    """The fake, at which time passes at once."""
    clock.set(time.time())
    with open_broker(request, pubsub_names, clock) as broker:
        yield broker


@contextmanager
def open_broker(request: pytest.FixtureRequest, names: Names, clock: Clock | None = None) -> Iterator[Broker]:
    """Run a fake, or use the shared emulator, as the request's param says.

    The fake has the time of `clock`; without one its leases are in real time, and `let_pass` ends all of them.
    """
    if request.param == "emulator":
        address = request.getfixturevalue("pubsub_emulator").address
        yield Broker(request.getfixturevalue("emulated"), names, address, time.sleep)
        return
    from tests.kit.pubsub.client import connected
    from tests.kit.pubsub.fake import FakePubSub, served

    fake = FakePubSub(clock=time.time if clock is None else clock.now)

    def let_pass(seconds: float) -> None:
        if clock is None:
            fake.expire(names.subscription)
        else:
            clock.advance(seconds)

    with served(fake) as address, connected(address) as client:
        yield Broker(client, names, address, let_pass, fake)
