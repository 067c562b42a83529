"""`make demo` shows what it promises and clears up; without Spark it shows the rest and says what is missing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scripts import demo_spark
from tests.kit.spark import needs_spark

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"


def run_demo(folder: Path, **environment: str) -> str:
    """Run the whole demo in `folder`, and return what it prints."""
    if not Path(sys.executable).with_name("penstock").exists():
        pytest.skip("penstock isn't installed beside this Python")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "COLUMNS"))}
    process = subprocess.Popen(
        [sys.executable, DEMO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**inherited, "TMPDIR": str(folder), **environment}, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=560)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # its server too
        process.communicate()
        raise
    assert (process.returncode, errors.strip()) == (0, ""), output
    assert [file.name for file in folder.iterdir()] == ["trips.parquet"]
    assert pq.read_metadata(folder / "trips.parquet").num_rows == 500_000
    assert "\x1b" not in output
    return output


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.timeout(600)  # under a minute alone; Spark starts in it, beside other tests
def test_the_demo_shows_all_steps_with_spark(tmp_path: Path) -> None:
    needs_spark()
    from pyspark.sql import SparkSession

    output = run_demo(tmp_path)

    assert "$ penstock get store/demo/trips -n 5\n" in output
    assert "store/demo/spark: 2,000,000 rows, " in output
    assert "what came back is what Spark computes itself\n" in output
    rows = dict(re.findall(r"^(write|read all|read filtered) +([\d,]+) +[\d.]+ +[\d,]+ +[\d,]+$", output, re.MULTILINE))
    assert (rows["write"], rows["read all"]) == ("2,000,000", "2,000,000")
    assert 10_000 < int(rows["read filtered"].replace(",", "")) < 40_000
    assert "make run-flight" in output
    assert "WARN" not in output
    if hasattr(SparkSession, "dataSource"):
        assert re.search(r"kill -9.*\n", output)
        assert re.search(r"^ *published +landed +lost +doubled ", output, re.MULTILINE)
        assert re.search(r"^ *300,000 +300,000 +0 +0 +1 ", output, re.MULTILINE)


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_demo_without_java_says_how_to_install_it(tmp_path: Path) -> None:
    output = run_demo(tmp_path, JAVA_HOME="/nowhere")

    assert "what came out is what went in\n" in output
    assert "Spark needs Java 17 or newer, no /nowhere/bin/java: `sh scripts/java.sh` installs it" in output
    assert "make run-flight" in output


def test_the_demo_names_missing_pyspark_or_an_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert f"needs Java 17 or newer, {java} is 11: " in str(demo_spark.missing())
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\" 2024-01-16' >&2\n")
    assert demo_spark.missing() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert demo_spark.missing() == "pyspark isn't installed: pip install 'penstock-flight[spark]'"
