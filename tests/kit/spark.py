"""A real Spark whose workers have pyarrow and nothing else: what penstock needs there it must bring along."""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import re
import site
import subprocess
import sys
import venv
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.demo_spark import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "Europe/Berlin",
}
RARE = re.compile(r"pyspark/(ml|mllib|pandas|examples|testing)/|.*/tests/")
"""What no worker imports."""
UNCHECKED = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
"""The head of bytecode that isn't compared with its source."""


@pytest.fixture(scope="session")
def quick_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same Spark, which starts sooner; every test that is marked `spark` has it.

    Its Python processes import pyspark from a zip without bytecode: 1.7 s each, 0.5 s with it. A streaming query has
    three. A JVM that lives for a minute gains nothing from its second compiler, nor from verifying Spark's classes:
    8 s to the first query's rows instead of 10.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        yield
        return
    installed, home = Path(spec.origin).parent, tmp_path_factory.mktemp("quick") / "spark"
    (home / "python" / "lib").mkdir(parents=True)
    for place in (Path(), Path("python")):
        for each in (installed / place).iterdir():
            if not (home / place / each.name).exists():
                (home / place / each.name).symlink_to(each)
    for each in (installed / "python" / "lib").glob("*.zip"):
        with_bytecode(each, home / "python" / "lib" / each.name)
    (home / "conf").mkdir()
    java = "extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    (home / "conf" / "spark-defaults.conf").write_text(f"spark.driver.{java}\nspark.executor.{java}\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_HOME", str(home))
        yield


def with_bytecode(sources: Path, found: Path) -> None:
    """The same zip, and its modules compiled in it."""
    with zipfile.ZipFile(sources) as old, zipfile.ZipFile(found, "w") as new, warnings.catch_warnings(action="ignore"):
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, text)
            if name.endswith(".py") and not RARE.match(name):
                code = compile(text, str(found / name), "exec", dont_inherit=True)
                new.writestr(f"{name}c", UNCHECKED + marshal.dumps(code))


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pyarrow alone: no penstock, pyspark, pandas or numpy."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    for name in ("pyarrow", "pyarrow.libs"):
        for place in (*site.getsitepackages(), *(path for path in sys.path if "site-packages" in path)):
            found = Path(place) / name
            if found.exists() and not (packages / name).exists():
                (packages / name).symlink_to(found)
    return home / "bin" / "python"


@pytest.fixture(scope="session")
def spark(bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process, `local[2]` with task retries, its workers bare."""
    needs_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2, 4]")
    with elsewhere(tmp_path_factory.mktemp("spark"), bare_python):
        for key, value in CONFS.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Several batches to a partition."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@contextlib.contextmanager
def elsewhere(folder: Path, python: Path) -> Iterator[None]:
    """Start Spark in a folder of its own: its workers have the folder where it was started on their path."""
    here, before = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    os.environ.update(PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    os.environ.pop("PYTHONPATH", None)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def started(module: str, folder: Path, python: Path, *arguments: str, **streams: Any) -> subprocess.Popen[Any]:
    """A driver in a process of its own, the leader of a session of all that it starts; `python` is its workers'."""
    needs_spark()
    folder.mkdir(exist_ok=True)
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); from tests.{module} import main; main()",
         *arguments], cwd=folder, start_new_session=True, **streams,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip


def needs_spark() -> None:
    """Skip, with the cure, where Spark can't run."""
    lacks = missing()
    if lacks:
        pytest.skip(lacks)
