"""The queues of a job: queue/JOB/STAGE for each stage that isn't a source, made and connected before the first message.

So a queue is complete only once all that the plan names has filled it, however slow one of them begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import AlreadyExists
from penstock.ledger import jobs, writes
from penstock.ledger.tables import Transaction
from penstock.queue.work import queues
from penstock.wire.job import RECEIPTS, PlannedStage


def start(t: Transaction, job: str, stages: Sequence[PlannedStage], *, force: bool) -> jobs.Job | None:
    """Note that a job runs, and connect its queues; return the job as it was before, None for a new one.

    A job that is done stays so, unless dead messages of it were redriven since.
    """
    before = jobs.start(t, job, stages, force=force)
    edges = set(_edges(job, stages))
    own = set() if before is None else set(_paths(before))
    if before is not None and force:
        for path, upstream in set(_edges(job, before.stages)) - edges:
            queues.remove_upstream_of(t, path, upstream)
    for path in sorted({path for path, _ in edges} - own):
        _check_is_new(t, job, path)
    known = {(path, upstream) for path in own for upstream, _ in queues.upstreams(t, path)}
    if before is not None:  # clients had pushed all, and a further source is a client that hasn't
        known -= {(path, queues.CLIENTS) for path, _ in _sources(job, stages) - _sources(job, before.stages)}
    for path, upstream in sorted(edges - known):
        queues.make(t, upstream if upstream != queues.CLIENTS else path)
        queues.add_upstream(t, path, upstream)
    if before is not None and before.state == "done" and all(_is_complete(t, job, each) for each in stages):
        jobs.end(t, job, "done", before.cause)
    return before


def _edges(job: str, stages: Sequence[PlannedStage]) -> list[tuple[str, str]]:
    """Return each queue of a plan with each of its upstreams; all sources of a queue are clients that push."""
    roles = {each.stage: each.role for each in stages}
    edges = [
        (path_of(job, each.stage), queues.CLIENTS if roles[above] == "source" else path_of(job, above))
        for each in stages
        for above in each.after
    ]
    sinks = (path_of(job, each.stage) for each in stages if each.receipts)
    return edges + [(f"{path}/{RECEIPTS}", path) for path in sinks]


def _sources(job: str, stages: Sequence[PlannedStage]) -> set[tuple[str, str]]:
    """Return each queue that sources fill with each of them."""
    names = {each.stage for each in stages if each.role == "source"}
    return {(path_of(job, each.stage), above) for each in stages for above in names.intersection(each.after)}


def _paths(job: jobs.Job) -> list[str]:
    """Return the queues of a job, those of earlier plans, too."""
    paths = []
    for each in (*job.stages, *job.former):
        path = path_of(job.id, each.stage)
        paths += [path] * (each.role != "source") + [f"{path}/{RECEIPTS}"] * each.receipts
    return paths


def _check_is_new(t: Transaction, job: str, path: str) -> None:
    """Reject a queue that something else has filled, or fills: its messages would be the job's, and go with it.

    One that was only created, to be on a broker, is the job's.
    """
    row = t.row("SELECT pushed FROM queues WHERE path = ?", path)
    if row is not None and (row["pushed"] or queues.upstreams(t, path)):
        raise AlreadyExists(
            f"{path} is a queue already, and not one of job/{job}: give the job or its stage another name, or "
            f"remove the queue (penstock rm {path})"
        )


def _is_complete(t: Transaction, job: str, stage: PlannedStage) -> bool:
    return stage.role == "source" or queues.by_path(t, path_of(job, stage.stage))["state"] == "complete"


def path_of(job: str, stage: str) -> str:
    """Return the path of a stage's queue."""
    return f"queue/{job}/{stage}"


def remove(t: Transaction, job: str) -> jobs.Job:
    """Forget a job with its queues, and end its open writes; what it has written stays, and so do others' queues."""
    removed = jobs.remove(t, job)
    for path in _paths(removed):
        if t.row("SELECT 1 FROM queues WHERE path = ?", path) is not None:
            queues.remove(t, path)
    writes.end_where(t, "run GLOB ?", f"job/{job}/*", state="aborted")
    return removed
