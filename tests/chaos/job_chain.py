"""A workload: a job of two stages and a dataset sink, on each pool, with its queues in the server or on Kafka.

Its driver is `tests.chaos.job_driver`: it is started again whenever it ends, and has to go on where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

import penstock
from tests.chaos.chain import FAULTS as CHAIN_FAULTS
from tests.chaos.chain import PASSING, Chain, QueueOutcome, Stored, any_stage, early, hook, stored, taken
from tests.chaos.faults import kill_at
from tests.chaos.job_driver import FAILED, JOB
from tests.chaos.job_stages import STAGES
from tests.chaos.oracle import Law, SentRows
from tests.chaos.rig import Rig
from tests.chaos.schedule import Plan
from tests.chaos.worker import SINK
from tests.kit.kafka import KafkaBroker
from tests.kit.processes import kill, session_processes
from tests.kit.ray import FOLDER, VARIABLES
from tests.kit.wire import read

ROWS = 30_000
"""Of a long run."""
STEPS = (
    "part.synced", "put.durable", "put.recorded", "payloads.durable", "payloads.bound", "queue.stored", "push.pushed",
    "push.done", "claim.claimed", "claim.done", "forward.pushed", "forward.settled", "forward.done",
)  # fmt: skip
KAFKA_STEPS = ("kafka.sent", "kafka.committed", "kafka.read")
COMMIT_STEPS = ("finish.checked", "finish.shown", "finish.done")
ROUNDS = 3
"""How often all dead messages are redriven at the end."""


class Kind(NamedTuple):
    """A pool, and whether the queues are on Kafka."""

    pool: str
    on_kafka: bool


ERRORS = {"RuntimeError", "ValueError", "MemoryError", "WorkerDied"}
"""What splits fail with when they are told to."""
KINDS = (
    Kind("processes", False), Kind("threads", True), Kind("ray", False),
    Kind("processes", True), Kind("threads", False), Kind("ray", True),
)  # fmt: skip
"""A seed takes one of them by turns."""


def strange(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L7: what fails does so with the error of a fault."""
    for lease in outcome.deliveries.leases:
        if lease.error is not None and lease.error not in ERRORS:
            yield f"{lease.queue}: message {lease.message} failed with {lease.error}"


def early_by_living(sent: SentRows, outcome: QueueOutcome) -> Iterator[str]:
    """L3: as for all queues, but for what a dead worker had: its driver gives it back."""
    deliveries = outcome.deliveries
    leases = [lease for lease in deliveries.leases if lease.worker not in deliveries.deaths]
    yield from early(sent, replace(outcome, deliveries=replace(deliveries, leases=leases)))


class JobChain(Chain):
    """The workload."""

    stages = ("score", "narrow")
    steps = ("loaded", "operated", "forwarding")
    laws: Mapping[str, Law] = {**Chain.laws, "early": early_by_living, "strange": strange}
    of_all: Mapping[str, int] = {
        "server killed": 3, "server killed at a step": 6, "server restarted": 1, "server's clock jumps": 2,
        "disk full": 1, "fsync fails": 1, "connections cut": 2, "connections reset": 1, "half-open": 2,
        "driver killed": 3, "driver told to end": 2, "worker fails": 3, "message poisoned": 2, "worker stopped": 3,
    }  # fmt: skip
    of_processes: Mapping[str, int] = {"worker killed": 4, "worker killed at a step": 4, "worker out of memory": 2}
    of_ray: Mapping[str, int] = {"raylet killed": 1}
    of_kafka: Mapping[str, int] = {"broker killed": 2, "broker stopped": 1}
    stopped = 30.0
    """Seconds for which a broker is stopped."""

    @classmethod
    def plan_of(cls, kind: Kind) -> Plan:
        """Return the faults that fall on a kind of job."""
        least = Counter(cls.of_all)
        if kind.pool != "threads":
            least += Counter(cls.of_processes)
        if kind.pool == "ray":
            least += Counter(cls.of_ray)
        if kind.on_kafka:
            least += Counter(cls.of_kafka)
        return Plan(least, (), least.total())

    def __init__(self, rig: Rig, kind: Kind | None = None) -> None:
        super().__init__(rig)
        kind = kind or KINDS[rig.seed % len(KINDS)]
        self.pool, self.plan, self.faults = kind.pool, self.plan_of(kind), FAULTS
        self.name = f"a job of {kind.pool}{' on Kafka' * kind.on_kafka} into {SINK}"
        self.retries = bool(rig.seed // len(KINDS) % 2)
        """Whether a split that fails is tried again, or ends the job."""
        self._stack = contextlib.ExitStack()
        self.broker: KafkaBroker | None = None
        if kind.on_kafka:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-"))
            self.broker = KafkaBroker(Path(folder))
            self._stack.callback(self.broker.kill)
            rig.server.settings["kafka"] = self.broker.url
        self.splits = rig.folder / "splits"
        self.splits.mkdir()
        self.numbers = count()
        self.driver: subprocess.Popen[bytes] | None = None
        self.leaders: list[int] = []
        """Of the sessions of all drivers."""
        self.runs = Counter[str]()
        """Runs of the job, by how they ended."""
        self.ended: set[int] = set()
        """Drivers that a fault has ended."""
        self.is_committing = False
        self._publishing = threading.Lock()

    def start(self) -> None:
        self.start_driver()
        self.watch.start()
        self.rig.produce(self.publish)

    def publish(self, run: str, rows: pa.RecordBatch) -> None:
        """Add rows to what the job's source gives."""
        with self._publishing:
            file = self.splits / f"{next(self.numbers):06}"
            with pa.ipc.new_file(file.with_suffix(".new"), rows.schema) as writer:
                writer.write(rows)
            file.with_suffix(".new").rename(file)

    # --- the driver and its workers ---------------------------------------------------------

    def start_driver(self) -> None:
        queue = self.broker.url if self.broker else "embedded:"
        command = [str(self.rig.folder), self.rig.proxy.url, self.pool, queue, "retries" if self.retries else "fails"]
        with (self.rig.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.job_driver", *command], cwd=Path(__file__).parents[2],
                stdout=log, stderr=log, start_new_session=True, env={**os.environ, **VARIABLES},
            )  # fmt: skip
        self.leaders.append(self.driver.pid)

    def check(self) -> None:
        """Start the driver again if it has ended before the job."""
        driver = self.driver
        if driver is None or (code := driver.poll()) is None:
            return
        self.driver = None
        if code == 0:
            self.runs["done"] += 1
            return
        log = (self.rig.folder / "driver.log").read_text()
        if driver.pid in self.ended:
            self.runs["ended"] += 1
        elif code == FAILED:
            kind, text = json.loads(log.splitlines()[-1])
            self.runs[kind] += 1
            if kind != "AlreadyExists" and not any(word in text for word in ERRORS):
                self.unplanned.append(f"the job failed: {kind}: {text}")
        else:
            self.unplanned.append(f"the driver ended with {code}: {' '.join(log[-1_000:].split())}")
        assert len(self.unplanned) < 10, f"the driver ends again and again: {self.unplanned[-1]}"
        if self.pool == "ray":  # what its Ray left behind
            self.kill_session(driver.pid)
        if not self.runs["AlreadyExists"] or self.is_committing:
            self.start_driver()

    def kill_session(self, leader: int) -> None:
        for pid in session_processes(leader):
            kill(pid)

    def let_flow(self) -> None:
        """Nothing answers for what is published, so wait for the job."""
        if self.rig.sent.count < self.watch.landed + 2 * PASSING:
            super().let_flow()

    def pids(self) -> dict[str, int]:
        if self.driver is None:
            return {}
        alive = session_processes(self.driver.pid)
        named = {log.name: int(log.name.rpartition("-")[2]) for log in self.logs.iterdir()}
        return {name: pid for name, pid in named.items() if pid in alive and not name.startswith("driver")}

    def queue_of(self, stage: str) -> str:
        return f"queue/{JOB}/{stage}"

    # --- the run ----------------------------------------------------------------------------

    def count_landed(self, bare: flight.FlightClient) -> int:
        return int(self.rows("SELECT coalesce(sum(rows), 0) FROM writes WHERE path = ?", SINK)[0][0])

    def drain(self) -> None:
        """End the source, with another dataset in the sink's place; then let the server die of the commit.

        At last redrive what is dead of too many kills.
        """
        with self.connect() as client:
            client.put(SINK, pa.table({"seq": [-1]}))
            self.finished = time.monotonic()
            (self.splits / "end").touch()
            self.rig.until(lambda: self.runs["AlreadyExists"], "the job's commit meets another dataset")
            client.delete(SINK)
        self.is_committing = True
        self.start_driver()
        kill_at(self.rig, random.Random(self.rig.seed).choice(COMMIT_STEPS), within=60)
        self.rig.server.start()
        for _ in range(ROUNDS):
            self.rig.until(lambda: self.driver is None, "the job is done")
            dead = [queue for queue in map(self.queue_of, STAGES) if self.counts(queue)["dead"]]
            if not dead:
                break
            with self.connect() as client:
                for queue in dead:
                    self.redriven["at the end"] += client.call("queue.redrive", {"path": queue})["messages"]
            self.start_driver()
        self.rig.ended.set()
        self.watch.join(30)

    def connect(self) -> penstock.client.client.Client:
        return penstock.connect(self.rig.server.url, retry_for=20)

    def contents(self) -> dict[str, list[Stored]]:
        with flight.connect(self.rig.server.url) as bare:
            return {"source": [], "sink": stored(read(bare, SINK))}

    def drop_source(self) -> None:
        """Nothing of it is in the server."""

    def leftovers(self) -> list[str]:
        lines = [f"the job is {state}: {cause}" for state, cause in self.rows("SELECT state, cause FROM jobs")]
        if self.broker is not None:
            for stage in STAGES:
                ids = Counter(self.broker.ids(f"{JOB}.{stage}"))
                lines += [f"message {name} is {times} records" for name, times in ids.items() if times > 1]
        return [line for line in lines if line != "the job is done: None"] + super().leftovers()

    def notes(self) -> dict[str, int]:
        return {**super().notes(), **{f"runs: {how}": number for how, number in self.runs.items()}}

    def close(self) -> None:
        self.rig.ended.set()
        for leader in self.leaders:
            self.kill_session(leader)
            for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}{leader}-*"):
                shutil.rmtree(folder, ignore_errors=True)
        if self.driver is not None:
            self.driver.wait(30)
        self._stack.close()


# --- faults -------------------------------------------------------------------------------------


def server_killed_at(chain: JobChain, dice: random.Random) -> None:
    steps = STEPS + KAFKA_STEPS if chain.broker else STEPS
    chain.rig.allow(PASSING)
    kill_at(chain.rig, dice.choice(steps))
    chain.rig.server.start()


def message_poisoned(chain: JobChain, dice: random.Random) -> None:
    """Each worker fails at a message: it is dead, or ends the job, until the operator is mended."""
    if chain.retries:
        CHAIN_FAULTS["message poisoned"](chain, dice)
        return
    poisoned = chain.rig.server.hooks / "poisoned"
    failed = chain.runs["JobFailed"]
    taken(chain, hook(chain, "poison", any_stage(chain, dice)), "a worker has the message")
    chain.rig.until(poisoned.exists, "it has failed")
    chain.rig.until(lambda: chain.runs["JobFailed"] > failed, "the job has failed")
    poisoned.unlink()


def worker_out_of_memory(chain: JobChain, dice: random.Random) -> None:
    taken(chain, hook(chain, "oom", any_stage(chain, dice)), "an operator has no memory")


def end_driver(chain: JobChain, pids: Mapping[str, int], number: int) -> None:
    """Signal these processes and wait until the driver has ended; its workers die with it."""
    driver = chain.rig.until(lambda: chain.driver, "there is a driver")
    assert driver is not None
    chain.ended.add(driver.pid)
    if number == signal.SIGKILL:
        chain.deaths |= dict.fromkeys(chain.pids(), time.monotonic())
    for pid in pids.values() or [driver.pid]:
        kill(pid, number)
    chain.rig.until(lambda: chain.driver is not driver, "the driver has ended", within=120)


def driver_killed(chain: JobChain, dice: random.Random) -> None:
    end_driver(chain, {}, signal.SIGKILL)


def driver_told_to_end(chain: JobChain, dice: random.Random) -> None:
    """SIGTERM: workers end their present splits."""
    chain.rig.until(chain.pids, "there is a worker", within=120)  # before it a driver has no handler
    end_driver(chain, {}, signal.SIGTERM)


def raylet_killed(chain: JobChain, dice: random.Random) -> None:
    """And with it the actors and the driver: the job goes on with another Ray."""
    chain.rig.until(chain.pids, "there is a worker", within=120)
    assert chain.driver is not None
    raylet = {line: pid for pid, line in session_processes(chain.driver.pid).items() if "/raylet " in line}
    end_driver(chain, raylet, signal.SIGKILL)


def broker_killed(chain: JobChain, dice: random.Random) -> None:
    assert chain.broker is not None
    chain.broker.kill()
    time.sleep(dice.uniform(0, 1.5))
    chain.broker.start()


def broker_stopped(chain: JobChain, dice: random.Random) -> None:
    assert chain.broker is not None
    chain.broker.pause()
    time.sleep(chain.stopped)
    chain.broker.resume()


FAULTS: dict[str, Callable[[JobChain, random.Random], None]] = {
    **CHAIN_FAULTS,
    "server killed at a step": server_killed_at,
    "message poisoned": message_poisoned,
    "worker out of memory": worker_out_of_memory,
    "driver killed": driver_killed,
    "driver told to end": driver_told_to_end,
    "raylet killed": raylet_killed,
    "broker killed": broker_killed,
    "broker stopped": broker_stopped,
}
"""Its own faults, by kind."""
