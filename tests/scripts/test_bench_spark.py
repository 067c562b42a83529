"""The benchmark with Spark still runs, and its page says what was found. How fast anything is, isn't tested."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench_servers import memory as memory_of
from scripts.bench_servers import peak
from scripts.bench_spark_page import Line, compared, memory, page, slower
from tests.kit.spark import needs_spark
from tests.kit.wait import eventually

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_benchmark_compares_every_side_and_clears_up(tmp_path: Path) -> None:
    needs_spark()
    written, folder = tmp_path / "out" / "benchmarks-spark.md", tmp_path / "data"
    folder.mkdir()
    command = ["scripts/bench_spark.py", "--smoke", "--output", str(written), "--folder", str(folder)]
    run = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = written.read_text()
    assert "A smoke run" in found
    assert re.findall(r"^## (.*)", found, re.MULTILINE) == ["Write", "Read", "Filter", "Growth"]
    lines = [line.split("|")[1:-1] for line in found.splitlines() if re.match(r"\| [^ |]", line)]
    assert len(lines) >= 12
    for what, took, _, its, ratio, worst, promise, held in lines:
        assert re.search(r"\d", took), what
        assert re.search(r"\d", its), what
        assert bool(ratio.strip()) == bool(worst.strip()) == (" MiB" not in took), what
        assert bool(promise.strip()) == bool(held.strip()), what
    assert list(folder.iterdir()) == []


def test_a_promise_is_judged_by_the_median_of_the_ratios_of_neighbours() -> None:
    found = compared("ours", [2.0, 2.0, 30.0], "the floor", [1.0, 4.0, 20.0], most=1.5)
    assert (found.ratio, found.worst, found.held, found.promise) == (1.5, 2.0, True, "<= 1.5x")
    assert (found.found, found.its) == ("2.00 s", "4.00 s")
    assert compared("ours", [2.0], "the floor", [1.0], most=1.5).held is False
    assert compared("ours", [2.0], "the floor", [1.0]).held is None


def test_what_must_be_slower_than_ours_is_judged_the_other_way_round() -> None:
    found = slower("parquet", [3.0, 2.0, 5.0], "ours", [2.0, 2.0, 1.0], least=1.5)
    assert (found.ratio, found.worst, found.held, found.promise) == (1.5, 1.0, True, ">= 1.5x")
    assert slower("parquet", [1.0], "ours", [1.0], least=1.2).held is False


def test_memory_may_be_more_by_less_than_its_limit() -> None:
    assert memory("x", 42 * MIB, 10 * MIB, "a tenth", 32 * MIB).held is False
    assert memory("x", 42 * MIB - 1, 10 * MIB, "a tenth", 32 * MIB).held is True
    assert memory("x", 42 * MIB, 10 * MIB, "a tenth").held is None


def test_the_peak_of_a_process_is_seen_though_it_has_passed() -> None:
    code = f"import sys; input(); there = bytes([1]) * {64 * MIB}; print(flush=True); input(); del there; input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = memory_of(process.pid, "RssAnon")
        with peak(process.pid) as most:
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            eventually(lambda: most[process.pid] >= before + 60 * MIB, what="the watcher has looked")
            process.stdin.write(b"\n")
            process.stdin.flush()
            eventually(lambda: memory_of(process.pid, "RssAnon") < before + 30 * MIB, what="the memory is given back")
        process.stdin.close()
    assert before + 60 * MIB <= most[process.pid] < before + 96 * MIB


def test_the_page_says_what_did_not_hold(tmp_path: Path) -> None:
    lines = [
        Line("ours", "1.00 s", "the floor", "0.90 s", 1.1, 1.2, "<= 1.4x", held=True),
        Line("theirs", "1.00 s", "ours", "0.90 s", 1.1, 1.0, ">= 1.2x", held=False),
    ]
    found = page(
        {"Write": {"3 rows": lines}},
        repeats=5,
        smoke=False,
        command="make bench-spark",
        spark="Spark 4",
        folder=tmp_path,
        seconds=1,
    )
    assert "1 of 2 promises held.\n- **Not held**: theirs beside ours, 3 rows" in found
    assert "| theirs | 1.00 s | ours | 0.90 s | 1.10x | 1.00x | >= 1.2x | **NO** |" in found
    assert "A smoke run" not in found
