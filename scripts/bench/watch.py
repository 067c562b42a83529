"""What processes take of the machine while they work: memory, processor time, fsyncs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Process = int | Callable[[], int | None]
"""A process id, or what finds the process once it has started."""


def memory(pid: int, field: str = "RssAnon") -> int:
    """Return the bytes of a field of /proc/PID/status: VmRSS, or RssAnon for private memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has taken, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendant(marker: bytes, parent: int) -> int | None:
    """Find the process below another one whose command line has the marker."""
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            is_it = marker in Path(f"/proc/{child}/cmdline").read_bytes()
            if (pid := child if is_it else descendant(marker, child)) is not None:
                return pid
    return None


@contextmanager
def peaks(processes: Mapping[str, Process], *, every: float = 0.01) -> Iterator[dict[str, int]]:
    """Watch the private memory of processes, every so many seconds; the dict has the most of each.

    A process that starts and ends within the block counts while it lives.
    """
    if not processes:
        yield {}
        return
    most, pids, over = dict.fromkeys(processes, 0), dict[str, int | None](), threading.Event()

    def look() -> None:
        for name, process in processes.items():
            try:
                pid = pids[name] = pids.get(name) or (process() if callable(process) else process)
                most[name] = max(most[name], memory(pid) if pid else 0)
            except (OSError, StopIteration):  # the process has ended, or is about to: its memory is gone
                pids[name] = None

    def watch() -> None:
        while not over.wait(every):
            look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()
        look()


class FsyncCounter:
    """Counts the fsyncs of the processes that start with its environment, whichever library calls for them.

    A small library in C stands before libc's: exact and free, where strace would slow each call. Without a C compiler
    the environment is empty and nothing is counted.
    """

    def __init__(self, path: Path) -> None:
        library, self._count = path.with_suffix(".so"), path.with_suffix(".fsyncs")
        self.environment: dict[str, str] = {}
        if compiler := shutil.which("cc"):
            source = str(Path(__file__).with_name("fsyncs.c"))
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), source], check=True)
            self._count.write_bytes(bytes(8))
            self.environment = {"LD_PRELOAD": str(library), "BENCH_FSYNCS": str(self._count)}

    def total(self) -> dict[str, float]:
        """Return how many `fsyncs` there were so far, if they are counted."""
        return {"fsyncs": int.from_bytes(self._count.read_bytes(), sys.byteorder)} if self.environment else {}
