"""A stage that outruns the one below it waits: the queue between them has a bound, and nothing deadlocks on it."""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.lease import Split
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import Call, FailurePolicy, Job, Stage, WriteDataset
from penstock.pipeline import crew as crews
from penstock.pipeline import job as jobs
from penstock.pipeline.pools import Exit, ThreadWorker
from penstock.pipeline.worker import Event, Task
from tests.kit.jobs import double, numbers, values
from tests.kit.queues import counts, numbered

OUT, SPLITS, BOUND = "store/out", 60, 4
ONE_DEAD = FailurePolicy(retries=False, most=1, rate=None)


class Watches:
    """Looks how much is in a queue, not done, whenever a split is processed."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client, self.queue = client, queue
        self.most = Counter[str]()

    def __call__(self, split: Split) -> pa.Table:
        known = counts(self.client, self.queue)
        waiting = known["pending"] + known["claimed"]
        self.most["messages"] = max(self.most["messages"], waiting)
        self.most["bytes"] = max(self.most["bytes"], known["bytes"])
        return split.payload.data

    def watch(self, split: Split) -> None:
        """Look, as a sink that returns nothing."""
        self(split)


class Placed:
    """A pool with so many places: a worker without one waits until another one has ended, as actors of Ray do."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.waiting: list[PlacedWorker] = []

    def start(self, task: Task, name: str) -> PlacedWorker:
        self.waiting.append(worker := PlacedWorker(self, task, name))
        self.place()
        return worker

    def place(self) -> None:
        while self.places and self.waiting:
            self.places -= 1
            self.waiting.pop(0).begin()


class PlacedWorker:
    """A thread, once it has a place; what it is told before waits for that."""

    def __init__(self, pool: Placed, task: Task, name: str) -> None:
        self.pool, self.task, self.name = pool, task, name
        self.thread: ThreadWorker | None = None
        self.room: list[tuple[int, int] | None] = []
        self.is_gone = False

    def begin(self) -> None:
        self.thread = ThreadWorker(self.task, self.name)
        for room in self.room:
            self.thread.set_room(room)

    def is_placed(self) -> bool:
        return self.thread is not None

    def stop(self) -> None:
        assert self.thread is not None
        self.thread.stop()

    def set_room(self, room: tuple[int, int] | None) -> None:
        self.room.append(room)
        if self.thread is not None:
            self.thread.set_room(room)

    def kill(self) -> None:
        assert self.thread is not None
        self.thread.kill()

    def events(self) -> list[Event]:
        return [] if self.thread is None else self.thread.events()

    def exit(self) -> Exit | None:
        ended = None if self.thread is None else self.thread.exit()
        if ended is not None and not self.is_gone:
            self.is_gone = True
            self.pool.places += 1
            self.pool.place()
        return ended


@pytest.fixture(autouse=True)
def _bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_FULL_SPLITS", BOUND)


def test_a_fast_stage_waits_for_a_slow_sink(server: PenstockServer, client: Client) -> None:
    """The middle stage doubles at once, the sink asks the server for each split."""
    slow = Watches(client, "queue/j/out")
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(*range(SPLITS))))
    job.stage(Stage("middle", double, workers=2), after="in")
    job.stage(Stage("out", Call(slow.watch)), after="middle")
    assert job.run().stages[1].done == SPLITS
    assert 1 <= slow.most["messages"] <= BOUND


def test_a_queue_has_a_bound_of_bytes(server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """One split is more than the bound, and yet goes through."""
    monkeypatch.setattr(jobs, "_FULL_SPLITS", 1_000)
    monkeypatch.setattr(jobs, "_FULL_BYTES", 1)
    slow = Watches(client, "queue/j/out")
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(*range(SPLITS))))
    job.stage(Stage("middle", lambda split: split.payload), after="in")
    job.stage(Stage("out", Call(slow.watch)), after="middle")
    assert job.run().stages[1].done == SPLITS
    assert slow.most["bytes"] > 0


def test_fan_out_and_union_have_room_in_the_end(server: PenstockServer, client: Client) -> None:
    """Two ways from a stage, of which one is slow, meet again; each split returns two, and one of them is bad."""

    def spread(split: Split) -> list[pa.Table]:
        return numbered(*(2 * n + i for n in numbers(split) for i in range(2)))

    def fails(split: Split) -> pa.Table:
        if numbers(split) == [7]:
            raise ValueError("7 is bad")
        return split.payload.data

    slow = Watches(client, "queue/j/left")
    job = Job("j", url=server.url)
    job.stage(Stage("a", numbered(*range(SPLITS))))
    job.stage(Stage("spread", spread), after="a")
    job.stage(Stage("left", slow, workers=2), after="spread")
    job.stage(Stage("right", fails, failure=ONE_DEAD), after="spread")
    job.stage(Stage("out", WriteDataset(OUT)), after=["left", "right"])
    job.run()
    every = list(range(2 * SPLITS))
    assert values(client, OUT) == sorted([*every, *every[:7], *every[8:]])
    assert slow.most["messages"] <= 2 * BOUND  # each split that is claimed above brings two


@pytest.mark.parametrize("places", [1, 2])
def test_a_stage_that_holds_all_places_waits_for_none(
    server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    """Those below it get the places once it is at its end: until then nobody would make room."""
    monkeypatch.setattr(crews, "_PLACED", 0.1)
    monkeypatch.setattr(jobs, "open_pool", lambda workers: Placed(places))
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(*range(SPLITS))))
    job.stage(Stage("first", double, workers=places), after="in")
    job.stage(Stage("second", double), after="first")
    job.stage(Stage("out", WriteDataset(OUT)), after="second")
    thread = threading.Thread(target=job.run, name="run", daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert values(client, OUT) == [4 * n for n in range(SPLITS)]
