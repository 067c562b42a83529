"""A workload: two producers publish to a topic, and Spark streams it into a sink, a dataset or a topic."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

import penstock
from tests.chaos.driver import ROWS, TOPIC
from tests.chaos.faults import live_part_damaged, orphans_damaged, server_killed_at
from tests.chaos.oracle import SCHEMA, Law, Outcome, Row, SentRows, Usage
from tests.chaos.rig import FAILED, Rig
from tests.chaos.schedule import Plan
from tests.chaos.spark_processes import Driver
from tests.kit.processes import kill
from tests.kit.wire import at, call, create_topic, info, new_attempt, put

CLUSTER = "local-cluster[2,1,1024]"
SHARDS = 4
KEPT = 8 << 20
"""Bytes that the topic keeps of rows that the query has committed: of 18 MB that are published.

All that is published while a driver starts, and the batch before: `commit_unlogged` repeats one that is committed.
"""
MONTH = 30 * 24 * 3600
"""Seconds for which a topic as the sink keeps its rows: the clock jumps, and they must be there to be counted."""
STEPS = (
    "part.synced", "part.named", "append.durable", "append.committed", "put.durable", "put.recorded",
    "finish.checked", "finish.shown",
)  # fmt: skip
TOO_OLD = "the checkpoint is older than what this query has committed"
UNCALLED = re.compile(r"penstock\.errors\.(Lost|Fenced|NotFound|SchemaMismatch|Denied|Expired|InvalidRequest)\b")
"""Errors that no fault may bring a query; but for TOO_OLD."""


class Landed(NamedTuple):
    """A row that came out, and its position in the topic."""

    shard: int
    offset: int
    seq: int
    key: int
    crc: int


class Sample(NamedTuple):
    """One moment of a run: positions were read first, then the rows that had landed."""

    positions: Mapping[str, Mapping[int, int]]
    """consumer: {shard: offset}"""
    landed: int


@dataclass
class StreamOutcome(Outcome):
    """Its places are `topic` and `sink`; the sink's rows are in the order in which it gives them back."""

    places: Mapping[str, list[Landed]]
    before: Mapping[str, list[Landed]]
    ends: Mapping[int, int]
    """shard: the next offset of the topic"""
    samples: list[Sample] = field(default_factory=list)
    is_ordered: bool = False
    """Whether the sink keeps a key's order."""

    def first(self, shard: int) -> int:
        """Return the offset of the first row that retention has left in the topic."""
        return min((row.offset for row in self.places["topic"] if row.shard == shard), default=self.ends[shard])

    def removed(self) -> set[int]:
        """Return the rows that retention may have removed: they have landed."""
        firsts = {shard: self.first(shard) for shard in self.ends}
        return {row.seq for row in self.places["sink"] if row.offset < firsts.get(row.shard, 0)}


# --- laws ---------------------------------------------------------------------------------------


def misplaced(sent: SentRows, outcome: StreamOutcome) -> Iterator[str]:
    """L5: offsets are dense, and name the same row for ever: after a restart, and when Spark read it."""
    topic, sink = outcome.places["topic"], outcome.places["sink"]
    firsts = {shard: outcome.first(shard) for shard in outcome.ends}
    for shard, first in firsts.items():
        left = sorted(row.offset for row in topic if row.shard == shard)
        if left != list(range(first, outcome.ends[shard])):
            yield f"shard {shard}: {len(left)} rows, and not the offsets {first} to {outcome.ends[shard]}"
        if gone := set(range(first)) - {row.offset for row in sink if row.shard == shard}:
            yield f"shard {shard}: {len(gone)} rows were removed before they had landed"
    before = [row for row in outcome.before["topic"] if row.offset >= firsts.get(row.shard, 0)]
    for place, old, new in (("topic", before, topic), ("sink", outcome.before["sink"], sink)):
        if old != new:
            yield f"the {place} reads otherwise after a restart"
    by_offset = {(row.shard, row.offset): row for row in topic}
    for row in sink:
        is_left = row.offset >= firsts.get(row.shard, 0)
        if is_left and by_offset.get((row.shard, row.offset)) != row:
            yield f"shard {row.shard} offset {row.offset} was row {row.seq} when Spark read it"


def retained(sent: SentRows, outcome: StreamOutcome) -> Iterator[str]:
    """L10: retention has removed rows; else the run says nothing of it."""
    if not any(outcome.first(shard) for shard in outcome.ends):
        yield "the topic has all its rows"


def went_back(sent: SentRows, outcome: StreamOutcome) -> Iterator[str]:
    """L6: a committed position never goes back."""
    last: dict[tuple[str, int], int] = {}
    for sample in outcome.samples:
        for consumer, position in sample.positions.items():
            for shard, offset in position.items():
                if offset < last.get((consumer, shard), 0):
                    yield f"{consumer} went back in shard {shard}: {last[consumer, shard]} to {offset}"
                last[consumer, shard] = offset


def too_early(sent: SentRows, outcome: StreamOutcome) -> Iterator[str]:
    """L7: nothing is committed before it has landed."""
    for sample in outcome.samples:
        for consumer, position in sample.positions.items():
            if sum(position.values()) > sample.landed:
                yield f"{consumer} had committed {sum(position.values())} rows when {sample.landed} had landed"


def disordered(sent: SentRows, outcome: StreamOutcome) -> Iterator[str]:
    """L8: a key's rows are in one shard, in the order of their puts; but those that nobody answered for."""
    unknown = sent.unknown()
    places = {"topic": sorted(outcome.places["topic"])}  # by shard and offset
    if outcome.is_ordered:
        places["sink"] = outcome.places["sink"]
    for place, rows in places.items():
        last: dict[int, Landed] = {}
        for row in rows:
            if row.seq in unknown:
                continue
            before = last.setdefault(row.key, row)
            if before.shard != row.shard:
                yield f"key {row.key} is in shards {before.shard} and {row.shard} of the {place}"
            if before.seq > row.seq:
                yield f"row {row.seq} of key {row.key} comes behind row {before.seq} in the {place}"
            last[row.key] = row


# --- the workload -------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Takes samples of the server, past the proxy, as often as it answers."""

    def __init__(self, rig: Rig, sink: str) -> None:
        super().__init__(name="watch", daemon=True)
        self.rig, self.sink = rig, sink
        self.samples: list[Sample] = []
        self.usage: list[Usage] = []

    @property
    def landed(self) -> int:
        return self.samples[-1].landed if self.samples else 0

    def committed(self) -> list[int]:
        """Return the rows that each consumer has committed."""
        return [sum(position.values()) for position in self.samples[-1].positions.values()] if self.samples else []

    def run(self) -> None:
        while not self.rig.ended.wait(0.2):
            with contextlib.suppress(*FAILED, OSError):  # it is dead or stopped just now
                self._look()

    def _look(self) -> None:
        options = flight.FlightCallOptions(timeout=3)
        with flight.connect(self.rig.server.url) as bare:
            consumers = call(bare, "describe", options, path=TOPIC)["consumers"]
            landed = 0
            with contextlib.suppress(flight.FlightServerError, KeyError):  # there is no dataset yet
                landed = call(bare, "describe", options, path=self.sink)["rows"]
        positions = {each["consumer"]: {int(s): offset for s, offset in each["position"].items()} for each in consumers}
        self.usage.append(self.rig.server.usage())
        self.samples.append(Sample(positions, landed))


class TopicStream:
    """The workload. Its sink is a dataset for an even seed, else a topic."""

    laws: Mapping[str, Law] = {
        "misplaced": misplaced, "went back": went_back, "too early": too_early, "disordered": disordered,
        "retained": retained,
    }  # fmt: skip
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
        early="older checkpoint",
    )  # fmt: skip

    def __init__(self, rig: Rig, python: Path, master: str = CLUSTER) -> None:
        self.rig = rig
        self.sink = "topic/landed" if rig.seed % 2 else "store/landed"
        self.name = f"a topic into {self.sink}"
        self.driver = Driver(rig.folder, python, rig.proxy.url, self.sink, master)
        self.watch = Watch(rig, self.sink)
        self.unplanned = 0
        """Drivers that died without being killed."""

    def start(self) -> None:
        with flight.connect(self.rig.server.url) as bare:
            create_topic(bare, TOPIC, SCHEMA, key="key", shards=SHARDS, keep_bytes=KEPT)
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

    def progress(self, counted: Literal["published", "landed"]) -> int:
        return self.rig.sent.count if counted == "published" else self.watch.landed

    def check(self) -> None:
        if self.driver.is_dead():
            self.unplanned += 1
            assert self.unplanned < 5, "the driver dies again and again"
            self.driver.start()

    def strike(self, kind: str, dice: random.Random) -> bool:
        if kind in FAULTS:
            FAULTS[kind](self, dice)
        return kind in FAULTS

    def drain(self) -> None:
        moved = (-1, time.monotonic())

        def is_done() -> bool:
            nonlocal moved
            if self.watch.landed != moved[0]:
                moved = (self.watch.landed, time.monotonic())
            return self._published() in self.watch.committed() and self.watch.landed >= self._published()

        with contextlib.suppress(AssertionError):  # then the checker says what is missing
            self.rig.until(lambda: is_done() or time.monotonic() - moved[1] > 180, "all rows have landed")
        self.rig.ended.set()
        self.watch.join(30)
        self.driver.stop()

    def _published(self) -> int:
        """Count the rows of the topic."""
        with flight.connect(self.rig.server.url) as bare:
            return sum(self._ends(bare).values())

    @staticmethod
    def _ends(bare: flight.FlightClient) -> dict[int, int]:
        return {shard["shard"]: shard["next"] for shard in call(bare, "describe", path=TOPIC)["shards"]}

    def outcome(self) -> StreamOutcome:
        before, litter, idle = self._contents(), self.rig.sweep(), self.rig.server.usage()
        assert self.rig.server.process.terminate() == 0
        self.rig.server.start()
        fresh, is_ordered = self.rig.server.usage(), self.sink.startswith("topic/")
        places, watch = self._contents(), self.watch
        with flight.connect(self.rig.server.url) as bare:
            ends = self._ends(bare)
        return StreamOutcome(places, before, watch.usage, idle, fresh, litter, ends, watch.samples, is_ordered)

    def _contents(self) -> dict[str, list[Landed]]:
        return {"topic": self._read(TOPIC), "sink": self._read(self.sink)}

    def _read(self, path: str) -> list[Landed]:
        """Read all rows by plain pyarrow, a topic's in their order. The sink's, too, have their positions in TOPIC."""
        own = ["_shard", "_offset"] if path.startswith("topic/") else []
        columns = [*own, *(["shard", "at"] if path == self.sink else []), *SCHEMA.names]
        with flight.connect(self.rig.server.url) as bare:
            flight_info = info(bare, path, columns=columns)
            tables = [flight_info.schema.empty_table()]
            for endpoint in flight_info.endpoints:
                with contextlib.suppress(flight.FlightServerError):  # it is gone, and the checker says what is missing
                    tables.append(bare.do_get(endpoint.ticket).read_all())
        table = pa.concat_tables(tables)
        table = table.sort_by([(name, "ascending") for name in own]) if own else table
        values = zip(*(table[name].to_pylist() for name in table.column_names[-len(SCHEMA) - 2 :]), strict=True)
        return [Landed(shard, offset, row[0], row[1], Row(*row).crc) for shard, offset, *row in values]

    def ends(self) -> list[str]:
        return [*self.driver.ends(), *["the driver died"] * self.unplanned]

    def unexplained(self) -> list[str]:
        explained = (TOO_OLD, *self.rig.damaged)
        return [end for end in self.ends() if UNCALLED.search(end) and not any(text in end for text in explained)]

    def close(self) -> None:
        self.rig.ended.set()
        self.driver.close()


# --- faults -------------------------------------------------------------------------------------


def killed_at(step: str, stream: TopicStream, dice: random.Random) -> None:
    """At append.committed rows are durable and visible, and their producer isn't told: it sends them again."""
    server_killed_at(stream.rig, step)


def damaged_orphans(stream: TopicStream, dice: random.Random) -> None:
    orphans_damaged(stream.rig, dice, "append.durable")


def damaged_live_part(stream: TopicStream, dice: random.Random) -> None:
    live_part_damaged(stream.rig, dice, TOPIC)


def worker_killed(stream: TopicStream, dice: random.Random) -> None:
    kill(dice.choice(stream.rig.until(stream.driver.workers, "Spark has a Python worker")))


def worker_stopped(stream: TopicStream, dice: random.Random) -> None:
    pid = stream.rig.until(stream.driver.workers, "Spark has a Python worker")[0]
    kill(pid, signal.SIGSTOP)
    time.sleep(dice.uniform(1, 3))
    kill(pid, signal.SIGCONT)


def executor_killed(stream: TopicStream, dice: random.Random) -> None:
    kill(dice.choice(stream.rig.until(stream.driver.executors, "Spark has an executor")))


def source_killed(stream: TopicStream, dice: random.Random) -> None:
    """The process in which the source plans: the query fails, and is started again by its driver."""
    ends = len(stream.driver.ends())
    for pid in stream.rig.until(stream.driver.sources, "Spark has a source"):
        kill(pid)
    stream.rig.until(lambda: len(stream.driver.ends()) > ends, "the query has failed")


def driver_killed(stream: TopicStream, dice: random.Random) -> None:
    stream.driver.kill()
    stream.driver.start()


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


FAULTS: dict[str, Callable[[TopicStream, random.Random], None]] = {
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
