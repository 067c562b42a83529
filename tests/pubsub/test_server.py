"""A server, its pullers and Pub/Sub together: from publish to an empty subscription, and what stops it on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client, connect
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.wire import actions
from tests.kit.pubsub.emulator import Emulator, Names
from tests.kit.server import ProcessServer, process_server
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from tests.kit.pubsub.client import PubSub

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


@pytest.fixture
def emulator_variable(pubsub_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub_emulator.address)
    return pubsub_emulator.address


@pytest.fixture
def server(tmp_path: Path, emulator_variable: str) -> Iterator[ProcessServer]:
    with process_server(tmp_path / "data", allow_emulator=True, pubsub_lease=10) as server:
        yield server


def is_empty(emulated: PubSub, subscription: str) -> bool:
    """Whether no message comes for longer than a lease."""
    return not emulated.pull(subscription, within=13.0)


def test_a_subscription_ends_empty(server: ProcessServer, emulated: PubSub, pubsub_names: Names) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
    path, count = pubsub_names.path, 20_000
    with connect(server.url) as client:
        attached = attach(client, path)
        assert (attached.ack, attached.attached, attached.created) == ("commit", True, False)
        query = Query(client, path)
        emulated.publish(pubsub_names.topic, [b"%d" % number for number in range(count)])
        query.read_until(count)
        assert sorted(map(int, query.messages.values())) == list(range(count))

        def acked() -> bool:
            (puller,) = state(client, path).connected
            return int(puller.counters.get("outstanding", 1)) == 0

        eventually(acked, within=30)
        assert state(client, path).unreleased_rows == 0
    server.terminate()
    assert is_empty(emulated, pubsub_names.subscription)


def test_create_makes_the_subscription(server: ProcessServer, emulated: PubSub, pubsub_names: Names) -> None:
    emulated.create_topic(pubsub_names.topic)
    with connect(server.url) as client:
        assert attach(client, pubsub_names.path, create=pubsub_names.topic).created
        assert not attach(client, pubsub_names.path, create=pubsub_names.topic).created
        emulated.publish(pubsub_names.topic, [b"x"])
        Query(client, pubsub_names.path).read_until(1)


def test_a_missing_subscription_is_an_error_at_once(server: ProcessServer, pubsub_names: Names) -> None:
    with connect(server.url) as client:
        for first_use in (lambda: attach(client, pubsub_names.path), lambda: Query(client, pubsub_names.path)):
            with pytest.raises(NotFound, match=r"does not exist at Pub/Sub.*create="):
                first_use()
        with pytest.raises(NotFound, match=r"topics/.* does not exist"):
            attach(client, pubsub_names.path, create=pubsub_names.topic)
        assert not list(client.list("subscription/"))


def test_a_push_subscription_is_refused(server: ProcessServer, emulated: PubSub, pubsub_names: Names) -> None:
    from tests.kit.pubsub import messages as pb

    emulated.create_topic(pubsub_names.topic)
    about = pb.Subscription(name=pubsub_names.subscription, topic=pubsub_names.topic)
    about.push_config.push_endpoint = "http://127.0.0.1:1/"
    emulated.call(about)
    with connect(server.url) as client, pytest.raises(InvalidRequest, match=r"is a push subscription.*Create a pull"):
        attach(client, pubsub_names.path)


def test_ordering_and_dead_letters_ack_at_the_journal(
    server: ProcessServer, emulated: PubSub, pubsub_names: Names
) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic, ordering=True)
    other = f"{pubsub_names.subscription}-dead"
    emulated.create_topic(pubsub_names.dead_letters)
    emulated.create_subscription(other, pubsub_names.topic, dead_letter=pubsub_names.dead_letters)
    with connect(server.url) as client:
        for path, reason in ((pubsub_names.path, "message ordering"), (f"{pubsub_names.path}-dead", "dead-letter")):
            attached = attach(client, path)
            assert attached.ack == "journal"
            assert reason in attached.reason
            assert attach(client, path, ack="commit").ack == "commit"
            assert attach(client, path).ack == "commit", "what was said stays"


def test_a_subscription_that_is_deleted_fails_its_query(
    server: ProcessServer, emulated: PubSub, pubsub_names: Names
) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
    with connect(server.url) as client:
        query = Query(client, pubsub_names.path)
        eventually(lambda: state(client, pubsub_names.path).connected, within=60)
        emulated.delete_subscription(pubsub_names.subscription)

        def fails() -> bool:
            try:
                query.read()
            except NotFound:
                return True
            return False

        eventually(fails, within=60)
        emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
        eventually(lambda: state(client, pubsub_names.path).error is None, within=60)
        emulated.publish(pubsub_names.topic, [b"1", b"2"])
        query.read_until(2)


def test_rm_detaches_and_deletes_only_if_told(server: ProcessServer, emulated: PubSub, pubsub_names: Names) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
    emulated.publish(pubsub_names.topic, [b"1"])
    with connect(server.url) as client:
        attach(client, pubsub_names.path)
        eventually(lambda: client.info(pubsub_names.path).rows == 1, within=60)
        client.call(actions.DELETE, actions.DeleteTarget(pubsub_names.path))
        assert not list(client.list("subscription/"))
        assert len(emulated.pull_all(pubsub_names.subscription, 1, within=90.0)) == 1, (
            "what wasn't released is redelivered"
        )
        attach(client, pubsub_names.path)
        client.call(actions.DELETE, actions.DeleteTarget(pubsub_names.path, delete=True))
        with pytest.raises(NotFound, match="does not exist at Pub/Sub"):
            attach(client, pubsub_names.path)


@pytest.mark.faults
def test_pullers_that_are_killed_lose_nothing(server: ProcessServer, emulated: PubSub, pubsub_names: Names) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
    path, count = pubsub_names.path, 3_000
    with connect(server.url) as client:
        attach(client, path, pullers=2)
        query = Query(client, path)
        eventually(lambda: len(state(client, path).connected) == 2, within=60)
        for part in range(3):
            emulated.publish(pubsub_names.topic, [b"%d" % (part * 1_000 + number) for number in range(1_000)])
            query.read_until((part + 1) * 1_000 - 500)
            os.kill(pullers_of(server.pid)[0], signal.SIGKILL)
        query.read_until(count)
        assert sorted(map(int, query.messages.values())) == list(range(count))
        eventually(lambda: len(state(client, path).connected) == 2, within=60)


def test_pullers_end_with_a_server_that_is_killed(server: ProcessServer, emulated: PubSub, pubsub_names: Names) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
    with connect(server.url) as client:
        attach(client, pubsub_names.path, pullers=2)
        eventually(lambda: len(state(client, pubsub_names.path).connected) == 2, within=60)
    children = pullers_of(server.pid)
    assert len(children) == 2
    server.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), within=20)


@pytest.mark.faults
@pytest.mark.parametrize("step", ["append.durable", "append.committed", "pull.committed", "release.recorded"])
def test_a_server_killed_at_a_step_loses_and_doubles_nothing(
    tmp_path: Path, emulator_variable: str, emulated: PubSub, pubsub_names: Names, step: str
) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
    emulated.publish(pubsub_names.topic, [b"%d" % number for number in range(2_000)])
    path = pubsub_names.path
    settings: dict[str, Any] = {"allow_emulator": True, "pubsub_lease": 10}
    with process_server(tmp_path / "data", crash_at=step, crash_on=2, **settings) as server:
        with connect(server.url, retry_for=1) as client:
            query = Query(client, path)
            with contextlib.suppress(PenstockError):
                query.read_until(2_000)
        eventually(lambda: server.process.poll() is not None, within=60)
    with process_server(tmp_path / "data", **settings) as server, connect(server.url) as client:
        query = Query(client, path, query)
        query.read_until(2_000)

        def nothing_is_left() -> bool:
            query.read()
            query.commit()
            now = state(client, path)
            return now.unreleased_rows == 0 and all(
                int(puller.counters.get("outstanding", 1)) == 0 for puller in now.connected
            )

        eventually(nothing_is_left, within=60)
        assert sorted(map(int, query.messages.values())) == list(range(2_000))
        eventually(lambda: not emulated.pull(pubsub_names.subscription, within=13.0), within=60)
        assert len(query.messages) + query.read() == 2_000


def pullers_of(server: int) -> list[int]:
    """Return the processes that a server has started."""
    return [int(pid) for file in Path(f"/proc/{server}/task").glob("*/children") for pid in file.read_text().split()]
