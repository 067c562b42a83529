"""The rows of jobs: what each is made of, and how it has ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import AlreadyExists, InvalidRequest, LimitExceeded, NotFound
from penstock.ledger.tables import Transaction
from penstock.store.database import Reader, Tables
from penstock.wire.job import JobEnd, JobState, PlannedStage

TABLES: Tables = {
    7: """
CREATE TABLE jobs(
    id TEXT PRIMARY KEY, digest TEXT NOT NULL, plan TEXT NOT NULL, created REAL NOT NULL, ended REAL, cause TEXT,
    state TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled'))
) WITHOUT ROWID;
"""
}
"""`jobs.plan`: the stages as JSON, and those of earlier plans as `former`. `jobs.digest`: of what may
not change between two runs of a job."""

_MOST_BYTES = 64 << 10  # of a plan

UNFINISHED_QUEUES = (
    "SELECT queues.id FROM jobs JOIN queues ON path > 'queue/' || jobs.id || '/' AND path < 'queue/' || jobs.id || '0'"
    " WHERE jobs.state <> 'done'"
)
"""The queues of jobs that may be resumed: a message that is done there must not be pushed once more."""
WRITES_FOR_NO_JOB = (
    "NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.state <> 'done' AND writes.run GLOB 'job/' || jobs.id || '/*')"
)
"""The condition that no job which may be resumed will finish a write."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the ledger has it."""

    id: str
    stages: tuple[PlannedStage, ...]
    state: JobState
    created: float
    ended: float | None
    cause: str | None
    former: tuple[PlannedStage, ...]
    """Stages of earlier plans: their queues are still there."""


def digest_of(stages: Sequence[PlannedStage]) -> str:
    """Return the digest of what a resumed job must have in common with its first run."""
    fixed = [
        (each.stage, each.role, each.after, each.receipts, "" if each.role == "operator" else each.what)
        for each in sorted(stages, key=lambda stage: stage.stage)
    ]
    return hashlib.sha256(json.dumps(fixed).encode()).hexdigest()


def by_id(reader: Reader, job: str) -> Job:
    """Return a job."""
    row = reader.row("SELECT * FROM jobs WHERE id = ?", job)
    if row is None:
        raise NotFound(f"no job/{job}: penstock.Job({job!r}).run() makes it")
    plan: list[dict[str, Any]] = json.loads(row["plan"])
    former = tuple(PlannedStage.from_json(each["former"]) for each in plan if "former" in each)
    stages = tuple(PlannedStage.from_json(each) for each in plan if "former" not in each)
    return Job(row["id"], stages, row["state"], row["created"], row["ended"], row["cause"], former)


def ids(reader: Reader) -> list[str]:
    """Return the ids of all jobs, in order."""
    return [row["id"] for row in reader.rows("SELECT id FROM jobs ORDER BY id")]


def start(t: Transaction, job: str, stages: Sequence[PlannedStage], *, force: bool) -> Job | None:
    """Note that a job runs; return it as it was before, None for a new one. Another plan needs `force`.

    What a source has pinned at the first start stays.
    """
    digest = digest_of(stages)
    row = t.row("SELECT digest FROM jobs WHERE id = ?", job)
    if row is None:
        t.insert("jobs", id=job, digest=digest, plan=_plan(job, stages), state="running", created=t.now)
        return None
    known = by_id(t, job)
    if row["digest"] != digest and not force:
        raise AlreadyExists(
            f"job/{job} was started with another plan ({_difference(known.stages, stages)}): run that one, use another "
            f"id, or pass force=True to continue with this plan what is in its queues (penstock rm job/{job} drops it)"
        )
    before = {each.stage: each for each in (*known.former, *known.stages)}
    kept = []
    for each in stages:
        was = before.pop(each.stage, each)
        is_fixed = was.receipts or "source" in (was.role, each.role)  # receipts name attempts, message ids elements
        if is_fixed and (was.role, was.what) != (each.role, each.what):
            raise InvalidRequest(f"job/{job}: stage {each.stage!r} was {was.what}: give {each.what} another name")
        kept.append(each if was.pinned is None else replace(each, pinned=was.pinned))
    t.execute(
        "UPDATE jobs SET digest = ?, plan = ?, state = 'running', cause = NULL, ended = NULL WHERE id = ?",
        digest, _plan(job, kept, list(before.values())), job,
    )  # fmt: skip
    return known


def _plan(job: str, stages: Sequence[PlannedStage], former: Sequence[PlannedStage] = ()) -> str:
    """Return the JSON of a plan, if it isn't too large."""
    plan = json.dumps([each.to_json() for each in stages] + [{"former": each.to_json()} for each in former])
    if len(plan) > _MOST_BYTES:
        raise LimitExceeded(
            f"job/{job}: its plan and stages of earlier ones have {len(plan):,} bytes, of {_MOST_BYTES:,} at most: "
            "use fewer stages, or several jobs"
        )
    return plan


def _difference(known: Sequence[PlannedStage], stages: Sequence[PlannedStage]) -> str:
    """Describe the first stage in which two plans differ."""
    before, now = ({each.stage: each for each in some} for some in (known, stages))
    for name in [*before, *now]:
        if name not in now:
            return f"stage {name!r} is missing"
        if name not in before:
            return f"stage {name!r} is new"
        if digest_of([before[name]]) != digest_of([now[name]]):
            return f"stage {name!r} was {_words(before[name])}, and is {_words(now[name])}"
    return "its stages"


def _words(stage: PlannedStage) -> str:
    after = f" after {', '.join(stage.after)}" if stage.after else ""
    return f"the {stage.role} {stage.what}{after}"


def end(t: Transaction, job: str, state: JobEnd, cause: str | None) -> Job:
    """Note how a job has ended."""
    by_id(t, job)
    t.execute("UPDATE jobs SET state = ?, cause = ?, ended = ? WHERE id = ?", state, cause, t.now, job)
    return by_id(t, job)


def remove(t: Transaction, job: str) -> Job:
    """Forget a job."""
    removed = by_id(t, job)
    t.execute("DELETE FROM jobs WHERE id = ?", job)
    return removed
