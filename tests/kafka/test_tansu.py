"""Queues on a broker without transactions: for workers as ever, for other consumers at least once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.queue.work.lease_queue import Forward, LeaseQueue
from scripts import tansu_broker
from tests.kit.clock import Clock
from tests.kit.kafka import KafkaBroker, QueuesOnTopics, broker_process
from tests.kit.work.contract import LeaseQueueContract
from tests.kit.work.queues import IN, OUT, claim, claimed, names, new

pytestmark = [pytest.mark.process, pytest.mark.soak]


@pytest.fixture(scope="module")
def tansu() -> Iterator[KafkaBroker]:
    with broker_process(tansu_broker) as broker:
        yield broker


@pytest.fixture
def start(tmp_path: Path, tansu: KafkaBroker, topic: str, clock: Clock) -> Iterator[Callable[[], QueuesOnTopics]]:
    """Open the queues as a process that has just started does."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(QueuesOnTopics(tmp_path, tansu, topic, clock)))


class TestTansuQueue(LeaseQueueContract):
    """Each test ends with what the broker has: every message, and as done what is done."""

    @pytest.fixture
    def queue(self, start: Callable[[], QueuesOnTopics]) -> Iterator[LeaseQueue]:
        opened = start()
        yield opened
        opened.check()


def test_a_broker_without_transactions_is_named_at_start(
    start: Callable[[], QueuesOnTopics], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        queue = start()
        queue.push(new(IN, "a"))
        queue.settle()
    assert "the broker has no transactions, so other consumers may see a message twice" in caplog.text


def test_outputs_are_records_before_their_ack(start: Callable[[], QueuesOnTopics], tansu: KafkaBroker) -> None:
    queue = start()
    queue.push(new(IN, "a", "b"))
    queue.settle()
    (a, _) = claimed(queue, IN, 2, to=[OUT])
    queue.forward([Forward((a,), tuple(new(OUT, "a/0")))])
    queue.settle()
    assert tansu.done(queue.topic_of(IN), queue.group) == {"a"}
    queue.close()
    queue = start()
    assert names(claim(queue, OUT, 9)) == ["a/0"]
    queue.check()
