"""Spark's processes, each to be killed: a driver and its JVM, executors, Python workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tests.kit.spark import start_driver_process
from tests.kit.wait import eventually


class Driver:
    """A driver that is started again on one checkpoint."""

    def __init__(self, folder: Path, python: Path, *arguments: str) -> None:
        self.folder = folder / "spark"
        self.folder.mkdir()
        self.checkpoint = self.folder / "checkpoint"
        self._python, self._arguments = python, arguments
        self._sessions: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        url, sink, master = self._arguments
        arguments = url, str(self.folder), sink, master
        with (self.folder / "log").open("ab") as log:
            process = start_driver_process(
                "chaos_driver", self.folder, self._python, *arguments, stdout=log, stderr=log
            )
        self._sessions.append(process)

    def is_dead(self) -> bool:
        return self._sessions[-1].poll() is not None

    def pids(self, word: str) -> list[int]:
        """Those of the running driver's processes whose command line has this word."""
        return [pid for pid, line in _session(self._sessions[-1].pid).items() if word in line]

    def executors(self) -> list[int]:
        return self.pids("CoarseGrainedExecutorBackend")

    def workers(self) -> list[int]:
        """Python workers of tasks; what forks them isn't one."""
        found = self.pids("pyspark.daemon pyspark.worker")
        return [pid for pid in found if _parent(pid) in found]

    def sources(self) -> list[int]:
        """The Python processes in which the source plans."""
        found = self.pids("python_streaming_source_runner")
        return [pid for pid in found if _parent(pid) in found] or found

    def kill(self) -> None:
        """kill -9 for the driver and its JVM; its executors, in the middle of their tasks, find out by themselves."""
        for pid in [*self.pids("deploy.SparkSubmit"), self._sessions[-1].pid]:
            kill(pid)
        self._sessions[-1].wait(30)

    def ends(self) -> list[str]:
        """How its queries ended that failed."""
        file = self.folder / "ends"
        return file.read_text().splitlines() if file.exists() else []

    def stop(self) -> None:
        (self.folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._sessions[-1].wait(60)
        self.close()

    def close(self) -> None:
        """Nothing of it goes on."""
        for process in self._sessions:
            for pid in _session(process.pid):
                kill(pid)
            process.wait(30)
        eventually(lambda: not any(_session(each.pid) for each in self._sessions), what="Spark's processes are gone")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """One that is gone already is as good."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _session(leader: int) -> dict[int, str]:
    """The processes of a session that live, each with its command line."""
    found = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError, IndexError):
            state, _, _, session = _stat(pid)
            if session == str(leader) and state != "Z":
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(_stat(pid)[1])
    return 0


def _stat(pid: int) -> list[str]:
    """State, parent, group and session."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
