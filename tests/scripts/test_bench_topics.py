"""The benchmark of topics still runs, and its page says what was found. How fast anything is, isn't tested."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.bench_spark_page import Line
from scripts.bench_topics_client import batches, message, paced
from scripts.bench_topics_page import better, latency, page, per_second, percentile
from scripts.bench_topics_tail import committed, seconds_of
from tests.kit.spark import needs_spark

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_benchmark_measures_every_figure_without_kafka_and_clears_up(tmp_path: Path) -> None:
    needs_spark()
    needs_limits()
    written, folder = tmp_path / "out" / "benchmarks-topics.md", tmp_path / "data"
    folder.mkdir()
    command = ["scripts/bench_topics.py", "--smoke", "--without-kafka", "--output", str(written)]
    run = subprocess.run(
        [sys.executable, *command, "--folder", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    found = written.read_text()
    assert "A smoke run" in found
    assert "Kafka left out: it wasn't asked for" in found
    assert re.findall(r"^## (.*)", found, re.MULTILINE) == ["Backlog", "Trigger", "Growth", "Append", "End to end"]
    lines = [line.split("|")[1:-1] for line in found.splitlines() if re.match(r"\| [^ |]", line)]
    assert len(lines) == 25
    for what, ours, beside, its, ratio, _, promise, held in lines:
        assert re.search(r"\d", ours), what
        assert re.search(r"\d|left out", its), what
        assert ("afka" in beside) == (its.strip() == "left out"), what
        assert bool(held.strip()) == bool(promise.strip() and its.strip() != "left out"), what
        assert held.strip() != "yes" or ratio.strip() or "MiB" in ours, what
    assert list(folder.iterdir()) == []


def needs_limits() -> None:
    """Skip on a Spark whose Python sources aren't told a limit."""
    import pyspark

    if pyspark.__version__ < "4.2":
        pytest.skip("streams with a limit need Spark 4.2")


def test_a_promise_is_judged_by_the_median_of_the_ratios_of_neighbours() -> None:
    found = better("ours", [1.0, 2.0, 3.0], "theirs", [3.0, 4.0, 30.0], per_second(4_000_000), least=3)
    assert (found.ratio, found.worst, found.held, found.promise) == (3.0, 2.0, True, ">= 3x")
    assert (found.found, found.its) == ("2.00 M/s", "1.00 M/s")
    assert better("ours", [1.0], "theirs", [2.9], per_second(1), least=3).held is False
    assert better("ours", [1.0], "theirs", [2.9], per_second(1)).held is None


def test_a_promise_beside_what_was_left_out_is_not_judged(tmp_path: Path) -> None:
    left = better("one batch", [1.0], "Kafka", None, per_second(1), least=3)
    assert (left.its, left.ratio, left.held, left.promise) == ("left out", None, None, ">= 3x")
    assert "0 of 0 promises held.\n- Not looked at: one batch beside Kafka" in paged(left, tmp_path)


def test_the_page_says_what_did_not_hold(tmp_path: Path) -> None:
    missed = Line("one batch", "1 M/s", "Kafka", "1 M/s", 1.0, 0.9, ">= 3x", held=False)
    found = paged(missed, tmp_path)
    assert "0 of 1 promises held.\n- **Not held**: one batch beside Kafka" in found
    assert "| one batch | 1 M/s | Kafka | 1 M/s | 1.00x | 0.90x | >= 3x | **NO** |" in found
    assert "A smoke run" not in found


def paged(line: Line, folder: Path) -> str:
    return page(
        {"Backlog": [line]},
        rounds=5,
        warm=4,
        note="Kafka 4",
        command="make bench-topics",
        spark="Spark 4",
        folder=folder,
        seconds=1,
    )


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0)])
def test_a_percentile_is_a_value_that_was_seen(percent: int, expected: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], percent) == expected
    assert percentile([7.0], percent) == 7.0


def test_of_latencies_the_ratio_is_above_1_where_ours_is_shorter() -> None:
    found = latency("a row", [[0.002] * 9, [0.004], [0.002]], "an fsync", [[0.001], [0.001], [0.004]], 50)
    assert (found.found, found.its, found.ratio, found.worst) == ("2.00 ms", "1.00 ms", 0.5, 0.25)


def test_a_row_is_timed_from_when_it_was_due_until_its_batch_is_committed() -> None:
    sent = [(10.0, 5), (11.0, 5), (12.0, 5)]  # due, rows; two rows were there before
    commits = [(10.5, 2), (11.5, 9), (12.5, 12), (14.0, 17)]
    assert seconds_of(sent, commits, before=2, warm=0) == [1.5, 1.5, 2.0]
    assert seconds_of(sent, commits, before=2, warm=1) == [1.5, 2.0]


@pytest.mark.parametrize("offset", [{"shards": {"0": 3, "1": 4}, "journal": "j"}, {"topic": {"0": 3, "1": 4}}])
def test_what_is_committed_is_read_from_sparks_own_logs(tmp_path: Path, offset: dict[str, object]) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch, at in ((2, 5.0), (10, 6.0)):
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
        os.utime(tmp_path / "commits" / str(batch), (at, at))
    (tmp_path / "offsets" / "11").write_text(f"v1\n{{}}\n{json.dumps(offset)}")  # planned, and not committed
    assert committed(tmp_path) == [(5.0, 7), (6.0, 7)]


def test_a_client_sends_as_many_rows_as_it_is_told() -> None:
    sent: list[int] = []
    send: Callable[[list[bytes]], object] = lambda messages: sent.append(len(messages))  # noqa: E731
    assert len(batches(send, 3, 7)) == 3
    told = paced(send, rate=1000, seconds=0.1, tick=0.02)
    assert sent == [7, 7, 7, 20, 20, 20, 20, 20]
    assert [rows for _, rows in told] == [20] * 5
    assert told[4][0] - told[0][0] == pytest.approx(0.08)


def test_a_message_is_json_of_about_130_bytes() -> None:
    assert json.loads(message(7))["id"] == 10_000_007
    assert all(120 <= len(message(n)) <= 140 for n in (0, 7, 12_345, 1_999_999))
