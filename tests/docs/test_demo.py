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

from scripts import demo_spark, emulator
from tests.kit.spark import needs_spark

SCRIPTS = Path(__file__).parents[2] / "scripts"
DEMO, PUBSUB_DEMO = SCRIPTS / "demo.py", SCRIPTS / "demo_pubsub.py"


def run_demo(folder: Path, **environment: str) -> str:
    """Run the whole demo in `folder`, and return what it prints."""
    output = run(DEMO, folder, **environment)
    assert {file.name for file in folder.iterdir()} - {"job.html"} == {"trips.parquet"}
    assert pq.read_metadata(folder / "trips.parquet").num_rows == 500_000
    return output


def run(script: Path, folder: Path, **environment: str) -> str:
    """Run a script in `folder`, and return what it prints."""
    if not Path(sys.executable).with_name("penstock").exists():
        pytest.skip("penstock isn't installed beside this Python")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "COLUMNS"))}
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**inherited, "TMPDIR": str(folder), **environment}, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=560)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # its server too
        process.communicate()
        raise
    assert (process.returncode, errors.strip()) == (0, ""), output
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
    assert "job/demo: done in" in output
    assert "score" in (tmp_path / "job.html").read_text()
    assert re.search(r"^ *80 +2,000,000 +[1-9]\d* +0 +0 +1 ", output, re.MULTILINE)
    assert "the scores are those that Spark computes itself\n" in output
    assert "make run-flight" in output
    assert "WARN" not in output
    if hasattr(SparkSession, "dataSource"):
        assert re.search(r"kill -9.*\n", output)
        assert re.search(r"^ *published +landed +lost +doubled ", output, re.MULTILINE)
        assert re.search(r"^ *300,000 +300,000 +0 +0 +1 ", output, re.MULTILINE)


@pytest.mark.soak  # two minutes, most of them the emulator's
@pytest.mark.process
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_killed_puller_costs_the_demo_no_message(tmp_path: Path) -> None:
    """`make demo-pubsub`: nothing lost, nothing twice, nothing left in the subscription."""
    needs_spark()
    from pyspark.sql import SparkSession

    if (lack := emulator.missing()) is not None or not hasattr(SparkSession, "dataSource"):
        pytest.skip(lack or "Spark has Python data sources from 4.0 on")
    output = run(PUBSUB_DEMO, tmp_path)
    assert re.search(r"^\$ kill -9 \d+ \(the puller, after", output, re.MULTILINE)
    assert re.search(r"^ *published +landed +lost +doubled +kill -9 ", output, re.MULTILINE)
    assert re.search(r"^ *30,000 +30,000 +0 +0 +1 ", output, re.MULTILINE)
    assert re.search(r"^left in Pub/Sub after .*: 0$", output, re.MULTILINE)


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_demo_without_java_says_how_to_install_it(tmp_path: Path) -> None:
    output = run_demo(tmp_path, JAVA_HOME="/nowhere")

    assert "what came out is what went in\n" in output
    assert "Spark needs Java 17 or newer, no /nowhere/bin/java: `sh scripts/java.sh` installs it" in output
    assert "Without Spark this is all, there is no job and no stream: Spark needs Java 17 or newer" in output
    assert "make run-flight" in output


JAVAS = {"1.8.0_402": "is 8", "11.0.2": "is 11", "16.0.1": "is 16", "17": None, "17.0.10": None, "25-ea": None}


def test_what_spark_lacks_is_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it starts; tests of Spark are skipped with the same words."""
    java = tmp_path / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    with pytest.raises(pytest.skip.Exception, match=f"needs Java 17 or newer, no {java}: .*scripts/java.sh"):
        needs_spark()
    java.parent.mkdir()
    for version, lack in JAVAS.items():
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
        java.chmod(0o700)
        assert (lack or "None") in str(demo_spark.missing())
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert demo_spark.missing() == "pyspark isn't installed: pip install 'penstock-flight[spark]'"
