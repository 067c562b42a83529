"""What happens to the server, the wire and Spark's processes while a query runs: each row lands, once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import penstock
from penstock.client.client import connect
from penstock.errors import NotFound
from penstock.flight_server.server import PenstockServer
from tests.kit.proxy import open_proxy
from tests.kit.server import RestartingServer, process_server
from tests.kit.spark_faults import Batches, FaultyTask, Marks, Once, parent_of
from tests.kit.streams import IN, Streams, ended
from tests.kit.wait import eventually
from tests.kit.wire import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process]

OUT = "store/out"
SCHEMA = "id long, city string"


@pytest.fixture
def at(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Streams]]:
    """Streams by way of an address, and a client that waits for who is there."""

    def streams(url: str) -> Streams:
        with monkeypatch.context() as here:
            here.setenv("PENSTOCK_URL", url)
            spark.dataSource.register(penstock.DataSource)
        return Streams(spark, connect(url, retry_for=120), tmp_path)

    yield streams
    for query in spark.streams.active:
        query.stop()


def landed(streams: Streams, path: str = OUT) -> Counter[int]:
    """What is there, each with how many times, by a client without our code."""
    url = streams.client.settings.url
    with flight.connect(url) as bare:
        return Counter(read(bare, path)["id"].to_pylist())


def rows(streams: Streams, path: str = OUT) -> int:
    try:
        return streams.client.info(path).rows
    except NotFound:
        return 0


def once(count: int) -> Counter[int]:
    return Counter(range(count))


def goes_on(query: Any, streams: Streams, count: int, path: str = OUT) -> None:
    """Wait until so many rows have landed; the query has met no error."""

    def there() -> bool:
        assert query.exception() is None, query.exception()
        return rows(streams, path) >= count

    eventually(there, within=120, what=f"{count} rows land")


def several(streams: Streams, first: int) -> None:
    """Five puts of ten rows."""
    for start in range(first, first + 50, 10):
        streams.put(start, 10)


# --- the server -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "on", "out"),
    [
        ("append.durable", 3, OUT),
        ("append.committed", 3, "topic/out"),
        ("put.recorded", 2, OUT),
        ("finish.checked", 2, "topic/out"),
        ("finish.shown", 2, OUT),
    ],
)
def test_a_server_killed_at_a_step_costs_a_stream_no_rows(
    at: Callable[[str], Streams], tmp_path: Path, step: str, on: int, out: str
) -> None:
    server = RestartingServer(tmp_path / "d", crash_at=step, crash_on=on)
    with server.living():
        streams = at(server.url)
        streams.put(0, 10)
        query = streams.start(streams.stream(maxRowsPerTrigger=15), out, now=False)
        for first in range(10, 80, 10):
            streams.put(first, 10)
        goes_on(query, streams, 80, out)
        query.stop()
        eventually(lambda: server.lives == 2, what="the step is passed, and it is back")
        assert landed(streams, out) == once(80)
        assert landed(streams, IN) == once(80)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_server_killed_again_and_again_at_any_moment(
    at: Callable[[str], Streams], tmp_path: Path, kills: int
) -> None:
    server = RestartingServer(tmp_path / "d")
    with server.living():
        streams = at(server.url)
        streams.put(0, 10)
        query = streams.start(streams.stream(maxRowsPerTrigger=30), OUT, now=False)
        for life in range(1, kills + 1):
            for first in range(life * 100 - 90, life * 100 + 10, 10):
                streams.put(first, 10)
            server.kill()
            eventually(lambda life=life: server.lives > life, within=60, what="it is back")  # type: ignore[misc]
        goes_on(query, streams, kills * 100 + 10)
        query.stop()
        assert landed(streams) == once(kills * 100 + 10)


AWAY = 40
"""Seconds: more than a call is retried for, and gRPC's own backoff would be 13 by then."""


def test_a_query_outlives_its_server_and_goes_on_at_once(at: Callable[[str], Streams], tmp_path: Path) -> None:
    with process_server(tmp_path / "d") as server:
        streams = at(server.url)
        streams.put(0, 10)
        query = streams.start(streams.stream(), OUT, now=False)
        goes_on(query, streams, 10)
        server.kill()
    time.sleep(AWAY)
    assert query.isActive, query.exception()
    with process_server(tmp_path / "d", listen=server.url):
        returned = time.monotonic()
        streams.put(10, 10)
        goes_on(query, streams, 20)
        assert time.monotonic() - returned < 10
        query.stop()
        assert landed(streams) == once(20)


def test_a_stopped_server_costs_a_stream_no_rows(at: Callable[[str], Streams], tmp_path: Path) -> None:
    """SIGSTOP: connections stay, and nobody answers."""
    with process_server(tmp_path / "d") as server:
        streams = at(server.url)
        streams.put(0, 10)
        query = streams.start(streams.stream(maxRowsPerTrigger=15), OUT, now=False)
        for first in (10, 60, 110):
            goes_on(query, streams, first)
            os.kill(server.pid, signal.SIGSTOP)
            producer = threading.Thread(target=several, args=(streams, first))
            producer.start()
            threading.Event().wait(1.5)  # for so long it is stopped
            assert producer.is_alive()
            os.kill(server.pid, signal.SIGCONT)
            producer.join(60)
        goes_on(query, streams, 160)
        query.stop()
        assert landed(streams) == once(160)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("after", [300_000, pytest.param(2_500_000, marks=pytest.mark.soak), 6_000_000])
def test_a_cut_connection_costs_a_stream_no_rows(
    at: Callable[[str], Streams], make_server: Callable[..., PenstockServer], after: int
) -> None:
    """4 MB go through it into Spark, and as many out."""
    with open_proxy() as cut:
        cut.target = make_server(advertise=cut.url).port
        streams = at(cut.url)
        text = ["x" * 10_000] * 40
        for first in range(0, 400, 40):
            streams.client.put(IN, pa.table({"id": range(first, first + 40), "city": text}))
        cut.cut_after(after)
        assert sum(streams.run(streams.stream(), OUT)) == 400
        assert cut.cuts == 1
        assert landed(streams) == once(400)


# --- Spark's processes ------------------------------------------------------------------------


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


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return ""


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
    assert landed(streams) == once(400)
    assert len(streams.client.list("write/")) == 0


def test_a_query_starts_again_after_its_source_is_killed(streams: Streams) -> None:
    """The source is the process that plans the batches."""
    streams.put(0, 10)
    query = streams.start(streams.stream(), OUT, now=False)
    goes_on(query, streams, 10)
    jvm = streams.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    (planner,) = [pid for pid in children(jvm) if "streaming_source_runner" in command(pid)]
    os.kill(planner, signal.SIGKILL)
    streams.put(10, 10)
    with pytest.raises(Exception, match="STREAM_FAILED"):
        ended(query)
    streams.run(streams.stream(), OUT)
    assert landed(streams) == once(20)
