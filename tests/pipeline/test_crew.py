"""A crew starts and stops workers by what waits, what idles and what dies; nothing here takes time."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.client import Client, connect
from penstock.pipeline import crew as crews
from penstock.pipeline.crew import Crew, stop_all
from penstock.pipeline.operator import Operation
from penstock.pipeline.pools import Exit
from penstock.pipeline.worker import Begun, Ended, Event, Task
from penstock.wire.queue import LeaseKey, QueueCounts, QueueDescription
from tests.kit.jobs import double
from tests.kit.queues import numbered


class FakeWorker:
    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[Event] = []
        self.ended: Exit | None = None
        self.calls: list[str] = []
        self.place = True

    def is_placed(self) -> bool:
        return self.place

    def stop(self) -> None:
        self.calls.append("stop")

    def set_room(self, room: tuple[int, int] | None) -> None:
        self.calls.append(f"room {room}")

    def kill(self) -> None:
        self.calls.append("kill")

    def events(self) -> list[Event]:
        told, self.told = self.told, []
        return told

    def exit(self) -> Exit | None:
        return self.ended


class FakePool:
    def __init__(self) -> None:
        self.workers: list[FakeWorker] = []

    def start(self, task: Task, name: str) -> FakeWorker:
        self.workers.append(FakeWorker(name))
        return self.workers[-1]


class Time:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(crews, "time", clock)
    return clock


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


def make_crew(pool: FakePool, fewest: int, most: int, retry_for: float = 0) -> Crew:
    client = connect("grpc://127.0.0.1:1", retry_for=retry_for)
    task = Task(client.settings, "queue/j/work", Operation(double), "double")
    return Crew(client, "work", task, pool, (fewest, most))


def waiting(pending: int, **counts: Any) -> QueueDescription:
    known = {"pushed": 1_000, "claimed": 0, "done": 0, "dead": 0, "bytes": 0, **counts}
    return QueueDescription(QueueCounts("queue/j/work", "open", pending=pending, **known), 0.0, 0.0, ())


def begun() -> Begun:
    return Begun(LeaseKey("queue/j/work", "m", "t"), 0.0)


def test_workers_are_added_while_splits_wait(pool: FakePool, clock: Time) -> None:
    crew = make_crew(pool, 1, 3)
    for _ in range(10):
        crew.tick(waiting(500))
        for worker in pool.workers:
            worker.told = [begun()]
        clock.now += 3
    assert len(pool.workers) == 3
    assert crew.figures.most_workers == 3


def test_an_idle_worker_is_drained_and_never_killed(pool: FakePool, clock: Time) -> None:
    """What it has claimed ahead would wait for its lease's end."""
    crew = make_crew(pool, 1, 2)
    crew.tick(waiting(500))
    clock.now += 3
    for worker in pool.workers:
        worker.told = [begun()]
    crew.tick(waiting(500))
    assert len(pool.workers) == 2
    for worker in pool.workers:
        worker.told = [begun(), Ended("m", 0.0, 0.1, "done")]
    crew.tick(waiting(0))
    clock.now += 10
    crew.tick(waiting(0))
    assert [worker.calls for worker in pool.workers] == [["stop"], []]
    clock.now += 10
    crew.tick(waiting(0))
    assert [worker.calls for worker in pool.workers] == [["stop"], []]


def test_a_stage_of_one_number_keeps_it(pool: FakePool, clock: Time) -> None:
    crew = make_crew(pool, 2, 2)
    crew.tick(waiting(500))
    clock.now += 10
    pool.workers[0].ended = Exit()
    crew.tick(waiting(500))
    assert len(pool.workers) == 3
    assert len(crew.members) == 2


def test_workers_that_can_not_begin_break_their_stage(pool: FakePool, clock: Time) -> None:
    crew = make_crew(pool, 1, 1)
    for _ in range(3):
        crew.tick(waiting(500))
        pool.workers[-1].ended = Exit("OSError: no model.bin")
        crew.tick(waiting(500))
        assert len(crew.members) == 0  # the next one waits
        clock.now += 10
    assert crew.broken == "3 workers ended before they did any split: OSError: no model.bin"


def test_what_a_dead_worker_had_is_given_back_at_once(client: Client, pool: FakePool, clock: Time) -> None:
    """The split that it had begun counts as tried, those that it had claimed ahead don't."""
    client.push("queue/j/work", numbered(1, 2, 3))
    crew = Crew(client, "work", Task(client.settings, "queue/j/work", Operation(double), "double"), pool)
    crew.tick(waiting(3))
    claim = {"path": "queue/j/work", "claim": "c", "worker": crew.members[0].known_as, "most": 3}
    [first, *_] = client.call("queue.claim", claim)["messages"]
    begun = Begun(LeaseKey("queue/j/work", first["message"]["message_id"], first["token"]), 0.0)
    pool.workers[0].told, pool.workers[0].ended = [begun], Exit("its process was killed by SIGKILL")
    crew.tick(waiting(0))
    again = client.call("queue.claim", {**claim, "claim": "again"})["messages"]
    assert [each["tries"] for each in again] == [2, 1, 1]


def test_a_worker_without_a_place_is_spoken_of(pool: FakePool, clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    crew = make_crew(pool, 1, 1)
    crew.task = replace(crew.task, resources={"num_gpus": 1})
    crew.tick(waiting(500))
    pool.workers[0].place = False
    missing = []
    for seconds in (0, 11, 1):
        clock.now += seconds
        crew.tick(waiting(500))
        missing.append(crew.missing)
    pool.workers[0].place = True
    missing.append(crew.missing)
    assert missing == [None, "num_gpus=1", "num_gpus=1", None]
    assert caplog.text.count("worker work-1 waits for a place with num_gpus=1") == 1


def test_a_crew_that_stops_waits_for_no_server(pool: FakePool, clock: Time) -> None:
    """What a killed worker had is given back when its leases end."""
    crew = make_crew(pool, 2, 2, retry_for=600)
    crew.tick(waiting(500))
    crew.kill()
    for worker in pool.workers:
        worker.ended = Exit()
    thread = threading.Thread(target=stop_all, args=([crew],), name="stop", daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
