"""What is killed under a Spark Connect session: the rows once, or nothing visible and an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client, connect
from tests.kit.cli import Served, serving
from tests.kit.connect import ConnectServer, connect_server, needs_connect
from tests.kit.proxy import open_proxy
from tests.kit.server import leftover_files, named_parts
from tests.kit.spark import collected_rows, expected_rows, row_frame, server_paths, stored_rows
from tests.kit.spark_faults import FaultyGet, Marks, Once, same, widen
from tests.kit.wait import eventually, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.faults,
    pytest.mark.process,
    pytest.mark.filterwarnings(r"ignore:\[RETRIES_EXCEEDED\]:UserWarning"),  # of Spark's client, which are meant
]
ROWS = 1_000
PADDING = 80_000
"""Bytes of a row: a partition has 20 MB, a batch of 50 rows 4."""
GONE = "UNAVAILABLE|RETRIES_EXCEEDED|RESPONSE_ALREADY_RECEIVED"
"""What Spark's client says of a Connect server that is gone."""
Kill = Callable[[], object]


@pytest.fixture(scope="module")
def connect_spark(bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    needs_connect()
    with connect_server(tmp_path_factory.mktemp("connect"), bare_python) as running:
        yield running


@pytest.fixture
def session(connect_spark: ConnectServer) -> SparkSession:
    return connect_spark.connect()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """`penstock serve`; at the end its folder has its datasets, and no other bytes."""
    data = tmp_path / "data"
    with serving(tmp_path / "log", "--listen", "grpc://127.0.0.1:0", "--http", "off", "--data", str(data)) as running:
        yield running
        assert leftover_files(running.url, data) == set()


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with connect(served.url, retry_for=20) as client:
        yield client


@pytest.fixture
def stored(client: Client) -> None:
    """A dataset of 80 MB, in tickets of 27."""
    rows = {"id": range(ROWS), "text": [f"row {number}" for number in range(ROWS)], "padding": ["x" * PADDING] * ROWS}
    client.put("store/x", pa.table(rows))


@dataclass
class HeldWire:
    """A proxy before the server, which holds a part of each ticket back until the stack is closed."""

    url: str
    stack: ExitStack


@pytest.fixture
def wire(served: Served) -> Iterator[HeldWire]:
    """gRPC and Spark would take in a whole ticket while its first rows are held: 19 MB of its 27 wait at the server,
    whose socket takes 4 of them.
    """
    with open_proxy() as proxy, ExitStack() as stack:
        proxy.target = int(served.url.rpartition(":")[2])
        stack.enter_context(proxy.held(8_000_000))
        yield HeldWire(proxy.url, stack)


@pytest.fixture(params=["server", "workers"])
def kill_one(request: pytest.FixtureRequest, served: Served, connect_spark: ConnectServer) -> Kill:
    """kill -9 for penstock's server, which its supervisor starts again, or for Spark's Python workers."""
    return served.kill_server if request.param == "server" else connect_spark.kill_workers


def held_rows(session: SparkSession, marks: Marks) -> DataFrame:
    """Return rows that stop in the middle of a partition until the test goes on, once."""
    frame = widen(row_frame(session, ROWS, 4), PADDING)
    held = FaultyGet(same, Once(marks, {("half", 1): marks.ask_and_wait}))
    held.half = 13 << 20  # of 20 MB, and a part has 8 MiB
    return frame.mapInArrow(held, frame.schema)


def held_read(session: SparkSession, url: str, marks: Marks) -> DataFrame:
    """Return a read of `stored` in one task, which stops at its first rows; filtered, so that nothing is mapped."""
    frame = penstock.read(session, "store/x", url=url, filter="id >= 0")
    held = FaultyGet(same, Once(marks, {("half", 0): marks.ask_and_wait}))
    return frame.mapInArrow(held, frame.schema).select("id", "text")


def kill_in_put(marks: Marks, data: Path, kill: Kill) -> Thread:
    """Start a thread that kills when rows are held and the server has a part of an open put on its disk."""

    def kill_then() -> None:
        eventually(lambda: files(data / "parts") - named_parts(data), what="an open put has a part")
        kill()

    return marks.when_asked(kill_then)


def kill_in_get(marks: Marks, client: Client, wire: HeldWire, kill: Kill) -> Thread:
    """Start a thread that kills when rows are held and others are still at the server."""

    def kill_then() -> None:
        assert client.call("health")["open_streams"] == 1
        kill()
        wire.stack.close()

    return marks.when_asked(kill_then)


def write(frame: DataFrame, url: str) -> int:
    return penstock.write(frame, "store/x", url=url, run="orders-7", progress=False).rows


def test_a_kill_in_the_middle_of_a_write_costs_no_rows(
    session: SparkSession, served: Served, marks: Marks, tmp_path: Path, kill_one: Kill
) -> None:
    killer = kill_in_put(marks, tmp_path / "data", kill_one)

    assert write(held_rows(session, marks), served.url) == ROWS

    killer.join(30)
    assert marks.seen("done")
    assert stored_rows("store/x", served.url) == expected_rows(ROWS)


@pytest.mark.usefixtures("stored")
def test_a_kill_in_the_middle_of_a_read_costs_no_rows(
    session: SparkSession, client: Client, wire: HeldWire, marks: Marks, kill_one: Kill
) -> None:
    killer = kill_in_get(marks, client, wire, kill_one)

    rows = collected_rows(held_read(session, wire.url, marks))

    killer.join(30)
    assert marks.seen("done")
    assert rows == expected_rows(ROWS)


def test_a_dead_connect_server_shows_nothing_of_a_write(
    connect_spark: ConnectServer, session: SparkSession, served: Served, marks: Marks, tmp_path: Path
) -> None:
    """When it is back, the write is repeated, twice, under the name of its run, and adds its rows once."""
    killer = kill_in_put(marks, tmp_path / "data", connect_spark.kill)

    with pytest.raises(Exception, match=GONE):
        write(held_rows(session, marks), served.url)

    killer.join(30)
    assert marks.seen("done")
    assert server_paths(served.url) == server_paths(served.url, b"write/") == []
    connect_spark.start()
    session = connect_spark.connect()
    for _ in range(2):
        assert write(held_rows(session, marks), served.url) == ROWS
        assert stored_rows("store/x", served.url) == expected_rows(ROWS)


@pytest.mark.usefixtures("stored")
def test_a_dead_connect_server_leaves_no_read_open(
    connect_spark: ConnectServer, session: SparkSession, client: Client, wire: HeldWire, marks: Marks
) -> None:
    """When it is back, a read has all rows."""
    killer = kill_in_get(marks, client, wire, connect_spark.kill)

    with pytest.raises(Exception, match=GONE):
        collected_rows(held_read(session, wire.url, marks))

    killer.join(30)
    assert marks.seen("done")
    eventually(lambda: client.call("health")["open_streams"] == 0, what="the streams of the dead are closed")
    connect_spark.start()
    assert collected_rows(held_read(connect_spark.connect(), wire.url, marks)) == expected_rows(ROWS)
