"""Figures of a job: what its workers did in this run, by stage, and the summary that people read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.pipeline.worker import Ended
from penstock.text import counted, format_html_table, format_size, format_table
from penstock.wire.job import JobState

_RATE_SECONDS = 5.0
MOST_SPANS = 20_000
"""Splits of a stage that its timeline keeps, 2 MB: the later ones are counted alone."""


SpanOutcome = Literal["done", "failed", "lost", "died", "filled"]
"""The last two: the worker died with the split, and: a source's time."""


class Span(NamedTuple):
    """A split's time at a worker, for the timeline."""

    worker: str
    message_id: str
    began: float
    seconds: float
    outcome: SpanOutcome
    error: str | None


class DeadSplit(NamedTuple):
    """A split that was set aside, as its queue tells it at the end of a run."""

    message_id: str
    tries: int
    worker: str
    error: str
    trace: str


@dataclass
class StageFigures:
    """What the workers of a stage did."""

    stage: str
    done: int = 0
    failed: int = 0
    lost: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    """Of all workers, in the operator and in what settles its splits."""
    deaths: int = 0
    """Workers that ended with an error."""
    most_workers: int = 0
    last_error: str | None = None
    spans: list[Span] = field(default_factory=list)
    dead: list[DeadSplit] = field(default_factory=list)
    """The first of those that are dead at the run's end."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))

    @property
    def retries(self) -> int:
        """Tries that failed, came too late, or ended with their worker."""
        return self.failed + self.lost + self.deaths

    def add(self, worker: str, ended: Ended) -> None:
        """Count a split."""
        setattr(self, ended.outcome, getattr(self, ended.outcome) + 1)
        self.seconds += ended.seconds
        self.last_error = ended.error or self.last_error
        if ended.outcome == "done":
            self.rows_in += ended.rows_in
            self.bytes_in += ended.bytes_in
            self.rows_out += ended.rows_out
            self.bytes_out += ended.bytes_out
            self._recent.append(time.monotonic())
        self.draw(Span(worker, ended.message_id, ended.began, ended.seconds, ended.outcome, ended.error))

    def draw(self, span: Span) -> None:
        """Keep a span for the timeline, if there is room."""
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)

    def done_per_second(self, now: float) -> float:
        """Return the splits per second that were done of late."""
        while self._recent and self._recent[0] < now - _RATE_SECONDS:
            self._recent.popleft()
        return len(self._recent) / _RATE_SECONDS


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage at the end of a run: `done` and `dead` of the whole job, the rest of this run."""

    stage: str
    what: str
    done: int
    dead: int
    retries: int
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    seconds: float
    workers: int


_HEADS = ("stage", "done", "dead", "retries", "rows in", "rows out", "size in", "size out", "time", "workers")


@dataclass(frozen=True, slots=True, repr=False)
class JobSummary:
    """How a job's run went; prints as a table, in a notebook as HTML."""

    job: str
    state: JobState
    seconds: float
    stages: tuple[StageSummary, ...]

    def __repr__(self) -> str:
        return f"{self._line()}\n{format_table(_HEADS, self._rows(), right=_HEADS[1:])}"

    def _repr_html_(self) -> str:
        import html

        return f"<p>{html.escape(self._line())}</p>{format_html_table(_HEADS, self._rows(), right=_HEADS[1:])}"

    def _line(self) -> str:
        dead = sum(stage.dead for stage in self.stages)
        left = f", {counted(dead, 'dead split')}: penstock show job/{self.job}" if dead else ""
        if self.state == "done" and not any(stage.workers for stage in self.stages):
            return f"job/{self.job}: was done before this run{left}; penstock rm job/{self.job} forgets it"
        return f"job/{self.job}: {self.state} in {self.seconds:.1f} s{left}"

    def _rows(self) -> Sequence[tuple[str, ...]]:
        return [
            (
                each.stage, f"{each.done:,}", f"{each.dead:,}", f"{each.retries:,}", f"{each.rows_in:,}",
                f"{each.rows_out:,}", format_size(each.bytes_in), format_size(each.bytes_out), f"{each.seconds:.1f} s",
                f"{each.workers:,}",
            )
            for each in self.stages
        ]  # fmt: skip
