"""Google's emulator: one for each of xdist's workers, names of its own for each test, and a restart."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from scripts import emulator

if TYPE_CHECKING:
    from tests.kit.pubsub.client import PubSub


class Emulator:
    """A running emulator. It listens at the same `address` after a restart, and has forgotten everything."""

    def __init__(self, heap: str) -> None:
        self._heap, self._process = heap, ExitStack()
        self.address, self.pid = self._process.enter_context(emulator.running(heap=heap))

    def kill(self) -> None:
        """End it with kill -9."""
        self._process.close()

    def start(self) -> None:
        """Start it again: without topics, and with message ids and ack ids that begin at 1."""
        port = int(self.address.rpartition(":")[2])
        _, self.pid = self._process.enter_context(emulator.running(port=port, heap=self._heap))

    def restart(self) -> None:
        self.kill()
        self.start()


@dataclass(frozen=True, slots=True)
class Names:
    """Names that no other test has: a topic, its subscription, and a topic for dead letters."""

    topic: str
    subscription: str
    dead_letters: str

    @property
    def path(self) -> str:
        """The subscription's path at a penstock server."""
        _, project, _, name = self.subscription.split("/")
        return f"subscription/{project}/{name}"


@contextmanager
def emulator_process(*, heap: str = "1g") -> Iterator[Emulator]:
    """Run an emulator of one's own; the test is skipped where it lacks something."""
    if (lack := emulator.missing()) is not None:
        pytest.skip(lack)
    process = Emulator(heap)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="session")
def pubsub_emulator() -> Iterator[Emulator]:
    """The emulator that this worker's tests share: who kills or restarts one makes an `emulator_process`."""
    with emulator_process() as process:
        yield process


@pytest.fixture
def emulated(pubsub_emulator: Emulator) -> Iterator[PubSub]:
    """A client of the shared emulator."""
    from tests.kit.pubsub.client import connected  # a second of imports, and for these tests alone

    with connected(pubsub_emulator.address) as client:
        yield client


@pytest.fixture
def pubsub_names() -> Names:
    """Names for this test."""
    return unique_names()


def unique_names() -> Names:
    """Return names that nobody else has."""
    word = uuid.uuid4().hex[:12]
    return Names(
        f"projects/test/topics/t-{word}", f"projects/test/subscriptions/s-{word}", f"projects/test/topics/d-{word}"
    )
