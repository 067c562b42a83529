"""The benchmarks still run, and each page has every figure. How fast anything is, isn't tested."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import emulator, kafka_broker
from scripts.bench.command import PAGES
from tests.kit.spark import needs_spark

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param("connect", marks=pytest.mark.spark),
        "flight",
        "jobs",
        "pubsub",
        pytest.param("queue", marks=pytest.mark.spark),
        pytest.param("spark", marks=pytest.mark.spark),
        pytest.param("topics", marks=pytest.mark.spark),
        pytest.param("typed", marks=pytest.mark.spark),
    ],
)
def test_a_page_has_every_figure_and_nothing_is_left_behind(page: str, tmp_path: Path) -> None:
    needed = {"pubsub": emulator.missing, "jobs": kafka_broker.missing}
    if page in needed and (lack := needed[page]()):
        pytest.skip(lack)
    if page in ("connect", "queue", "spark", "topics", "typed"):
        needs_spark()
        needs_limits()
    output, data = tmp_path / "out" / "page.md", tmp_path / "data"
    data.mkdir()
    run = subprocess.run(
        [sys.executable, "-m", "scripts.bench", page, "--smoke", "--without-rivals", "--output", str(output),
         "--folder", str(data)],
        cwd=ROOT, capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert list(data.iterdir()) == []
    text = output.read_text()
    assert f"`make bench{'' if page == 'flight' else f'-{page}'} ARGS=--smoke`, " in text
    assert re.findall(r"^- (\w+) left out: it was not asked for$", text, re.MULTILINE) == list(PAGES[page].rivals)
    figures = [line for case in PAGES[page].cases(PAGES[page].sizes["smoke"]) for line in case.lines]
    assert set(re.findall(r"^## (.*)", text, re.MULTILINE)) == {line.heading for line in figures}
    lines = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| [^|]+ \|.*", text, re.MULTILINE)
    ]
    assert len(lines) == len(figures)
    for what, figure, beside, other, ratio, worst, promise, kept in lines:
        assert re.search(r"\d", figure) or "fsyncs" in what, what
        assert bool(re.search(r"\d|left out", other)) == bool(beside), what
        assert (other == "left out") == ("afka" in beside or "Ray" in beside), what
        assert bool(ratio) == bool(worst), what
        assert bool(kept) == bool(promise and other != "left out"), what


def needs_limits() -> None:
    """Skip on a Spark whose Python sources aren't told a limit."""
    import pyspark

    if pyspark.__version__ < "4.2":
        pytest.skip("the benchmarks need Spark 4.2")
