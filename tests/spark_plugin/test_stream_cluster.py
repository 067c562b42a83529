"""Executors and drivers that die while a query runs: each row lands once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.client import connect
from penstock.errors import NotFound
from penstock.flight_server import put
from tests.kit.programs.stream_driver import TASKS
from tests.kit.server import leftover_files, served
from tests.kit.spark import (
    driver_reports,
    end_driver,
    expected_rows,
    row_batch,
    server_paths,
    start_driver,
    stored_rows,
)
from tests.kit.spark_faults import Marks
from tests.kit.wait import eventually

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process, pytest.mark.timeout(600)]

IN = "topic/in"
ROWS = 1_200


def fill(url: str) -> None:
    """The topic's rows, in twelve puts."""
    with connect(url) as client:
        for first in range(0, ROWS, ROWS // 12):
            client.put(IN, pa.Table.from_batches([row_batch(*range(first, first + ROWS // 12))]))


@dataclass
class Cluster:
    """What a driver in a process of its own told of its scenarios."""

    url: str
    told: dict[str, dict[str, Any]]
    left: dict[str, set[str]]
    """After each: the writes that were open, and what was on disk and was no dataset's."""
    speculated: list[str]
    """The attempts that were whole of the epoch with the slow task."""


@contextmanager
def overtaken_in_time(marks: Marks) -> Iterator[list[str]]:
    """The attempts of that epoch: the one that overtakes has its answer when the slow one, let go by it, is whole too.

    It is the one that makes them as many as there are tasks.
    """
    attempts: list[str] = []
    both, record = threading.Event(), put._record

    def recording(state: Any, write: Any, attempt: Any, *, own: bool) -> Any:
        receipt = record(state, write, attempt, own=own)
        if write.path == "store/speculated":
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
    """Both scenarios, in one Spark with two executors."""
    folder = tmp_path_factory.mktemp("cluster")
    left: dict[str, set[str]] = {}
    with (
        overtaken_in_time(Marks(folder / "spark" / "marks-speculation")) as speculated,
        served(folder / "data") as server,
    ):
        url = str(server.url)
        fill(url)
        process = start_driver(
            folder / "spark", bare_python, url, "speculation,killed_executor", module="stream_driver"
        )

        def look(name: str) -> None:
            left[name] = {*server_paths(url, b"write/"), *leftover_files(url, folder / "data")}

        told = driver_reports(process, look)
        yield Cluster(url, told, left, speculated)


@pytest.mark.parametrize(
    ("scenario", "path"), [("speculation", "store/speculated"), ("killed_executor", "store/killed")]
)
def test_an_epoch_is_there_once(cluster: Cluster, scenario: str, path: str) -> None:
    """Its executors are killed, or a task of it runs twice."""
    told = cluster.told[scenario]
    assert "error" not in told, told["error"]
    assert all(told["happened"])
    assert told["rows"] == [ROWS]
    assert stored_rows(path, cluster.url) == expected_rows(ROWS)
    assert cluster.left[scenario] == set()


def test_both_attempts_were_whole_before_the_commit(cluster: Cluster) -> None:
    """Of the task that ran twice."""
    assert len(set(cluster.speculated)) > TASKS


def test_a_driver_that_is_killed_goes_on_where_it_was(bare_python: Path, tmp_path: Path) -> None:
    """kill -9 for the driver, its JVM and its workers, in the middle of small batches."""
    with served(tmp_path / "data") as server:
        url = str(server.url)
        fill(url)
        with connect(url) as client:

            def landed() -> int:
                try:
                    return client.info("store/lives").rows
                except NotFound:
                    return 0

            for until in (200, ROWS):
                before = landed()
                process = start_driver(
                    tmp_path / f"to {until}", bare_python, url, "goes_on", "local[2]", module="stream_driver"
                )
                try:
                    eventually(lambda until=until: landed() >= until, within=180, what="rows land")  # type: ignore[misc]
                finally:
                    end_driver(process)
                assert before < until <= landed()
            assert len(client.call("describe", {"path": IN})["consumers"]) == 1
        assert stored_rows("store/lives", url) == expected_rows(ROWS)
        assert leftover_files(url, tmp_path / "data") == set()
