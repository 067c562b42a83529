"""What the log warns of each subscription, kept for the drivers of its queries: they log it, too."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable

from penstock.text import cut, printable
from penstock.wire.actions import SERVER_LOG, LogLine

_MOST_LINES, _MOST_CHARACTERS = 200, 1_000
_PATH = re.compile(r"subscription/[\w.~+%:-]+/[\w.~+%-]*\w")


class SubscriptionLog(logging.Handler):
    """Keeps the last warnings and errors of each subscription: the lines that name its path."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        super().__init__(logging.WARNING)
        self._is_known = is_known
        self._kept = threading.Lock()
        self._lines: dict[str, deque[LogLine]] = {}
        self._last = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line. No traceback: those are in the server's own log."""
        if record.name == SERVER_LOG:  # a driver in the server's process has it from here
            return
        text = cut(printable(record.getMessage()), _MOST_CHARACTERS)
        for path in filter(self._is_known, dict.fromkeys(_PATH.findall(text))):
            with self._kept:
                self._last = max(self._last + 1, time.time_ns() // 1000)
                line = LogLine(self._last, "error" if record.levelno >= logging.ERROR else "warning", text)
                self._lines.setdefault(path, deque(maxlen=_MOST_LINES)).append(line)

    def after(self, path: str, number: int) -> tuple[LogLine, ...]:
        """Return the lines of a subscription behind that of this number; 0: its last line."""
        with self._kept:
            lines = tuple(self._lines.get(path, ()))
        return lines[-1:] if number == 0 else tuple(line for line in lines if line.number > number)

    def forget(self, path: str) -> None:
        """Drop the lines of a subscription that was detached."""
        with self._kept:
            self._lines.pop(path, None)
