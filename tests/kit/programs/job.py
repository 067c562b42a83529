"""The driver of a job: `python -m tests.kit.programs.job URL POOL SECONDS`; 40 numbers, two slow workers."""

from __future__ import annotations

import sys
from contextlib import nullcontext

from penstock.pipeline import Job, Stage, WriteDataset
from tests.kit.jobs import Sleeps
from tests.kit.queues import numbered
from tests.kit.ray import ray_running


def slow_job(url: str, seconds: float) -> Job:
    """Return the job."""
    job = Job("slow", url=url)
    job.stage(Stage("in", numbered(*range(40))))
    job.stage(Stage("work", Sleeps(seconds), workers=2), after="in")
    job.stage(Stage("out", WriteDataset("store/out")), after="work")
    return job


if __name__ == "__main__":
    url, pool, seconds = sys.argv[1:]
    with ray_running() if pool == "ray" else nullcontext():
        print(slow_job(url, float(seconds)).run(pool))  # noqa: T201
