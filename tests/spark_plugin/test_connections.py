"""The connections that a worker keeps from task to task, counted at the server."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.client.settings import ConnectSettings
from penstock.errors import Expired
from penstock.flight_server.server import PenstockServer
from penstock.spark_plugin.read import split_tickets
from penstock.spark_plugin.worker import tasks
from penstock.spark_plugin.worker.connection_cache import ConnectionCache
from penstock.spark_plugin.worker.tasks import GetTickets, PutPartition
from penstock.wire.actions import OPEN_WRITE, OpenWrite
from tests.kit.clock import Clock
from tests.kit.server import process_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table({"id": [1, 2, 3]})
NOWHERE = ConnectSettings("grpc://127.0.0.1:1")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, elsewhere: None) -> list[str]:
    """The other end of each stream that the server got: one name for a connection."""
    seen: list[str] = []
    for verb in ("do_get", "do_put"):
        handle = getattr(PenstockServer, verb)

        def noted(self: PenstockServer, context: Any, *rest: Any, handle: Any = handle) -> Any:
            seen.append(context.peer())
            return handle(self, context, *rest)

        monkeypatch.setattr(PenstockServer, verb, noted)
    return seen


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> ConnectionCache:
    """A worker's connections, as it starts."""
    fresh = ConnectionCache(Clock().now)
    monkeypatch.setattr(tasks, "CONNECTIONS", fresh)
    return fresh


@pytest.fixture
def get(client: Client) -> tuple[GetTickets, list[pa.RecordBatch]]:
    """A task that reads three rows, and its tickets."""
    client.put("store/x", ROWS)
    info = client.info("store/x")
    settings = client.settings.for_tasks(info.location)
    return GetTickets(settings, info.schema, info.local), list(split_tickets(info.endpoints, filtered=False))


Get = tuple[GetTickets, list[pa.RecordBatch]]


def rows(get: Get) -> int:
    task, tickets = get
    return sum(batch.num_rows for batch in task(tickets))


# --- in a worker ---------------------------------------------------------------------------


def test_twenty_tasks_open_one_connection(client: Client, cache: ConnectionCache, get: Get, peers: list[str]) -> None:
    opened = client.call(OPEN_WRITE, OpenWrite("store/y"))
    put = PutPartition(client.settings.for_tasks(None), opened.ticket, None)
    receipts = [next(put(iter(ROWS.to_batches()))) for _ in range(10)]
    assert [rows(get) for _ in range(10)] == [3] * 10
    assert len({receipt["attempt"][0].as_py() for receipt in receipts}) == 10
    assert len(peers) == 20
    assert len(set(peers)) == 1


def test_threads_share_a_connection(cache: ConnectionCache, get: Get, peers: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: rows(get), range(40))) == [3] * 40
    assert len(set(peers)) == 1


def test_a_task_that_ends_early_keeps_the_connection(cache: ConnectionCache, get: Get, peers: list[str]) -> None:
    """As `limit` ends it."""
    task, tickets = get
    for _ in range(3):
        batches = task(tickets)
        next(batches)
        batches.close()  # type: ignore[attr-defined]  # a generator
    assert (len(peers), len(set(peers))) == (3, 1)


def test_a_task_that_fails_drops_the_connection(cache: ConnectionCache, get: Get, peers: list[str]) -> None:
    rows(get)
    with cache.connect(get[0].settings) as kept, pytest.raises(Expired), cache.connect(get[0].settings) as same:
        assert same is kept
        raise Expired("as if its ticket had ended")
    with cache.connect(get[0].settings) as other:
        assert other is not kept
    assert rows(get) == 3
    assert len(set(peers)) == 2


# --- what is kept --------------------------------------------------------------------------


def lend(cache: ConnectionCache, settings: ConnectSettings = NOWHERE) -> object:
    with cache.connect(settings) as connection:
        return connection


def test_other_settings_are_another_connection() -> None:
    cache = ConnectionCache()
    assert lend(cache) is lend(cache)
    assert lend(cache) is not lend(cache, replace(NOWHERE, retry_for=1))


def test_a_worker_keeps_four_connections() -> None:
    cache = ConnectionCache()
    settings = [replace(NOWHERE, retry_for=number) for number in range(6)]
    first = [lend(cache, each) for each in settings]
    assert [lend(cache, each) is one for each, one in zip(settings, first, strict=True)][:2] == [False, False]
    assert len(cache._connections) == 4


def test_the_last_used_ones_are_kept() -> None:
    cache = ConnectionCache()
    first = lend(cache)
    for number in range(6):
        lend(cache, replace(NOWHERE, retry_for=number))
        assert lend(cache) is first


def test_a_connection_that_was_long_idle_is_not_used_again() -> None:
    clock = Clock()
    cache = ConnectionCache(clock.now)
    first = lend(cache)
    clock.advance(59)
    assert lend(cache) is first
    clock.advance(61)
    assert lend(cache) is not first


def test_a_failure_drops_only_its_own_connection() -> None:
    """Another task may have a new one by then."""
    cache = ConnectionCache()
    newer: list[object] = []
    with pytest.raises(Expired), cache.connect(NOWHERE):
        cache._connections.clear()
        newer.append(lend(cache))
        raise Expired("of the older one")
    assert lend(cache) is newer[0]


# --- processes -----------------------------------------------------------------------------

FORK = """
    import os, signal, sys

    from penstock.spark_plugin.worker.connection_cache import CONNECTIONS
    from penstock.client.get import fetch
    from penstock.client.client import connect

    with connect(sys.argv[1]) as client:
        ticket = client.info("store/x").endpoints[0].ticket.ticket
        settings = client.settings
    def read():
        with CONNECTIONS.connect(settings) as connection:
            return connection, sum(batch.num_rows for batch in fetch(connection, ticket))
    before, rows = read()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with CONNECTIONS.connect(settings) as connection:
            os._exit(0 if connection is not before else 3)
    assert os.waitpid(child, 0)[1] == 0, "the child has its parent's connection, or hangs"
    after, more = read()
    assert after is before
    print(rows, more)
"""


@pytest.mark.process
def test_a_forked_child_leaves_its_parents_connection_alone(tmp_path: Path) -> None:
    """A call on it would break the parent's, and closing it hangs."""
    with process_server(tmp_path / "data") as server, penstock.connect(server.url) as client:
        client.put("store/x", ROWS)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(FORK), server.url], capture_output=True, text=True, timeout=60,
            check=False, cwd=Path(__file__).parents[2], env=os.environ,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "3 3\n"), done.stderr


@pytest.mark.process
def test_tasks_outlive_a_server_that_is_killed(tmp_path: Path, cache: ConnectionCache) -> None:
    with process_server(tmp_path / "data") as server, penstock.connect(server.url) as client:
        client.put("store/x", ROWS)
        info = client.info("store/x")
        tickets = list(split_tickets(info.endpoints, filtered=False))
        task = GetTickets(replace(client.settings.for_tasks(None), retry_for=30), info.schema, None)
        assert rows((task, tickets)) == 3
        server.kill()
        with process_server(tmp_path / "data", listen=server.url):
            assert rows((task, tickets)) == 3


@pytest.mark.spark
def test_a_spark_worker_opens_one_connection(
    spark: SparkSession, client: Client, peers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has two at a time here, and may have started others before."""
    penstock.write(spark.range(0, 40, 1, 20), "store/x", url=client.settings.url)
    _driver, *tasks = peers  # the driver puts the schema
    assert len(tasks) == 20
    assert len(set(tasks)) <= 4
