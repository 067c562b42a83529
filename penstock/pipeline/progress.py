"""The progress of a job: a line on a terminal, an output that changes in a notebook."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.spark_plugin.progress import open_display


class Progress:
    """Shows a line, again and again, and nothing once the block has ended."""

    def __init__(self, *, wanted: bool | None) -> None:
        self._show = None if wanted is False else open_display(always=wanted is True)

    def show(self, line: str) -> None:
        """Show a line in place of the one before."""
        if self._show is not None:
            self._show(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show("")
