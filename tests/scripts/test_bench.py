"""The benchmarks measure what they say, and their pages say what was measured. How fast anything is, isn't tested."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.bench import against
from scripts.bench.command import PAGES
from scripts.bench.figures import Line, Promise, Samples, interleaved, percentile, timed, written
from scripts.bench.page import check_headings, filled
from scripts.bench.watch import FsyncCounter, descendant, memory, peaks, processor_seconds
from tests.kit.wait import eventually

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
TAKES_MEMORY = f"import sys; input(); there = bytes([1]) * {64 * MIB}; print(flush=True); input(); del there; input()"


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_revision_is_measured_with_its_own_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def slow_package(revision: str) -> Iterator[Path]:
        shutil.copytree(ROOT / "penstock", tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
        init = tmp_path / "penstock" / "__init__.py"
        init.write_text(f"{init.read_text()}\nimport time\ntime.sleep(1)\n")
        yield tmp_path.resolve()

    monkeypatch.setattr(against, "_package_of", slow_package)
    options = ["--smoke", "--rounds", "1", "--only", "Imports", "--folder", str(tmp_path)]
    against.compare("slow", ["flight", *options])
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["this", "slow", "this/that", "least", "most", "rounds"]
    what, _, old, ratio, *_, rounds = re.split(r"\s{2,}", first)
    assert (what, rounds) == ("Imports, import penstock", "1")
    assert float(old.split()[0].replace(",", "")) > 1_000  # milliseconds
    assert float(ratio[:-1]) < 0.7


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_the_package_of_a_revision_comes_from_git() -> None:
    with against._package_of("HEAD") as folder:
        assert (folder / "penstock" / "__init__.py").exists()
    assert not folder.exists()
    with pytest.raises(SystemExit, match="no penstock at revision nowhere"), against._package_of("nowhere"):
        pass


@pytest.mark.parametrize("page", PAGES)
def test_a_figure_of_a_page_has_a_name_of_its_own(page: str) -> None:
    """By which it is found again in another revision's run."""
    cases = list(PAGES[page].cases(PAGES[page].sizes["all"]))
    names = [{(line.heading, case.data, line.what) for line in case.lines} for case in cases]
    assert len(set.union(*names)) == sum(map(len, names))


def test_revisions_are_compared_round_by_round() -> None:
    new, old = ("x", "2 s", [1.0, 2.0, 9.0]), ("x", "4 s", [2.0, 2.0, 3.0])
    assert against.row(new, old) == ["x", "2 s", "4 s", "1.00x", "0.50x", "3.00x", "3"]
    assert against.row(("x", "0", [0.0]), ("x", "0", [0.0]))[3:] == ["", "", "", "0"]


def test_sides_take_turns_after_a_round_that_does_not_count() -> None:
    ran: list[str] = []

    def side(name: str) -> dict[str, Sequence[float]]:
        ran.append(name)
        return {"n": [len(ran)]}

    sides = {"a": lambda: side("a"), "b": lambda: side("b")}
    assert interleaved(sides, 2) == {"a": [{"n": [3]}, {"n": [6]}], "b": [{"n": [4]}, {"n": [5]}]}
    assert ran == ["a", "b", "a", "b", "b", "a"]
    assert interleaved(sides, 1, warm_up=False, before=ran.clear) == {"a": [{"n": [1]}], "b": [{"n": [1]}]}


def test_only_the_work_is_timed() -> None:
    done: list[str] = []
    sample = timed(
        lambda: done.append("work"), before=lambda: done.append("before"), clear=lambda: done.append("clear"), times=2,
        watched={"me": os.getpid()},
    )()  # fmt: skip
    assert done == ["before", "work", "work", "clear"]
    assert sample.keys() == {"seconds", "me"}


SAMPLES: Samples = {
    "ours": [{"seconds": [1.0]}, {"seconds": [2.0]}, {"seconds": [9.0]}],
    "theirs": [{"seconds": [2.0]}, {"seconds": [2.0]}, {"seconds": [3.0]}],
}


@pytest.mark.parametrize(
    ("ratio", "promise", "cells"),
    [
        ("speed", (">=", 1), ["1.00x", "0.33x", ">= 1x", "yes"]),
        ("speed", (">=", 1.1), ["1.00x", "0.33x", ">= 1.1x", "**NO**"]),
        ("time", ("<=", 1), ["1.00x", "3.00x", "<= 1x", "yes"]),
        ("time", ("<=", 0.9), ["1.00x", "3.00x", "<= 0.9x", "**NO**"]),
        ("", ("<", 2.0), ["", "", "< 2.00 s", "**NO**"]),
        ("", ("<", 2.1), ["", "", "< 2.10 s", "yes"]),
        ("", ("< more", 0), ["", "", "< 0.00 s more", "**NO**"]),
        ("", ("< more", 0.1), ["", "", "< 0.10 s more", "yes"]),
        ("speed", None, ["1.00x", "0.33x", "", ""]),
    ],
)
def test_a_promise_is_judged_by_the_median(ratio: str, promise: Promise | None, cells: list[str]) -> None:
    """Of the ratios of neighbours in one round, or of the figure; the worst round is the least favourable."""
    line = Line("x", "what", "ours", "theirs", ratio=ratio, promise=promise)  # type: ignore[arg-type]
    assert line.result(SAMPLES).cells == ["what", "2.00 s", "theirs", "2.00 s", *cells]


def test_a_promise_beside_a_side_left_out_is_not_judged() -> None:
    result = Line("x", "what", "ours", "Kafka", "/s", 4_000_000, (">=", 3), "speed").result(SAMPLES)
    assert (result.cells[1:4], result.kept) == (["2.00 M/s", "Kafka", "left out"], None)
    assert "0 of 0 promises kept.\n\n- Not looked at: what beside Kafka\n" in filled(PAGE, [result], [])


def test_percentiles_are_of_all_rounds_and_their_ratio_of_each() -> None:
    samples = {"ours": [{"each": [0.002] * 9}, {"each": [0.004]}], "theirs": [{"each": [0.001]}, {"each": [0.001]}]}
    line = Line("x", "a row", "ours", "theirs", "ms", ratio="speed", of="each", percent=90)
    assert line.result(samples).cells[1:6] == ["2.00 ms", "theirs", "1.00 ms", "0.38x", "0.25x"]
    assert percentile([7.0], 50) == 7.0
    assert [percentile(range(100, 0, -1), percent) for percent in (50, 99, 100)] == [50, 99, 100]


def test_figures_are_written_with_their_units() -> None:
    assert [written(0.01234, unit) for unit in ("s", "ms")] == ["0.01 s", "12 ms"]
    assert [written(0.00123, "ms"), written(64 * MIB, "MiB"), written(2, "MiB/s", 16)] == [
        "1.23 ms",
        "64 MiB",
        "8 MiB/s",
    ]
    assert [written(2, "/s", things) for things in (30, 30_000, 3_000_000)] == ["15/s", "15 k/s", "1.50 M/s"]
    assert [written(3, ""), written(0.256, "")] == ["3", "0.26"]


PAGE = """\
# A page

What it is about.

3 of 4 promises kept.

- **Not kept**: old

- an old machine

## First

How these are taken.

| | measured |
|---|---|
| old | 1 |

## Second

### old data

| old | 2 |
"""


def test_a_page_keeps_its_words_and_gets_new_figures() -> None:
    first = Line("First", "slow", "ours", "theirs", ratio="speed", promise=(">=", 2)).result(SAMPLES)
    second = Line("Second", "fast", "ours").result(SAMPLES, "12 rows")
    text = filled(PAGE, [first, second], ["a machine", "a command"])
    assert text == filled(text, [first, second], ["a machine", "a command"])
    head, first_section, second_section = text.split("\n## ")
    judged = "0 of 1 promises kept.\n\n- **Not kept**: slow beside theirs\n"
    assert head == f"# A page\n\nWhat it is about.\n\n{judged}\n- a machine\n- a command\n"
    assert first_section.startswith("First\n\nHow these are taken.\n\n| | measured | beside |")
    assert "| slow | 2.00 s | theirs | 2.00 s | 1.00x | 0.33x | >= 2x | **NO** |\n" in first_section
    assert second_section.startswith("Second\n\n### 12 rows\n\n| | measured | beside |")
    assert "old" not in text


def test_a_heading_that_the_page_lacks_is_refused_beforehand() -> None:
    check_headings(PAGE, ["First", "Second"])
    with pytest.raises(SystemExit, match="no heading Third:"):
        check_headings(PAGE, ["First", "Third"])


def test_the_peak_of_a_process_is_seen_though_it_has_passed() -> None:
    command = [sys.executable, "-c", TAKES_MEMORY, "a marker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = memory(process.pid)
        with peaks({"process": lambda: descendant(b"a marker", os.getpid()), "gone": 2**22}) as most:
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            eventually(lambda: most["process"] >= before + 60 * MIB, what="the watcher has looked")
            process.stdin.write(b"\n")
            process.stdin.flush()
            eventually(lambda: memory(process.pid) < before + 30 * MIB, what="the memory is given back")
        assert processor_seconds(process.pid) > 0
        process.stdin.close()
    assert before + 60 * MIB <= most["process"] < before + 96 * MIB
    assert most["gone"] == 0


def test_fsyncs_are_counted_whoever_calls_for_them(tmp_path: Path) -> None:
    counter = FsyncCounter(tmp_path / "server")
    if not counter.environment:
        pytest.skip("there is no C compiler")
    code = """
import os, sqlite3, sys
with open("file", "w") as file:
    os.fsync(file.fileno())
    os.fdatasync(file.fileno())
if sys.argv[1:]:
    ledger = sqlite3.connect("ledger")
    ledger.execute("CREATE TABLE rows (n)")
"""
    environment = {**os.environ, **counter.environment}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert counter.total() == {"fsyncs": 2}
    subprocess.run([sys.executable, "-c", code, "with SQLite"], cwd=tmp_path, env=environment, check=True)
    assert counter.total()["fsyncs"] > 4
