"""The notebooks run from top to bottom in a new folder, and their cells show what they should."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.connect import ConnectServer
from tests.kit.spark import needs_spark

if TYPE_CHECKING:
    from collections.abc import Callable

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


class Outputs:
    """The outputs of a notebook's cells, by the cells' ids."""

    def __init__(self, cells: list[dict[str, Any]], updates: list[str]) -> None:
        self._outputs = {cell["id"]: cell["outputs"] for cell in cells if cell["cell_type"] == "code"}
        self.updates = updates
        """The contents that displays showed in between."""

    def printed(self, cell: str) -> str:
        return "".join(each["text"] for each in self._outputs[cell] if each["output_type"] == "stream")

    def shown(self, cell: str, form: str = "text/plain") -> str:
        (result,) = [each["data"][form] for each in self._outputs[cell] if each["output_type"] == "execute_result"]
        return str(result)

    def value(self, cell: str) -> Any:
        return ast.literal_eval(self.shown(cell))


@pytest.fixture
def execute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[str], Outputs]:
    """Return a function that runs a notebook in a new folder, with none of penstock's variables set."""
    if request.node.get_closest_marker("spark"):
        needs_spark()
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder, temporary = tmp_path / "notebook", tmp_path / "temporary"
    for name, subfolder in {"IPYTHONDIR": "ipython", "JUPYTER_RUNTIME_DIR": "jupyter", "TMPDIR": "temporary"}.items():
        (tmp_path / subfolder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / subfolder))
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    for name in ("PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_CA", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    updates: list[str] = []

    class Recorder(nbclient.NotebookClient):  # type: ignore[name-defined]  # found while the test runs
        def process_message(self, message: Any, *others: Any) -> Any:
            if message["msg_type"] == "update_display_data":
                updates.append(str(message["content"]["data"]))
            return super().process_message(message, *others)

    def run(name: str) -> Outputs:
        (file,) = [file for file in NOTEBOOKS if file.stem == name]
        book = nbformat.read(file, as_version=4)
        Recorder(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
        assert list(temporary.iterdir()) == []
        return Outputs(book["cells"], updates)

    return run


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_kept_without_outputs(file: Path) -> None:
    book = json.loads(file.read_text())
    for cell in book["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(300)  # two starts, of a kernel and of Spark, beside other tests
def test_the_by_hand_notebook_runs(execute: Callable[[str], Outputs]) -> None:
    """It starts a server of its own, and does without penstock's client."""
    outputs = execute("by_hand")

    assert [rows for _, rows in outputs.value("put")] == [50_000] * 4
    assert "no dataset at store/by-hand/trips" in outputs.printed("not-yet")
    assert outputs.value("finish") == ("finished", 200_000)
    assert outputs.value("read") == (200_000, 0)
    cheap = sum(n % 1000 / 10 < 0.5 and n % 7 in (5, 6) for n in range(200_000))
    assert outputs.value("filter") == (cheap, cheap)
    assert "open, overwrite to store/by-hand/trips 100000 rows; the dataset has 200000" in outputs.printed("unfinished")
    assert outputs.value("unfinished") == "aborted"
    assert "without its trailer, so nothing of it was kept" in outputs.printed("trailer")


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_with_penstock_notebook_runs(
    execute: Callable[[str], Outputs], server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses a server that runs already, and leaves no dataset on it."""
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    outputs = execute("with_penstock")

    assert any("store/notebook/trips: " in text and "partitions are there" in text for text in outputs.updates)
    assert outputs.shown("write").startswith("store/notebook/trips: 1,000,000 rows, ")
    assert "<td" in outputs.shown("write", "text/html")
    dear = sum(n % 3 == 2 and n % 5000 >= 4900 for n in range(1_000_000))
    assert outputs.value("read") == (dear, dear)
    assert outputs.printed("source") in ("10 rows\n", "")  # nothing on Spark 3.5
    assert "store/notebook/trips</td>" in outputs.shown("list", "text/html")
    assert outputs.shown("preview", "text/html").count("<tr>") == 5
    assert outputs.value("pandas") == {"id": True, "zone": True, "fare": True}
    assert outputs.value("numpy") == {"one piece": True, "all of them": False}
    assert outputs.value("polars") == {"id": True, "zone": False, "fare": True}
    assert "333334" in outputs.printed("duckdb")
    if sys.platform == "linux":
        assert outputs.value("table").endswith(" bytes, 0 allocated")
        assert outputs.value("duckdb") == "0 bytes allocated"
    (rows,) = re.findall(r'^penstock_rows_total\{way="in"\} (\S+)$', server.state.metrics.text(), re.MULTILINE)
    assert float(rows) >= 1_000_000
    assert len(client.list()) == len(client.list("write/")) == 0


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_streaming_notebook_runs(
    execute: Callable[[str], Outputs], server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses a server that runs already, and leaves no rows on it.

    A query that is stopped in the middle of an epoch leaves that epoch's write to expire.
    """
    pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    outputs = execute("streaming")

    assert "topic/notebook/orders</td>" in outputs.shown("publish", "text/html")
    assert "topic/notebook/orders: 10,000 rows, " in outputs.shown("info")
    assert outputs.shown("range", "text/html").count("<tr>") == 5
    assert outputs.printed("follow") == "3 rows: [9997, 9998, 9999]\n"
    assert outputs.shown("follow") == "Position({0: 10000})"
    assert outputs.shown("now").startswith("store/notebook/landed: ")
    published, landed = outputs.value("running")
    assert 20_000 <= landed <= published <= 40_000
    assert "behind" in outputs.shown("progress", "text/html")
    assert outputs.shown("stop", "text/html").count("live") == 1, "both queries are one consumer"
    batches = outputs.value("again")
    assert batches[0][0] > 2
    assert [number for number, _ in batches] == list(range(batches[0][0], batches[0][0] + len(batches)))
    bars = [line.split(maxsplit=1) for line in outputs.printed("bars").splitlines()]
    assert [(name, row[-1]) for name, row in bars] == [("published", "█"), ("landed", "█")]
    assert outputs.value("compare") == {"published": 40_000, "landed": 40_000, "lost": 0, "doubled": 0}
    (rows,) = re.findall(r'^penstock_rows_total\{way="in"\} (\S+)$', server.state.metrics.text(), re.MULTILINE)
    assert float(rows) >= 80_000
    assert len(client.list("topic/")) == len(client.list()) == 0
    left = client.list("write/")
    assert len(left) <= len(("stop", "again")), left
    assert all(str(entry.state).startswith("open, append to store/notebook/landed") for entry in left), left


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_jobs_notebook_runs(
    execute: Callable[[str], Outputs],
    server: PenstockServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It uses a server that runs already, and leaves neither job nor dataset on it."""
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    outputs = execute("jobs")

    assert any("<progress" in text and "calibrate" in text for text in outputs.updates)
    assert outputs.shown("job").startswith("job/notebook: done in ")
    assert "<td" in outputs.shown("job", "text/html")
    assert outputs.value("once") == (4_000, 0)
    assert "13_calibrate failed in picky with ValueError: no sensor may be called 13" in outputs.printed("fail")
    assert outputs.printed("fail").endswith("datasets: ['store/results/notebook']\n")
    resumed = {"all are done": True, "13 is among them": True, "rows": 4_000, "state": "done"}
    assert outputs.value("resume") == resumed
    assert "1 dead split" in outputs.shown("dead")
    assert "no sensor may be called 13" in outputs.shown("look", "text/html")
    assert outputs.value("redrive") == (1, 4_000)
    assert "in_13_calibrate" in (tmp_path / "notebook" / "job.html").read_text()
    assert "<iframe" in outputs.shown("report", "text/html")
    assert outputs.shown("spark").startswith("job/notebook-spark: done in ")
    assert outputs.value("read") == (100_000, 0)
    assert (
        len(client.list("job/")) == len(client.list("queue/")) == len(client.list()) == len(client.list("write/")) == 0
    )


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_connect_notebook_runs(
    execute: Callable[[str], Outputs],
    spark_server: ConnectServer,
    server: PenstockServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It uses servers of Spark and of penstock that run already, and leaves no dataset."""
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{spark_server.port}")
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    outputs = execute("connect")

    assert outputs.value("connect") is True
    page = outputs.shown("frame", "text/html")
    assert page.count("<tr>") == 21
    assert "amount: double" in page
    assert "== Physical Plan ==" in page
    assert outputs.printed("sums").startswith("+-------+")
    assert outputs.shown("sums").startswith("Row(country=0, s=")
    assert outputs.value("schema") == ["int64", "double", "int64"]
    assert outputs.shown("explain").startswith("== Physical Plan ==")
    assert outputs.shown("preview", "text/html").count("<tr>") == 6
    assert outputs.value("sample") == 100
    assert outputs.value("stream") == (1_000_000, 0)
    assert outputs.value("progress") == 80
    assert any("<progress" in update and "tasks" in update for update in outputs.updates)
    assert "max_rows=10,000" in outputs.printed("bound")
    assert outputs.value("polars") == 9
    assert outputs.value("put") == 1_000_000
    assert "UNRESOLVED_COLUMN" in outputs.printed("wrong")
    assert len(client.list()) == 0


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_datasets_notebook_runs(execute: Callable[[str], Outputs]) -> None:
    """It starts a server of its own."""
    pytest.importorskip("polars")
    pytest.importorskip("duckdb")
    outputs = execute("datasets")

    dear = [n for n in range(200_000) if n % 5_000 >= 4_990]
    assert outputs.shown("put").endswith("\n  id: int64\n  zone: string\n  fare: double")
    zones = ("Airport", "Docks", "Harbour")
    for n, zone in enumerate(zones):
        assert re.search(rf"{zone} +┆ {sum(each % 3 == n for each in dear)} +┆ 52.99", outputs.shown("polars"))
    assert outputs.value("sent") == len(dear)
    assert outputs.value("duckdb") == [
        (zone, sum(n % 3 == at for n in range(202, 300))) for at, zone in enumerate(zones)
    ]
    assert outputs.shown("pandas", "text/html").count("<tr") == 4
    assert "2026-11-18" not in outputs.shown("folder")
    assert outputs.shown("folder").count("100") == 2
    assert outputs.value("partition") == [("mon", 100), ("tue", 7), ("wed", 100)]
    assert outputs.value("ttl") == 3_600
    assert outputs.value("evict") == (True, False, ["store/cached/7"])
