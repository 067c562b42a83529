"""Time that passes when it is told to, and a crash at a named step."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Seconds since some time, as `time.time` has them."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Crash(BaseException):
    """The process ends here: nothing that catches errors catches this."""


def crash_at(fatal: str) -> Callable[[str], None]:
    """What to put in the place of `penstock.steps.passed`."""

    def passed(step: str) -> None:
        if step == fatal:
            raise Crash

    return passed
