"""What travels to Spark's processes: the text of the modules that they need, and of no others."""

from __future__ import annotations

import ast
import json
import os
import pickle
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install 'penstock-flight[spark]'")

import pyarrow as pa
from pyspark import cloudpickle

import penstock
from penstock.client.client import Client
from penstock.client.settings import ConnectSettings
from penstock.spark_plugin import carry
from penstock.spark_plugin.worker import loader
from penstock.spark_plugin.worker.tasks import PutPartition

pytestmark = pytest.mark.faults  # seconds of them

TASK = PutPartition(ConnectSettings("grpc://127.0.0.1:1"), "ticket", None)
WORKER = Path(penstock.__file__).parent / "spark_plugin" / "worker"
MOST = 34_000
"""Bytes of a task."""

LOOK = """
import importlib.machinery, json, pickle, sys
tasks = [pickle.loads(open(name, "rb").read()) for name in sys.argv[1:]]
carried = [finder for finder in sys.meta_path if hasattr(finder, "driver")]
import penstock
print(json.dumps({
    "ticket": getattr(tasks[-1], "ticket", None),
    "installed": bool(importlib.machinery.PathFinder.find_spec("penstock")),
    "drivers": len(carried),
    "texts": sorted(name for finder in carried for name in finder.texts),
    "imported": sorted(name for name in sys.modules if name.split(".")[0] == "penstock"),
    "mark": getattr(penstock, "mark", None),
}))
"""


def look(python: Path | str, *tasks: Path, cwd: Path, before: str = "") -> dict[str, Any]:
    """Return the modules of a worker that has unpickled these tasks."""
    import pyspark

    spark = Path(pyspark.__file__).parent / "python" / "lib"  # Spark brings it to every worker
    done = subprocess.run(
        [python, "-c", f"{before}\n{LOOK}", *tasks], cwd=cwd, capture_output=True, text=True, check=False,
        env={"PATH": "", "PYTHONPATH": os.pathsep.join(map(str, spark.glob("*.zip")))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    worker: dict[str, Any] = json.loads(done.stdout)
    return worker


PACK_AGAIN = """
import pickle, sys
planning, task = (pickle.loads(open(name, "rb").read()) for name in sys.argv[1:3])
from penstock.spark_plugin import carry
open(sys.argv[3], "wb").write(pickle.dumps(carry.CarriedTask(task)))
"""


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A task as Spark pickles it."""
    file = tmp_path / "task"
    file.write_bytes(cloudpickle.dumps(carry.CarriedTask(TASK)))
    return file


def texts(bundle: int) -> dict[str, str]:
    modules: dict[str, str] = json.loads(zlib.decompress(carry._texts()[bundle]))
    return modules


TASKS, DECODING, PLANNING = 2, 3, 4


# --- which modules travel ------------------------------------------------------------------


def test_the_worker_room_and_its_imports_travel() -> None:
    modules = texts(TASKS)
    room = {f"penstock.spark_plugin.worker.{file.stem}" for file in WORKER.glob("[a-z]*.py")}
    assert {name for name in modules if ".worker." in name} == room - {"penstock.spark_plugin.worker.loader"}
    others = {".".join(name.split(".")[1:2]) for name in modules if ".spark_plugin" not in name}
    assert others == {"", "client", "errors", "rows", "text", "wire"}
    assert "penstock.client.client" not in modules


def test_every_module_that_travels_is_imported(bare_python: Path, packed: Path, tmp_path: Path) -> None:
    """But `pieces`, which Spark 3.5 doesn't need, and `actions`, which `pieces` imports, with what that imports."""
    worker = look(bare_python, packed, cwd=tmp_path)
    later = ["spark_plugin.worker.pieces", "spark_plugin.worker.open_put"]
    later += ["wire.actions", "wire.job", "wire.payloads", "wire.rights"]
    assert set(worker["texts"]) - set(worker["imported"]) == {f"penstock.{name}" for name in later}


def test_what_decodes_travels_with_tasks_that_decode() -> None:
    modules = texts(DECODING)
    assert {"penstock.decode.decoding", "penstock.decode.json", "penstock.rows.to_json"} <= set(modules)
    assert not set(modules) & set(texts(TASKS))
    _, _, tasks, decoding, _ = carry._texts()
    assert carry.pack(1, decoding=True)[1][1]["arguments"][4] == (tasks, decoding)
    assert carry.pack(1)[1][1]["arguments"][4] == (tasks,)


def test_planning_gets_the_rest_of_the_client_and_plugin() -> None:
    modules = texts(PLANNING)
    assert {"penstock.client.client", "penstock.spark_plugin.source", "penstock.spark_plugin.carry"} <= set(modules)
    assert not set(modules) & set(texts(TASKS))
    rooms = {name.split(".")[1] for name in modules}
    assert not rooms & {"cli", "flight_server", "store", "queue", "ledger"}


def test_imports_in_functions_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\ndef f():\n    from b import c\n"
    assert list(carry._imports(ast.parse(source))) == ["typing", "typing.TYPE_CHECKING", "b", "b.c"]


def test_text_without_words_keeps_its_lines() -> None:
    for file in WORKER.glob("*.py"):
        tree = ast.parse(file.read_text())
        stripped = carry._without_words(file.read_text(), tree)
        names = [
            [(node.name, node.lineno) for node in ast.walk(each) if isinstance(node, ast.FunctionDef)]
            for each in (tree, ast.parse(stripped))
        ]
        assert names[0] == names[1]
        assert len(stripped.splitlines()) == len(file.read_text().splitlines())


# --- how much ------------------------------------------------------------------------------


def test_a_task_that_puts_is_small(packed: Path) -> None:
    assert packed.stat().st_size < MOST


def test_a_task_that_reads_a_row_is_small(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark sends it: the function with the type that it returns."""
    client.put("store/x", pa.table({"id": [1]}))
    functions: list[Any] = []

    class Session:
        """As much of a session as `read` uses."""

        def range(self, *_: int) -> Session:
            return self

        def mapInArrow(self, function: Any, schema: Any) -> None:  # noqa: N802  # Spark's name
            functions.append((function, schema))

    penstock.read(Session(), "store/x", url=client.settings.url)  # type: ignore[arg-type]
    assert len(cloudpickle.dumps(functions[0])) < MOST


# --- how it arrives ------------------------------------------------------------------------


def test_a_task_arrives_where_only_pyarrow_is(bare_python: Path, packed: Path, tmp_path: Path) -> None:
    worker = look(bare_python, packed, cwd=tmp_path)
    assert (worker["ticket"], worker["installed"], worker["drivers"]) == ("ticket", False, 1)


def test_a_worker_without_pyarrow_is_told_of_pyspark_python(bare_python: Path, packed: Path, tmp_path: Path) -> None:
    told = r"bin/python\S*, the Python of this worker of Spark's, has no pyarrow: .* PYSPARK_PYTHON naming a Python"
    with pytest.raises(AssertionError, match=told):
        look(bare_python, packed, cwd=tmp_path, before="import sys; sys.modules['pyarrow'] = None")


def test_an_installed_penstock_is_used(packed: Path, tmp_path: Path) -> None:
    worker = look(sys.executable, packed, cwd=tmp_path)
    assert (worker["ticket"], worker["installed"], worker["drivers"]) == ("ticket", True, 1)


def test_only_what_spark_sent_is_acknowledged() -> None:
    before = os.listdir("/proc/self/fd")
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as spark:
        worker, _ = listener.accept()
        spark.sendall(b"task")
        loader.acknowledge()
        assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        assert worker.recv(10) == b"task"
        worker.close()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("version", ["0.0.9", "99.1"])
def test_an_installed_penstock_of_another_version_is_named(
    bare_python: Path, packed: Path, tmp_path: Path, version: str
) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    both = (
        rf"penstock/__init__\.py in this worker is penstock {version}, the driver has {penstock.__version__}: install"
    )
    with pytest.raises(AssertionError, match=both):
        look(bare_python, packed, cwd=tmp_path)


def test_a_folder_of_that_name_is_no_package(bare_python: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    assert look(bare_python, packed, cwd=tmp_path)["ticket"] == "ticket"


@pytest.fixture
def others(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same task from a driver with other modules."""
    modules = texts(TASKS)
    modules["penstock"] += "\nmark = 'other'\n"
    _, loader, _, *others = carry._texts()
    changed = "other", loader, zlib.compress(json.dumps(modules).encode()), *others
    file = tmp_path / "others"
    with monkeypatch.context() as here:
        here.setattr(carry, "_texts", lambda: changed)
        file.write_bytes(cloudpickle.dumps(carry.CarriedTask(TASK)))
    return file


def test_another_drivers_modules_replace_those_before(
    bare_python: Path, packed: Path, others: Path, tmp_path: Path
) -> None:
    for tasks, mark in (((packed, others), "other"), ((others, packed), None), ((packed, packed), None)):
        worker = look(bare_python, *tasks, cwd=tmp_path)
        assert (worker["drivers"], worker["mark"]) == (1, mark)


def test_planning_adds_modules_to_those_of_a_task(bare_python: Path, packed: Path, tmp_path: Path) -> None:
    """And what it packs again is the same as the driver's."""
    file, again = tmp_path / "planning", tmp_path / "again"
    value = carry.PickledCall(carry.PickledCall, abs, 7)
    file.write_bytes(pickle.dumps(Packed(value)))
    worker = look(bare_python, packed, file, cwd=tmp_path)
    assert (worker["drivers"], set(worker["texts"])) == (1, {*texts(TASKS), *texts(DECODING), *texts(PLANNING)})
    subprocess.run([bare_python, "-c", PACK_AGAIN, file, packed, again], cwd=tmp_path, check=True)
    worker = look(bare_python, packed, again, cwd=tmp_path)
    assert (worker["drivers"], worker["ticket"]) == (1, "ticket")
    assert len(again.read_bytes()) < MOST


class Packed:
    """Pickles as Spark's planning gets it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        return carry.pack(self._value, planning=True)


def test_a_task_at_home_is_itself() -> None:
    assert pickle.loads(pickle.dumps(TASK)).ticket == "ticket"
