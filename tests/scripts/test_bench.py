"""The benchmark still runs, and its page says what was found. How fast anything is, isn't tested."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench_page import page
from scripts.bench_rows import SMOKE, Row, compared, interleaved, limited, mebibytes, rate

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_benchmark_measures_every_figure_and_clears_up(tmp_path: Path) -> None:
    written, folder = tmp_path / "out" / "benchmarks.md", tmp_path / "data"
    folder.mkdir()
    command = ["scripts/bench_flight.py", "--smoke", "--output", str(written), "--folder", str(folder)]
    run = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = written.read_text()
    assert "A smoke run" in found
    headings = re.findall(r"^## (.*)", found, re.MULTILINE)
    assert headings == ["Memory", "do_get", "get on the same host", "do_put", "Small calls", "Imports"]
    lines = [
        line.split("|")[1:-1] for line in found.splitlines() if line.startswith("| ") and "penstock | ratio" not in line
    ]
    assert len(lines) == 21
    for what, _, ours, *_, promise, held in lines:
        assert re.search(r"\d", ours), what
        assert bool(promise.strip()) == bool(held.strip()), what
    assert list(folder.iterdir()) == []


def test_a_promise_is_judged_by_the_median_of_the_ratios_of_neighbours() -> None:
    found = compared("x", [1.0, 2.0, 9.0], [2.0, 2.0, 3.0], rate(16), 0.9)
    assert (found.ratio, found.worst, found.held, found.promise) == (1.0, 0.5, True, ">= 0.9x")
    assert (found.bare, found.ours) == ("8 MiB/s", "8 MiB/s")
    assert compared("x", [1.0], [2.0], rate(1), 0.9).held is False
    assert compared("x", [1.0], [2.0], rate(1)).held is None


def test_a_limit_that_is_reached_is_not_held() -> None:
    assert limited("x", 64 << 20, 64 << 20, mebibytes).held is False
    assert limited("x", (64 << 20) - 1, 64 << 20, mebibytes).held is True


def test_sides_take_turns_after_one_round_that_is_not_counted() -> None:
    ran: list[str] = []

    def side(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    seconds = interleaved({"a": lambda: side("a"), "b": lambda: side("b")}, 2)
    assert ran == ["a", "b", "a", "b", "b", "a"]
    assert seconds == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_the_page_says_what_did_not_hold(tmp_path: Path) -> None:
    rows = [
        Row("kept", "", "1 MiB", promise="< 2 MiB", held=True),
        Row("missed", "", "3 MiB", promise="< 2 MiB", held=False),
    ]
    found = page({"Memory": rows}, SMOKE, tmp_path, 1.0)
    assert "1 of 2 promises held.\n- **Not held**: missed" in found
    assert "| missed |  | 3 MiB |  |  | < 2 MiB | **NO** |" in found
