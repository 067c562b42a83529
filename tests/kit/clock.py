"""The one clock of the tests: time that passes when a test says so."""

from __future__ import annotations

import pytest


class Clock:
    """Seconds since the epoch, as `time.time` returns them; pass `clock.now` wherever a time is injected."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Let time pass, or with a negative number jump back."""
        self._seconds += seconds

    def set(self, seconds: float) -> None:
        self._seconds = seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()
