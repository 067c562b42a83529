"""What the faults fall on: a server in a process of its own, a proxy before it, two producers, and a Spark query."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

import penstock
from penstock.errors import PenstockError
from tests.chaos.driver import TOPIC
from tests.chaos.ledger import SCHEMA, Landed, Ledger, Row, Sample, batch, rows
from tests.chaos.server import Server
from tests.chaos.spark import Driver
from tests.flight_server.test_lifecycle import named_parts
from tests.kit.cut_wire import Wire
from tests.kit.plain import at, call, create_topic, info, names, new_attempt, put
from tests.kit.wait import eventually, files

SHARDS = 4
KEPT = 30 * 24 * 3600
"""Seconds for which topics keep their rows: the clock jumps, and what is to be counted at the end must be there."""
Found = TypeVar("Found")
FAILED = (flight.FlightError, pa.ArrowException, PenstockError, AssertionError)


class Producer(threading.Thread):
    """Publishes its share of the rows, batch by batch, each until it is answered for, or given up now and then.

    One speaks plain Flight, the other one is penstock's client, which tries again by itself.
    """

    def __init__(self, number: int, world: World) -> None:
        super().__init__(name=f"producer-{number}", daemon=True)
        self.number, self.world = number, world
        self.again = threading.Event()
        self.failed: BaseException | None = None
        self._dice = random.Random(f"{world.seed} {number}")

    def run(self) -> None:
        try:
            share = self.world.rows // 2
            done = 0
            while done < share:
                while self.world.ledger.asked > self.world.allowed:
                    if self.world.ended.wait(0.02):
                        return
                some = rows(self.world.seed, self.number, self.number * share + done, self._dice.randint(200, 400))
                self._publish(f"p{self.number}-{done}", some[: share - done])
                done += len(some)
        except BaseException as failed:  # told by the main thread
            self.failed = failed

    def _publish(self, run: str, some: list[Row]) -> None:
        sent, data = self.world.ledger.send(run, some), batch(some)
        is_given_up, give_up = self._dice.random() < 0.3, time.monotonic() + 120
        while sent.outcome == "unknown":
            try:
                self._put(run, data)
                self.world.ledger.answer(sent)
            except FAILED:
                if is_given_up:
                    return
                if time.monotonic() > give_up or self.world.ended.wait(0.1):
                    raise
                self.world.ledger.repeat()
        if self.again.is_set():
            self.again.clear()
            with contextlib.suppress(*FAILED):
                self._put(run, data)

    def _put(self, run: str, data: pa.RecordBatch) -> None:
        if self.number == 0:
            with flight.connect(self.world.wire.url) as bare:
                options = flight.FlightCallOptions(timeout=15)
                put(bare, at(TOPIC, attempt=new_attempt(), run=run), [data], options=options)
        else:
            with penstock.connect(self.world.wire.url, retry_for=3, timeout=15) as client:
                client.put(TOPIC, data, run=run)


class Watch(threading.Thread):
    """Looks at the server, past the proxy, as often as it answers."""

    def __init__(self, world: World) -> None:
        super().__init__(name="watch", daemon=True)
        self.world = world
        self.samples: list[Sample] = []

    @property
    def landed(self) -> int:
        return self.samples[-1].landed if self.samples else 0

    @property
    def committed(self) -> int:
        """Rows, by the consumer that is furthest."""
        return max((sum(each.values()) for each in self.samples[-1].positions.values()), default=0)

    def run(self) -> None:
        while not self.world.ended.wait(0.2):
            with contextlib.suppress(*FAILED, OSError):  # it is dead or stopped just now
                self.samples.append(self.world.server.look(self.world.sink, timeout=3))


@dataclass
class World:
    """All of it."""

    seed: int
    rows: int
    folder: Path
    wire: Wire
    sink: str
    python: Path
    master: str

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "ledger.jsonl")
        self.allowed = 0
        """How many rows may have been published by now."""
        self.ended = threading.Event()
        self.server = Server(self.folder, self.wire)
        self.driver = Driver(self.folder, self.python, self.wire.url, self.sink, self.master)
        self.producers = [Producer(number, self) for number in range(2)]
        self.watch = Watch(self)
        self.unplanned = 0
        """Drivers that died without being killed."""

    def start(self) -> None:
        if self.seed & 2:  # else tasks map parts, as they are on the server's host
            (self.server.hooks / "wired").write_text("yes")
        self.server.start()
        with flight.connect(self.server.url) as bare:
            create_topic(bare, TOPIC, SCHEMA, key="key", shards=SHARDS, keep_seconds=KEPT)
            if self.sink.startswith("topic/"):
                schema = pa.schema([*SCHEMA, ("shard", pa.int32()), ("at", pa.int64())])
                create_topic(bare, self.sink, schema, key="key", shards=2, keep_seconds=KEPT)
        self.driver.start()
        for thread in (self.watch, *self.producers):
            thread.start()

    def until(self, true: Callable[[], Found], what: str, within: float = 600) -> Found:
        """Wait until it is so, and what it is; what dies meanwhile unasked is started again, and counted."""
        give_up = time.monotonic() + within
        while not (found := true()):
            for producer in self.producers:
                if producer.failed:
                    raise AssertionError(f"{producer.name} failed: {producer.failed!r}") from producer.failed
            if self.driver.is_dead():
                self.unplanned += 1
                assert self.unplanned < 5, "the driver dies again and again"
                self.driver.start()
            assert not self.server.is_dead(), f"the server died by itself: {self.server.process.log()[-3000:]}"
            assert time.monotonic() < give_up, f"not within {within:g} s: {what}. {self.driver.ends()[-1:]}"
            time.sleep(0.02)
        return found

    def drain(self) -> None:
        """All is published, and what is in the topic has landed, or nothing lands any more."""
        self.allowed = self.rows
        self.until(lambda: not any(each.is_alive() for each in self.producers), "the producers are done")
        moved = (-1, time.monotonic())

        def done() -> bool:
            nonlocal moved
            last = self.watch.samples[-1]
            if last.landed != moved[0]:
                moved = (last.landed, time.monotonic())
            positions = [sum(each.values()) for each in last.positions.values()]
            return self.published() in positions and last.landed >= self.published()

        with contextlib.suppress(AssertionError):  # then the checker says what is missing
            self.until(lambda: done() or time.monotonic() - moved[1] > 180, "all has landed")
        self.ended.set()
        self.watch.join(30)
        self.driver.stop()

    def published(self) -> int:
        """Rows in the topic."""
        with flight.connect(self.server.url) as bare:
            shards = call(bare, "describe", path=TOPIC)["shards"]
        return sum(each["next"] for each in shards)

    def swept(self) -> list[str]:
        """End what killed drivers left open; the files that stay behind and belong to nothing."""
        with flight.connect(self.server.url) as bare:
            for write in names(bare, b"write/"):
                call(bare, "delete", path=write)
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self._litter(), within=30)
        return self._litter()

    def _litter(self) -> list[str]:
        data = self.server.data
        parts = files(data / "parts") ^ named_parts(data)
        return sorted(parts | files(data / "tmp") | files(data / "quarantine"))

    def read(self, path: str) -> list[Landed]:
        """All rows, by plain pyarrow: a topic's in their order. Places are the first topic's, also of what landed."""
        own = ["_shard", "_offset"] if path.startswith("topic/") else []
        columns = [*own, *(["shard", "at"] if path == self.sink else []), *SCHEMA.names]
        with flight.connect(self.server.url) as bare:
            flight_info = info(bare, path, columns=columns)
            tables = [flight_info.schema.empty_table()]
            for endpoint in flight_info.endpoints:
                with contextlib.suppress(flight.FlightServerError):  # it is gone, and the checker says what is missing
                    tables.append(bare.do_get(endpoint.ticket).read_all())
        table = pa.concat_tables(tables)
        table = table.sort_by([(name, "ascending") for name in own]) if own else table
        found = zip(*(table[name].to_pylist() for name in table.column_names[-len(SCHEMA) - 2 :]), strict=True)
        return [Landed(shard, at, row[0], row[1], Row(*row).crc) for shard, at, *row in found]

    def close(self) -> None:
        self.ended.set()
        with ExitStack() as stack:
            stack.callback(self.ledger.close)
            stack.callback(self.server.close)
            stack.callback(self.driver.close)
            for producer in self.producers:
                if producer.is_alive():
                    producer.join(60)
