"""What every workload runs on: a server in a process of its own, a proxy before it, and two producers of rows."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import PenstockError
from tests.chaos.oracle import Law, Outcome, Row, SentRows, batch, rows
from tests.chaos.schedule import Plan
from tests.chaos.server import Server
from tests.kit.proxy import Proxy
from tests.kit.server import named_parts
from tests.kit.wait import eventually, files
from tests.kit.wire import call, list_paths

FAILED = (flight.FlightError, pa.ArrowException, PenstockError, AssertionError)
"""Errors of a call that a fault may cause."""
Value = TypeVar("Value")


class Unanswered(Exception):
    """A put has failed, and a repeat would add its rows once more: they are there or not."""


class Workload(Protocol):
    """What runs while faults fall, with the faults and laws of its own. It is made before the rig's server starts."""

    name: str
    plan: Plan
    """Of its own faults and the rig's."""
    laws: Mapping[str, Law]

    def start(self) -> None:
        """Start it, and the rig's producers."""

    def progress(self, counted: Literal["published", "landed"]) -> int:
        """Return how many rows it has published, or brought to their last place, by now."""

    def check(self) -> None:
        """Raise what has failed for good; start again what died by itself."""

    def strike(self, kind: str, dice: random.Random) -> bool:
        """Do a fault of its own; False if it has no such kind."""

    def drain(self) -> None:
        """Wait until all rows are at their last place, or none moves any more; then stop."""

    def outcome(self) -> Outcome:
        """Read all that came out, before and after a restart of the server."""

    def ends(self) -> list[str]:
        """Return how parts of it ended that nobody ended."""

    def unexplained(self) -> list[str]:
        """Return those of the ends that no fault explains."""

    def notes(self) -> dict[str, int]:
        """Return counts that say how hard the run was."""

    def close(self) -> None:
        """End all processes and threads of its own."""


class Rig:
    """Server, proxy, producers, and the rows that they sent."""

    workload: Workload

    def __init__(self, seed: int, rows: int, folder: Path, proxy: Proxy) -> None:
        self.seed, self.rows, self.folder, self.proxy = seed, rows, folder, proxy
        self.sent = SentRows(folder / "sent.jsonl")
        self.server = Server(folder, proxy)
        self.producers: list[Producer] = []
        self.ended = threading.Event()
        self.damaged: set[str] = set()
        """Parts that were damaged for a while: errors may name them."""
        self.allowed = 0
        """Rows that may have been published by now."""

    def produce(self, *puts: Callable[[str, pa.RecordBatch], None]) -> None:
        """Start a producer for each of these functions, which puts a batch as a run; they share the rows."""
        self.producers = [Producer(number, self, put, self.rows // len(puts)) for number, put in enumerate(puts)]
        for producer in self.producers:
            producer.start()

    def allow(self, more: int) -> None:
        """Let so many more rows be published than were by now."""
        self.allowed = max(self.allowed, self.sent.count + more)

    def until(self, condition: Callable[[], Value], what: str, within: float = 600) -> Value:
        """Wait until the condition is true, and return its value; meanwhile nothing may die that no fault kills."""
        give_up = time.monotonic() + within
        while not (value := condition()):
            for producer in self.producers:
                if producer.failed:
                    raise AssertionError(f"{producer.name} failed: {producer.failed!r}") from producer.failed
            self.workload.check()
            assert not self.server.is_dead(), f"the server died by itself: {self.server.process.log()[-3000:]}"
            assert time.monotonic() < give_up, f"not within {within:g} s: {what}. {self.workload.ends()[-1:]}"
            time.sleep(0.02)
        return value

    def sweep(self) -> list[str]:
        """End the writes that killed clients left open; return the files that stay and belong to nothing."""
        with flight.connect(self.server.url) as bare:
            for write in list_paths(bare, b"write/"):
                call(bare, "delete", path=write)
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self._litter(), within=30)
        return self._litter()

    def _litter(self) -> list[str]:
        data = self.server.data
        parts = files(data / "parts") ^ named_parts(data)
        return sorted(parts | files(data / "tmp") | files(data / "quarantine"))

    def close(self) -> None:
        self.ended.set()
        self.server.close()
        for producer in self.producers:
            if producer.is_alive():
                producer.join(60)
        self.sent.close()


class Producer(threading.Thread):
    """Publishes its share of the rows, batch by batch, each until it is answered for, or given up now and then."""

    def __init__(self, number: int, rig: Rig, put: Callable[[str, pa.RecordBatch], None], share: int) -> None:
        super().__init__(name=f"producer-{number}", daemon=True)
        self.number, self.rig, self.put, self.share = number, rig, put, share
        self.again = threading.Event()
        """Set to send the next run once more when it is answered for."""
        self.failed: BaseException | None = None
        self._dice = random.Random(f"{rig.seed} {number}")

    def run(self) -> None:
        try:
            done = 0
            while done < self.share:
                while self.rig.sent.count > self.rig.allowed:
                    if self.rig.ended.wait(0.02):
                        return
                first, count = self.number * self.share + done, self._dice.randint(200, 400)
                some = rows(self.rig.seed, self.number, first, count)[: self.share - done]
                self._publish(f"p{self.number}-{done}", some)
                done += len(some)
        except BaseException as failed:  # the main thread raises it
            self.failed = failed

    def _publish(self, name: str, some: list[Row]) -> None:
        run, data = self.rig.sent.send(name, some), batch(some)
        is_given_up, give_up = self._dice.random() < 0.3, time.monotonic() + 120
        while run.outcome == "unknown":
            try:
                self.put(name, data)
                self.rig.sent.answer(run)
            except Unanswered:
                return
            except FAILED:
                if is_given_up:
                    return
                if time.monotonic() > give_up or self.rig.ended.wait(0.1):
                    raise
                self.rig.sent.repeat()
        if self.again.is_set():
            self.again.clear()
            with contextlib.suppress(*FAILED):
                self.put(name, data)
