"""What workloads of queues share: leases by the notes of their workers, the laws of these, and faults of workers."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import sqlite3
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

import penstock
from tests.chaos.deliveries import Deliveries, Fault, read_deliveries
from tests.chaos.faults import FAULTS as RIG_FAULTS
from tests.chaos.oracle import SCHEMA, Law, Outcome, Row, SentRows, Usage, batch, rows
from tests.chaos.rig import FAILED, Rig
from tests.chaos.schedule import Plan
from tests.chaos.worker import SINK
from tests.chaos.worker import STEPS as WORKER_STEPS
from tests.kit.processes import kill
from tests.kit.server import named_parts
from tests.kit.wait import eventually, files
from tests.kit.wire import call, read

LEASE = 2.5
"""Seconds: a worker that is stopped is to lose its lease soon."""
LONG_AFTER = 20 * 3600
"""Seconds after which tickets and every grace have ended."""
PASSING = 600
"""Rows that pass a step: two or three batches."""
OF_WORKERS = ("worker", "message", "payload", "driver", "raylet", "broker")
"""First words of the faults that keep no call from its answer."""


class Stored(NamedTuple):
    """A row that came out."""

    seq: int
    key: int
    crc: int


@dataclass(kw_only=True)
class QueueOutcome(Outcome):
    """Its places are `source`, of the two writes, and `sink`."""

    deliveries: Deliveries
    finished: float
    """When the last upstream of the first queue was told to end, at the earliest."""
    redriven: float = math.inf
    """When dead messages were redriven after that, which opened their queues again."""
    leftovers: list[str]
    """What the ledger has long after, besides the sink."""


# --- laws ---------------------------------------------------------------------------------------


def lost(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L1: what was answered for, and what is in a dataset of the source, is in the sink."""
    sink = {row.seq for row in outcome.places["sink"]}
    answered = {seq for run in sent.runs if run.outcome == "ok" for seq in run.rows}
    source = {row.seq for row in outcome.places["source"]}
    yield from (f"row {seq} was answered for, and isn't in the sink" for seq in answered - sink)
    yield from (f"row {seq} is in the source, and isn't in the sink" for seq in source - sink - answered)


def ended_twice(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L2: of all leases of a message one ends it; an answer to another one says that it is over."""
    for (queue, message), leases in outcome.deliveries.by_message().items():
        if sum(lease.is_done for lease in leases) > 1:
            yield f"{queue}: message {message} was done twice"


def early(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L3: while the lease of a message lasts, no other worker gets it."""
    deliveries = outcome.deliveries
    for lease, following in deliveries.pairs():
        lasts = max(lease.began, lease.extended) + deliveries.lease
        if not {"fail", "release", "drop", "bury"} & set(lease.endings) and following.claimed < lasts:
            over = lasts - following.claimed
            yield f"{lease.queue}: message {lease.message} was another's {over:.2f} s before its lease ended"


def unexplained(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L4: a message is delivered again only where a fault has ended its lease."""
    deliveries = outcome.deliveries
    for lease, following in deliveries.pairs():
        if deliveries.cause(lease, following) is None:
            yield f"{lease.queue}: message {lease.message} was delivered again after {lease.endings or 'nothing'}"
    for lease, number in deliveries.unanswered():
        deaths = any(at < lease.claimed for at in deliveries.deaths.values())
        if not (deaths or deliveries.fell(0, lease.claimed)):
            yield f"{lease.queue}: {number} claims of message {lease.message} were not answered"


def complete_early(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L5: a queue is complete once what fills it has ended, and all of its messages are done."""
    for queue, at in outcome.deliveries.completions:
        if at < outcome.finished:
            yield f"{queue} was complete {outcome.finished - at:.2f} s before its last upstream ended"
        for lease in outcome.deliveries.leases:
            is_late = lease.is_done and min(lease.endings.values()) > at
            if lease.queue == queue and is_late and lease.began < outcome.redriven:
                yield f"{queue} was complete, and message {lease.message} was done only then"


def left(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L6: in the end nothing is claimed or pending, counters are true, and no payload is left."""
    yield from outcome.leftovers


# --- the workload -------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Looks at the sink and at the server's process, past the proxy, as often as it answers."""

    def __init__(self, rig: Rig, count_landed: Callable[[flight.FlightClient], int]) -> None:
        super().__init__(name="watch", daemon=True)
        self.rig, self.landed, self.count_landed = rig, 0, count_landed
        self.usage: list[Usage] = []

    def run(self) -> None:
        while not self.rig.ended.wait(0.2):
            with (
                contextlib.suppress(*FAILED, OSError, KeyError, sqlite3.Error),
                flight.connect(self.rig.server.url) as bare,
            ):
                self.usage.append(self.rig.server.usage())
                self.landed = self.count_landed(bare)


class Chain:
    """A workload of queues."""

    name: str
    plan: Plan
    stages: tuple[str, ...]
    """Those whose workers fail and die when they are told to."""
    steps: tuple[str, ...] = WORKER_STEPS
    """Where they die."""
    faults: Mapping[str, Callable[[Any, random.Random], None]]
    """Its own, by kind."""
    laws: Mapping[str, Law] = {
        "lost": lost, "ended twice": ended_twice, "early": early, "unexplained": unexplained,
        "complete early": complete_early, "left": left,
    }  # fmt: skip

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.server.settings["queue_lease"] = LEASE
        self.watch = Watch(rig, self.count_landed)
        self.logs = rig.folder / "leases"
        self.logs.mkdir()
        self.spares = count()
        self.unplanned: list[str] = []
        self.fallen: list[Fault] = []
        self.deaths: dict[str, float] = {}
        self.stops: dict[str, list[tuple[float, float]]] = {}
        self.finished = 0.0
        self.redriven = Counter[str]()
        self.redriven_late = math.inf
        self.deliveries: Deliveries | None = None

    # --- what each has of its own -----------------------------------------------------------

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Return the processes of the workers, by the name of their notes."""

    @abstractmethod
    def queue_of(self, stage: str) -> str:
        """Return the queue that a stage claims from."""

    @abstractmethod
    def publish(self, run: str, rows: pa.RecordBatch) -> None:
        """Put rows once, as a run."""

    @abstractmethod
    def count_landed(self, bare: flight.FlightClient) -> int:
        """Return how many rows have come to their last place."""

    @abstractmethod
    def contents(self) -> dict[str, list[Stored]]:
        """Read all that came out."""

    @abstractmethod
    def drop_source(self) -> None:
        """Delete what filled the first queue."""

    # --- the run ----------------------------------------------------------------------------

    def any_worker(self, dice: random.Random) -> tuple[str, int]:
        return dice.choice(self.rig.until(lambda: sorted(self.pids().items()), "there is a worker"))

    def progress(self, counted: Literal["published", "landed"]) -> int:
        return self.rig.sent.count if counted == "published" else self.watch.landed

    def let_flow(self) -> None:
        """Let more rows be published; once the producers are done, publish some in their place."""
        self.rig.allow(PASSING)
        if not any(producer.is_alive() for producer in self.rig.producers):
            number = next(self.spares)
            some = rows(self.rig.seed, len(self.rig.producers), 1_000_000_000 + number * PASSING, PASSING)
            run = self.rig.sent.send(f"spare-{number}", some)
            self.publish(run.name, batch(some))
            self.rig.sent.answer(run)

    def strike(self, kind: str, dice: random.Random) -> bool:
        began = time.monotonic()
        if kind in self.faults:
            self.faults[kind](self, dice)
        else:
            RIG_FAULTS[kind](self.rig, dice)
        if not kind.startswith(OF_WORKERS):
            self.fallen.append(Fault(kind, began, time.monotonic()))
        return True

    def counts(self, queue: str) -> dict[str, Any]:
        with flight.connect(self.rig.server.url) as bare:
            counts: dict[str, Any] = call(bare, "describe", path=queue)["queue"]["counts"]
        return counts

    def outcome(self) -> QueueOutcome:
        self.deliveries = read_deliveries(self.logs.iterdir(), self.fallen, self.deaths, self.stops, LEASE)
        server = self.rig.server
        before, litter, idle = self.contents(), self.rig.sweep(), server.usage()
        assert server.process.terminate() == 0
        server.start()
        fresh, places = server.usage(), self.contents()
        return QueueOutcome(
            places, before, self.watch.usage, idle, fresh, litter, deliveries=self.deliveries, finished=self.finished,
            redriven=self.redriven_late, leftovers=self.leftovers(),
        )  # fmt: skip

    def leftovers(self) -> list[str]:
        """Delete the source, and return what is left long after, besides the sink and the counts of the queues."""
        server = self.rig.server
        self.drop_source()
        (server.hooks / "clock").write_text(str(LONG_AFTER))
        assert server.process.terminate() == 0
        server.start()
        data = server.data
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.leftover_rows() and files(data / "parts") == named_parts(data))
        strays = [f"the file {name}" for name in files(data / "parts") ^ named_parts(data)]
        return self.leftover_rows() + strays

    def leftover_rows(self) -> list[str]:
        lines = []
        for path, state, pushed, claimed, done, dead, size in self.rows(
            "SELECT path, state, pushed, claimed, done, dead, bytes FROM queues"
        ):
            if (state, claimed, done, dead, size) != ("complete", 0, pushed, 0, 0):
                lines.append(
                    f"{path} is {state}: {pushed} pushed, {claimed} claimed, {done} done, {dead} dead, {size} bytes"
                )
        for message, state in self.rows("SELECT message_id, state FROM messages"):
            lines.append(f"message {message} is {state}")
        lines += [f"the payload {key}" for (key,) in self.rows("SELECT key FROM payloads")]
        parts = "SELECT name, state, path FROM parts WHERE held OR state <> 'visible' OR path <> ?"
        return lines + [f"part {name}, {state} at {path}" for name, state, path in self.rows(parts, SINK)]

    def rows(self, query: str, *arguments: str) -> list[tuple[Any, ...]]:
        """Read the ledger by SQLite itself."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.rig.server.data / 'ledger.db'}?mode=ro", uri=True)
        ) as ledger:
            return ledger.execute(query, arguments).fetchall()

    def ends(self) -> list[str]:
        return self.unplanned

    def unexplained(self) -> list[str]:
        return self.unplanned

    def notes(self) -> dict[str, int]:
        assert self.deliveries is not None
        deliveries = self.deliveries
        causes = {f"delivered again after {cause}": number for cause, number in sorted(deliveries.causes().items())}
        return {
            "messages": len(deliveries.by_message()), "deliveries": len(deliveries.leases), **causes,
            "claims unanswered": sum(number for _, number in deliveries.unanswered()),
            "late answers refused": sum(lease.is_refused for lease in deliveries.leases),
            **{f"redriven {why}": number for why, number in self.redriven.items()},
        }  # fmt: skip


def stored(table: pa.Table) -> list[Stored]:
    rows = zip(*(table[name].to_pylist() for name in SCHEMA.names), strict=True)
    return [Stored(row.seq, row.key, row.crc) for row in map(Row._make, rows)]


# --- faults -------------------------------------------------------------------------------------


def hook(chain: Chain, name: str, text: str) -> Path:
    file = chain.rig.server.hooks / name
    file.with_suffix(".new").write_text(text)
    return file.with_suffix(".new").rename(file)


def taken(chain: Chain, file: Path, what: str) -> None:
    """Wait until a worker comes to a hook, while rows flow."""

    def is_taken() -> bool:
        chain.let_flow()
        return not file.exists()

    chain.rig.until(is_taken, what, within=120)


def any_stage(chain: Chain, dice: random.Random) -> str:
    return dice.choice(chain.stages)


def server_restarted(chain: Chain, dice: random.Random) -> None:
    """It ends by itself, under claimed leases."""
    assert chain.rig.server.process.terminate(60) == 0
    chain.rig.server.start()


def worker_killed(chain: Chain, dice: random.Random) -> None:
    name, pid = chain.any_worker(dice)
    chain.deaths[name] = time.monotonic()
    kill(pid)


def worker_killed_at(step: str, chain: Chain, dice: random.Random) -> None:
    taken(chain, hook(chain, "worker-crash", f"{any_stage(chain, dice)} {step}"), f"a worker comes to {step}")


def worker_killed_at_any(chain: Chain, dice: random.Random) -> None:
    worker_killed_at(dice.choice(chain.steps), chain, dice)


def worker_stopped(chain: Chain, dice: random.Random) -> None:
    """At any moment, past its leases."""
    name, _ = chain.any_worker(dice)
    with all_stopped(chain, name):
        time.sleep(LEASE * 1.2)


@contextlib.contextmanager
def all_stopped(chain: Chain, prefix: str) -> Iterator[None]:
    """Stop a worker, or those of a stage."""
    began = time.monotonic()
    stopped = {name: pid for name, pid in chain.pids().items() if name.startswith(prefix)}
    for pid in stopped.values():
        kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for name, pid in stopped.items():
            chain.stops.setdefault(name, []).append((began, time.monotonic()))
            kill(pid, signal.SIGCONT)


def worker_fails(chain: Chain, dice: random.Random) -> None:
    taken(chain, hook(chain, "fail", any_stage(chain, dice)), "a worker fails")


def message_poisoned(chain: Chain, dice: random.Random) -> None:
    """Each worker fails at a message: it is dead after five tries; redriven, when they are mended, it passes."""
    stage = any_stage(chain, dice)
    taken(chain, hook(chain, "poison", stage), "a worker has the message")
    poisoned = chain.rig.server.hooks / "poisoned"
    chain.rig.until(poisoned.exists, "it has failed")
    message, queue = poisoned.read_text(), chain.queue_of(stage)
    chain.rig.until(lambda: dead_message(chain, queue, message), "it is dead", within=60)
    row = dead_message(chain, queue, message) or {}
    assert (row["tries"], row["error"], row["text"]) == (5, "ValueError", "poison"), row
    poisoned.unlink()
    redrive(chain, queue, message, "after poison")


def dead_message(chain: Chain, queue: str, message: str) -> dict[str, Any] | None:
    with flight.connect(chain.rig.server.url) as bare:
        rows = read(bare, f"{queue}/dead").to_pylist()
    return next((row for row in rows if row["message_id"] == message), None)


def redrive(chain: Chain, queue: str, message: str, why: str) -> None:
    with penstock.connect(chain.rig.server.url, retry_for=20) as client:
        number = client.call("queue.redrive", {"path": queue, "message_ids": [message]})["messages"]
    assert number == 1, f"{message}: {number}"
    chain.redriven[why] += number


FAULTS: dict[str, Callable[[Any, random.Random], None]] = {
    **{f"worker killed at {step}": partial(worker_killed_at, step) for step in WORKER_STEPS},
    "worker killed at a step": worker_killed_at_any,
    "server restarted": server_restarted,
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "worker fails": worker_fails,
    "message poisoned": message_poisoned,
}
"""Faults of every workload of queues, by kind."""
