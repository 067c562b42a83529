"""The bodies of a job's actions: its plan, its state, and the counts of its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from penstock.wire.body import Body
from penstock.wire.queue import QueueDescription

JobState = Literal["running", "done", "failed", "cancelled"]
JobEnd = Literal["done", "failed", "cancelled"]
Role = Literal["source", "operator", "sink"]
RECEIPTS = "receipts"
"""The last name of the queue that has the receipts of a sink which writes a dataset."""


@dataclass(frozen=True, slots=True)
class PlannedStage(Body):
    """One stage of a job's plan."""

    stage: str
    role: Role
    what: str
    """What it does, in words. Of a source and a sink it belongs to the plan's digest, as it names what is read and
    written; an operator may be mended between two runs."""
    after: tuple[str, ...] = ()
    """The stages whose outputs it gets."""
    receipts: bool = False
    """Whether it is a sink whose write is finished with the receipts of its splits."""
    pinned: dict[str, Any] | None = None
    """What a source has found at the first start, such as the end of a topic: a resumed job reads up to there, too."""


@dataclass(frozen=True, slots=True)
class StartJob(Body):
    """job.start: make a job and the queues of its stages, or continue the job of this path with the same plan."""

    path: str
    stages: tuple[PlannedStage, ...]
    force: bool = False
    """Continue with another plan, too."""


@dataclass(frozen=True, slots=True)
class EndJob(Body):
    """job.end: note how a job has ended."""

    path: str
    state: JobEnd
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class StageNote(Body):
    """What a driver says of a stage: its workers now, and what they did in this run."""

    stage: str
    workers: int
    retries: int
    """Tries that failed, came too late, or ended with their worker."""
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    """Of all workers together."""


@dataclass(frozen=True, slots=True)
class NoteJob(Body):
    """job.note: a driver's sign of life, with what it alone knows; kept in memory, for `show`, `top` and /metrics."""

    path: str
    driver: str
    """Its host and process."""
    stages: tuple[StageNote, ...] = ()


@dataclass(frozen=True, slots=True)
class JobStage(Body):
    """A stage of a job with its queue, which a source lacks, and what its driver said last."""

    planned: PlannedStage
    queue: QueueDescription | None = None
    note: StageNote | None = None


@dataclass(frozen=True, slots=True)
class JobDescription(Body):
    """What describe says of a job."""

    state: JobState
    created: float
    stages: tuple[JobStage, ...]
    cause: str | None = None
    ended: float | None = None
    resumed: bool = False
    """Of job.start: whether the job was there."""
    driver: str | None = None
    """Who has driven it last, since the server's start."""
    seen: float | None = None
    """When that driver gave its last sign of life."""
