"""Failure policies: what a stage does with splits that fail, and when that is too much for its job."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidRequest

_FEW = 20
"""Splits that must have ended before a rate says something."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How often a split is tried, and how many may be dead."""

    retries: bool
    """Whether a split that fails is tried again, five times; without, the first failure makes it dead."""
    most: int | None
    """Dead splits beyond which the job fails."""
    rate: float | None
    """The same as a share of the splits that have ended."""

    def is_broken(self, ended: int, dead: int) -> bool:
        """Whether so many dead ones of all that have ended are too many."""
        if self.most is not None and dead > self.most:
            return True
        return self.rate is not None and ended >= _FEW and dead > self.rate * ended


FAIL_FAST = FailurePolicy(retries=False, most=0, rate=None)
"""The first split that fails ends the job, which gets it again when it is run again."""


def dead_letter(most: int | None = None, rate: float | None = None) -> FailurePolicy:
    """Return the policy that sets splits aside at their fifth failure: `most` of them, or a share, 0.01 for 1 %."""
    if (most is not None and most < 0) or (rate is not None and not 0 <= rate <= 1):
        raise InvalidRequest(f"dead_letter(most={most}, rate={rate}): expected a number from 0, and a share of 0 to 1")
    return FailurePolicy(retries=True, most=most, rate=rate)
