"""What is sent within a `with` block, and whether leaving it means the end or an error."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class SendingBlock:
    """A context manager: leaving closes; leaving by exception abandons, and the exception is the one that is seen."""

    def close(self) -> object:
        """End, once everything that was sent is durable."""
        raise NotImplementedError

    def abandon(self) -> None:
        """End without waiting for that."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
