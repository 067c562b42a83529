"""What a test looks at from outside: a condition that comes true, a process's threads, descriptors and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def eventually(true: Callable[[], object], *, within: float = 20.0, what: str = "") -> None:
    """Wait until it is so; not for ever."""
    give_up = time.monotonic() + within
    while not true():
        assert time.monotonic() < give_up, f"not within {within:g} s: {what or true}"
        time.sleep(0.02)


def threads(pid: int) -> int:
    """How many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def descriptors(pid: int) -> int:
    """How many files and sockets it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def peak_memory(pid: int) -> int:
    """Bytes that were resident at most."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def files(folder: Path) -> set[str]:
    """The names of the files below a folder, such as `parts` of a data folder."""
    return {path.name for path in folder.rglob("*") if path.is_file()}
