"""Faults as they fall, many to a write: what went in is what came out, each row once and unchanged."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.kit.proxy import Proxy
from tests.kit.server import Puts, leftover_files
from tests.kit.spark import Rows, collected_rows, expected_rows, row_frame, server_paths, stored_rows
from tests.kit.spark_faults import FaultyPut, Marks, Once, fail_task, kill_worker, widen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("elsewhere", "small_batches"),
]

PARTITION = 4_000_000
"""Bytes, so that it is in its middle with rows on the wire."""
GATHERED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "collect": lambda receipts: receipts,
    "coalesce": lambda receipts: receipts.coalesce(2),
    "sorted": lambda receipts: receipts.orderBy("attempt"),
    "shuffled": lambda receipts: receipts.repartition(3),
}


class Schedule:
    """A dataset that some appends and overwrites make, each with faults of its own."""

    def __init__(self, spark: SparkSession, proxy: Proxy, folder: Path, seed: int) -> None:
        self.spark, self.proxy, self.folder = spark, proxy, folder
        self.dice = random.Random(seed)
        self.path = f"store/{seed}"
        self.ledger: Rows = Counter()
        self.bytes = 0
        self.told: list[str] = []

    def run(self) -> None:
        for step in range(self.dice.randint(1, 2)):
            self._write(step)
        frame = penstock.read(self.spark, self.path, url=self.proxy.url)
        with self._cut(self.bytes):
            self._agree(collected_rows(frame.select("id", "text")), "by Spark")
        self._agree(stored_rows(self.path, self.proxy.url), "by pyarrow")

    def _write(self, step: int) -> None:
        rows, partitions = self.dice.randint(0, 600), self.dice.randint(1, 5)
        mode: Any = self.dice.choice(["append", "overwrite"])
        gathered = self.dice.choice(list(GATHERED))
        tasks = min(partitions, 2) if gathered == "coalesce" else partitions
        plan = {
            (self.dice.choice(["begun", "half", "put"]), self.dice.randrange(tasks)): self.dice.choice(
                [fail_task, kill_worker]
            )
            for _ in range(self.dice.choice([0, 1, 1, 2]))
        }
        self.told.append(
            f"{mode} {rows} rows in {partitions}, {gathered}, {[(*k, v.__name__) for k, v in plan.items()]}"
        )
        filled = min(rows, partitions)
        frame = widen(row_frame(self.spark, rows, partitions), PARTITION * filled // max(rows, 1))
        marks = self.folder / f"{self.path.replace('/', '-')}-{step}"
        marks.mkdir()
        put = penstock.do_put(self.path, mode=mode, url=self.proxy.url, schema=frame.schema)
        happened = Marks(marks)
        task = FaultyPut(put, Once(happened, plan))
        with self._cut(PARTITION * filled):
            written = put.finish(GATHERED[gathered](frame.mapInArrow(task, put.schema)))
        added = mode == "append"
        self.ledger = expected_rows(rows) + (self.ledger if added else Counter())
        self.bytes = PARTITION * filled + (self.bytes if added else 0)
        assert written.rows == rows, self
        if rows >= partitions:
            assert all(happened.seen(f"{step}-{partition}") for step, partition in plan), self

    @contextmanager
    def _cut(self, size: int) -> Iterator[None]:
        """The wire, once in three times: while so many bytes pass, or more where something is tried again."""
        after = self.dice.choice([None, None, self.dice.randint(1, size + size // 2 + 1)])
        self.told.append(f"cut after {after} bytes")
        self.proxy.cut_after(after)
        yield
        self.proxy.cut_after(None)

    def _agree(self, found: Rows, how: str) -> None:
        lost, more = self.ledger - found, found - self.ledger
        assert not lost, f"{how}: {lost.total()} rows lost or changed. {self}"
        assert not more, f"{how}: {more.total()} rows doubled or changed. {self}"

    def __repr__(self) -> str:
        return f"{self.path}: {'; '.join(self.told)}"


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])])
def test_random_schedules_of_faults(
    spark: SparkSession, proxied: Proxy, puts: Puts, tmp_path: Path, count: int
) -> None:
    seeds = [int.from_bytes(os.urandom(4)) for _ in range(count)]
    whole: set[str] = set()

    for seed in seeds:
        schedule = Schedule(spark, proxied, tmp_path, seed)
        schedule.run()
        whole.add(schedule.path)
        assert leftover_files(proxied.url, tmp_path / "data") == set(), schedule

    assert set(server_paths(proxied.url)) == whole
    assert server_paths(proxied.url, b"write/") == []
    assert any(rows for _, rows in puts.broken), "no fault fell while rows were on the wire"
