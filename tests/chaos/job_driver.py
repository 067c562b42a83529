"""The driver of a job, to be killed: `python -m tests.chaos.job_driver FOLDER URL POOL QUEUE RETRIES`.

It runs the job, or goes on with it. Exit code 0: it is done. 3: it has failed, with the cause as the last line.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from penstock.errors import PenstockError
from penstock.pipeline import Job, Stage, WriteDataset, dead_letter, job, sources
from penstock.pipeline.failure import FAIL_FAST
from tests.chaos.job_stages import Folders, Narrow, NotedPuts, Published, Score
from tests.chaos.worker import SINK
from tests.kit.ray import ray_running

JOB = "j"
FAILED = 3


def make(folders: Folders, url: str, queue: str, *, retries: bool, **resources: float) -> Job:
    """Return the job."""
    failure = dead_letter() if retries else FAIL_FAST
    made = Job(JOB, queue=queue, url=url)
    made.stage(Stage("in", Published(folders.splits)))
    made.stage(Stage("score", Score(folders), workers=2, failure=failure, **resources), after="in")  # type: ignore[arg-type]
    made.stage(Stage("narrow", Narrow(folders), failure=failure, **resources), after="score")  # type: ignore[arg-type]
    made.stage(Stage("out", WriteDataset(SINK), failure=failure, **resources), after="narrow")  # type: ignore[arg-type]
    return made


def main() -> int:
    folder, url, pool, queue, retries = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    folders = Folders(*(Path(folder) / name for name in ("hooks", "leases", "splits")))
    on_ray = pool == "ray"
    folders.worker("threads" if pool == "threads" else "driver")
    sources._BATCH_SPLITS = 2  # a push waits for so many
    job.DatasetPuts = partial(NotedPuts, folders=folders)  # type: ignore[attr-defined, assignment]
    made = make(folders, url, queue, retries=retries == "retries", **({"num_cpus": 0.25} if on_ray else {}))
    try:
        with ray_running() if on_ray else nullcontext():
            made.run(pool, progress=False)
    except PenstockError as failed:
        sys.stderr.write(f"\n{json.dumps([type(failed).__name__, str(failed)])}\n")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
