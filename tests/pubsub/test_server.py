"""A server, its pullers and Pub/Sub together: from publish to an empty subscription, and what stops it on the way.

On the fake; with `-m soak` on Google's emulator too, which leases to dead clients again, so that faults take minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.client import Client, connect
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.wire import actions
from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.emulator import Names
from tests.kit.pubsub.fixtures import Broker, open_broker
from tests.kit.server import ProcessServer, process_server
from tests.kit.wait import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


class Query:
    """A consumer, as a query is one."""

    def __init__(self, client: Client, path: str, before: Query | None = None) -> None:
        """Begin, or go on where a query was `before`, as one does from its checkpoint."""
        self.client, self.path = client, path
        self.consumer: str = uuid.uuid4().hex if before is None else before.consumer
        self.session = uuid.uuid4().hex
        self.messages: dict[tuple[int, int], bytes] = {} if before is None else before.messages
        offsets = client.call(actions.ASK_OFFSETS, actions.AskOffsets(path))
        self.journal = offsets.journal
        self.position = client.call(
            actions.ATTACH_CONSUMER,
            actions.AttachConsumer(path, self.journal, self.consumer, self.session, offsets.first),
        ).position

    def read(self) -> int:
        """Read what is there behind the position, and return how many rows that is."""
        offsets = self.client.call(
            actions.ASK_OFFSETS,
            actions.AskOffsets(self.path, start=self.position, consumer=self.consumer, session=self.session),
        )
        if dict(offsets.end) == dict(self.position):
            return 0
        table = self.client.get(
            self.path, columns=["_shard", "_offset", "data"], start=dict(self.position), end=dict(offsets.end)
        ).read_all()
        rows = zip(*(table[name].to_pylist() for name in ("_shard", "_offset", "data")), strict=True)
        for shard, offset, data in rows:
            assert self.messages.setdefault((shard, offset), data) == data
        self.position = offsets.end
        return int(table.num_rows)

    def commit(self) -> None:
        self.client.call(
            actions.COMMIT_POSITION,
            actions.CommitPosition(self.path, self.journal, self.consumer, self.session, self.position),
        )

    def read_until(self, count: int) -> None:
        """Read and commit until so many messages have come."""

        def enough() -> bool:
            if self.read():
                self.commit()
            return len(self.messages) >= count

        eventually(enough, within=90)


def attach(client: Client, path: str, **options: Any) -> actions.AttachedSubscription:
    return client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(path, **options))


def state(client: Client, path: str) -> actions.SubscriptionState:
    state = client.call(actions.DESCRIBE, actions.Target(path)).subscription
    assert state is not None
    return state


@pytest.fixture(params=["fake", pytest.param("emulator", marks=pytest.mark.soak)])
def broker(request: pytest.FixtureRequest, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that the environment names."""
    with open_broker(request, pubsub_names) as broker:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", broker.address)
        yield broker


SETTINGS: dict[str, Any] = {"allow_emulator": True, "pubsub_lease": 10}
PAST = 11.0
"""Seconds after which leases of a dead puller have ended."""


@pytest.fixture
def server(tmp_path: Path, broker: Broker) -> Iterator[ProcessServer]:
    with process_server(tmp_path / "data", **SETTINGS) as server:
        yield server


def is_acked(client: Client, path: str) -> bool:
    """Whether the server has released all rows, and its pullers have acked them."""
    now = state(client, path)
    return now.unreleased_rows == 0 and all(int(puller.counters.get("outstanding", 1)) == 0 for puller in now.connected)


@pytest.mark.parametrize("broker", ["fake", "emulator"], indirect=True)
def test_a_subscription_ends_empty(server: ProcessServer, broker: Broker) -> None:
    broker.create()
    path, count = broker.names.path, 20_000
    with connect(server.url) as client:
        attached = attach(client, path)
        assert (attached.ack, attached.attached, attached.created) == ("commit", True, False)
        query = Query(client, path)
        broker.publish(0, count)
        query.read_until(count)
        assert sorted(map(int, query.messages.values())) == list(range(count))
        eventually(lambda: is_acked(client, path), within=60)
        health = client.call(actions.HEALTH, actions.Nothing())
        assert (health.topics, health.subscriptions) == (0, 1)
    server.terminate()
    assert "the penstock server is away" not in server.log()
    assert broker.is_empty()


def test_create_makes_the_subscription(server: ProcessServer, broker: Broker) -> None:
    names = broker.names
    broker.client.create_topic(names.topic)
    with connect(server.url) as client:
        assert attach(client, names.path, create=names.topic).created
        assert not attach(client, names.path, create=names.topic).created
        broker.publish(0, 1)
        Query(client, names.path).read_until(1)


def test_a_missing_subscription_is_an_error_at_once(server: ProcessServer, broker: Broker) -> None:
    names = broker.names
    with connect(server.url) as client:
        for first_use in (lambda: attach(client, names.path), lambda: Query(client, names.path)):
            with pytest.raises(NotFound, match=r"does not exist at Pub/Sub.*create="):
                first_use()
        with pytest.raises(NotFound, match=r"topics/.* does not exist"):
            attach(client, names.path, create=names.topic)
        assert not list(client.list("subscription/"))


def test_a_push_subscription_is_refused(server: ProcessServer, broker: Broker) -> None:
    broker.client.create_topic(broker.names.topic)
    about = pb.Subscription(name=broker.names.subscription, topic=broker.names.topic)
    about.push_config.push_endpoint = "http://127.0.0.1:1/"
    broker.client.call(about)
    with connect(server.url) as client, pytest.raises(InvalidRequest, match=r"is a push subscription.*Create a pull"):
        attach(client, broker.names.path)


def test_ordering_and_dead_letters_ack_at_the_journal(server: ProcessServer, broker: Broker) -> None:
    names, other = broker.names, f"{broker.names.subscription}-dead"
    broker.create(ordering=True)
    broker.client.create_topic(names.dead_letters)
    broker.client.create_subscription(other, names.topic, dead_letter=names.dead_letters)
    with connect(server.url) as client:
        for path, reason in ((names.path, "message ordering"), (f"{names.path}-dead", "dead-letter")):
            attached = attach(client, path)
            assert attached.ack == "journal"
            assert reason in attached.reason
            assert attach(client, path, ack="commit").ack == "commit"
            assert attach(client, path).ack == "commit", "what was said stays"


def test_a_subscription_that_is_deleted_fails_its_query(tmp_path: Path, broker: Broker) -> None:
    """And goes on by itself once it is there again."""
    broker.create()
    names = broker.names
    often = "from penstock.flight_server import pulled_subscription; pulled_subscription._MEND = 1.0"
    with process_server(tmp_path / "data", prelude=often, **SETTINGS) as server, connect(server.url) as client:
        query = Query(client, names.path)
        eventually(lambda: state(client, names.path).connected, within=60)
        broker.client.delete_subscription(names.subscription)

        def fails() -> bool:
            try:
                query.read()
            except NotFound:
                return True
            return False

        eventually(fails, within=60)
        broker.client.create_subscription(names.subscription, names.topic)
        eventually(lambda: state(client, names.path).error is None, within=60)
        broker.publish(0, 2)
        query.read_until(2)


def test_rm_detaches_and_deletes_only_if_told(server: ProcessServer, broker: Broker) -> None:
    broker.create()
    broker.publish(0, 1)
    path = broker.names.path
    with connect(server.url) as client:
        attach(client, path)
        eventually(lambda: client.info(path).rows == 1, within=60)
        client.call(actions.DELETE, actions.DeleteTarget(path))
        assert not list(client.list("subscription/"))
        broker.let_pass(PAST)
        assert len(broker.client.pull_all(broker.names.subscription, 1, within=90.0)) == 1, (
            "what wasn't released is redelivered"
        )
        attach(client, path)
        client.call(actions.DELETE, actions.DeleteTarget(path, delete=True))
        with pytest.raises(NotFound, match="does not exist at Pub/Sub"):
            attach(client, path)


@pytest.mark.faults
def test_pullers_that_are_killed_lose_nothing(server: ProcessServer, broker: Broker) -> None:
    broker.create()
    path, count = broker.names.path, 3_000
    with connect(server.url) as client:
        attach(client, path, pullers=2)
        query = Query(client, path)
        eventually(lambda: len(state(client, path).connected) == 2, within=60)
        for part in range(3):
            broker.publish(part * 1_000, 1_000)
            query.read_until(part * 1_000 + 500)
            os.kill(pullers_of(server.pid)[0], signal.SIGKILL)
            broker.let_pass(PAST)
        query.read_until(count)
        assert sorted(map(int, query.messages.values())) == list(range(count))
        eventually(lambda: len(state(client, path).connected) == 2, within=60)
        eventually(lambda: is_acked(client, path) and broker.is_empty(), within=120)


def test_pullers_end_with_a_server_that_is_killed(server: ProcessServer, broker: Broker) -> None:
    broker.create()
    with connect(server.url) as client:
        attach(client, broker.names.path, pullers=2)
        eventually(lambda: len(state(client, broker.names.path).connected) == 2, within=60)
    children = pullers_of(server.pid)
    assert len(children) == 2
    server.kill()
    eventually(lambda: not is_any_there(children), within=60)


@pytest.mark.faults
@pytest.mark.parametrize("step", ["append.durable", "append.committed", "pull.committed", "release.recorded"])
def test_a_server_killed_at_a_step_loses_and_doubles_nothing(tmp_path: Path, broker: Broker, step: str) -> None:
    """At the step's second time: each half of the messages passes it at least once."""
    broker.create()
    path = broker.names.path
    with process_server(tmp_path / "data", crash_at=step, crash_on=2, **SETTINGS) as server:
        with connect(server.url, retry_for=1) as client:
            query = Query(client, path)
            eventually(lambda: state(client, path).connected, within=60)
            children = pullers_of(server.pid)
            for half in (0, 1_000):
                broker.publish(half, 1_000)
                with contextlib.suppress(PenstockError):
                    query.read_until(half + 1_000)
        eventually(lambda: server.process.poll() is not None, within=60)
    eventually(lambda: not is_any_there(children), within=60)
    broker.let_pass(PAST)
    with process_server(tmp_path / "data", **SETTINGS) as server, connect(server.url) as client:
        query = Query(client, path, query)
        query.read_until(2_000)

        def nothing_is_left() -> bool:
            query.read()
            query.commit()
            return is_acked(client, path) and broker.is_empty()

        eventually(nothing_is_left, within=120)
        assert sorted(map(int, query.messages.values())) == list(range(2_000))
        assert len(query.messages) + query.read() == 2_000


def pullers_of(server: int) -> list[int]:
    """Return the processes that a server has started."""
    processes: list[int] = []
    for file in Path(f"/proc/{server}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            processes += map(int, file.read_text().split())
    return processes


def is_any_there(processes: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in processes)
