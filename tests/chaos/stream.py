"""A journal that Spark streams into a sink: what all such workloads have, their laws, and the faults of Spark."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from tests.chaos.oracle import Law, Outcome, SentRows, Usage
from tests.chaos.rig import FAILED, Rig
from tests.chaos.schedule import Plan
from tests.chaos.spark_processes import Driver
from tests.kit.processes import kill
from tests.kit.wire import call, info

UNCALLED = re.compile(r"penstock\.errors\.(Lost|Fenced|NotFound|SchemaMismatch|Denied|Expired|InvalidRequest)\b")
"""Errors that no fault may bring a query, but for those that the workload explains."""

BRIEFLY = flight.FlightCallOptions(timeout=3)


class Landed(NamedTuple):
    """A row that came out, and its position in the journal."""

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
    """Its places are `journal` and `sink`; the sink's rows are in the order in which it gives them back."""

    places: Mapping[str, list[Landed]]
    before: Mapping[str, list[Landed]]
    ends: Mapping[int, int]
    """shard: the next offset of the journal"""
    samples: list[Sample] = field(default_factory=list)
    is_ordered: bool = False
    """Whether the sink keeps a key's order."""

    def first(self, shard: int) -> int:
        """Return the offset of the first row that retention has left in the journal."""
        return min((row.offset for row in self.places["journal"] if row.shard == shard), default=self.ends[shard])

    def removed(self) -> set[int]:
        """Return the rows that retention may have removed: they have landed."""
        firsts = {shard: self.first(shard) for shard in self.ends}
        return {row.seq for row in self.places["sink"] if row.offset < firsts.get(row.shard, 0)}


# --- laws ---------------------------------------------------------------------------------------


def misplaced(sent: SentRows, outcome: StreamOutcome) -> Iterator[str]:
    """L5: offsets are dense, and name the same row for ever: after a restart, and when Spark read it."""
    journal, sink = outcome.places["journal"], outcome.places["sink"]
    firsts = {shard: outcome.first(shard) for shard in outcome.ends}
    for shard, first in firsts.items():
        left = sorted(row.offset for row in journal if row.shard == shard)
        if left != list(range(first, outcome.ends[shard])):
            yield f"shard {shard}: {len(left)} rows, and not the offsets {first} to {outcome.ends[shard]}"
        if gone := set(range(first)) - {row.offset for row in sink if row.shard == shard}:
            yield f"shard {shard}: {len(gone)} rows were removed before they had landed"
    before = [row for row in outcome.before["journal"] if row.offset >= firsts.get(row.shard, 0)]
    for place, old, new in (("journal", before, journal), ("sink", outcome.before["sink"], sink)):
        if old != new:
            yield f"the {place} reads otherwise after a restart"
    by_offset = {(row.shard, row.offset): row for row in journal}
    for row in sink:
        is_left = row.offset >= firsts.get(row.shard, 0)
        if is_left and by_offset.get((row.shard, row.offset)) != row:
            yield f"shard {row.shard} offset {row.offset} was row {row.seq} when Spark read it"


def retained(sent: SentRows, outcome: StreamOutcome) -> Iterator[str]:
    """L10: retention has removed rows; else the run says nothing of it."""
    if not any(outcome.first(shard) for shard in outcome.ends):
        yield "the journal has all its rows"


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
    places = {"journal": sorted(outcome.places["journal"])}  # by shard and offset
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

    def __init__(self, rig: Rig, path: str, count_landed: Callable[[flight.FlightClient], int]) -> None:
        super().__init__(name="watch", daemon=True)
        self.rig, self.path, self.count_landed = rig, path, count_landed
        self.apart: set[str] = set()
        """Consumers that aren't the sink's."""
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
        with flight.connect(self.rig.server.url) as bare:
            consumers = call(bare, "describe", BRIEFLY, path=self.path)["consumers"]
            landed = self.count_landed(bare)
        positions = {
            each["consumer"]: {int(s): offset for s, offset in each["position"].items()}
            for each in consumers
            if each["consumer"] not in self.apart
        }
        self.usage.append(self.rig.server.usage())
        self.samples.append(Sample(positions, landed))


class SparkStream:
    """A workload: Spark streams the journal at `path` into a sink, whose rows have their positions in the journal."""

    name: str
    plan: Plan
    laws: Mapping[str, Law]
    faults: ClassVar[Mapping[str, Callable[[Any, random.Random], None]]]
    """Its own faults, by kind."""

    def __init__(self, rig: Rig, driver: Driver, path: str, sink: str) -> None:
        self.rig, self.driver, self.path, self.sink = rig, driver, path, sink
        self.watch = Watch(rig, path, self.count_landed)
        self.unplanned = 0
        """Drivers that died without being killed."""

    def decode(self, table: pa.Table) -> list[Landed]:
        """Return the rows of a table, whose columns `shard` and `offset` are their positions in the journal."""
        raise NotImplementedError

    columns: ClassVar[list[str]]
    """The columns that it decodes."""

    def count_landed(self, bare: flight.FlightClient) -> int:
        """Return how many rows are in the sink by now."""
        with contextlib.suppress(flight.FlightServerError, KeyError):  # there is no dataset yet
            return int(call(bare, "describe", BRIEFLY, path=self.sink)["rows"])
        return 0

    def progress(self, counted: Literal["published", "landed"]) -> int:
        return self.rig.sent.count if counted == "published" else self.watch.landed

    def check(self) -> None:
        if self.driver.is_dead():
            self.unplanned += 1
            assert self.unplanned < 5, "the driver dies again and again"
            self.driver.start()

    def strike(self, kind: str, dice: random.Random) -> bool:
        if kind in self.faults:
            self.faults[kind](self, dice)
        return kind in self.faults

    def drain(self) -> None:
        moved = (-1, time.monotonic())

        def is_over() -> bool:
            nonlocal moved
            if self.watch.landed != moved[0]:
                moved = (self.watch.landed, time.monotonic())
            return self.is_done() or time.monotonic() - moved[1] > 180

        with contextlib.suppress(AssertionError):  # then the checker says what is missing
            self.rig.until(is_over, "all rows have landed")
        self.rig.ended.set()
        self.watch.join(30)
        self.driver.stop()

    def is_done(self) -> bool:
        """Whether all rows of the journal have landed, and a consumer has committed them."""
        rows = sum(self.next_offsets().values())
        return rows in self.watch.committed() and self.watch.landed >= rows

    def next_offsets(self) -> dict[int, int]:
        """Return the next offset of each shard of the journal."""
        with flight.connect(self.rig.server.url) as bare:
            return {shard["shard"]: shard["next"] for shard in call(bare, "describe", path=self.path)["shards"]}

    def outcome(self) -> StreamOutcome:
        before, litter, idle = self.contents(), self.rig.sweep(), self.rig.server.usage()
        assert self.rig.server.process.terminate() == 0
        self.rig.server.start()
        fresh, is_ordered = self.rig.server.usage(), self.sink.startswith("topic/")
        places, watch = self.contents(), self.watch
        ends = self.next_offsets()
        return StreamOutcome(places, before, watch.usage, idle, fresh, litter, ends, watch.samples, is_ordered)

    def contents(self) -> dict[str, list[Landed]]:
        return {
            "journal": self.decode(self.read(self.path, {"_shard": "shard", "_offset": "offset"})),
            "sink": self.decode(self.read(self.sink, {"shard": "shard", "at": "offset"})),
        }

    def read(self, path: str, positions: Mapping[str, str], names: Sequence[str] = ()) -> pa.Table:
        """Read all rows by plain pyarrow, a journal's in their order. `positions`: its two columns for decode's."""
        names = names or self.columns
        own = [] if path.startswith("store/") else ["_shard", "_offset"]
        columns = [*dict.fromkeys([*own, *positions]), *names]
        with flight.connect(self.rig.server.url) as bare:
            flight_info = info(bare, path, columns=columns)
            tables = [flight_info.schema.empty_table()]
            for endpoint in flight_info.endpoints:
                with contextlib.suppress(flight.FlightServerError):  # it is gone, and the checker says what is missing
                    tables.append(bare.do_get(endpoint.ticket).read_all())
        table = pa.concat_tables(tables)
        table = table.sort_by([(name, "ascending") for name in own]) if own else table
        return table.select([*positions, *names]).rename_columns([*positions.values(), *names])

    def ends(self) -> list[str]:
        return [*self.driver.ends(), *["the driver died"] * self.unplanned]

    def unexplained(self) -> list[str]:
        explained = self.explained()
        return [end for end in self.ends() if UNCALLED.search(end) and not any(text in end for text in explained)]

    def notes(self) -> dict[str, int]:
        return {}

    def explained(self) -> set[str]:
        """Return texts of errors that its faults may bring a query."""
        return self.rig.damaged

    def close(self) -> None:
        self.rig.ended.set()
        self.driver.close()


# --- faults of Spark ----------------------------------------------------------------------------


def worker_killed(stream: SparkStream, dice: random.Random) -> None:
    kill(dice.choice(stream.rig.until(stream.driver.workers, "Spark has a Python worker")))


def worker_stopped(stream: SparkStream, dice: random.Random) -> None:
    pid = stream.rig.until(stream.driver.workers, "Spark has a Python worker")[0]
    kill(pid, signal.SIGSTOP)
    time.sleep(dice.uniform(1, 3))
    kill(pid, signal.SIGCONT)


def source_killed(stream: SparkStream, dice: random.Random) -> None:
    """The process in which the source plans: the query fails, and is started again by its driver."""
    ends = len(stream.driver.ends())
    for pid in stream.rig.until(stream.driver.sources, "Spark has a source"):
        kill(pid)
    stream.rig.until(lambda: len(stream.driver.ends()) > ends, "the query has failed")


def driver_killed(stream: SparkStream, dice: random.Random) -> None:
    stream.driver.kill()
    stream.driver.start()
