"""The bound of queues: a put that fills a queue is admitted while the queue has room, else told when to come again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.errors import NotFound, QueueFull, Unavailable
from penstock.flight_server.limits import ServerLimits
from penstock.ledger.ledger import Ledger
from penstock.queue.work import queues
from penstock.text import counted, format_age, format_size
from penstock.wire.queue import QueueCounts

_RETRY_AFTER = 2.0
_STALLED = 600.0
"""Seconds without a worker after which a full queue is no more said to drain."""


class QueueBound:
    """Admits puts to queues; any thread may call it.

    A queue with nothing to do admits every put, however large: there is always room for one. What is put for a queue
    counts once its messages are pushed, as no worker could make room before.
    """

    def __init__(self, ledger: Ledger, limits: ServerLimits, *, now: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._limits = limits
        self._now = now
        self._lock = threading.Lock()  # _drained
        self._drained: dict[str, tuple[int, float]] = {}
        """Of each full queue: the messages that are done or dead, and when that number was first seen."""

    def admit(self, path: str) -> None:
        """Reject a put that fills a queue: QueueFull while workers drain it, Unavailable where none does."""
        try:
            with self._ledger.reading() as reader:
                counts = queues.counts(reader, path)
        except NotFound:  # the put makes it
            return
        waiting, limits = counts.pending + counts.claimed, self._limits
        has_room = waiting < limits.queue_messages and counts.bytes < limits.queue_bytes
        with self._lock:
            if not waiting or has_room:
                self._drained.pop(path, None)
                return
            idle = self._seconds_idle(counts)
        text = (
            f"{path} is full: {counted(waiting, 'message')} of {format_size(counts.bytes)} wait for its workers, "
            f"{counts.dead:,} are dead; the server takes {limits.queue_messages:,} of "
            f"{format_size(limits.queue_bytes)} in all (serve --limit queue_messages=… --limit queue_bytes=…)"
        )
        if idle < _STALLED:
            raise QueueFull(text, retry_after=_RETRY_AFTER)
        raise Unavailable(
            f"{text}. Nobody has drained it for {format_age(idle)}: start workers", retry_after=_RETRY_AFTER
        )

    def _seconds_idle(self, counts: QueueCounts) -> float:
        """Return for how long no worker has had or settled a message of a full queue."""
        settled, since = self._drained.get(counts.path, (-1, 0.0))
        if counts.claimed or settled != counts.done + counts.dead:
            settled, since = counts.done + counts.dead, self._now()
            self._drained[counts.path] = settled, since
        return self._now() - since
