"""The notebooks run from top to bottom, as somebody would have them, and show what they say."""

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
from tests.kit.spark import needs_spark

if TYPE_CHECKING:
    from collections.abc import Callable

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


class Outputs:
    """What the cells of a notebook gave, by their ids."""

    def __init__(self, cells: list[dict[str, Any]], updates: list[str]) -> None:
        self._outputs = {cell["id"]: cell["outputs"] for cell in cells if cell["cell_type"] == "code"}
        self.updates = updates
        """What a display showed for a while."""

    def printed(self, cell: str) -> str:
        return "".join(each["text"] for each in self._outputs[cell] if each["output_type"] == "stream")

    def shown(self, cell: str, form: str = "text/plain") -> str:
        (found,) = [each["data"][form] for each in self._outputs[cell] if each["output_type"] == "execute_result"]
        return str(found)

    def value(self, cell: str) -> Any:
        return ast.literal_eval(self.shown(cell))


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Outputs]:
    """Runs a notebook in a new folder, with nothing of penstock's in its environment."""
    needs_spark()
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder, temporary = tmp_path / "notebook", tmp_path / "temporary"
    for name, place in {"IPYTHONDIR": "ipython", "JUPYTER_RUNTIME_DIR": "jupyter", "TMPDIR": "temporary"}.items():
        (tmp_path / place).mkdir()
        monkeypatch.setenv(name, str(tmp_path / place))
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    for name in ("PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_CA", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    updates: list[str] = []

    class Watching(nbclient.NotebookClient):  # type: ignore[name-defined]  # found while the test runs
        def process_message(self, message: Any, *others: Any) -> Any:
            if message["msg_type"] == "update_display_data":
                updates.append(str(message["content"]["data"]))
            return super().process_message(message, *others)

    def run(name: str) -> Outputs:
        (file,) = [file for file in NOTEBOOKS if file.stem == name]
        book = nbformat.read(file, as_version=4)
        Watching(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
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
def test_by_hand(execute: Callable[[str], Outputs]) -> None:
    """With a server of the notebook's own, and none of penstock's client."""
    found = execute("by_hand")

    assert [rows for _, rows in found.value("put")] == [50_000] * 4
    assert "no dataset at store/by-hand/trips" in found.printed("not-yet")
    assert found.value("finish") == ("finished", 200_000)
    assert found.value("read") == (200_000, 0)
    cheap = sum(n % 1000 / 10 < 0.5 and n % 7 in (5, 6) for n in range(200_000))
    assert found.value("filter") == (cheap, cheap)
    assert "open, overwrite to store/by-hand/trips 100000 rows; the dataset has 200000" in found.printed("unfinished")
    assert found.value("unfinished") == "aborted"
    assert "without its trailer, so nothing of it was kept" in found.printed("trailer")


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(300)
def test_with_penstock(
    execute: Callable[[str], Outputs], server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a server that was there before, which has nothing of the notebook's afterwards."""
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    found = execute("with_penstock")

    assert any("store/notebook/trips: " in text and "partitions are there" in text for text in found.updates)
    assert found.shown("write").startswith("store/notebook/trips: 1,000,000 rows, ")
    assert "<td" in found.shown("write", "text/html")
    dear = sum(n % 3 == 2 and n % 5000 >= 4900 for n in range(1_000_000))
    assert found.value("read") == (dear, dear)
    assert found.printed("source") in ("10 rows\n", "")  # nothing on Spark 3.5
    assert "store/notebook/trips</td>" in found.shown("list", "text/html")
    assert found.shown("preview", "text/html").count("<tr>") == 5
    assert found.value("pandas") == {"id": True, "zone": True, "fare": True}
    assert found.value("numpy") == {"one piece": True, "all of them": False}
    assert found.value("polars") == {"id": True, "zone": False, "fare": True}
    assert "333334" in found.printed("duckdb")
    if sys.platform == "linux":
        assert found.value("table").endswith(" bytes, 0 allocated")
        assert found.value("duckdb") == "0 bytes allocated"
    (rows,) = re.findall(r'^penstock_rows_total\{way="in"\} (\d+)$', server.state.metrics.text(), re.MULTILINE)
    assert int(rows) >= 1_000_000
    assert len(client.list()) == len(client.list("write/")) == 0


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(300)
def test_streaming(
    execute: Callable[[str], Outputs], server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a server that was there before, which counts what comes and has no rows of the notebook's afterwards.

    A query that is stopped in the middle of an epoch leaves that epoch's write to expire.
    """
    pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    found = execute("streaming")

    assert "topic/notebook/orders</td>" in found.shown("publish", "text/html")
    assert "topic/notebook/orders: 10,000 rows, " in found.shown("info")
    assert found.shown("range", "text/html").count("<tr>") == 5
    assert found.printed("follow") == "3 rows: [9997, 9998, 9999]\n"
    assert found.value("follow") == {0: 10_000}
    assert found.shown("now").startswith("store/notebook/landed: ")
    published, landed = found.value("running")
    assert 20_000 <= landed <= published <= 40_000
    assert "behind" in found.shown("progress", "text/html")
    assert found.shown("stop", "text/html").count("live") == 1, "it is one consumer, before and after"
    batches = found.value("again")
    assert batches[0][0] > 2
    assert [number for number, _ in batches] == list(range(batches[0][0], batches[0][0] + len(batches)))
    bars = [line.split(maxsplit=1) for line in found.printed("bars").splitlines()]
    assert [(name, row[-1]) for name, row in bars] == [("published", "█"), ("landed", "█")]
    assert found.value("compare") == {"published": 40_000, "landed": 40_000, "lost": 0, "doubled": 0}
    (rows,) = re.findall(r'^penstock_rows_total\{way="in"\} (\d+)$', server.state.metrics.text(), re.MULTILINE)
    assert int(rows) >= 80_000
    assert len(client.list("topic/")) == len(client.list()) == 0
    left = client.list("write/")
    assert len(left) <= len(("stop", "again")), left
    assert all(str(entry.state).startswith("open, append to store/notebook/landed") for entry in left), left
