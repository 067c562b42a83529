"""The progress of a job: a line on a terminal, a table that changes in a notebook."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from penstock.client.display import open_display
from penstock.wire.queue import QueueCounts


class StageProgress(NamedTuple):
    """A stage as it is now."""

    stage: str
    counts: QueueCounts
    workers: int
    per_second: float
    missing: str | None = None
    """What workers wait for that have no place."""

    @property
    def at_work(self) -> str:
        """How many workers there are, in words."""
        return f"{self.workers} at work" if self.missing is None else f"waits for {self.missing}"


class Progress:
    """Shows the stages of a job, again and again, and nothing once the block has ended."""

    def __init__(self, *, wanted: bool | None) -> None:
        self._show = None if wanted is False else open_display(always=wanted is True)

    def show(self, job: str, filling: Collection[str], stages: Sequence[StageProgress], seconds: float) -> None:
        """Show the sources that aren't at their end, and the stages, in place of what was shown before."""
        if self._show is not None:
            rest = f"{seconds:.0f} s"
            line = " · ".join([*(f"{source} goes on" for source in filling), *map(_words, stages)])
            rows = "".join([*map(_row_of_source, filling), *map(_row, stages)])
            self._show(f"{job}: {line}, {rest}", f"<table>{rows}</table><small>{job}, {rest}</small>")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._show is not None:
            self._show("", "")


def _words(stage: StageProgress) -> str:
    counts = stage.counts
    dead = f", {counts.dead:,} dead" if counts.dead else ""
    return f"{stage.stage} {counts.done:,}/{counts.pushed:,}{dead} ({stage.at_work})"


def _row_of_source(source: str) -> str:
    return f"<tr><td>{source}</td><td><progress></progress></td><td>goes on</td></tr>"


def _row(stage: StageProgress) -> str:
    """Return a stage as a table's row. Its name is one of a path, and has nothing that HTML needs to escape."""
    counts = stage.counts
    cells = (
        stage.stage, f'<progress value="{counts.done}" max="{counts.pushed}"></progress>',
        f"{counts.done:,} of {counts.pushed:,} done", f"{counts.dead:,} dead" if counts.dead else "",
        f"{stage.per_second:,.1f}/s", stage.at_work,
    )  # fmt: skip
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
