"""Jobs whose workers, driver or server die, or whose sink fails: each row of the source is in the dataset once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.client.lease import Split
from penstock.errors import AlreadyExists, JobFailed, StoreFull, TimedOut, Unavailable
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import (
    Call,
    Job,
    JobSummary,
    ReadDataset,
    Stage,
    WriteDataset,
    WriteTopic,
    dead_letter,
    sources,
    worker,
)
from penstock.pipeline import job as jobs
from penstock.queue.work import messages
from tests.kit.jobs import Dies, Sleeps, double, stage_counts, state_of, values
from tests.kit.programs.job import slow_job
from tests.kit.queues import numbered
from tests.kit.server import RestartingServer, served
from tests.kit.wait import eventually

pytestmark = pytest.mark.faults
OUT = "store/out"
LEASE = 1.5
ALL = [2 * n for n in range(40)]


@pytest.fixture
def server(make_server: Callable[..., PenstockServer]) -> PenstockServer:
    """A server with short leases."""
    return make_server(queue_lease=LEASE)


@contextmanager
def driver(url: str) -> Iterator[subprocess.Popen[str]]:
    """Start the driver of the slow job in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.programs.job", url, "processes", "0.5"], cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def some_done(client: Client) -> bool:
    """Whether the slow job is somewhere in the middle."""
    return bool(client.list("job/")) and 3 <= stage_counts(client, "slow")["work"]["done"] < 40


@pytest.mark.process
def test_a_split_that_kills_its_workers_runs_alone_and_is_dead(
    server: PenstockServer, client: Client, tmp_path: Path
) -> None:
    (deaths := tmp_path / "deaths").mkdir()
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(*range(10))))
    job.stage(Stage("work", Dies([3], deaths), workers=2, failure=dead_letter(most=1)), after="in")
    job.stage(Stage("out", WriteDataset(OUT)), after="work")
    summary = job.run("processes")
    assert values(client, OUT) == [2 * n for n in range(10) if n != 3]
    assert summary.stages[0].dead == 1
    assert len(list(deaths.iterdir())) >= 3  # one more, if the driver was so late that the split's lease had ended
    [dead] = client.get("queue/j/work/dead").read_all().to_pylist()
    assert dead["error"] == "WorkerDied"
    assert "of its workers died, the last one while it ran alone: its process was killed by SIGKILL" in dead["text"]


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_whose_driver_died_goes_on(server: PenstockServer, client: Client, how: signal.Signals) -> None:
    with driver(str(server.url)) as process:
        eventually(lambda: some_done(client), within=60)
        process.send_signal(how)
        process.wait(60)
    assert state_of(client, "slow") == (("running", None) if how == signal.SIGKILL else ("cancelled", "SIGTERM"))
    assert slow_job(str(server.url), 0.0).run().state == "done"
    assert values(client, OUT) == ALL


@pytest.mark.process
@pytest.mark.parametrize("crash_at", [None, "finish.shown"])
def test_a_job_outlives_its_server(tmp_path: Path, crash_at: str | None) -> None:
    """It is killed in the middle, or kills itself while it commits the sink's write."""
    server = RestartingServer(tmp_path / "data", crash_at=crash_at, queue_lease=LEASE)
    with server.living(), connect(server.url, retry_for=60) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(slow_job(server.url, 0.2 if crash_at is None else 0.0).run)
        if crash_at is None:
            eventually(lambda: some_done(client), within=60)
            server.kill()
        running.result(100)
        assert values(client, OUT) == ALL
        assert server.lives == 2


def test_a_sink_that_fails_at_its_commit_is_committed_later(server: PenstockServer, client: Client) -> None:
    def job() -> Job:
        job = Job("j", url=server.url)
        job.stage(Stage("in", numbered(*range(5))))
        job.stage(Stage("out", WriteDataset(OUT)), after="in")
        job.stage(Stage("rival", Call(lambda split: client.put(OUT, pa.table({"x": [9]}), run="rival"))), after="in")
        return job

    with pytest.raises(AlreadyExists):
        job().run()
    assert state_of(client, "j")[0] == "failed"
    client.delete(OUT)
    assert job().run().state == "done"
    assert values(client, OUT) == list(range(5))


def test_a_resumed_job_does_no_split_again_after_an_hour(
    server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source ended in the middle, and pushes the first splits once more."""
    monkeypatch.setattr(sources, "_BATCH_SPLITS", 10)

    def run(cut: bool) -> JobSummary:
        def elements() -> Iterator[pa.Table]:
            yield from numbered(*range(10))
            if cut:
                eventually(lambda: stage_counts(client, "j")["out"]["done"] == 10)
                raise RuntimeError("it was cut")
            yield from numbered(*range(10, 20))

        job = Job("j", url=server.url)
        job.stage(Stage("in", elements()))
        job.stage(Stage("work", double), after="in")
        job.stage(Stage("out", WriteDataset(OUT)), after="work")
        return job.run()

    with pytest.raises(JobFailed, match="source 'in': RuntimeError: it was cut"):
        run(cut=True)
    monkeypatch.setattr(messages, "GRACE", -60.0)  # all that is done is done for long
    server.state.kinds["queue"].tend(lambda: False)
    assert [stage.rows_in for stage in run(cut=False).stages] == [10, 10]
    assert values(client, OUT) == [2 * n for n in range(20)]


def test_a_split_that_takes_too_long_fails(server: PenstockServer, client: Client) -> None:
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(1, 2, 3)))
    job.stage(Stage("work", Sleeps(20.0, at=[2]), timeout=4, workers=2), after="in")
    job.stage(Stage("out", WriteDataset(OUT)), after="work")
    with pytest.raises(JobFailed, match="in_1_work of queue/j/work took longer than 4 s in tests"):
        job.run()


@pytest.mark.parametrize("sink", [WriteDataset(OUT), WriteTopic("topic/out")], ids=["dataset", "topic"])
def test_a_sink_waits_while_the_store_is_full(
    make_server: Callable[..., PenstockServer], sink: WriteDataset | WriteTopic
) -> None:
    """The source is in the store already, so that the sink alone needs room; the job never fails."""
    server = make_server(quota=1_000_000, ticket_life=0.1)
    rows = pa.table({"x": range(20_000)})
    with connect(server.url) as client, ThreadPoolExecutor(1) as pool:
        client.put("store/in", rows)
        client.put("store/other", pa.table({"x": range(90_000)}))
        job = Job("j", url=server.url)
        job.stage(Stage("in", ReadDataset("store/in")))
        job.stage(Stage("out", sink), after="in")
        running = pool.submit(job.run)
        try:
            eventually(lambda: 'penstock_errors_total{code="full",verb="do_put"}' in server.state.metrics.text())
        finally:
            client.delete("store/other")
        summary = running.result(60)
        assert (summary.stages[0].done, summary.stages[0].retries) == (1, 0)
        assert values(client, sink.path) == list(range(20_000))


def test_errors_of_the_server_count_as_no_try(
    server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is away or full for longer than a worker waits may come back: no split is dead."""
    monkeypatch.setattr(worker, "_PAUSE", 0.0)
    errors = [StoreFull("full"), Unavailable("away"), TimedOut("late")] * 3

    def fails_at_first(split: Split) -> pa.Table:
        if errors:
            raise errors.pop()
        return split.payload.data

    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(1)))
    job.stage(Stage("work", fails_at_first), after="in")
    job.stage(Stage("out", WriteDataset(OUT)), after="work")
    assert job.run().stages[0].retries == 9
    assert values(client, OUT) == [1]


class Exits:
    """Ends its worker as if all were well, a few times; a folder counts them."""

    def __init__(self, folder: Path, how: Callable[[int], object], where: str) -> None:
        self.folder, self.how, self.where = folder, how, where

    def _exit(self, where: str) -> None:
        if self.where == where and len(list(self.folder.iterdir())) < 9:
            (self.folder / str(time.monotonic_ns())).touch()
            self.how(0)

    def open(self) -> None:
        """Exit."""
        self._exit("open")

    def process(self, split: Split) -> pa.Table:
        """Exit."""
        self._exit("process")
        return split.payload.data


@pytest.mark.parametrize(
    ("workers", "how", "where", "text"),
    [
        ("threads", sys.exit, "process", r"in_0_work failed in .* with RuntimeError: .*Exits called sys.exit\(0\)"),
        ("threads", sys.exit, "open", r"3 workers ended before they did any split: .*Exits called sys.exit\(0\)"),
        pytest.param("processes", os._exit, "process", r"in_0_work failed in .* of its workers died, .*exit code 0",
                     marks=pytest.mark.process),
    ],
)  # fmt: skip
def test_an_operator_that_exits_ends_its_job(
    make_server: Callable[..., PenstockServer],
    tmp_path: Path,
    workers: str,
    how: Callable[[int], object],
    where: str,
    text: str,
) -> None:
    """Its worker would be started anew for ever, and nobody would know."""
    (exits := tmp_path / "exits").mkdir()
    job = Job("j", url=make_server().url)
    job.stage(Stage("in", numbered(1)))
    job.stage(Stage("work", Exits(exits, how, where)), after="in")
    job.stage(Stage("out", WriteDataset(OUT)), after="work")
    with pytest.raises(JobFailed, match=f"(?s){text}"):
        job.run(workers)


def test_a_driver_without_a_server_ends_at_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the server, as it should, and neither this nor what it would say at its end holds it up."""
    stack = ExitStack()
    server = stack.enter_context(served(tmp_path / "data"))

    def wait_for_the_server(run: jobs._Run) -> None:
        eventually(lambda: not run._filling)
        stack.close()
        terminate = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        terminate.start()
        run._look()

    monkeypatch.setattr(jobs._Run, "_drive", wait_for_the_server)
    monkeypatch.setattr(jobs, "_LAST_WORDS", 0.5)
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(1)))
    job.stage(Stage("out", WriteDataset(OUT)), after="in")
    with stack, pytest.raises(SystemExit, match="143"):
        job.run()
