"""Failure policies: what a stage does with splits that fail, and when that is too much for its job."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidRequest

_FEW = 20
"""Splits that must have ended before a rate says something."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How often a split is tried, and how many may be dead: `FailurePolicy(retries=False, most=10)`."""

    retries: bool
    """Whether a split that fails is tried again, five times; without, the first failure makes it dead."""
    most: int | None = None
    """Dead splits beyond which the job fails."""
    rate: float | None = None
    """The same as a share of the splits that have ended."""

    def __post_init__(self) -> None:
        if (self.most is not None and self.most < 0) or (self.rate is not None and not 0 <= self.rate <= 1):
            raise InvalidRequest(f"most={self.most}, rate={self.rate}: expected a number from 0, and a share of 0 to 1")

    def is_broken(self, ended: int, dead: int) -> bool:
        """Whether so many dead ones of all that have ended are too many."""
        if self.most is not None and dead > self.most:
            return True
        return self.rate is not None and ended >= _FEW and dead > self.rate * ended


FAIL_FAST = FailurePolicy(retries=False, most=0)
"""The first split that fails ends the job, which gets it again when it is run again."""


def dead_letter(most: int | None = None, rate: float | None = None) -> FailurePolicy:
    """Return the policy that sets splits aside at their fifth failure: `most` of them, or a share, 0.01 for 1 %."""
    return FailurePolicy(retries=True, most=most, rate=rate)
