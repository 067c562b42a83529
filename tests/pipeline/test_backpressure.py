"""A stage that outruns the one below it waits: the queue between them has a bound, and nothing deadlocks on it."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from penstock.client.claim import Split
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import Call, FailurePolicy, Job, Stage, WriteDataset
from penstock.pipeline import job as jobs
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
