"""Pacing of queues' workers: when those that wait ask again, and how many messages are done per second."""

from __future__ import annotations

import threading
from collections import deque

_POLLS_PER_SECOND = 50
"""Empty claims of all waiting workers together. Each takes about a third of a millisecond of one core."""
_SHORTEST_WAIT = 0.1
"""Seconds before a worker asks again, however few there are."""
_RATE_SECONDS = 60


class Polls:
    """Spreads the workers that wait for messages: each is told when to ask again, all together at a bounded rate."""

    def __init__(self, per_second: float = _POLLS_PER_SECOND, shortest: float = _SHORTEST_WAIT) -> None:
        self._pause, self._shortest = 1 / per_second, shortest
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until the next free turn, which is taken by that: they grow with the waiting workers."""
        with self._lock:
            self._next = max(self._next + self._pause, now + self._shortest)
            return self._next - now


class Rates:
    """Messages done per second, by queue, over the last minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[str, deque[list[int]]] = {}
        """By queue: seconds, each with its count."""

    def note(self, queue: str, now: float) -> None:
        """Count a message."""
        with self._lock:
            counts = self._done.setdefault(queue, deque(maxlen=_RATE_SECONDS))
            if counts and counts[-1][0] == int(now):
                counts[-1][1] += 1
            else:
                counts.append([int(now), 1])

    def per_second(self, queue: str, now: float) -> float:
        """Return the rate; of a queue that has begun within the minute, since then."""
        with self._lock:
            counts = self._done.get(queue)
            if not counts:
                return 0.0
            recent = sum(count for second, count in counts if second > now - _RATE_SECONDS)
            return round(recent / min(max(1.0, now - counts[0][0]), _RATE_SECONDS), 2)
