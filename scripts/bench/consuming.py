"""Processes that read a topic: each follows all of it, or as a member of a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from typing import Any

import penstock

Consumed = Callable[[str, int, str | None], Callable[[], float]]
"""Begins to read so many rows of a path, as a group or each all; what it returns waits for the last, and says when."""
_PATIENCE = 300.0  # seconds for all rows
_process: list[Any] = []
"""In a reader's process: its client, the rows that all have read, and whether that is all."""


@contextmanager
def readers(url: str, count: int) -> Iterator[Consumed]:
    """Run so many processes that read, ready to begin."""
    context = get_context("spawn")
    rows, done = context.Value("q", 0), context.Event()
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, context, initializer=_connect, initargs=(url, rows, done)))
            for _ in range(count)
        ]
        wait([pool.submit(time.time) for pool in pools])

        def begin(path: str, number: int, group: str | None) -> Callable[[], float]:
            rows.value = 0
            done.clear()
            futures = [pool.submit(_read, path, group, number) for pool in pools]
            return lambda: max(future.result(_PATIENCE) for future in futures)

        yield begin


def _connect(url: str, rows: Any, done: Any) -> None:
    _process[:] = [penstock.connect(url), rows, done]


def _read(path: str, group: str | None, number: int) -> float:
    """Read until all readers together have so many rows; return when the last of this one's have come."""
    client, rows, done = _process
    last = time.time()
    with ExitStack() as stack:
        if group is None:
            batches = client.follow(path, start="earliest")
        else:
            batches = stack.enter_context(client.consume(path, group=group))
        stopper = threading.Thread(target=lambda: (done.wait(), batches.stop()), name="bench-stop", daemon=True)
        stopper.start()
        for batch in batches:
            last = time.time()
            with rows.get_lock():
                rows.value += batch.num_rows
                if rows.value >= number:
                    done.set()
        stopper.join()
    return last
