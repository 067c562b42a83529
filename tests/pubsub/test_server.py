"""A server, its pullers and Pub/Sub together: from publish to an empty subscription, and what stops it on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client, connect
from penstock.errors import InvalidRequest, NotFound
from penstock.wire import actions
from penstock.wire.position import Position
from tests.kit.pubsub.emulator import Emulator, Names
from tests.kit.server import ProcessServer, process_server
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from tests.kit.pubsub.client import PubSub

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


class Query:
    """A consumer, as a query is one."""

    def __init__(self, client: Client, path: str) -> None:
        self.client, self.path = client, path
        self.consumer, self.session = uuid.uuid4().hex, uuid.uuid4().hex
        self.messages: dict[tuple[int, int], bytes] = {}
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
        before = len(self.messages)
        self.messages |= {(shard, offset): data for shard, offset, data in rows}
        assert len(self.messages) == before + table.num_rows
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
    with process_server(tmp_path / "data", allow_emulator=True) as server:
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
