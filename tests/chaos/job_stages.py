"""The source, the operators and the sink of the job that chaos falls on; they note what they do, as `worker` does."""

from __future__ import annotations

import copy
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.client.client import Client
from penstock.client.lease import Split
from penstock.pipeline.sinks import DatasetPuts
from tests.chaos.worker import COLUMNS, Worker, scored

STAGES = ("score", "narrow", "out")
SPLIT_ROWS = 50
_LOCK = threading.Lock()
_workers: list[Worker] = []
"""That of this process, once it is one."""
_HEADROOM, _TOO_MUCH = 256 << 20, 4 << 30


@dataclass(frozen=True)
class Folders:
    """Where the rig and the job's processes meet."""

    hooks: Path
    logs: Path
    splits: Path
    """The rows that are published: files in their order, and `end` once there are no more."""

    def worker(self, name: str) -> Worker:
        """Return what notes and fails in this process for a stage; all threads of one share their notes."""
        with _LOCK:
            if not _workers:
                _workers.append(Worker(self.hooks, self.logs / f"{name}-{os.getpid()}", name))
        worker = copy.copy(_workers[0])
        worker.stage = name
        return worker


@dataclass
class Published:
    """An iterable as a source: what the rig has published, as it comes; the same splits at each start."""

    splits: Path

    def __iter__(self) -> Iterator[pa.Table]:
        number = 0
        while True:
            file = self.splits / f"{number:06}"
            if file.exists():
                with pa.ipc.open_file(file) as reader:
                    table = reader.read_all()
                yield from (table.slice(first, SPLIT_ROWS) for first in range(0, table.num_rows, SPLIT_ROWS))
                number += 1
            elif (self.splits / "end").exists():
                return
            else:
                time.sleep(0.02)


@dataclass
class Score:
    """The first stage: one or two tables of each split, some of them large."""

    folders: Folders
    stage: str = "score"

    def open(self) -> None:
        self.worker = self.folders.worker(self.stage)

    def process(self, split: Split) -> list[pa.Table]:
        self.worker.pass_step("loaded")
        tables = self.tables(split.payload.data)
        self.worker.pass_step("operated")
        if self.worker.takes("oom", ""):
            exhaust_memory()
        self.worker.fail(split.message.message_id)
        return tables

    def tables(self, table: pa.Table) -> list[pa.Table]:
        return scored(table)


@dataclass
class Narrow(Score):
    """The second stage: the columns of the source."""

    stage: str = "narrow"

    def tables(self, table: pa.Table) -> list[pa.Table]:
        return [table.select(COLUMNS)]


def exhaust_memory() -> None:
    """Take more memory than the process may have: MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _HEADROOM, before[1]))
    try:
        bytearray(_TOO_MUCH)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass
class NotedPuts(DatasetPuts):
    """The work of the dataset sink."""

    folders: Folders

    def open(self, client: Client) -> None:
        self.folders.worker("out")
        super().open(client)
