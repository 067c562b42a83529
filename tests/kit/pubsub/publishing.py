"""A server whose publisher is a thread of the test: started, crashed at a step, and started again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.client import Client
from penstock.flight_server.kinds import publish
from penstock.flight_server.publishers import Publishers
from penstock.flight_server.server import PenstockServer
from tests.kit.faults import Crash

if TYPE_CHECKING:
    from tests.kit.pubsub.emulator import Names
    from tests.kit.pubsub.fake import FakePubSub


@dataclass
class Publishing:
    """A topic at a fake, and the path of it at a server without publishers of its own."""

    server: PenstockServer
    client: Client
    fake: FakePubSub
    address: str
    topic: str
    errors: list[BaseException] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)
    """How often a publisher that is to crash has passed each step."""

    @property
    def path(self) -> str:
        _, project, _, name = self.topic.split("/")
        return f"publish/{project}/{name}"

    def data(self) -> list[bytes]:
        """Return what Pub/Sub has, in its order."""
        return [message.data for message in self.fake.published(self.topic)]

    def create(self) -> None:
        from tests.kit.pubsub import messages as pb

        self.fake.call("CreateTopic", pb.Topic(name=self.topic))

    @contextmanager
    def publisher(self) -> Iterator[threading.Thread]:
        """Run a publisher in a thread; one that crashes is gone, and its requests may still land."""
        from penstock.cli.publisher import ServerConnection
        from penstock.client.connection import Connection
        from penstock.queue.pubsub.publish import Publisher
        from penstock.queue.pubsub.transport import Access, Topic

        stop = threading.Event()
        connection = Connection(self.client.settings)
        topic = Topic(Access(endpoint=self.address, allow_emulator=True), self.topic)

        def run() -> None:
            try:
                Publisher(self.path, topic, ServerConnection(connection)).run(stop.is_set)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name="test-publisher", daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            stop.set()
            thread.join(30)
            topic.close()
            connection.close()

    def crash_at(self, step: str, times: int) -> Callable[[str], None]:
        """Return a replacement for `steps.passed` that ends the publisher's thread at the n-th passing of a step."""

        def passed(name: str) -> None:
            if threading.current_thread().name == "test-publisher":
                self.passed[name] += 1
                if name == step and self.passed[name] == times:
                    raise Crash

        return passed


@pytest.fixture
def staging(
    make_server: Callable[..., PenstockServer], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], PenstockServer]:
    """A function that starts a server for the Pub/Sub at an address, whose publishers the test starts."""
    monkeypatch.setattr(Publishers, "_wanted_now", lambda _: set[str]())
    monkeypatch.setattr(publish, "_ANSWER", 0.2)  # after which a publisher notices that it is to stop
    return lambda address: make_server(pubsub_endpoint=address, allow_emulator=True)


@pytest.fixture
def publishing(
    staging: Callable[[str], PenstockServer], fake_pubsub: FakePubSub, pubsub_names: Names
) -> Iterator[Publishing]:
    """A topic at a fake, and a server whose publishers the test starts."""
    from tests.kit.pubsub.fake import served

    with served(fake_pubsub) as address:
        server = staging(address)
        with penstock.connect(server.url, retry_for=2) as client:
            publishing = Publishing(server, client, fake_pubsub, address, pubsub_names.topic)
            publishing.create()
            yield publishing
