"""Queues on Kafka whose broker, server or worker is killed or stopped: each number comes out once, here and there."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.client.client import Client, connect
from tests.kit.kafka import LEFT_SOCKETS, KafkaBroker
from tests.kit.queues import IN, OUT, drained, line, numbered, states, work, worker
from tests.kit.server import RestartingServer, process_server
from tests.kit.wait import eventually

pytestmark = [
    pytest.mark.process, pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.filterwarnings(LEFT_SOCKETS)
]  # fmt: skip
NUMBERS = range(30)
DOUBLED = [2 * number for number in NUMBERS]


def make(c: Client, kafka: KafkaBroker, topic: str) -> None:
    for path in (IN, OUT):
        c.create_queue(path, f"{kafka.url}/{topic}.{path[-2:]}")
    c.push(IN, numbered(*NUMBERS), finish=True)


def check_topics(kafka: KafkaBroker, topic: str, data: Path) -> None:
    """Check that each message is a record once, and that the group has committed all of them as done."""
    ledger = sqlite3.connect(data / "ledger.db")
    group = f"penstock-{ledger.execute('SELECT id FROM ledger').fetchone()[0][:16]}"
    ledger.close()
    for name in (f"{topic}.in", f"{topic}.ut"):
        eventually(lambda name=name: len(kafka.done(name, group)) == len(NUMBERS))  # type: ignore[misc]
        ids = kafka.ids(name)
        assert len(ids) == len(set(ids)) == len(NUMBERS)


@pytest.mark.parametrize("step", ["kafka.sent", "kafka.committed"])
def test_a_killed_home_sends_and_does_nothing_twice(step: str, tmp_path: Path, kafka: KafkaBroker, topic: str) -> None:
    """In the middle of a transaction, and between it and what the ledger notes of it."""
    server = RestartingServer(tmp_path / "data", queue_lease=15, crash_at=step, crash_on=2, kafka=kafka.url)
    with server.living(), connect(server.url, retry_for=60) as c:
        make(c, kafka, topic)
        work(c)
        assert drained(c, OUT) == DOUBLED
        check_topics(kafka, topic, server.data)
        assert server.lives == 2


@pytest.mark.parametrize(
    ("stop", "go_on", "seconds"),
    [
        pytest.param(KafkaBroker.kill, KafkaBroker.start, 0, id="killed"),
        pytest.param(KafkaBroker.pause, KafkaBroker.resume, 2, id="stopped"),
        pytest.param(KafkaBroker.pause, KafkaBroker.resume, 30, id="stopped-long", marks=pytest.mark.soak),
    ],
)
def test_workers_go_on_while_the_broker_is_away(
    stop: Callable[[KafkaBroker], None], go_on: Callable[[KafkaBroker], None], seconds: float, tmp_path: Path,
    kafka: KafkaBroker, topic: str,
) -> None:  # fmt: skip
    with (
        process_server(tmp_path / "data", queue_lease=1.5, kafka=kafka.url) as server,
        connect(server.url, retry_for=60) as c,
        ThreadPoolExecutor() as pool,
    ):
        make(c, kafka, topic)
        with worker(server.url, "stall") as killed:
            assert line(killed)[0] == "claimed"
            stop(kafka)
            killed.kill()
        working = pool.submit(work, c)
        eventually(lambda: states(c)[2] == len(NUMBERS), what="the numbers are done while the broker is away")
        time.sleep(seconds)
        go_on(kafka)
        working.result(120)
        assert drained(c, OUT) == DOUBLED
        check_topics(kafka, topic, server.data)
