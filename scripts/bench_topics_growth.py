"""Ten times the backlog: as many times as long at most, and no more memory, in whichever process."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.bench_servers import memory as memory_of
from scripts.bench_servers import peak
from scripts.bench_spark_page import Line, compared, memory
from scripts.bench_spark_session import Bench
from scripts.bench_topics_page import better, per_second
from scripts.bench_topics_sides import INTEGERS, OURS, READY, Trial, filled, of_ready, of_topic, rows_of_a_task

_MIB = 1 << 20
_SERVER_MORE, _DRIVER_MORE = 32 * _MIB, 16 * _MIB
_RUNNER = b"python_streaming_source_runner"
"""The module of the process in which Spark has a source's driver side, for as long as a query runs."""
_SERVER, _DRIVER, _SOURCE = "the server", "the driver's Python", "the source's driver side"


@dataclass(slots=True)
class Watched:
    """Queries of one size, and the most memory of each process in each of them."""

    trial: Trial
    seconds: list[float] = field(default_factory=list)
    most: dict[str, list[int]] = field(default_factory=lambda: {_SERVER: [], _DRIVER: [], _SOURCE: []})

    def again(self, bench: Bench) -> None:
        """One query."""
        with peak(bench.disk.pid, os.getpid()) as most, source_peak() as source:
            self.seconds.append(self.trial.drained(bench))
        for who, size in ((_SERVER, most[bench.disk.pid]), (_DRIVER, most[os.getpid()]), (_SOURCE, source[0])):
            self.most[who].append(size)

    def forget_the_first(self) -> None:
        """It was to warm up."""
        del self.seconds[0]
        for sizes in self.most.values():
            del sizes[0]


def growth(bench: Bench, rows: int, rounds: int) -> Iterator[Line]:
    """Backlogs of so many rows and of ten times as many, in turn; each beside batches that are ready."""
    once, tenfold = (_of_topic(bench, size) for size in (rows, 10 * rows))
    each = rows_of_a_task(bench.disk, f"{INTEGERS}-{10 * rows}", 10 * rows)
    ready = Watched(Trial(of_ready(bench, INTEGERS, 10 * rows, each), 10 * rows))
    every = [once, tenfold, ready]
    for number in range(rounds + 1):
        for watched in every[number % 3 :] + every[: number % 3]:
            watched.again(bench)
    for watched in every:
        watched.forget_the_first()
    what = f"{10 * rows:,} rows of 4 int64, one batch"
    yield better(what, tenfold.seconds, READY, ready.seconds, per_second(10 * rows), least=0.8)
    yield compared(f"{OURS}: time", tenfold.seconds, "a tenth of the rows", once.seconds, most=11)
    for who, more in ((_SERVER, _SERVER_MORE), (_DRIVER, _DRIVER_MORE), (_SOURCE, _DRIVER_MORE)):
        large, small = (statistics.median(watched.most[who]) for watched in (tenfold, once))
        yield memory(f"{OURS}: memory of {who}", large, small, "a tenth of the rows", more)


def _of_topic(bench: Bench, rows: int) -> Watched:
    path = f"{INTEGERS}-{rows}"
    filled(bench.disk, path, rows, INTEGERS)
    return Watched(Trial(of_topic(bench, path), rows))


@contextmanager
def source_peak() -> Iterator[list[int]]:
    """Watch the process of a source's driver side, which begins and ends with its query."""
    most, over = [0], threading.Event()

    def watch() -> None:
        pid = None
        while not over.wait(0.01):
            try:
                pid = pid or _runner()
                most[0] = max(most[0], memory_of(pid, "RssAnon") if pid else 0)
            except (OSError, StopIteration):  # it ended, or is about to: then it has no memory to tell of
                pid = None

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


def _runner() -> int | None:
    """It is a child of the JVM, which is a child of ours."""
    for jvm in _children(os.getpid()):
        for pid in _children(jvm):
            if _RUNNER in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
