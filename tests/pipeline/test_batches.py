"""Splits that a worker takes several at once: operators with process_batch, and what a sink puts together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import claim
from penstock.client.claim import _Loader
from penstock.client.client import Client, connect
from penstock.client.lease import Split
from penstock.errors import InvalidRequest, JobFailed
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import Job, Stage, WriteDataset, dead_letter
from penstock.pipeline.operator import Operation
from penstock.pipeline.sinks import DatasetPuts
from penstock.pipeline.worker import Control, Ended, Event, Task, work
from tests.kit.jobs import double, numbers, values
from tests.kit.queues import counts, drained, numbered

OUT, QUEUE, RECEIPTS = "store/out", "queue/j/out", "queue/j/out/receipts"


class Doubles:
    """Doubles the numbers of several splits; fails or dies where one of them is a bad one."""

    def __init__(self, bad: Sequence[int] = (), folder: Path | None = None) -> None:
        self.bad, self.folder = frozenset(bad), folder
        self.sizes: list[int] = []

    def process_batch(self, splits: Sequence[Split]) -> list[pa.Table]:
        """Double the numbers."""
        self.sizes.append(len(splits))
        if any(self.bad & set(numbers(split)) for split in splits):
            if self.folder is None:
                raise ValueError(f"{len(splits)} splits, of which one is bad")
            (self.folder / f"{len(list(self.folder.iterdir()))}-{len(splits)}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [double(split) for split in splits]


def run(server: PenstockServer, what: Any, workers: str = "threads", count: int = 20, **how: Any) -> Job:
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(*range(count))))
    job.stage(Stage("work", what, **how), after="in")
    job.stage(Stage("out", WriteDataset(OUT)), after="work")
    job.run(workers)
    return job


def worked(client: Client, queue: str, what: Any) -> list[str]:
    """Work until a queue is complete; return how its splits ended."""
    told: list[Event] = []
    work(Task(client.settings, queue, what, "test", getattr(what, "to", ()), retries=False), Control(told.append))
    return [event.outcome for event in told if isinstance(event, Ended)]


def test_an_operator_gets_several_splits_at_once(client: Client) -> None:
    """The first claim finds all splits; a split with many outputs, or none, keeps its place."""
    client.push("queue/j/in", numbered(*range(50)), finish=True)
    sizes = []

    class Repeats:
        def process_batch(self, splits: Sequence[Split]) -> list[Any]:
            sizes.append(len(splits))
            return [numbered(*[n] * (n % 3)) or None for split in splits for n in numbers(split)]

    assert worked(client, "queue/j/in", Operation(Repeats(), ("queue/j/next",), batch=16)) == ["done"] * 50
    assert sum(sizes) == 50
    assert 1 < max(sizes) <= 16
    assert counts(client, "queue/j/next")["pushed"] == sum(n % 3 for n in range(50))


def test_a_batch_that_fails_is_done_split_by_split(client: Client) -> None:
    client.push("queue/j/in", numbered(*range(20)), finish=True)
    what = Operation(Doubles(bad=[3]), ("queue/j/next",), batch=16)
    assert sorted(worked(client, "queue/j/in", what)) == ["done"] * 19 + ["failed"]
    client.call("queue.finish", {"path": "queue/j/next"})
    assert drained(client, "queue/j/next") == [2 * n for n in range(20) if n != 3]
    [dead] = client.get("queue/j/in/dead").read_all().to_pylist()
    assert (dead["tries"], dead["text"]) == (1, "1 splits, of which one is bad")


def test_a_batch_needs_a_result_for_each_split(server: PenstockServer) -> None:
    class Loses:
        def process_batch(self, splits: Sequence[Split]) -> list[pa.Table]:
            return []

    with pytest.raises(JobFailed, match="returned 0 results for 1 splits: expected one for each"):
        run(server, Loses())
    with pytest.raises(InvalidRequest, match="batch=4: expected a number from 1, of an operator with process_batch"):
        Stage("work", double, batch=4)


@pytest.mark.process
@pytest.mark.faults
def test_a_worker_that_dies_with_several_splits_blames_none(
    make_server: Callable[..., PenstockServer], tmp_path: Path
) -> None:
    """From then on they run one by one, so that the split that kills is known."""
    (deaths := tmp_path / "deaths").mkdir()
    server = make_server(queue_lease=1.5)
    run(server, Doubles(bad=[3], folder=deaths), "processes", failure=dead_letter(most=1))
    sizes = sorted(file.name.partition("-")[2] for file in deaths.iterdir())
    assert sizes[:3] == ["1", "1", "1"]
    with connect(server.url) as client:
        assert values(client, OUT) == [2 * n for n in range(20) if n != 3]
        [dead] = client.get("queue/j/work/dead").read_all().to_pylist()
    assert dead["message_id"] == "in_3_work"


def sink(client: Client) -> tuple[DatasetPuts, dict[str, Any]]:
    """Return the work of a dataset sink, opened, and what finishes its write."""
    stages = [
        {"stage": "in", "role": "source", "what": "?"},
        {"stage": "out", "role": "sink", "what": f"WriteDataset {OUT}", "after": ["in"], "receipts": True},
    ]
    client.call("job.start", {"path": "job/j", "stages": stages})
    ticket = client.call("write.open", {"path": OUT})["ticket"]
    return DatasetPuts(QUEUE, ticket), {"ticket": ticket, "attempts": [], "receipts": RECEIPTS}


def test_splits_that_wait_are_one_attempt(client: Client) -> None:
    puts, finish = sink(client)
    other = [pa.table({"x": pa.array([n], pa.int64()), "y": [n]}) for n in range(50, 60)]
    client.push(QUEUE, [*numbered(*range(50)), *other], finish=True)
    assert worked(client, QUEUE, puts) == ["done"] * 60
    receipts = counts(client, RECEIPTS)["pushed"]
    assert 2 <= receipts <= 10  # a claim or two of one split each come first; two schemas are two attempts
    assert client.call("write.finish", finish)["rows"] == 60
    assert values(client, OUT) == list(range(60))


def test_a_lost_lease_takes_those_of_its_attempt_along(client: Client) -> None:
    """The rows of the attempt are another worker's to put: none of them counts, and all splits come again."""
    puts, _ = sink(client)
    client.push(QUEUE, numbered(1, 2, 3), finish=True)
    puts.open(client)
    batches = client.claim(QUEUE, prefetch=3).batches(3, linger=5.0)
    leases = next(batches)
    assert len(leases) == 3
    puts(leases, [lease.split for lease in leases])
    client.call("queue.release", {"leases": [leases[1].key.to_json()]})
    leases[0].end_with(leases[1:])
    again = []
    for some in batches:
        for lease in some:
            with lease as split:
                again.append((*numbers(split), lease.tries))
    assert sorted(again) == [(1, 1), (2, 1), (3, 1)]
    assert counts(client, RECEIPTS)["pushed"] == 0


def test_a_stop_ends_a_wait_for_more(client: Client) -> None:
    client.push("queue/j/in", numbered(1))
    claims = client.claim("queue/j/in")
    taken: list[int] = []

    def take() -> None:
        taken.extend(len(leases) for leases in claims.batches(4, linger=60.0))

    thread = threading.Thread(target=take, name="take")
    thread.start()
    claims.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert taken == []


def test_a_wait_for_more_ends_once_the_bytes_are_there(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further split would fit, so that the worker would wait for nothing."""
    monkeypatch.setattr(claim, "_BATCH_BYTES", 1_000)
    client.push("queue/j/in", [pa.table({"x": range(200)})])
    claims = client.claim("queue/j/in")
    taken: list[int] = []

    def take() -> None:
        for leases in claims.batches(64, linger=600.0):
            taken.extend(split.payload.data.num_rows for lease in leases for split in [lease.split])
            claims.stop()

    thread = threading.Thread(target=take, name="take", daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert taken == [200]


@pytest.mark.usefixtures("elsewhere")
def test_what_is_loaded_ahead_has_a_bound_of_bytes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits are claimed by the size of those before them, and then are a thousand times larger."""
    most = 0
    loaded = _Loader._load

    def load(loader: _Loader, *arguments: Any) -> None:
        nonlocal most
        loaded(loader, *arguments)
        most = max(most, loader._loaded())

    monkeypatch.setattr(_Loader, "_load", load)
    monkeypatch.setattr(claim, "_BATCH_BYTES", 100_000)
    large = [pa.table({"x": [n] * 1_250}) for n in range(100)]
    client.push("queue/j/in", numbered(*range(100)))
    client.push("queue/j/in", large, finish=True)
    taken = 0
    for leases in client.claim("queue/j/in").batches(16):
        time.sleep(0.01)  # so that the loader is ahead
        for lease in leases:
            with lease:
                taken += 1
    assert taken == 200
    assert most <= 210_000  # the one above which it waits, and the one that brought it there
