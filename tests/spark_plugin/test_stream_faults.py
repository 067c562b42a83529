"""Spark's Python workers are killed while a query runs, its server is away: each row lands, once. See tests/chaos."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client.client import connect
from tests.kit.server import process_server
from tests.kit.spark_faults import Batches, FaultyTask, Marks, Once, parent_of
from tests.kit.streams import Streams
from tests.kit.wait import eventually

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process]

OUT = "store/out"
SCHEMA = "id long, city string"


def same(batches: Batches) -> Batches:
    yield from batches


def children(of: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if parent_of(int(folder.name)) == of:
                found.append(int(folder.name))
    return found


def kill_workers() -> None:
    """All Python workers that tasks have: this one, those that read the topic, and those that put to the sink.

    Spark stands still until they are reaped: it takes a dead one for alive before, and gives it to the next attempt.
    """
    daemon = os.getppid()
    jvm = parent_of(daemon)
    doomed = [Path(f"/proc/{pid}") for pid in children(daemon)]
    if os.fork() == 0:  # nobody of Spark's
        try:
            os.kill(jvm, signal.SIGSTOP)
            for each in doomed:
                with suppress(ProcessLookupError):  # the other task's fault had the same moment
                    os.kill(int(each.name), signal.SIGKILL)
            give_up = time.monotonic() + 30
            while any(each.exists() for each in doomed) and time.monotonic() < give_up:
                time.sleep(0.01)
        finally:
            os.kill(jvm, signal.SIGCONT)
            os._exit(0)
    signal.pause()


@pytest.fixture(autouse=True)
def _by_value() -> None:
    """Workers have no tests."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("step", ["begun", "half", "put"])
def test_killed_python_workers_cost_a_stream_no_rows(streams: Streams, marks: Marks, step: str) -> None:
    for first in range(0, 400, 50):
        streams.put(first, 50)
    task = FaultyTask(same, Once(marks, {(step, 0): kill_workers, (step, 1): kill_workers}))
    frame = streams.stream(minPartitions=2).mapInArrow(task, SCHEMA)
    assert streams.run(frame, OUT) == [400]
    assert marks.seen(f"{step}-0")
    assert marks.seen(f"{step}-1")
    assert streams.landed(OUT) == Counter(range(400))
    assert len(streams.client.list("write/")) == 0


@pytest.mark.parametrize(
    "seconds",
    [
        5,
        pytest.param(40, marks=pytest.mark.soak),
        pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(1_200)]),
    ],
    ids="{}s".format,
)
def test_a_query_outlives_its_server_and_goes_on_at_once(streams: Streams, tmp_path: Path, seconds: int) -> None:
    """40 s are more than a call is retried for, and gRPC's own backoff would be 13 by then."""
    with process_server(tmp_path / "d") as server:
        away = replace(streams, client=connect(server.url, retry_for=120))
        away.put(0, 10)
        query = away.start(away.stream(url=server.url), OUT, now=False, url=server.url)
        eventually(away.client.list, within=120, what="rows land")
        server.kill()
    time.sleep(seconds)
    assert query.isActive, query.exception()
    with process_server(tmp_path / "d", listen=server.url):
        away.put(10, 10)
        within = 10 if seconds >= 40 else 60
        eventually(lambda: away.landed(OUT) == Counter(range(20)), within=within, what="all rows land")
        query.stop()
