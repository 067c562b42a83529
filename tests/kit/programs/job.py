"""The driver of a job: `python -m tests.kit.programs.job URL`; 40 numbers, two processes that take their time."""

from __future__ import annotations

import sys

from penstock.pipeline import Job, Stage, WriteDataset
from tests.kit.jobs import Sleeps
from tests.kit.queues import numbered


def slow_job(url: str, seconds: float = 0.5) -> Job:
    """Return the job."""
    job = Job("slow", url=url)
    job.stage(Stage("in", numbered(*range(40))))
    job.stage(Stage("work", Sleeps(seconds), workers=2), after="in")
    job.stage(Stage("out", WriteDataset("store/out")), after="work")
    return job


if __name__ == "__main__":
    print(slow_job(sys.argv[1]).run("processes"))  # noqa: T201
