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
from penstock.flight_server.server import PenstockServer
from tests.cut_wire import Wire, wire
from tests.meddling import Marks, Meddled, Once, die, fail
from tests.spark_rows import Rows, collected, expected, held, names, source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

SCHEDULES = 20
GATHERED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "collect": lambda receipts: receipts,
    "coalesce": lambda receipts: receipts.coalesce(2),
    "sorted": lambda receipts: receipts.orderBy("attempt"),
    "shuffled": lambda receipts: receipts.repartition(3),
}


@pytest.fixture
def cut(make_server: Callable[..., PenstockServer]) -> Iterator[Wire]:
    with wire() as found:
        found.target = make_server(advertise=found.url).port
        yield found


class Schedule:
    """A dataset that some appends and overwrites make, each with faults of its own."""

    def __init__(self, spark: SparkSession, cut: Wire, folder: Path, seed: int) -> None:
        self.spark, self.cut, self.folder = spark, cut, folder
        self.dice = random.Random(seed)
        self.path = f"store/{seed}"
        self.ledger: Rows = Counter()
        self.told: list[str] = []

    def run(self) -> None:
        for step in range(self.dice.randint(1, 2)):
            self._write(step)
        frame = penstock.read(self.spark, self.path, url=self.cut.url)
        with self._cut():
            self._agree(collected(frame), "by Spark")
        self._agree(held(self.path, self.cut.url), "by pyarrow")

    def _write(self, step: int) -> None:
        rows, partitions = self.dice.randint(0, 600), self.dice.randint(1, 5)
        mode: Any = self.dice.choice(["append", "overwrite"])
        plan = {
            (self.dice.choice(["begun", "half", "put"]), self.dice.randrange(partitions)): self.dice.choice([fail, die])
            for _ in range(self.dice.choice([0, 1, 1, 2]))
        }
        gathered = self.dice.choice(list(GATHERED))
        self.told.append(
            f"{mode} {rows} rows in {partitions}, {gathered}, {[(*k, v.__name__) for k, v in plan.items()]}"
        )
        frame = source(self.spark, rows, partitions)
        marks = self.folder / f"{self.path.replace('/', '-')}-{step}"
        marks.mkdir()
        put = penstock.do_put(self.path, mode=mode, url=self.cut.url, schema=frame.schema)
        task = Meddled(put, Once(Marks(marks), plan))
        with self._cut():
            written = put.finish(GATHERED[gathered](frame.mapInArrow(task, put.schema)))
        self.ledger = expected(rows) + (Counter() if mode == "overwrite" else self.ledger)
        assert written.rows == rows, self

    @contextmanager
    def _cut(self) -> Iterator[None]:
        after = self.dice.choice([None, None, self.dice.randint(1, 60_000)])
        self.told.append(f"cut after {after} bytes")
        self.cut.cut_after(after)
        yield
        self.cut.cut_after(None)

    def _agree(self, found: Rows, how: str) -> None:
        lost, more = self.ledger - found, found - self.ledger
        assert not lost, f"{how}: {lost.total()} rows lost or changed. {self}"
        assert not more, f"{how}: {more.total()} rows doubled or changed. {self}"

    def __str__(self) -> str:
        return f"{self.path}: {'; '.join(self.told)}"


@pytest.mark.usefixtures("elsewhere")
def test_random_schedules_of_faults(spark: SparkSession, cut: Wire, tmp_path: Path) -> None:
    seeds = [int.from_bytes(os.urandom(4)) for _ in range(SCHEDULES)]
    whole: set[str] = set()

    for seed in seeds:
        schedule = Schedule(spark, cut, tmp_path, seed)
        schedule.run()
        whole.add(schedule.path)

    assert set(names(cut.url)) == whole
    assert names(cut.url, b"write/") == []
