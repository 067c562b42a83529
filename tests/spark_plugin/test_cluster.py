"""What only executors of their own show: kills, second attempts of slow tasks, lost shuffle files, a dead driver."""

from __future__ import annotations

import importlib.metadata
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.client import connect
from penstock.flight_server import put
from penstock.flight_server.local import LocalDoor
from tests.kit.programs.driver import ROWS, TASKS
from tests.kit.server import Puts, leftover_files, served, watch_puts
from tests.kit.spark import (
    driver_reports,
    end_driver,
    expected_rows,
    row_batch,
    server_paths,
    start_driver,
    stored_rows,
)  # fmt: skip
from tests.kit.spark_faults import Marks
from tests.kit.wait import eventually

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process, pytest.mark.timeout(600)]
SPARK = tuple(map(int, importlib.metadata.version("pyspark").split(".")[:2]))
SCENARIOS = (
    "killed_executor",
    "killed_executor_reading",
    "speculation",
    "zombie",
    "lost_shuffle",
    "random_key",
    "random_key_then_shuffle",
    *(["streamed_speculation"] if SPARK >= (4, 0) else []),
    "released_lost_shuffle",
    "released_random_key",
    "released_speculation",
)


@dataclass
class Cluster:
    """What a driver in a process of its own told of its scenarios."""

    url: str
    puts: Puts
    told: dict[str, dict[str, Any]]
    open: dict[str, list[str]]
    """After each: the open writes."""
    left: dict[str, set[str]]
    """After their end: what was on disk and was no dataset's."""
    attempts: list[str]
    """Of the epoch of `streamed_speculation`."""


def fill(url: str) -> None:
    """Bring the topic its rows, in twelve puts."""
    with connect(url) as client:
        for first in range(0, ROWS, ROWS // 12):
            client.put("topic/in", pa.Table.from_batches([row_batch(*range(first, first + ROWS // 12))]))


@contextmanager
def overtaken_in_time(marks: Marks) -> Iterator[list[str]]:
    """Give the attempts of an epoch: the one that overtakes has its answer when the slow one, let go by it, is whole.

    It is the one that makes them as many as there are tasks.
    """
    attempts: list[str] = []
    both, record = threading.Event(), put._record

    def recording(state: Any, write: Any, attempt: Any, *, own: bool) -> Any:
        receipt = record(state, write, attempt, own=own)
        if write.path == "store/epochs":
            attempts.append(attempt.id)
            if len(attempts) == TASKS:
                marks.first("overtaken")
                both.wait(60)
            elif len(attempts) > TASKS:
                both.set()
        return receipt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(put, "_record", recording)
        yield attempts


@pytest.fixture(scope="module")
def cluster(bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """All scenarios, in one Spark with two executors."""
    folder = tmp_path_factory.mktemp("cluster")
    left: dict[str, set[str]] = {}
    still_open: dict[str, list[str]] = {}
    with (
        pytest.MonkeyPatch.context() as patched,
        watch_puts() as puts,
        overtaken_in_time(Marks(folder / "spark" / "marks-streamed_speculation")) as attempts,
        served(folder / "data") as server,
    ):
        patched.setattr(LocalDoor, "_opened", lambda *_: ([], []))  # executors are elsewhere
        url = str(server.url)
        fill(url)
        process = start_driver(folder / "spark", bare_python, url, ",".join(SCENARIOS))
        reads = Marks(folder / "spark" / "marks-killed_executor_reading")
        reads.when_asked(lambda: eventually(lambda: server.state.streams.open_streams), within=300)

        def look(name: str) -> None:
            still_open[name] = server_paths(url, b"write/")
            if not name.startswith("released"):  # messages of a failed write keep their parts
                left[name] = leftover_files(url, folder / "data")

        told = driver_reports(process, look)
        yield Cluster(url, puts, told, still_open, left, attempts)


@pytest.mark.parametrize(
    ("scenario", "path"),
    [
        ("killed_executor", "store/killed"),
        ("speculation", "store/speculated"),
        ("zombie", "store/zombie"),
        ("lost_shuffle", "store/shuffled"),
    ],
)
def test_rows_are_there_once(cluster: Cluster, scenario: str, path: str) -> None:
    told = cluster.told[scenario]

    assert "error" not in told, told["error"]
    assert told["rows"] == ROWS
    assert stored_rows(path, cluster.url) == expected_rows(ROWS)
    assert all(told["happened"])
    assert cluster.left[scenario] == set()


def test_the_executor_died_with_rows_at_the_server(cluster: Cluster) -> None:
    assert any(0 < rows < ROWS // 6 for path, rows in cluster.puts.broken if path == "store/killed")


def test_the_zombie_sent_all_of_its_rows(cluster: Cluster) -> None:
    assert not [rows for path, rows in cluster.puts.broken if path == "store/zombie"]


def test_a_read_goes_on_where_its_executors_were_killed(cluster: Cluster) -> None:
    told = cluster.told["killed_executor_reading"]

    assert "error" not in told, told["error"]
    assert Counter(map(tuple, told["found"])) == expected_rows(ROWS)
    assert all(told["happened"])
    assert cluster.left["killed_executor_reading"] == set()


@pytest.mark.parametrize(
    ("scenario", "path"), [("random_key", "store/random"), ("random_key_then_shuffle", "store/then")]
)
def test_a_random_key_leaves_all_rows_once_or_none(cluster: Cluster, scenario: str, path: str) -> None:
    if SPARK < (4, 1) or (SPARK < (4, 2) and scenario == "random_key"):
        pytest.skip("before 4.2 Spark itself loses and doubles rows where a random key is shuffled again, in any sink")
    told = cluster.told[scenario]

    if "error" in told:
        assert "indeterminate output" in told["error"]
        assert path not in server_paths(cluster.url)
    else:
        assert stored_rows(path, cluster.url) == expected_rows(ROWS)
    assert all(told["happened"])
    assert cluster.left[scenario] == set()


@pytest.mark.parametrize("scenario", ["released_lost_shuffle", "released_speculation"])
def test_released_rows_are_workers_once(cluster: Cluster, scenario: str) -> None:
    told = cluster.told[scenario]

    assert "error" not in told, told["error"]
    assert (told["rows"], told["cause"]) == (ROWS, None)
    assert Counter(map(tuple, told["claimed"])) == expected_rows(ROWS) == stored_rows(f"store/{scenario}", cluster.url)
    assert all(told["happened"])


def test_a_random_key_fails_what_was_released(cluster: Cluster) -> None:
    """By penstock's error or by Spark's own; the workers are told, and have rows of this write alone to discard."""
    told = cluster.told["released_random_key"]

    assert all(told["happened"])
    assert "again with other rows" in told["error"] or "indeterminate output" in told["error"]
    assert "queue/released_random_key has failed: write/" in told["cause"]
    assert "store/released_random_key" not in server_paths(cluster.url)


@pytest.mark.skipif(SPARK < (4, 0), reason="Python data sources need Spark 4.0 or newer")
def test_a_task_of_an_epoch_that_runs_twice_counts_once(cluster: Cluster) -> None:
    """Both attempts are whole before the epoch's commit. Kills of such tasks: tests/chaos."""
    told = cluster.told["streamed_speculation"]

    assert "error" not in told, told["error"]
    assert all(told["happened"])
    assert told["rows"] == [ROWS]
    assert stored_rows("store/epochs", cluster.url) == expected_rows(ROWS)
    assert len(set(cluster.attempts)) > TASKS
    assert cluster.open["streamed_speculation"] == []
    assert cluster.left["streamed_speculation"] == set()


@pytest.mark.usefixtures("elsewhere")
def test_a_dead_driver_leaves_an_open_write_and_no_stream(bare_python: Path, tmp_path: Path, puts: Puts) -> None:
    """Of its write nothing is visible, and `penstock rm` ends it; the dataset that it reads is as it was."""
    with served(tmp_path / "data") as server:
        url = str(server.url)
        process = start_driver(tmp_path / "spark", bare_python, url, "never_ends", "local[6]")
        folder = tmp_path / "spark" / "marks-never_ends"
        try:
            eventually(lambda: len(list(folder.glob("reads-*"))) >= 2, within=240, what="two tasks read")
            for partition in (2, 3):
                Marks(folder).await_mark(f"waits-{partition}", 240)
            eventually(lambda: [upload.rows > 0 for upload in list(puts.coming)] == [True, True])
            assert server.state.streams.open_streams > len(puts.coming)
        finally:
            end_driver(process)

        eventually(lambda: len(puts.broken) == 2, what="the streams of the dead are cut")
        eventually(lambda: server.state.streams.open_streams == 0, what="and those to the dead are closed")
        with connect(url) as client:
            (entry,) = client.list("write/")
            assert client.call("describe", {"path": entry.path})["attempts"] == 2
            assert server_paths(url) == ["store/padded"]
            client.delete(entry.path)

            assert server_paths(url, b"write/") == []
            assert leftover_files(url, tmp_path / "data") == set(), "its bytes are freed"
        assert stored_rows("store/padded", url) == expected_rows(ROWS)
