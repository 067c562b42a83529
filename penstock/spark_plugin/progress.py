"""The progress of a write, while Spark works: a line on a terminal, an output that changes in a notebook."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.client.display import Show, open_display
from penstock.errors import PenstockError
from penstock.text import counted, format_size
from penstock.wire.actions import Summary

_INTERVAL = 0.5


@contextmanager
def show_progress(path: str, progress: Callable[[], Summary], *, wanted: bool | None) -> Iterator[None]:
    """While the block runs, show a write's progress: on a terminal or in a notebook, or wherever it is `wanted`."""
    show = None if wanted is False else open_display(always=wanted is True)
    if show is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_run, args=(path, progress, show, done), name="penstock-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(2)  # its last call may wait for a server that is away


def _run(path: str, progress: Callable[[], Summary], show: Show, done: threading.Event) -> None:
    began, publishing = time.monotonic(), 0.0
    while not done.wait(_INTERVAL):
        try:
            write = progress()
        except PenstockError:  # the write itself raises it
            continue
        if done.is_set():
            break
        seconds = time.monotonic() - began
        amount = f"{counted(write.rows, 'row')}, {format_size(write.bytes)}"
        line = f"{path}: {amount} of {write.attempts:,} partitions are there, {seconds:.0f} s"
        if write.published is not None:
            publishing = publishing or time.monotonic()
            rate = write.published / max(time.monotonic() - publishing, _INTERVAL)
            line = f"{path}: {write.published:,} of {write.rows:,} messages are published, {rate:,.0f}/s"
        show(line, f"<small>{line}</small>")
    show("", "")
