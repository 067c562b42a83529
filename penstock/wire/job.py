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
class JobStage(Body):
    """A stage of a job with its queue; a source has none."""

    planned: PlannedStage
    queue: QueueDescription | None = None


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
