"""A real Spark whose workers have pyarrow and nothing else, drivers in processes of their own, and rows for both."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import marshal
import os
import re
import signal
import site
import subprocess
import sys
import venv
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from scripts.demo_spark import missing
from tests.kit import wire
from tests.kit.spark_faults import Marks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """Make Spark start sooner, for every test that is marked `spark`.

    Its Python processes import pyspark from a zip without bytecode: 1.7 s each, 0.5 s with it. A streaming query has
    three. A JVM that lives for a minute gains nothing from its second compiler, from threads that collect garbage, nor
    from verifying Spark's classes: 8 s to the first query's rows instead of 10.
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
    java = "extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    java += " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    (home / "conf" / "spark-defaults.conf").write_text(f"spark.driver.{java}\nspark.executor.{java}\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_HOME", str(home))
        yield


def with_bytecode(sources: Path, target: Path) -> None:
    """Copy a zip of modules, and add their bytecode."""
    with zipfile.ZipFile(sources) as old, zipfile.ZipFile(target, "w") as new, warnings.catch_warnings(action="ignore"):
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, text)
            if name.endswith(".py") and not RARE.match(name):
                code = compile(text, str(target / name), "exec", dont_inherit=True)
                new.writestr(f"{name}c", UNCHECKED + marshal.dumps(code))


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pyarrow alone: no penstock, pyspark, pandas or numpy."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    for name in ("pyarrow", "pyarrow.libs"):
        for place in (*site.getsitepackages(), *(path for path in sys.path if "site-packages" in path)):
            installed = Path(place) / name
            if installed.exists() and not (packages / name).exists():
                (packages / name).symlink_to(installed)
    return home / "bin" / "python"


def _without_fork(command: list[str], *, preexec_fn: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start Spark's JVM as PySpark does, without a function of ours in a forked child.

    That one ended before it became a JVM, without a word, where gRPC ran in this process: a test of Pub/Sub came first.
    """
    return subprocess.Popen(command, process_group=0, **options)


@pytest.fixture(scope="session")
def spark(bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process, `local[2]` with task retries, its workers bare."""
    needs_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2, 4]")
    with spark_environment(tmp_path_factory.mktemp("spark"), bare_python):
        for key, value in CONFS.items():
            builder = builder.config(key, value)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("pyspark.java_gateway.Popen", _without_fork)
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
def spark_environment(folder: Path, python: Path) -> Iterator[None]:
    """Let Spark start in a folder of its own, which its workers have on their path."""
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


def needs_spark() -> None:
    """Skip the test, with the cure, where Spark can't run."""
    lacks = missing()
    if lacks:
        pytest.skip(lacks)


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    (tmp_path / "marks").mkdir()
    return Marks(tmp_path / "marks")


# --- drivers in processes of their own ------------------------------------------------------------


def start_driver_process(
    module: str, folder: Path, python: Path, *arguments: str, **streams: Any
) -> subprocess.Popen[Any]:
    """Run a module's `main` as a driver, the leader of a session of its own; `python` is that of its workers."""
    needs_spark()
    folder.mkdir(exist_ok=True)
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main()",
         *arguments], cwd=folder, start_new_session=True, **streams,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip


def start_driver(folder: Path, python: Path, url: str, scenarios: str, *master: str) -> subprocess.Popen[str]:
    """Start `programs.driver`: it reports each scenario, and waits for a line before the next one."""
    arguments, pipe = (url, str(folder), scenarios, *master), subprocess.PIPE
    return start_driver_process(
        "tests.kit.programs.driver", folder, python, *arguments, stdin=pipe, stdout=pipe, text=True
    )


def end_driver(process: subprocess.Popen[str]) -> None:
    """Kill the driver, its JVM and its workers with SIGKILL."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def driver_reports(
    process: subprocess.Popen[str], after: Callable[[str], object] = lambda name: None
) -> dict[str, dict[str, Any]]:
    """Return what a driver reports of each scenario; `after` runs after each, before the next one begins."""
    assert process.stdin is not None
    assert process.stdout is not None
    reports: dict[str, dict[str, Any]] = {}
    try:
        for line in process.stdout:
            if line.startswith("{"):
                report = json.loads(line)
                name = report.pop("scenario")
                reports[name] = report
                after(name)
                process.stdin.write("\n")
                process.stdin.flush()
    finally:
        end_driver(process)
    return reports


# --- rows ---------------------------------------------------------------------------------------

Rows = Counter[tuple[int, str]]


def row_frame(spark: SparkSession, rows: int, partitions: int, start: int = 0) -> DataFrame:
    """Return rows `start` to `rows`, each with a text that goes with its number."""
    return spark.range(start, rows, 1, partitions).selectExpr("id", "concat('row ', id) as text")


def row_batch(*ids: int) -> pa.RecordBatch:
    """Return such rows as a task gets them."""
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "text": [f"row {number}" for number in ids]})


def expected_rows(rows: int, start: int = 0) -> Rows:
    """Return the rows of `row_frame`, each once."""
    return Counter((number, f"row {number}") for number in range(start, rows))


def collected_rows(frame: DataFrame) -> Rows:
    """Return the rows that Spark reads."""
    return Counter((row.id, row.text) for row in frame.collect())


def stored_rows(path: str, url: str | None = None) -> Rows:
    """Return the rows of a dataset, read by plain pyarrow."""
    with flight.connect(url or os.environ["PENSTOCK_URL"]) as bare:
        table = wire.read(bare, path)
    return Counter(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


def server_paths(url: str | None = None, criteria: bytes = b"store/") -> list[str]:
    """Return the paths of a server's datasets, or with `write/` of its open writes."""
    with flight.connect(url or os.environ["PENSTOCK_URL"]) as bare:
        return wire.list_paths(bare, criteria)
