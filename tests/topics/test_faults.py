"""A slow disk, a stopped server, damaged bytes: no row of a topic is lost, changed or doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pyarrow.flight as flight
import pytest

from penstock.client.client import connect
from penstock.errors import Lost
from penstock.ledger import merging
from penstock.queue.topics.compaction import Compactor
from tests.kit.faults import Damage, blank, cut, flip, lengthen
from tests.kit.server import process_server
from tests.kit.topics import Reach
from tests.kit.wait import eventually, files
from tests.kit.wire import at, ids, new_attempt, put, trips

pytestmark = pytest.mark.faults

TOPIC = "topic/x"


# --- the disk and the process -----------------------------------------------------------------

STUCK = """
import os, pathlib, time
real, flag = os.fsync, pathlib.Path({flag!r})
def slow(file):
    while flag.exists():
        time.sleep(0.01)
    real(file)
os.fsync = slow
"""


@pytest.mark.process
def test_a_slow_fsync_answers_and_shows_nothing_before_its_end(tmp_path: Path) -> None:
    """Readers go on. In the end all that waited is there, once, each client's rows in their order."""
    flag = tmp_path / "stuck"
    with (
        process_server(tmp_path / "d", prelude=STUCK.format(flag=str(flag))) as server,
        flight.connect(server.url) as bare,
        ThreadPoolExecutor(8) as pool,
    ):
        put(bare, at(TOPIC), [trips(0)])
        flag.touch()
        try:
            answers = [pool.submit(put_five_times, server.url, client) for client in range(8)]
            eventually(lambda: files(server.data / "tmp"), what="the first part is on its way to the disk")
            for _ in range(20):
                assert ids(bare, TOPIC) == [0]
            assert not any(answer.done() for answer in answers)
        finally:
            flag.unlink()
        for answer in answers:
            answer.result(60)
        numbers = ids(bare, TOPIC)
        assert sorted(numbers[1:]) == [client * 100 + row for client in range(1, 9) for row in range(5)]
        for client in range(1, 9):
            assert (mine := [number for number in numbers if number // 100 == client]) == sorted(mine)


def put_five_times(url: str, client: int) -> None:
    """Put five times, one put after another."""
    with flight.connect(url) as bare:
        for row in range(5):
            put(bare, at(TOPIC, attempt=new_attempt()), [trips((client + 1) * 100 + row)])


@pytest.mark.process
def test_a_stopped_server_resumes_every_put_and_follower(tmp_path: Path) -> None:
    """Stop it three times with SIGSTOP: each put is answered in the end and there once, a follower misses nothing."""
    followed: list[int] = []
    with process_server(tmp_path / "d") as server, connect(server.url, retry_for=60) as client:
        client.put(TOPIC, trips(-1))
        follower = client.follow(TOPIC, start={0: 1})

        def follow() -> None:
            for batch in follower:
                followed.extend(batch["id"].to_pylist())

        def produce(start: int) -> None:
            for number in range(start, start + 100):
                client.put(TOPIC, trips(number))

        threads = [threading.Thread(target=follow), *(threading.Thread(target=produce, args=(n,)) for n in (0, 100))]
        for thread in threads:
            thread.start()
        for reached in (20, 60, 120):
            eventually(lambda reached=reached: len(followed) > reached, what="the follower reads rows")  # type: ignore[misc]
            os.kill(server.pid, signal.SIGSTOP)
            threading.Event().wait(0.5)  # how long the server is stopped
            os.kill(server.pid, signal.SIGCONT)
        eventually(lambda: len(followed) >= 200, within=60, what="all rows")
        follower.stop()
        for thread in threads:
            thread.join(60)
    assert sorted(followed) == list(range(200))


# --- bytes at rest ----------------------------------------------------------------------------

PUTS = [(0, 1, 2), (3,), (4, 5, 6, 7), (8, 9), (10,), (11, 12, 13)]


@pytest.mark.parametrize("damage", [flip, cut, blank, lengthen])
@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_segment_costs_only_its_own_rows(reach: Reach, seed: int, damage: Damage) -> None:
    """Reads of them name the segment, before and after a restart; others succeed, and new rows are taken."""
    dice = random.Random(f"{seed} {damage.__name__}")
    for numbers in PUTS:
        reach.put(*numbers)
    damaged = dice.randrange(len(PUTS))
    name = reach.parts()[damaged]
    (file,) = (path for path in (reach.folder / "parts").rglob(name))
    whole = changed = file.read_bytes()
    while changed == whole:
        changed = damage(whole, dice)
    file.write_bytes(changed)
    reach.restart()
    for state in ("when it is found", "when it is known", "after a restart"):
        if state == "after a restart":
            reach.restart()
        for number, numbers in enumerate(PUTS):
            limits = {"start": {0: numbers[0]}, "end": {0: numbers[-1] + 1}}
            if number == damaged:
                with pytest.raises(Lost, match=name):
                    reach.read(**limits)  # type: ignore[arg-type]
            else:
                assert [row[2] for row in reach.read(**limits)] == list(numbers)  # type: ignore[arg-type]
        with pytest.raises(Lost, match=name):
            reach.ids()
    with mock.patch.object(merging, "MANY", 2):
        Compactor(reach.ledger, reach.store).compact()
    reach.put(14)
    assert [row[1] for row in reach.read(start={0: 14})] == [14]
    with pytest.raises(Lost, match=name):
        reach.ids()
