"""Queues whose workers or server are killed, stopped or told to end: each number comes out once."""

from __future__ import annotations

import heapq
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from tests.kit.faults import files_at_most
from tests.kit.queues import IN, OUT, counts, drained, line, numbered, states, work, worker
from tests.kit.server import ProcessServer, RestartingServer, process_server, stray_files
from tests.kit.wait import eventually, threads

pytestmark = [pytest.mark.process, pytest.mark.faults]
LEASE = 1.5
STEPS = [
    "queue.stored", "push.pushed", "push.done", "claim.claimed", "claim.done", "forward.pushed", "forward.settled",
    "forward.done", "ack.settled", "ack.done", "release.settled", "release.done",
]  # fmt: skip
"""Around store, transaction and answer of a push, a claim, and each end of a lease."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ProcessServer]:
    """A server in a process of its own, with short leases."""
    with process_server(tmp_path / "data", queue_lease=LEASE) as server:
        yield server


@pytest.fixture
def c(server: ProcessServer) -> Iterator[Client]:
    """A client of `server`."""
    with connect(server.url) as client:
        yield client


def test_the_message_of_a_killed_worker_is_anothers(server: ProcessServer, c: Client) -> None:
    c.push(IN, numbered(1, 2), finish=True)
    with worker(server.url, "stall") as killed:
        assert line(killed)[0] == "claimed"
        killed.kill()
    work(c)
    assert drained(c, OUT) == [2, 4]


def test_a_worker_that_was_stopped_past_its_lease_is_refused(server: ProcessServer, c: Client) -> None:
    c.push(IN, numbered(1), finish=True)
    with worker(server.url, "stall") as stopped:
        assert line(stopped)[0] == "claimed"
        os.kill(stopped.pid, signal.SIGSTOP)
        work(c)
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.stdin is not None
        stopped.stdin.write("go on\n")
        stopped.stdin.flush()
        assert line(stopped) == ["lost"]
        assert line(stopped) == ["end"]
    assert drained(c, OUT) == [2]
    eventually(lambda: not stray_files(server.data))


def test_sigterm_lets_the_worker_finish_and_leave(server: ProcessServer, c: Client) -> None:
    c.push(IN, numbered(1, 2, 3))
    with worker(server.url, "stall") as ended:
        assert line(ended)[0] == "claimed"
        ended.send_signal(signal.SIGTERM)
        assert ended.stdin is not None
        ended.stdin.write("go on\n")
        ended.stdin.flush()
        assert line(ended) == ["done"]
        assert ended.wait(30) == 128 + signal.SIGTERM
    assert states(c) == (2, 0, 1, 0)
    assert states(c, OUT) == (1, 0, 0, 0)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_server_loses_and_doubles_nothing(step: str, tmp_path: Path) -> None:
    """Large payloads too, whose bytes are parts; the first message fails once."""
    server = RestartingServer(tmp_path / "data", queue_lease=10 * LEASE, crash_at=step)  # longer than to be back
    with server.living(), connect(server.url, retry_for=60) as c:
        c.push(IN, [*numbered(1, 2), *many()], finish=True)
        failed = False
        for lease in c.claim(IN, to=[OUT]):
            with lease as split:
                x = split.payload.data
                if not failed:
                    failed = True
                    raise ValueError
                lease.forward(OUT, x)
        assert drained(c, OUT) == sorted([1, 2, *many()[0]["x"].to_pylist()])
        assert [counts(c, path)["dead"] for path in (IN, OUT)] == [0, 0]
        assert server.lives == 2


@pytest.mark.parametrize("room", ["parts", "ledger"])
def test_workers_wait_while_the_disk_is_full(
    server: ProcessServer, c: Client, caplog: pytest.LogCaptureFixture, room: str
) -> None:
    """A push, and the forward of a large payload or an ack: each goes on once there is room."""
    caplog.set_level(logging.WARNING, "penstock")
    c.push(IN, numbered(1, 2))
    large = pa.table({"x": range(1_000_000)})
    full, changed = files_at_most(server, 1 << 20 if room == "parts" else wal_size(server)), threading.Event()

    def forward() -> None:
        for lease in c.claim(IN, to=[OUT], prefetch=1):
            with lease as split:
                changed.wait(30)
                x = split.payload.data["x"].to_pylist()
                if x == [1 if room == "parts" else 2]:
                    lease.forward(OUT, large)
                else:
                    lease.ack()  # in a call of its own

    with ThreadPoolExecutor() as pool:
        working = pool.submit(forward)
        eventually(lambda: states(c)[1] == 2)
        with full:
            pushing = pool.submit(c.push, IN, large, finish=True)
            changed.set()
            eventually(lambda: len(caplog.messages) > 1)
            waiting = 1 if room == "parts" else 2  # an ack needs no part, and no block that ended before it
            eventually(lambda: states(c) == (0, waiting, 2 - waiting, 0))
        pushing.result(60)
        working.result(60)
    assert all("waiting for room: no room on the disk" in each for each in caplog.messages)
    assert drained(c, OUT) == list(range(1_000_000))
    assert counts(c)["done"] == 3


def wal_size(server: ProcessServer) -> int:
    return (server.data / "ledger.db-wal").stat().st_size


def many() -> list[pa.Table]:
    """Return a payload that is a part."""
    return [pa.table({"x": range(10, 6_000)})]


def test_waiting_workers_cost_the_server_no_thread_each(server: ProcessServer, c: Client) -> None:
    """200 workers wait, each as it is told; what comes is claimed soon."""
    c.push(IN, numbered(0))
    c.call("queue.claim", {"path": IN, "claim": "c", "worker": "w"})
    before, polls, lock = threads(server.pid), 0, threading.Condition()
    turns = [(0.0, number) for number in range(200)]
    end = time.monotonic() + 5

    def wait_as_told() -> None:
        nonlocal polls
        while time.monotonic() < end:
            with lock:
                due, number = heapq.heappop(turns)
            time.sleep(max(0.0, min(due, end) - time.monotonic()))
            answer = c.call("queue.claim", {"path": OUT, "claim": f"{number}-{polls}", "worker": str(number)})
            with lock:
                polls += 1
                heapq.heappush(turns, (time.monotonic() + answer["retry_after"], number))

    c.push(OUT, [])
    c.call("queue.finish", {"path": "queue/j/other"})
    c.push(OUT, numbered(1))
    drain_one(c)
    with ThreadPoolExecutor(16) as pool:
        for waiting in [pool.submit(wait_as_told) for _ in range(16)]:
            waiting.result()
    assert threads(server.pid) < before + 40
    assert polls < 200 + 5 * 100
    assert max(due for due, _ in turns) > end + 1


def drain_one(client: Client) -> None:
    for lease in client.claim(OUT, prefetch=0):
        with lease:
            pass
        break
