"""Queues on a broker without transactions: for workers as ever, for other consumers at least once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from unittest import mock

import pytest

from penstock import steps
from penstock.queue.work.lease_queue import Forward, LeaseQueue
from scripts import tansu_broker
from tests.kit.clock import Clock
from tests.kit.faults import crash_at
from tests.kit.kafka import KafkaBroker, QueuesOnTopics, broker_process
from tests.kit.wait import eventually
from tests.kit.work.contract import LeaseQueueContract
from tests.kit.work.queues import IN, OUT, claim, claimed, names, new

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


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
    """Each test ends with what the broker has: every message, once as nothing was killed."""

    @pytest.fixture
    def queue(self, start: Callable[[], QueuesOnTopics]) -> Iterator[LeaseQueue]:
        opened = start()
        yield opened
        opened.check_records()


def test_a_broker_without_transactions_is_named_at_start(
    start: Callable[[], QueuesOnTopics], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        queue = start()
        queue.push(new(IN, "a"))
        queue.settle()
    assert "the broker has no transactions, so other consumers may see a message twice" in caplog.text


def test_what_is_done_out_of_order_waits_for_the_first(start: Callable[[], QueuesOnTopics], tansu: KafkaBroker) -> None:
    """Tansu 0.6 drops the metadata of a commit, which says on Kafka what is done beyond the offset."""
    queue = start()
    queue.push(new(IN, *"abc"))
    queue.settle()
    a, b, _ = claimed(queue, IN, 3)
    queue.ack([b])
    queue.settle()
    assert tansu.done(queue.topic_of(IN), queue.group) == set()
    queue.ack([a])
    queue.settle()
    assert tansu.done(queue.topic_of(IN), queue.group) == {"a", "b"}


def test_a_crash_sends_nothing_twice_that_is_read_back(start: Callable[[], QueuesOnTopics]) -> None:
    """The records are there, the ledger doesn't know yet: the next start reads them first."""
    queue = start()
    queue.push(new(IN, "a"))
    queue.settle()
    with mock.patch.object(steps, "passed", crash_at("kafka.sent")):
        queue.push(new(IN, "b"))
        eventually(lambda: not queue.link._thread.is_alive())
    queue.close()
    queue = start()
    queue.check_records()
    assert names(claim(queue, IN, 9)) == ["a", "b"]


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
    queue.check_records()
