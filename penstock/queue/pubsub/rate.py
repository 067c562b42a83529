"""How many bytes a second come, and how many streams of Pub/Sub that is."""

from __future__ import annotations

import math
from collections import deque

STREAM_BYTES = 10_000_000
"""Bytes a second that Google sends on one stream at most."""
_SECONDS = 10.0


class Rate:
    """Bytes a second over the last ten seconds."""

    def __init__(self) -> None:
        self.total = 0
        """Bytes that ever came: add to it."""
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, now: float) -> None:
        """Note the total, from time to time."""
        self._looks.append((now, self.total))
        while now - self._looks[0][0] > _SECONDS:
            self._looks.popleft()

    def per_second(self) -> float:
        """Return the rate between the first look and the last one."""
        if not self._looks:
            return 0.0
        (began, before), (now, total) = self._looks[0], self._looks[-1]
        return (total - before) / (now - began) if now > began else 0.0


def streams_needed(per_second: float) -> int:
    """Return how many streams this rate takes: where there are only so many, more would bring more."""
    return math.ceil(per_second / STREAM_BYTES)
