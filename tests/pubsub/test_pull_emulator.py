"""A puller at Google's emulator: what is released is acked, and nothing else."""

from __future__ import annotations

import time

import pytest

from penstock.queue.pubsub.pull import PullOptions
from tests.kit.pubsub.client import PubSub
from tests.kit.pubsub.emulator import Emulator, Names
from tests.kit.pubsub.standin import StandIn, pulling
from tests.kit.wait import eventually

pytestmark = pytest.mark.process

DEADLINE = 10


@pytest.mark.parametrize("options", [PullOptions(lease_seconds=DEADLINE), PullOptions("unary", 2, DEADLINE)])
def test_a_backlog_is_stored_and_acked(
    pubsub_emulator: Emulator, emulated: PubSub, pubsub_names: Names, options: PullOptions
) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic, deadline=DEADLINE)
    emulated.publish(pubsub_names.topic, (b"%d" % number for number in range(5_000)))
    server = StandIn()
    with pulling(server, pubsub_emulator.address, pubsub_names.subscription, options) as run:
        eventually(lambda: len(server.rows) == 5_000, within=60)
        eventually(lambda: sum(map(len, server.acked().values())) == 5_000)
        run.end()
    assert {int(row["data"]) for row in server.rows} == set(range(5_000))
    assert emulated.unacked(pubsub_names.subscription, DEADLINE, deadlines=2) == set()


def test_leases_are_extended_until_rows_are_released(
    pubsub_emulator: Emulator, emulated: PubSub, pubsub_names: Names
) -> None:
    """Over three deadlines nothing comes again; then all of it is acked."""
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic, deadline=DEADLINE)
    emulated.publish(pubsub_names.topic, (b"%d" % number for number in range(1_000)))
    server, began = StandIn(releases=False), time.monotonic()
    options = PullOptions(lease_seconds=DEADLINE)
    with pulling(server, pubsub_emulator.address, pubsub_names.subscription, options) as run:
        eventually(lambda: len(server.rows) == 1_000)
        eventually(lambda: time.monotonic() - began > 3 * DEADLINE, within=60)
        assert (server.duplicates, run.puller.counters().get("lapses", 0)) == (0, 0)
        server.release()
        eventually(lambda: sum(map(len, server.acked().values())) == 1_000)
        run.end()
    assert emulated.unacked(pubsub_names.subscription, DEADLINE) == set()
