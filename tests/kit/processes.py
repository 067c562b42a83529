"""Processes that others have started: which run in a session, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def session_processes(leader: int) -> dict[int, str]:
    """Return the living processes of a session, each with its command line."""
    lines = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError, IndexError):
            state, _, _, session = _stat(pid)
            if session == str(leader) and state != "Z":
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return lines


def python_workers(leader: int) -> list[int]:
    """Return the Python workers of the tasks of a Spark in this session, without the daemons that fork them."""
    pids = [pid for pid, line in session_processes(leader).items() if "pyspark.daemon pyspark.worker" in line]
    return [pid for pid in pids if parent_process(pid) in pids]


def child_processes(parent: int, word: str = "") -> list[int]:
    """Return the living children of a process whose command line has this word."""
    pids = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if parent_process(pid) == parent]
    return [pid for pid in pids if word in command_line(pid)]


def command_line(pid: int) -> str:
    """Return a process's command line; nothing if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def parent_process(pid: int) -> int:
    """Return the process that has started this one; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(_stat(pid)[1])
    return 0


def _stat(pid: int) -> list[str]:
    """Return state, parent, group and session of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
