"""A puller at Google's emulator: what is released is acked, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.queue.pubsub.pull import PullOptions
from tests.kit.pubsub.client import PubSub
from tests.kit.pubsub.emulator import Emulator, Names, unique_names
from tests.kit.pubsub.standin import Pulling, StandIn, pulling
from tests.kit.wait import eventually

pytestmark = pytest.mark.process

DEADLINE = 10
COUNT = 2_000


def acked_at_once(server: StandIn, run: Pulling) -> None:
    """What is released as it is stored."""


def acked_after_two_deadlines(server: StandIn, run: Pulling) -> None:
    """Leases are extended until rows are released: meanwhile nothing comes again."""
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 2 * DEADLINE, within=60)
    assert (server.duplicates, run.puller.counters().get("lapses", 0)) == (0, 0)
    server.release()


STREAMING, UNARY = PullOptions(lease_seconds=DEADLINE), PullOptions("unary", 2, DEADLINE)
CASES = [
    (STREAMING, True, acked_at_once),
    (UNARY, True, acked_at_once),
    (STREAMING, False, acked_after_two_deadlines),
]


def test_a_backlog_is_stored_and_acked(pubsub_emulator: Emulator, emulated: PubSub) -> None:
    """By both ways of pulling, and as late as it may be: side by side, as each waits for leases to end."""

    def pull(options: PullOptions, releases: bool, release: Callable[[StandIn, Pulling], None]) -> None:
        names, server = unique_names(), StandIn(releases=releases)
        publish_backlog(emulated, names)
        with pulling(server, pubsub_emulator.address, names.subscription, options) as run:
            eventually(lambda: len(server.rows) == COUNT, within=60)
            release(server, run)
            eventually(lambda: sum(map(len, server.acked().values())) == COUNT, within=60)
            run.end()
        assert {int(row["data"]) for row in server.rows} == set(range(COUNT))
        assert emulated.unacked(names.subscription, DEADLINE) == set()

    with ThreadPoolExecutor(len(CASES)) as pool:
        for case in [pool.submit(pull, *case) for case in CASES]:
            case.result()


def publish_backlog(emulated: PubSub, names: Names) -> None:
    emulated.create_topic(names.topic)
    emulated.create_subscription(names.subscription, names.topic, deadline=DEADLINE)
    emulated.publish(names.topic, [b"%d" % number for number in range(COUNT)])
