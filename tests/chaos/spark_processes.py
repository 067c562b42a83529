"""Spark's processes, to be killed: a driver and its JVM, executors, Python workers."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from tests.kit.processes import kill, parent_process, python_workers, session_processes
from tests.kit.spark import start_driver_process
from tests.kit.wait import eventually


class Driver:
    """Runs `driver.main`, again and again on one checkpoint."""

    def __init__(self, folder: Path, python: Path, *arguments: str) -> None:
        self.folder = folder / "spark"
        self.folder.mkdir()
        self.checkpoint = self.folder / "checkpoint"
        self._python, self._arguments = python, arguments
        self._sessions: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            process = start_driver_process(
                "tests.chaos.driver",
                self.folder,
                self._python,
                str(self.folder),
                *self._arguments,
                stdout=log,
                stderr=log,
            )
        self._sessions.append(process)

    def is_dead(self) -> bool:
        return self._sessions[-1].poll() is not None

    def pids(self, word: str) -> list[int]:
        """Return the running driver's processes whose command line has this word."""
        return [pid for pid, line in session_processes(self._sessions[-1].pid).items() if word in line]

    def executors(self) -> list[int]:
        return self.pids("CoarseGrainedExecutorBackend")

    def workers(self) -> list[int]:
        """Return the Python workers of tasks, without the daemons that fork them."""
        return python_workers(self._sessions[-1].pid)

    def sources(self) -> list[int]:
        """Return the Python processes in which the source plans."""
        pids = self.pids("python_streaming_source_runner")
        return [pid for pid in pids if parent_process(pid) in pids] or pids

    def kill(self) -> None:
        """kill -9 for the driver and its JVM; its executors, in the middle of their tasks, end by themselves."""
        for pid in [*self.pids("deploy.SparkSubmit"), self._sessions[-1].pid]:
            kill(pid)
        self._sessions[-1].wait(30)

    def ends(self) -> list[str]:
        """Return the errors of its queries that failed."""
        file = self.folder / "ends"
        return file.read_text().splitlines() if file.exists() else []

    def stop(self) -> None:
        (self.folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._sessions[-1].wait(60)
        self.close()

    def close(self) -> None:
        """Kill all its processes."""
        for process in self._sessions:
            for pid in session_processes(process.pid):
                kill(pid)
            process.wait(30)
        eventually(
            lambda: not any(session_processes(each.pid) for each in self._sessions), what="Spark's processes are gone"
        )
