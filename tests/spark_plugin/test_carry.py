"""What travels to a worker: penstock's text, once, and only where it is needed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install 'penstock[spark]'")

from pyspark import cloudpickle

import penstock
from penstock.client.settings import Settings
from penstock.spark_plugin import carry
from penstock.spark_plugin.worker.tasks import PutPartition

pytestmark = pytest.mark.faults  # seconds of them

TASK = PutPartition(Settings("grpc://127.0.0.1:1"), "ticket", None)

LOOK = """
import importlib.machinery, pickle, sys
tasks = [pickle.loads(open(name, "rb").read()) for name in sys.argv[1:]]
found = importlib.machinery.PathFinder.find_spec("penstock")
brought = [finder for finder in sys.meta_path if hasattr(finder, "digest")]
print(type(tasks[-1]).__module__, tasks[-1].ticket, bool(found), len(brought))
import penstock
print(getattr(penstock, "mark", None))
"""


def worker(python: Path | str, *tasks: Path, cwd: Path) -> list[str]:
    import pyspark

    brought = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")  # by Spark, to every worker
    done = subprocess.run(
        [python, "-c", LOOK, *tasks], cwd=cwd, capture_output=True, text=True, check=False,
        env={"PATH": "", "PYTHONPATH": ":".join(map(str, brought))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A task as Spark pickles it."""
    file = tmp_path / "task"
    file.write_bytes(cloudpickle.dumps(carry.Carried(TASK)))
    assert file.stat().st_size < 80_000
    return file


def test_a_task_arrives_where_only_pyarrow_is(bare_python: Path, packed: Path, tmp_path: Path) -> None:
    assert worker(bare_python, packed, cwd=tmp_path) == [
        "penstock.spark_plugin.worker.tasks",
        "ticket",
        "False",
        "1",
        "None",
    ]


def test_an_installed_penstock_is_used_as_it_is(packed: Path, tmp_path: Path) -> None:
    assert worker(sys.executable, packed, cwd=tmp_path)[1:4] == ["ticket", "True", "0"]


@pytest.mark.parametrize("version", ["0.0.9", "99.1"])
def test_an_installed_penstock_of_another_version_is_named_with_the_drivers(
    bare_python: Path, packed: Path, tmp_path: Path, version: str
) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "__init__.py").write_text(f"__version__ = {version!r}\n")

    said = (
        rf"penstock/__init__\.py in this worker is penstock {version}, the driver has {penstock.__version__}: install"
    )
    with pytest.raises(AssertionError, match=said):
        worker(bare_python, packed, cwd=tmp_path)


def test_a_folder_of_that_name_is_no_package(bare_python: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()

    assert worker(bare_python, packed, cwd=tmp_path)[:2] == ["penstock.spark_plugin.worker.tasks", "ticket"]


def test_another_drivers_text_replaces_the_one_before(
    bare_python: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, text = carry._text()
    other = {**carry_modules(text), "penstock": carry_modules(text)["penstock"] + "\nmark = 'other'\n"}
    monkeypatch.setattr(carry, "_text", lambda: ("other", carry_text(other)))
    second = tmp_path / "second"
    second.write_bytes(cloudpickle.dumps(carry.Carried(TASK)))

    assert worker(bare_python, packed, second, cwd=tmp_path)[3:5] == ["1", "other"]
    assert worker(bare_python, second, packed, cwd=tmp_path)[3:5] == ["1", "None"]
    assert digest != "other"


def carry_modules(text: bytes) -> dict[str, str]:
    import json
    import zlib

    found: dict[str, str] = json.loads(zlib.decompress(text))
    return found


def carry_text(modules: dict[str, str]) -> bytes:
    import json
    import zlib

    return zlib.compress(json.dumps(modules).encode())


def test_the_server_its_stores_and_the_command_line_stay_at_home() -> None:
    names = carry_modules(carry._text()[1])
    assert "penstock.spark_plugin.worker.tasks" in names
    assert not [name for name in names if name.split(".")[1:2] in (["cli"], ["flight_server"], ["store"], ["queue"])]


def test_a_task_at_home_is_itself() -> None:
    assert pickle.loads(pickle.dumps(TASK)).ticket == "ticket"
