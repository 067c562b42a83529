"""Fixtures of the fake in this process, and of both brokers for what must hold at either."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    let_pass: Callable[[float], None]

    def create(self, **settings: object) -> None:
        """Create the topic and the subscription of this test."""
        self.client.create_topic(self.names.topic)
        self.client.create_subscription(self.names.subscription, self.names.topic, **settings)  # type: ignore[arg-type]


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


@pytest.fixture(params=["fake", pytest.param("emulator", marks=pytest.mark.process)])
def broker(request: pytest.FixtureRequest, pubsub_names: Names, clock: Clock) -> Iterator[Broker]:
    """Both brokers, one after the other; at the fake time passes at once."""
    if request.param == "emulator":
        yield Broker(request.getfixturevalue("emulated"), pubsub_names, time.sleep)
        return
    from tests.kit.pubsub.client import connected
    from tests.kit.pubsub.fake import FakePubSub, served

    clock.set(time.time())
    with served(FakePubSub(clock=clock.now)) as address, connected(address) as client:
        yield Broker(client, pubsub_names, clock.advance)
