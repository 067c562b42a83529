"""Faults in Spark's workers: what happens around the function that mapInArrow was given, at named steps.

Carried by value, as workers have no tests. What has happened is remembered in files, which all processes see.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]
Fault = Callable[[str, int], None]
"""Called with a step and the partition.

`begun`; `half`, when the first batch was sent; `put`, when all is done but for what the task gives back.
"""


class Meddled:
    """A task with a fault."""

    def __init__(self, task: Task, fault: Fault) -> None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.task = task
        self.fault = fault

    def __call__(self, batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else -1
        self.fault("begun", partition)

        def halfway() -> Batches:
            for number, batch in enumerate(batches):
                yield batch
                if number == 0:
                    self.fault("half", partition)

        found = list(self.task(halfway()))
        self.fault("put", partition)
        yield from found


class Marks:
    """What has happened on this machine: files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def first(self, name: str) -> bool:
        """Whether nobody asked for this name before."""
        try:
            os.close(os.open(f"{self.folder}/{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def seen(self, name: str) -> bool:
        return os.path.exists(f"{self.folder}/{name}")

    def await_mark(self, name: str, within: float = 60) -> None:
        give_up = time.monotonic() + within
        while not self.seen(name):
            if time.monotonic() > give_up:
                raise AssertionError(f"{name} didn't happen within {within:g} s")
            time.sleep(0.01)

    def ask_and_wait(self) -> None:
        """Ask the test for what a task can't do, and go on when it is done."""
        self.first("asked")
        self.await_mark("done")


class Once:
    """Each of these (step, partition) happens at its first time only."""

    def __init__(self, marks: Marks, plan: dict[tuple[str, int], Callable[[], None]]) -> None:
        self.marks = marks
        self.plan = plan

    def __call__(self, step: str, partition: int) -> None:
        happens = self.plan.get((step, partition))
        if happens is not None and self.marks.first(f"{step}-{partition}"):
            happens()


def fail() -> None:
    """The task's code raises."""
    raise RuntimeError("planted: this task fails")


def die() -> None:
    """The Python worker is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor() -> None:
    """The executor's JVM is killed: the parent of the daemon that forked this worker."""
    daemon = os.getppid()
    jvm = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(jvm, signal.SIGKILL)
    time.sleep(60)  # what is left of this task ends with its pipe
