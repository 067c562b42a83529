"""A run of chaos: a workload runs while faults fall, drawn from a seed; then all rows are counted.

`python -m tests.chaos.run [queue|jobs|subscription|publish] SEED …` prints a row of a table for each; with `-v` each
fault, too. Without the word, the workload is a topic.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.job_chain import ROWS as JOB_ROWS
from tests.chaos.job_chain import JobChain
from tests.chaos.oracle import check
from tests.chaos.queue_chain import ROWS as QUEUE_ROWS
from tests.chaos.queue_chain import QueueChain
from tests.chaos.rig import Rig, Workload
from tests.chaos.schedule import Moment, Plan, schedule
from tests.chaos.topic_stream import TopicStream
from tests.kit.proxy import open_proxy
from tests.kit.spark import needs_spark

log = logging.getLogger(__name__)
ROWS = 200_000
AHEAD = 0.04
"""The share of the rows that producers may publish beyond the next fault's moment, so that it falls while rows flow."""
LONGEST_WAIT = 120.0
HEADS = ("seed", "workload", "rows", "faults", "lost", "changed", "doubled", "seconds")


@dataclass
class Report:
    """How a run went."""

    seed: int
    workload: str
    rows: int
    faults: Counter[str]
    broken: dict[str, list[str]]
    unknown: int
    """Rows that nobody answered for; they are there or not."""
    repeated: int
    """Puts that were sent again."""
    seconds: float
    ends: list[str]
    """Parts of the workload that ended without being killed."""
    unexplained: list[str]
    """The ends that no fault explains."""
    notes: dict[str, int]

    @property
    def cells(self) -> list[str]:
        counts = [f"{len(self.broken[law]):,}" for law in ("lost", "changed", "doubled")]
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        many = f"{self.faults.total()} of {len(self.faults)} kinds: {kinds}"
        return [str(self.seed), self.workload, f"{self.rows:,}", many, *counts, f"{self.seconds:.0f}"]

    def __str__(self) -> str:
        wrong = "".join(
            f"\n{law}: {len(rows):,}, such as {'; '.join(rows[:3])}" for law, rows in self.broken.items() if rows
        )
        figures = ", ".join(f"{name} {cell}" for name, cell in zip(HEADS, self.cells, strict=True))
        ends = "".join(f"\nended: {end[:300]}" for end in self.ends)
        notes = {"puts sent again": self.repeated, "rows of unknown outcome": self.unknown, **self.notes}
        notes |= {law: len(rows) for law, rows in self.broken.items() if law not in HEADS}
        return f"{figures} ({', '.join(f'{name} {count:,}' for name, count in notes.items())}){ends}{wrong}"


def run(seed: int, folder: Path, make: Callable[[Rig], Workload], *, rows: int = ROWS) -> Report:
    """Run a workload with one seed, from an empty folder to the checker's word."""
    began = time.monotonic()
    with ExitStack() as stack:
        rig = Rig(seed, rows, folder, stack.enter_context(open_proxy()))
        stack.callback(rig.close)
        if seed & 2:  # else clients map parts, as they are on the server's host
            (rig.server.hooks / "wired").write_text("yes")
        workload = rig.workload = make(rig)
        stack.callback(workload.close)
        rig.server.start()
        workload.start()
        fallen = strike(rig, schedule(seed, rows, workload.plan))
        rig.allow(rows)
        rig.until(lambda: not any(each.is_alive() for each in rig.producers), "the producers are done")
        workload.drain()
        outcome = workload.outcome()
    broken = check(rig.sent, outcome, workload.laws)
    return Report(
        seed, workload.name, rows, fallen, broken, len(rig.sent.unknown()), rig.sent.repeated,
        time.monotonic() - began, workload.ends(), workload.unexplained(), workload.notes(),
    )  # fmt: skip


def strike(rig: Rig, moments: list[Moment]) -> Counter[str]:
    """Do each fault at its moment; return how many of each kind fell."""
    fallen, ahead = Counter[str](), int(rig.rows * AHEAD)
    for moment in moments:
        rig.allowed = max(moment.rows + ahead, rig.sent.count + ahead // 5)
        rig.until(partial(is_reached, rig, moment, time.monotonic()), f"{moment.rows:,} rows {moment.counted}")
        log.info("%s, %s rows %s", moment.kind, f"{moment.rows:,}", moment.counted)
        dice = random.Random(moment.dice)
        if not rig.workload.strike(moment.kind, dice):
            FAULTS[moment.kind](rig, dice)
        fallen[moment.kind] += 1
    return fallen


def is_reached(rig: Rig, moment: Moment, since: float) -> bool:
    """Whether its rows are published, or have landed; or don't come, and the fault falls without them."""
    return rig.workload.progress(moment.counted) >= moment.rows or time.monotonic() > since + LONGEST_WAIT


def asked_rows(rows: int = ROWS) -> int:
    """Return how many rows a run has: PENSTOCK_CHAOS_ROWS, or so many."""
    return int(os.environ.get("PENSTOCK_CHAOS_ROWS") or rows)


def asked_seed() -> int:
    """Return PENSTOCK_CHAOS_SEED, or draw one."""
    return int(os.environ.get("PENSTOCK_CHAOS_SEED") or int.from_bytes(os.urandom(2)))


def check_survival(
    folder: Path,
    make: Callable[[Rig], Workload],
    capsys: pytest.CaptureFixture[str],
    plan: Plan,
    *,
    least: int,
    rows: int = ROWS,
    seed: int | None = None,
) -> None:
    """Run a drawn seed: no law is broken, and at least so many faults have fallen, of as many kinds as may be."""
    seed = asked_seed() if seed is None else seed
    with capsys.disabled():
        print(f"\nPENSTOCK_CHAOS_SEED={seed}")  # noqa: T201  # also where the run is killed
    report = run(seed, folder, make, rows=asked_rows(rows))
    with capsys.disabled():
        print(report)  # noqa: T201  # its line is a figure of the documentation
    assert {law: wrong[:20] for law, wrong in report.broken.items() if wrong} == {}, report
    assert report.unexplained == [], report
    assert report.faults.total() >= least, report
    assert set(report.faults) <= set(plan.least), report
    assert len(report.faults) >= min(least, len(plan.least)), report


def check_survival_with_spark(
    folder: Path,
    make: Callable[..., Workload],
    python: Path,
    capsys: pytest.CaptureFixture[str],
    plan: Plan,
    *,
    least: int,
    rows: int,
) -> None:
    """The same of a workload whose query must tell that its last batch is done while it runs."""
    needs_spark()
    if tuple(map(int, version("pyspark").split(".")[:2])) < (4, 2):
        pytest.skip("Spark before 4.2 tells that the last batch is done when the query starts again")
    check_survival(folder, partial(make, python=python), capsys, plan, least=least, rows=rows)


def main() -> int:
    """Run each seed; 1 if a law was broken."""
    logging.basicConfig(format="%(relativeCreated)8d ms  %(message)s", force=True)
    log.setLevel("INFO" if "-v" in sys.argv else "WARNING")
    words = [word for word in sys.argv[1:] if word not in ("-v", "queue", "jobs", "subscription", "publish")]
    workload: Callable[[Rig], Workload] = partial(TopicStream, python=Path(sys.executable))
    count = ROWS
    if "queue" in sys.argv:
        workload, count = QueueChain, QUEUE_ROWS
    if "jobs" in sys.argv:
        workload, count = JobChain, JOB_ROWS
    if "subscription" in sys.argv:
        from tests.chaos.subscription_stream import SubscriptionStream  # it needs Google's client

        workload = partial(SubscriptionStream, python=Path(sys.executable))
    if "publish" in sys.argv:
        from tests.chaos.publish_stream import PublishStream

        workload = partial(PublishStream, python=Path(sys.executable))
    broken = False
    sys.stdout.write(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}\n")
    for seed in map(int, words):
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            report = run(seed, Path(folder), workload, rows=asked_rows(count))
        sys.stdout.write(f"| {' | '.join(report.cells)} |\n")
        sys.stderr.write(f"{report}\n")
        broken |= any(report.broken.values())
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
