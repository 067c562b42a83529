"""What the pool's threads make durable for a put: the wait for it has a limit, as an fsync may never return."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from penstock.errors import TimedOut

_T = TypeVar("_T")
IN_FLIGHT = 2
"""Parts of one put that are being stored while the next is received: 2 threads made 1.3 GB/s of 1's 0.4, 3 made 1.0."""
SMALL, SMALL_IN_FLIGHT = 1 << 20, 8
"""Bytes of a file whose time goes into its fsyncs, and how many of one put are stored at once: they share them.
Payloads of a queue share files of so many bytes: not more, as one stays until the last of its messages is done."""
PATIENCE = 300.0
"""Seconds for which a put waits for one part or payload to be stored."""


def next_stored(running: deque[Future[_T]], path: str) -> _T:
    """Take the oldest one, once it is stored."""
    if not wait([running[0]], PATIENCE).done:
        raise TimedOut(f"{path}: the put waits for the disk for {PATIENCE:g} s, so nothing of it is kept: try again")
    return running.popleft().result()


def discard_running(running: deque[Future[_T]], discard: Callable[[_T], None]) -> None:
    """Discard what is being stored, once it is; what takes longer than the limit is discarded when it ends."""

    def discard_stored(future: Future[_T]) -> None:
        if future.exception() is None:
            discard(future.result())

    wait(running, PATIENCE)
    for future in running:
        future.add_done_callback(discard_stored)
