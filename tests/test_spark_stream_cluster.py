"""Executors and drivers that die while a query runs: each row lands once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client import connect
from penstock.errors import NotFound
from penstock.flight_server.lifecycle import serving
from penstock.flight_server.settings import Settings
from tests.fix_server import ANY_PORT
from tests.fix_spark import needs_spark
from tests.spark_rows import batch, expected, held
from tests.test_spark_cluster import end
from tests.watching import eventually

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process, pytest.mark.timeout(600)]

IN = "topic/in"
ROWS = 1_200


def driver(folder: Path, python: Path, url: str, names: str, *master: str) -> subprocess.Popen[str]:
    """Its process, the leader of a group of all that it starts."""
    needs_spark()
    folder.mkdir(exist_ok=True)
    root = Path(__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); from tests.stream_driver import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, url, str(folder), names, *master],
        stdout=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip


def fill(url: str) -> None:
    """The topic's rows, in twelve puts."""
    with connect(url) as client:
        for first in range(0, ROWS, ROWS // 12):
            client.put(IN, pa.Table.from_batches([batch(*range(first, first + ROWS // 12))]))


def test_an_epoch_whose_executors_are_killed_is_there_once(bare_python: Path, tmp_path: Path) -> None:
    """One in the middle of a batch, one when a task has all rows and the sink has none of them."""
    with serving(Settings(data=tmp_path / "data", listen=ANY_PORT, drain=5.0, http=None)) as server:
        url = str(server.url)
        fill(url)
        process = driver(tmp_path / "spark", bare_python, url, "killed_executor")
        assert process.stdout is not None
        try:
            (told,) = [json.loads(line) for line in process.stdout if line.startswith("{")]
        finally:
            end(process)
        assert "error" not in told, told["error"]
        assert all(told["happened"])
        assert told["rows"] == [ROWS]
        assert held("store/killed", url) == expected(ROWS)
        with connect(url) as client:
            assert len(client.list("write/")) == 0


def test_a_driver_that_is_killed_goes_on_where_it_was(bare_python: Path, tmp_path: Path) -> None:
    """kill -9 for the driver, its JVM and its workers, in the middle of small batches."""
    with serving(Settings(data=tmp_path / "data", listen=ANY_PORT, drain=5.0, http=None)) as server:
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
                process = driver(tmp_path / f"to {until}", bare_python, url, "goes_on", "local[2]")
                try:
                    eventually(lambda until=until: landed() >= until, within=180, what="rows land")  # type: ignore[misc]
                finally:
                    end(process)
                assert before < until <= landed()
            assert len(client.call("describe", {"path": IN})["consumers"]) == 1
        assert held("store/lives", url) == expected(ROWS)
