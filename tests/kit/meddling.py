"""Faults in Spark's workers: what happens around the function that mapInArrow was given, at named steps.

Carried by value, as workers have no tests. What has happened is remembered in files, which all processes see.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]
Fault = Callable[[str, int], None]
"""Called with a step and the partition.

`begun`; `half`, when rows are on their way and others may be to come; `all`, when no more are to come; `put`, when all
is done but for what the task gives back.
"""


def wide(frame: DataFrame, size: int = 20_000) -> DataFrame:
    """The same rows, each with so many bytes more: a put of 200 of them is 4 MB, and so has a `half`."""
    return frame.selectExpr("*", f"repeat('x', {size}) as padding")


class Meddled:
    """A task with a fault: `half` is when it was given its first rows and asks for more."""

    half = 0
    """More bytes than that were given then."""

    def __init__(self, task: Task, fault: Fault) -> None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.task = task
        self.fault = fault

    def __call__(self, batches: Batches) -> Batches:
        partition = _partition()
        self.fault("begun", partition)

        def halfway() -> Batches:
            given, is_half = 0, False
            for batch in batches:
                yield batch
                given += batch.nbytes
                if given > self.half and not is_half:
                    is_half = True
                    self.fault("half", partition)
            self.fault("all", partition)

        found = list(self.task(halfway()))
        self.fault("put", partition)
        yield from found


class MeddledPut(Meddled):
    """A put with a fault: `half` is when a batch was sent, as it gathers 1 MiB for each."""

    half = 2 << 20


class MeddledGet(Meddled):
    """A get with a fault: `half` is when Spark has its first rows. gRPC reads 18 MB ahead of that."""

    def __call__(self, batches: Batches) -> Batches:
        partition = _partition()
        self.fault("begun", partition)
        for number, batch in enumerate(self.task(batches)):
            yield batch
            if number == 0:
                self.fault("half", partition)


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else -1


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

    def when_asked(self, do: Callable[[], object], within: float = 60) -> threading.Thread:
        """A thread of the test's that does it, and lets the task go on."""

        def answer() -> None:
            self.await_mark("asked", within)
            do()
            self.first("done")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        return thread


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
    os.kill(parent(os.getppid()), signal.SIGKILL)
    time.sleep(60)  # what is left of this task ends with its pipe


def parent(pid: int) -> int:
    """The process that has started it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
