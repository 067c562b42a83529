"""The report of a job: what a reader sees in a browser, and that it is one file which asks for nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.lease import Split
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import Job, Stage, WriteDataset, WriteTopic, dead_letter
from penstock.pipeline.figures import JobSummary, Span, StageFigures, StageSummary
from penstock.pipeline.report import ticks, write_report
from penstock.wire.job import JobDescription, JobStage, PlannedStage
from tests.kit import browser
from tests.kit.jobs import double, numbers
from tests.kit.queues import numbered

BAD = "<script>document.title = 'hacked'</script> & <b>more</b>"


class Moody:
    """Fails at 3 once, at 5 always."""

    def __init__(self) -> None:
        self.failed: list[int] = []

    def __call__(self, split: Split) -> pa.Table:
        (number,) = numbers(split)
        if number == 5 or (number == 3 and number not in self.failed):
            self.failed.append(number)
            raise ValueError(BAD)
        return double(split)


@pytest.fixture
def report(server: PenstockServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of a job with a retry, a dead split and two stages after one."""
    monkeypatch.setattr("penstock.client.lease._SHORTEST_BACKOFF", 0.01)
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(*range(20))))
    job.stage(Stage("work", Moody(), workers=2, failure=dead_letter(most=1)), after="in")
    job.stage(Stage("kept", WriteDataset("store/out")), after="work")
    job.stage(Stage("told", WriteTopic("topic/out")), after="work")
    job.run()
    return job.report(tmp_path / "job.html")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[browser.Browser]:
    (tmp_path / "browser").mkdir()
    with browser.running(tmp_path / "browser") as opened:
        yield opened


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_what_a_reader_must_see(report: Path, page: browser.Browser, scheme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open(report)

    rows = page.evaluate("[...document.querySelector('table').tBodies[0].rows].map(row => row.innerText.split('\\t'))")
    assert [(row[0], row[1], row[3], row[4], row[5]) for row in rows] == [
        ("in", "", "", "", ""), ("work", "in", "19", "1", "6"), ("kept", "work", "19", "0", "0"),
        ("told", "work", "19", "0", "0"),
    ]  # fmt: skip
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg rect')].map(box => ({kind: box.getAttribute('class'), "
        "fill: getComputedStyle(box).fill, words: box.querySelector('title').textContent, "
        "...box.getBoundingClientRect().toJSON()}))"
    )
    svg = page.evaluate("document.querySelector('svg').getBoundingClientRect().toJSON()")
    for box in boxes:
        assert box["width"] >= 1
        assert svg["left"] <= box["left"] <= box["right"] <= svg["right"] + 1
    colours = {box["kind"]: box["fill"] for box in boxes}
    assert len({colours["done"], colours["failed"], colours["filled"]}) == 3
    assert sum(box["kind"] == "failed dead" for box in boxes) == 5
    (mended,) = (box["words"] for box in boxes if "try 2" in box["words"] and box["kind"] == "done")
    assert mended.startswith("in_3_work: done")
    heads = page.evaluate("[...document.querySelectorAll('svg .stage')].map(each => each.textContent)")
    assert heads == ["in", "work", "kept", "told"]
    assert all(re.fullmatch(r"[\d.]+ (ms|s|min)", text) for text in page.evaluate(
        "[...document.querySelectorAll('svg text[text-anchor]')].map(each => each.textContent)"
    ))  # fmt: skip
    colors = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    dark, light = ["rgb(230, 237, 243)", "rgb(13, 17, 23)"], ["rgb(31, 35, 40)", "rgb(255, 255, 255)"]
    assert colors == (dark if scheme == "dark" else light)


@pytest.mark.process
def test_text_of_others_stays_text_and_nothing_is_fetched(report: Path, page: browser.Browser) -> None:
    assert "<script" not in report.read_text()
    page.open(report)
    text = page.evaluate("document.body.innerText")
    assert text.count(BAD) >= 7, "six failed tries, and the dead split"
    assert "penstock redrive job/j" in text
    assert page.evaluate("[document.title, document.querySelectorAll('script, b').length]") == ["job/j", 0]
    assert page.evaluate("document.querySelector('details').open") is False
    assert "Traceback" in page.evaluate("document.querySelector('details pre').textContent")
    requests = [e["params"]["request"]["url"] for e in page.events if e.get("method") == "Network.requestWillBeSent"]
    assert requests == [report.as_uri()]
    assert not [event for event in page.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider parts scroll by themselves"
    page.screenshot(report.with_suffix(".png"))


def test_small_splits_share_a_box_and_none_is_left_out(tmp_path: Path) -> None:
    """20,000 splits of a millisecond: as many boxes as there are pixels, and failures among them are seen."""
    figures = StageFigures("work")
    for n in range(20_000):
        outcome = "failed" if n == 77 else "done"
        figures.draw(Span("work-1", f"in_{n}", 100 + n / 1000, 0.001, outcome, None))  # type: ignore[arg-type]
    stage = StageSummary("work", "double", 19_999, 0, 1, 0, 0, 0, 0, 20.0, 1)
    plan = (JobStage(PlannedStage("in", "source", "an iterable")), JobStage(PlannedStage("work", "sink", "x", ("in",))))
    text = write_report(
        tmp_path / "job.html",
        JobDescription("done", 100.0, plan),
        JobSummary("j", "done", 20.0, (stage,)),
        {"work": figures},
        100.0,
    ).read_text()
    assert 400 < text.count("<rect") < 1_000
    assert sum(int(n.replace(",", "")) for n in re.findall(r": ([\d,]+) splits? done", text)) == 19_999
    assert text.count("in_77: failed") == 1


@pytest.mark.parametrize(
    ("seconds", "last"), [(0.004, "4 ms"), (0.9, "800 ms"), (1.0, "1000 ms"), (7.0, "7 s"), (59.4, "50 s"),
                          (600.0, "10 min"), (90_000.0, "25 h")],
)  # fmt: skip
def test_a_time_axis_has_round_marks_and_a_unit(seconds: float, last: str) -> None:
    marks = ticks(seconds)
    assert marks[0][0] == 0
    assert marks[-1][1] == last
    assert marks[-1][0] <= seconds + 1e-9
    assert 3 <= len(marks) <= 10
