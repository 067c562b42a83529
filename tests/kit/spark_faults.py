"""Faults in Spark's workers, at named steps around the function that mapInArrow runs.

Pickled by value, as workers have no tests. Files remember what has happened, as all processes see them.
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

`begun`; `half`, when some rows are on their way; `all`, when no more are to come; `put`, when only the task's result is
left to return.
"""


def widen(frame: DataFrame, size: int = 20_000) -> DataFrame:
    """Add so many bytes to each row: a put of 200 of them is 4 MB, and so passes step `half`."""
    return frame.selectExpr("*", f"repeat('x', {size}) as padding")


class FaultyTask:
    """A task with a fault: step `half` is when it has its first rows and asks for more."""

    half = 0
    """Bytes that the task must have received before step `half`."""

    def __init__(self, task: Task, fault: Fault) -> None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.task = task
        self.fault = fault

    def __call__(self, batches: Batches) -> Batches:
        partition = _partition()
        self.fault("begun", partition)

        def halfway() -> Batches:
            received, is_half = 0, False
            for batch in batches:
                yield batch
                received += batch.nbytes
                if received > self.half and not is_half:
                    is_half = True
                    self.fault("half", partition)
            self.fault("all", partition)

        results = list(self.task(halfway()))
        self.fault("put", partition)
        yield from results


class FaultyPut(FaultyTask):
    """A put with a fault: step `half` is when a batch was sent, as it gathers 1 MiB for each."""

    half = 2 << 20


class FaultyGet(FaultyTask):
    """A get with a fault: step `half` is when Spark has its first rows. gRPC reads 18 MB ahead of that."""

    def __call__(self, batches: Batches) -> Batches:
        partition = _partition()
        self.fault("begun", partition)
        yielded, is_half = 0, False
        for batch in self.task(batches):
            yield batch
            yielded += batch.nbytes
            if yielded > self.half and not is_half:
                is_half = True
                self.fault("half", partition)


def same(batches: Batches) -> Batches:
    """Yield the batches as they come."""
    yield from batches


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else -1


class Marks:
    """Events on this machine: files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def first(self, name: str) -> bool:
        """Note an event; whether this is its first time."""
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
        """Ask the test to do what a task can't, and wait until it is done."""
        self.first("asked")
        self.await_mark("done")

    def when_asked(self, do: Callable[[], object], within: float = 60) -> threading.Thread:
        """Start a thread of the test that does it when a task asks, and lets the task continue."""

        def answer() -> None:
            self.await_mark("asked", within)
            do()
            self.first("done")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        return thread


class Once:
    """A fault for each (step, partition), at its first time only."""

    def __init__(self, marks: Marks, plan: dict[tuple[str, int], Callable[[], None]]) -> None:
        self.marks = marks
        self.plan = plan

    def __call__(self, step: str, partition: int) -> None:
        fault = self.plan.get((step, partition))
        if fault is not None and self.marks.first(f"{step}-{partition}"):
            fault()


def fail_task() -> None:
    """Raise in the task's code."""
    raise RuntimeError("planted: this task fails")


def kill_worker() -> None:
    """Kill the Python worker."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor() -> None:
    """Kill the executor's JVM: the parent of the daemon that forked this worker."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    time.sleep(60)  # what is left of this task ends with its pipe


def parent_of(pid: int) -> int:
    """Return the process that has started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
