"""A workload: two producers publish to a topic, and Spark streams it into a sink, a dataset or a topic."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.flight as flight

import penstock
from tests.chaos.driver import ROWS
from tests.chaos.faults import live_part_damaged, orphans_damaged, server_killed_at
from tests.chaos.oracle import SCHEMA, Law, Row
from tests.chaos.rig import Rig
from tests.chaos.schedule import Plan
from tests.chaos.spark_processes import Driver
from tests.chaos.stream import (
    Landed,
    SparkStream,
    disordered,
    driver_killed,
    misplaced,
    retained,
    source_killed,
    too_early,
    went_back,
    worker_killed,
    worker_stopped,
)  # fmt: skip
from tests.kit.processes import kill
from tests.kit.wire import at, create_topic, new_attempt, put

TOPIC = "topic/in"
CLUSTER = "local-cluster[2,1,1024]"
SHARDS = 4
KEPT = 42
"""Bytes that the topic keeps, for each row of the run, of rows that the query has committed: of 90 that are published.

All that is published while a driver starts, and the batch before: `commit_unlogged` repeats one that is committed.
"""
MONTH = 30 * 24 * 3600
"""Seconds for which a topic as the sink keeps its rows: the clock jumps, and they must be there to be counted."""
STEPS = (
    "part.synced", "part.named", "append.durable", "append.committed", "put.durable", "put.recorded",
    "finish.checked", "finish.shown",
)  # fmt: skip
TOO_OLD = "the checkpoint is older than what this query has committed"


# --- the workload -------------------------------------------------------------------------------


class TopicStream(SparkStream):
    """The workload. Its sink is a dataset for an even seed, else a topic."""

    laws: Mapping[str, Law] = {
        "misplaced": misplaced, "went back": went_back, "too early": too_early, "disordered": disordered,
        "retained": retained,
    }  # fmt: skip
    columns: ClassVar = SCHEMA.names
    kept = KEPT
    plan = Plan(
        least={
            **dict.fromkeys((f"server killed at {step}" for step in STEPS), 1),
            "server killed": 3, "server stopped": 2, "server's clock jumps": 2, "run sent again": 2,
            "live part damaged": 3, "orphans damaged": 2, "disk full": 2, "fsync fails": 2, "fsync slow": 2,
            "connections cut": 3, "connections reset": 3, "half-open": 2, "latency": 2, "throttled": 2,
            "worker killed": 3, "worker stopped": 2, "executor killed": 1, "source killed": 1, "driver killed": 1,
            "commit unlogged": 1, "older checkpoint": 1,
        },
        more=("server killed", "server stopped", "server's clock jumps", "run sent again", "live part damaged",
              "connections cut", "connections reset", "latency", "worker killed", "worker stopped"),  # no new driver
        faults=55,
        early="older checkpoint",
    )  # fmt: skip

    def __init__(self, rig: Rig, python: Path, master: str = CLUSTER) -> None:
        sink = "topic/landed" if rig.seed % 2 else "store/landed"
        driver = Driver(rig.folder, python, rig.proxy.url, TOPIC, ", ".join(SCHEMA.names), sink, master)
        super().__init__(rig, driver, TOPIC, sink)
        self.name = f"a topic into {sink}"

    def start(self) -> None:
        with flight.connect(self.rig.server.url) as bare:
            create_topic(bare, TOPIC, SCHEMA, key="key", shards=SHARDS, keep_bytes=self.kept * self.rig.rows)
            if self.sink.startswith("topic/"):
                schema = pa.schema([*SCHEMA, ("shard", pa.int32()), ("at", pa.int64())])
                create_topic(bare, self.sink, schema, key="key", shards=2, keep_seconds=MONTH)
        self.driver.start()
        self.watch.start()
        self.rig.produce(self._put_by_plain_flight, self._put_by_client)

    def _put_by_plain_flight(self, run: str, rows: pa.RecordBatch) -> None:
        with flight.connect(self.rig.proxy.url) as bare:
            options = flight.FlightCallOptions(timeout=15)
            put(bare, at(TOPIC, attempt=new_attempt(), run=run), [rows], options=options)

    def _put_by_client(self, run: str, rows: pa.RecordBatch) -> None:
        with penstock.connect(self.rig.proxy.url, retry_for=3, timeout=15) as client:
            client.put(TOPIC, rows, run=run)

    def decode(self, table: pa.Table) -> list[Landed]:
        values = zip(*(column.to_pylist() for column in table.columns), strict=True)
        return [Landed(shard, offset, row[0], row[1], Row(*row).crc) for shard, offset, *row in values]

    def explained(self) -> set[str]:
        return {TOO_OLD, *self.rig.damaged}


# --- faults -------------------------------------------------------------------------------------


def killed_at(step: str, stream: TopicStream, dice: random.Random) -> None:
    """At append.committed rows are durable and visible, and their producer isn't told: it sends them again."""
    server_killed_at(stream.rig, step)


def damaged_orphans(stream: TopicStream, dice: random.Random) -> None:
    orphans_damaged(stream.rig, dice, "append.durable")


def damaged_live_part(stream: TopicStream, dice: random.Random) -> None:
    live_part_damaged(stream.rig, dice, TOPIC)


def executor_killed(stream: TopicStream, dice: random.Random) -> None:
    kill(dice.choice(stream.rig.until(stream.driver.executors, "Spark has an executor")))


def commit_unlogged(stream: TopicStream, dice: random.Random) -> None:
    """The driver dies between the sink's commit and Spark's: of a batch behind which no other one is planned."""
    commits, offsets = stream.driver.checkpoint / "commits", stream.driver.checkpoint / "offsets"
    while True:
        stream.rig.until(lambda: _last(commits) == _last(offsets) > 0, "Spark has done all that it planned")
        stream.driver.kill()
        last = _last(commits)
        if last == _last(offsets):
            break
        stream.driver.start()
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)
    stream.driver.start()


def _last(log: Path) -> int:
    """Return the newest batch of a checkpoint's log, or -1."""
    return max((int(file.name) for file in log.glob("[0-9]*") if file.name.isdecimal()), default=-1)


def older_checkpoint(stream: TopicStream, dice: random.Random) -> None:
    """Put back the checkpoint of some batches ago, which the query refuses; then the newest one."""
    rig, driver = stream.rig, stream.driver
    older, newest = rig.folder / "older", rig.folder / "newest"
    rig.until(lambda: _copied(driver.checkpoint, older), "a copy of the checkpoint")
    copied = stream.watch.landed
    rig.allow(4 * ROWS)
    rig.until(lambda: max(stream.watch.committed(), default=0) > copied + 2 * ROWS, "some more batches are done")
    driver.kill()
    driver.checkpoint.rename(newest)
    older.rename(driver.checkpoint)
    ends = len(driver.ends())
    driver.start()
    rig.until(lambda: any(TOO_OLD in end for end in driver.ends()[ends:]), "the query says so")
    driver.kill()
    shutil.rmtree(driver.checkpoint)
    newest.rename(driver.checkpoint)
    driver.start()


def _copied(checkpoint: Path, copy: Path) -> bool:
    """Copy a checkpoint; whether nothing was renamed meanwhile."""
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns("*.tmp"))
    except (OSError, shutil.Error):
        return False
    return True


FAULTS: dict[str, Callable[[Any, random.Random], None]] = {
    **{f"server killed at {step}": partial(killed_at, step) for step in STEPS},
    "live part damaged": damaged_live_part,
    "orphans damaged": damaged_orphans,
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "executor killed": executor_killed,
    "source killed": source_killed,
    "driver killed": driver_killed,
    "commit unlogged": commit_unlogged,
    "older checkpoint": older_checkpoint,
}
"""Its own faults, by kind."""
TopicStream.faults = FAULTS
