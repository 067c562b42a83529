"""What a test waits for and looks at from outside: conditions, files, a process's threads, descriptors and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def eventually(condition: Callable[[], object], *, within: float = 60.0, what: str = "") -> None:
    """Wait until the condition is true, or fail."""
    give_up = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up, f"not within {within:g} s: {what or condition}"
        time.sleep(0.02)


def threads(pid: int) -> int:
    """Count the threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def descriptors(pid: int) -> int:
    """Count the open files and sockets of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def peak_memory(pid: int) -> int:
    """Return the most bytes that a process had resident."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def files(folder: Path) -> set[str]:
    """Return the names of the files below a folder, such as `parts` of a data folder."""
    return {path.name for path in folder.rglob("*") if path.is_file()}
