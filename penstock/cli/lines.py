"""JSON lines from stdin as they come: a batch for 1,000 of them, or for what came in 0.2 s."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

from penstock.cli.fitting import Line
from penstock.errors import InvalidRequest

MOST = 1_000
"""Lines of a batch."""
WITHIN = 0.2
"""Seconds after which what has come is a batch."""
_CHUNK = 256 << 10
_LONGEST = 16 << 20


def batches() -> Iterator[list[Line]]:
    """The lines of stdin, those without a word left out; the last one may lack its end."""
    stdin: Any = sys.stdin.buffer
    held: list[Line] = []
    number, rest, due = 0, b"", 0.0
    come = True  # what was looked at before lies in the buffer, where select doesn't see it
    while True:
        chunk = stdin.read1(_CHUNK) if come else b""
        if come and not chunk:
            break
        if not held:
            due = time.monotonic() + WITHIN
        *lines, rest = (rest + chunk).split(b"\n")
        held += [Line(number + at, text) for at, text in enumerate(lines, 1) if text and not text.isspace()]
        number += len(lines)
        if len(rest) > _LONGEST:
            raise InvalidRequest(f"stdin: line {number + 1} has more than {_LONGEST >> 20} MiB")
        while len(held) >= MOST or (held and time.monotonic() >= due):
            yield held[:MOST]
            held, due = held[MOST:], time.monotonic() + WITHIN
        come = _has_come(stdin, max(0.0, due - time.monotonic()) if held else None)
    if rest and not rest.isspace():
        held.append(Line(number + 1, rest))
    for start in range(0, len(held), MOST):
        yield held[start : start + MOST]


def _has_come(stdin: Any, seconds: float | None) -> bool:
    """Wait so long (None: for ever) for something to read, or the end; whether it has come."""
    try:
        number = stdin.fileno()
    except (OSError, AttributeError):  # a text in its place: all of it has come
        return True
    return os.name != "posix" or bool(select.select([number], [], [], seconds)[0])
