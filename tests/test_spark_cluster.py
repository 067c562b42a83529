"""What only executors of their own show: kills, second attempts of slow tasks, lost shuffle files, a dead driver."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.client import connect
from penstock.flight_server.lifecycle import serving
from penstock.flight_server.local import LocalDoor
from penstock.flight_server.settings import Settings
from tests.cluster_driver import ROWS
from tests.fix_server import ANY_PORT
from tests.fix_spark import needs_spark
from tests.meddling import Marks
from tests.spark_rows import expected, held, names
from tests.watching import eventually, files

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process, pytest.mark.timeout(600)]
SPARK = tuple(map(int, importlib.metadata.version("pyspark").split(".")[:2]))
SCENARIOS = (
    "killed_executor",
    "killed_executor_reading",
    "speculation",
    "lost_shuffle",
    "random_key",
    "random_key_then_shuffle",
)


@dataclass
class Cluster:
    """What a driver in a process of its own told of its scenarios."""

    url: str
    told: dict[str, dict[str, Any]]


def driver(folder: Path, python: Path, *arguments: str) -> subprocess.Popen[str]:
    """Its process, the leader of a group of all that it starts."""
    needs_spark()
    folder.mkdir()
    root = Path(__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); from tests.cluster_driver import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    """kill -9 for the driver, its JVM and its workers."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture(scope="module")
def cluster(bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """All scenarios, in one Spark with two executors."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        pytest.MonkeyPatch.context() as patched,
        serving(Settings(data=folder / "data", listen=ANY_PORT, drain=5.0, http=None)) as server,
    ):
        patched.setattr(LocalDoor, "_opened", lambda *_: ([], []))  # executors are elsewhere
        url = str(server.url)
        process = driver(folder / "spark", bare_python, url, str(folder / "spark"), ",".join(SCENARIOS))
        assert process.stdout is not None
        try:
            told = [json.loads(line) for line in process.stdout if line.startswith("{")]
        finally:
            end(process)
        yield Cluster(url, {one.pop("scenario"): one for one in told})


@pytest.mark.parametrize(
    ("scenario", "path"),
    [("killed_executor", "store/killed"), ("speculation", "store/speculated"), ("lost_shuffle", "store/shuffled")],
)
def test_rows_are_there_once(cluster: Cluster, scenario: str, path: str) -> None:
    told = cluster.told[scenario]

    assert "error" not in told, told["error"]
    assert told["rows"] == ROWS
    assert held(path, cluster.url) == expected(ROWS)
    assert all(told["happened"])


def test_a_read_goes_on_where_its_executors_were_killed(cluster: Cluster) -> None:
    told = cluster.told["killed_executor_reading"]

    assert "error" not in told, told["error"]
    assert Counter(map(tuple, told["found"])) == expected(ROWS)
    assert all(told["happened"])


@pytest.mark.parametrize(
    ("scenario", "path"), [("random_key", "store/random"), ("random_key_then_shuffle", "store/then")]
)
def test_rows_that_fall_otherwise_each_time_are_there_once_or_not_at_all(
    cluster: Cluster, scenario: str, path: str
) -> None:
    if SPARK < (4, 1) or (SPARK < (4, 2) and scenario == "random_key"):
        pytest.skip("before 4.2 Spark itself loses and doubles rows where a random key is shuffled again, in any sink")
    told = cluster.told[scenario]

    if "error" in told:
        assert "indeterminate output" in told["error"]
        assert path not in names(cluster.url)
    else:
        assert held(path, cluster.url) == expected(ROWS)
    assert all(told["happened"])


def test_a_dead_driver_leaves_nothing_visible_and_an_open_write_that_rm_ends(bare_python: Path, tmp_path: Path) -> None:
    with serving(Settings(data=tmp_path / "data", listen=ANY_PORT, drain=5.0, http=None)) as server:
        url = str(server.url)
        process = driver(tmp_path / "spark", bare_python, url, str(tmp_path / "spark"), "never_ends", "local[2]")
        marks = Marks(tmp_path / "spark" / "marks-never_ends")
        try:
            for partition in (2, 3):
                marks.await_mark(f"waits-{partition}", 240)
        finally:
            end(process)

        with connect(url) as client:
            (entry,) = client.list("write/")
            assert client.call("describe", {"path": entry.path})["attempts"] == 2
            assert names(url) == []
            client.delete(entry.path)

            assert names(url, b"write/") == []
            eventually(lambda: files(tmp_path / "data" / "parts") == set(), what="its bytes are freed")


@pytest.mark.usefixtures("elsewhere")
def test_a_dead_driver_of_a_read_leaves_no_stream_open_and_the_dataset_as_it_was(
    bare_python: Path, tmp_path: Path
) -> None:
    with serving(Settings(data=tmp_path / "data", listen=ANY_PORT, drain=5.0, http=None)) as server:
        url = str(server.url)
        process = driver(tmp_path / "spark", bare_python, url, str(tmp_path / "spark"), "never_reads", "local[2]")
        marks = tmp_path / "spark" / "marks-never_reads"
        try:
            eventually(lambda: len(list(marks.glob("reads-*"))) == 2, within=240, what="two tasks read")
            assert server.streams.open_streams > 0
        finally:
            end(process)

        eventually(lambda: server.streams.open_streams == 0, what="the streams of the dead are closed")
        assert held("store/padded", url) == expected(ROWS)


def test_workers_without_pyarrow_are_a_clear_error(tmp_path: Path) -> None:
    venv.create(tmp_path / "none", symlinks=True)
    with serving(Settings(data=tmp_path / "data", listen=ANY_PORT, drain=5.0, http=None)) as server:
        url = str(server.url)
        python = tmp_path / "none" / "bin" / "python"
        process = driver(tmp_path / "spark", python, url, str(tmp_path / "spark"), "lost_shuffle", "local[2]")
        assert process.stdout is not None
        try:
            (told,) = [json.loads(line) for line in process.stdout if line.startswith("{")]
        finally:
            end(process)

        assert "pyarrow" in told["error"]
        assert names(url) == []
