"""A task of the sink that executors of its own run twice: its rows land once. Kills of them: tests/chaos."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.client import connect
from penstock.flight_server import put
from tests.kit.programs.driver import ROWS, TASKS
from tests.kit.server import leftover_files, served
from tests.kit.spark import driver_reports, expected_rows, row_batch, server_paths, start_driver, stored_rows
from tests.kit.spark_faults import Marks

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process, pytest.mark.timeout(600)]

IN = "topic/in"


def fill(url: str) -> None:
    """The topic's rows, in twelve puts."""
    with connect(url) as client:
        for first in range(0, ROWS, ROWS // 12):
            client.put(IN, pa.Table.from_batches([row_batch(*range(first, first + ROWS // 12))]))


@contextmanager
def overtaken_in_time(marks: Marks) -> Iterator[list[str]]:
    """The attempts of that epoch: the one that overtakes has its answer when the slow one, let go by it, is whole too.

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


def test_a_task_of_an_epoch_that_runs_twice_counts_once(bare_python: Path, tmp_path: Path) -> None:
    """Both attempts are whole before the epoch's commit."""
    with (
        overtaken_in_time(Marks(tmp_path / "spark" / "marks-streamed_speculation")) as attempts,
        served(tmp_path / "data") as server,
    ):
        url = str(server.url)
        fill(url)
        told = driver_reports(start_driver(tmp_path / "spark", bare_python, url, "streamed_speculation"))
        epoch = told["streamed_speculation"]
        assert "error" not in epoch, epoch["error"]
        assert all(epoch["happened"])
        assert epoch["rows"] == [ROWS]
        assert stored_rows("store/epochs", url) == expected_rows(ROWS)
        assert len(set(attempts)) > TASKS
        assert server_paths(url, b"write/") == []
        assert leftover_files(url, tmp_path / "data") == set()
