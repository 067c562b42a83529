"""Ctrl-C in good order: what it does while a command must not be torn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CTRL_C = (signal.SIGINT,)
ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def heeding(numbers: tuple[signal.Signals, ...], does: Callable[[], None]) -> Iterator[None]:
    """While the block runs, these signals do this; it may raise."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, lambda *_: does())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
