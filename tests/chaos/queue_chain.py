"""A workload: rows are written with a queue, workers claim them, score them into a second queue, and store them.

Three producers fill the first queue: writes of their own, one long write that releases each partition once it is whole,
and pushes. The workers are `tests.chaos.worker`; what they note says why a message was delivered again.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

import penstock
from penstock.client.client import Client
from penstock.client.put import open_attempt
from penstock.errors import PenstockError
from penstock.wire.actions import FINISH_WRITE, OPEN_WRITE, FinishWrite, OpenedWrite, OpenWrite
from penstock.wire.message import QueueMessage
from penstock.wire.put import SparkTask
from tests.chaos.chain import FAULTS as CHAIN_FAULTS
from tests.chaos.chain import (
    LEASE,
    PASSING,
    Chain,
    Stored,
    all_stopped,
    any_stage,
    dead_message,
    hook,
    redrive,
    stored,
    taken,
)
from tests.chaos.faults import FAULTS as RIG_FAULTS
from tests.chaos.faults import kill_at
from tests.chaos.rig import FAILED, Rig, Unanswered
from tests.chaos.schedule import Plan
from tests.chaos.worker import QUEUES, SINK, SOURCE
from tests.chaos.worker import STEPS as WORKER_STEPS
from tests.kit.faults import cut, flip
from tests.kit.processes import kill
from tests.kit.wire import call, read

ROWS = 60_000
"""Of a long run; each goes through four transactions."""
WORKERS = {"score": 2, "store": 2}
SPLIT_ROWS = 50
WRITTEN, RELEASED, PUSHED = "store/written", "store/released", "pushed/"
SERVER_STEPS = (
    "part.synced", "part.named", "put.durable", "put.recorded", "finish.checked", "finish.shown", "finish.pushed",
    "finish.done", "release.pushed", "payloads.durable", "payloads.bound", "queue.stored", "push.pushed", "push.done",
    "claim.claimed", "claim.done", "forward.pushed", "forward.settled", "forward.done", "ack.settled", "ack.done",
    "release.settled", "release.done", "drop.settled", "drop.done", "sweep.deleted",
)  # fmt: skip
ROUNDS = 3
"""How often all dead messages are redriven at the end: those whose workers were killed five times."""


class QueueChain(Chain):
    """The workload."""

    name = "a queue into a queue into store/sink"
    stages = ("score", "store")
    plan = Plan(
        least={
            **dict.fromkeys((f"server killed at {step}" for step in SERVER_STEPS), 1),
            **dict.fromkeys((f"worker killed at {step}" for step in WORKER_STEPS), 2),
            "server killed": 3, "server restarted": 2, "server stopped": 2, "server's clock jumps": 3, "disk full": 2,
            "fsync fails": 2, "fsync slow": 1, "connections cut": 3, "connections reset": 2, "half-open": 2,
            "latency": 1, "throttled": 1, "run sent again": 2, "worker killed": 4, "worker stopped": 2,
            "worker late": 3, "worker told to end": 2, "worker fails": 3, "message poisoned": 2, "payload lost": 2,
            "payload damaged": 2,
        },
        more=("server killed", "worker killed", "worker late", "worker fails", "connections cut"),
        faults=84,
    )  # fmt: skip

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.faults = FAULTS
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.numbers = count()
        self.told: set[str] = set()
        """Workers that were told to end."""
        self.pushing = threading.Lock()
        """Held by a push and by a jump of the clock: a message that is done for an hour is forgotten, so its push may
        not be repeated after that."""
        self.pushed: set[str] = set()
        self.receipts: dict[str, str] = {}
        """The attempt of each partition that the long write has released."""
        self.tasks = count()
        self.is_draining = False

    def start(self) -> None:
        with self.connect() as client:
            request = OpenWrite(RELEASED, queue=SOURCE, split_rows=SPLIT_ROWS, release="partition")
            self.released = client.call(OPEN_WRITE, request)
        for stage, number in WORKERS.items():
            for _ in range(number):
                self.start_worker(stage)
        self.watch.start()
        self.rig.produce(self.publish, self.release, self.push)

    def connect(self, *, proxied: bool = True) -> Client:
        return penstock.connect(self.rig.proxy.url if proxied else self.rig.server.url, retry_for=20)

    # --- producers --------------------------------------------------------------------------

    def publish(self, run: str, rows: pa.RecordBatch) -> None:
        """Write rows as a run, whose parts are splits; until it is finished the queue waits for it."""

        def once(client: Client) -> None:
            request = OpenWrite(WRITTEN, mode="append", run=run, queue=SOURCE, split_rows=SPLIT_ROWS)
            opened: OpenedWrite = client.call(OPEN_WRITE, request)
            if opened.state == "finished":
                return
            with client.attempt(opened.ticket, rows.schema) as writer:
                writer.write(rows)
            client.call(FINISH_WRITE, FinishWrite(opened.ticket, (writer.close().attempt,)))

        self.persist(once)

    def release(self, run: str, rows: pa.RecordBatch) -> None:
        """Evaluate a partition of the long write, which workers get at once; again, with its rows in another order."""
        partition = int(run.rpartition("-")[2])

        def once(client: Client) -> None:
            task = SparkTask(1, partition, next(self.tasks))
            with open_attempt(client.connection, self.released.ticket, rows.schema, task=task) as writer:
                writer.write(rows.take(pa.array(random.sample(range(rows.num_rows), rows.num_rows))))
            self.receipts[run] = writer.close().attempt

        self.persist(once)

    def push(self, run: str, rows: pa.RecordBatch) -> None:
        """Push rows as a message: with a payload of its own, or one that is stored before."""
        with self.pushing, self.connect() as client:
            if run in self.pushed:
                return
            if int(run.rpartition("-")[2]) % 2:
                payload: Any = QueueMessage(run, run, self.store_payload(client, run, pa.table(rows)), {})
            else:
                payload = pa.table(rows)
            try:
                client.push(SOURCE, payload)
            except PenstockError as error:
                raise Unanswered from error
            self.pushed.add(run)

    def store_payload(self, client: Client, name: str, table: pa.Table) -> str:
        penstock.SplitPayloadStore(client.settings.url).store(f"{PUSHED}{name}", penstock.SplitPayload(table, name))
        return f"{PUSHED}{name}"

    def persist(self, once: Callable[[Client], None]) -> None:
        """Try until it is answered: what fills a queue and isn't ended keeps it from being complete."""
        give_up = time.monotonic() + 120
        while True:
            try:
                with self.connect() as client:
                    return once(client)
            except FAILED:
                if time.monotonic() > give_up or self.rig.ended.wait(0.1):
                    raise
                self.rig.sent.repeat()

    # --- workers ----------------------------------------------------------------------------

    def start_worker(self, stage: str) -> None:
        name = f"{stage}-{next(self.numbers)}"
        command = [
            "-m",
            "tests.chaos.worker",
            str(self.rig.server.hooks),
            str(self.logs / name),
            self.rig.proxy.url,
            stage,
        ]
        with (self.rig.folder / f"{name}.log").open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [sys.executable, *command], cwd=Path(__file__).parents[2], stdout=log, stderr=log
            )

    def check(self) -> None:
        for name, worker in list(self.workers.items()):
            code = worker.poll()
            if code is None:
                continue
            del self.workers[name]
            if code not in (0, -signal.SIGKILL) and name not in self.told:
                log = (self.rig.folder / f"{name}.log").read_text()
                self.unplanned.append(f"{name} ended with {code}: {' '.join(log[-1_000:].split())}")
                assert len(self.unplanned) < 10, f"workers end again and again: {self.unplanned[-1]}"
            if code or not self.is_draining:
                self.start_worker(name.partition("-")[0])

    def pids(self) -> dict[str, int]:
        return {name: worker.pid for name, worker in self.workers.items()}

    def queue_of(self, stage: str) -> str:
        return QUEUES[stage]

    # --- the run ----------------------------------------------------------------------------

    def count_landed(self, bare: flight.FlightClient) -> int:
        return int(call(bare, "describe", flight.FlightCallOptions(timeout=3), path=SINK)["rows"])

    def drain(self) -> None:
        """End what fills the first queue; redrive what died of too many kills; wait until all workers have ended."""
        self.is_draining = True
        self.finished = time.monotonic()
        with self.connect() as client:
            client.call(FINISH_WRITE, FinishWrite(self.released.ticket, tuple(self.receipts.values())))
            client.call("queue.finish", {"path": SOURCE})
            for _ in range(ROUNDS):
                with contextlib.suppress(AssertionError):  # then the checker says what is missing
                    self.rig.until(lambda: not self.workers, "all workers have ended", within=120)
                began = time.monotonic()
                dead = {queue: self.counts(queue)["dead"] for queue in QUEUES.values()}
                if not any(dead.values()):
                    break
                for queue, number in dead.items():
                    if number:
                        self.redriven["at the end"] += client.call("queue.redrive", {"path": queue})["messages"]
                        self.redriven_late = min(self.redriven_late, began)
                for stage in WORKERS:
                    self.start_worker(stage)
        self.rig.ended.set()
        self.watch.join(30)

    def contents(self) -> dict[str, list[Stored]]:
        with flight.connect(self.rig.server.url) as bare:
            source = [row for path in (WRITTEN, RELEASED) for row in stored(read(bare, path))]
            return {"source": source, "sink": stored(read(bare, SINK))}

    def drop_source(self) -> None:
        with self.connect(proxied=False) as client:
            for path in (WRITTEN, RELEASED):
                client.delete(path)
            penstock.SplitPayloadStore(client.settings.url).clear(PUSHED)

    def close(self) -> None:
        self.rig.ended.set()
        for worker in self.workers.values():
            worker.kill()
            worker.wait(30)


# --- faults -------------------------------------------------------------------------------------


def server_killed_at(step: str, chain: QueueChain, dice: random.Random) -> None:
    if step.startswith("drop."):
        payload_lost(chain, dice, damage=True, step=step)  # one that is gone would be told at the start
        return
    if step.startswith("release.") and step != "release.pushed":
        hook(chain, "fail", any_stage(chain, dice))
    chain.rig.allow(PASSING)
    kill_at(chain.rig, step)
    chain.rig.server.start()


def server_killed_at_any(chain: QueueChain, dice: random.Random) -> None:
    server_killed_at(dice.choice(SERVER_STEPS), chain, dice)


def clock_jumps(chain: QueueChain, dice: random.Random) -> None:
    with chain.pushing:
        RIG_FAULTS["server's clock jumps"](chain.rig, dice)


def worker_late(chain: QueueChain, dice: random.Random) -> None:
    """It is stopped past its lease when it is about to forward, and goes on with that: the server refuses it."""
    stopped = chain.rig.server.hooks / "stopped"
    taken(chain, hook(chain, "worker-stop", any_stage(chain, dice)), "a worker stops")
    chain.rig.until(lambda: stopped.exists() and stopped.read_text(), "it has stopped")
    pid, token = stopped.read_text().split()
    stopped.unlink()
    [name] = [name for name, worker in chain.workers.items() if worker.pid == int(pid)]
    with all_stopped(chain, name):
        time.sleep(LEASE * 1.2)
    log = chain.logs / name

    def outcome() -> dict[str, Any] | None:
        events = map(json.loads, log.read_text().splitlines())
        return next((each for each in events if each["event"] == "left" and each["token"] == token), None)

    chain.rig.until(outcome, "it says what became of its lease")
    assert (outcome() or {})["lost"], "a late forward counts"


def worker_told_to_end(chain: QueueChain, dice: random.Random) -> None:
    """SIGTERM: it finishes its block, and gives back what it has claimed ahead."""
    name, pid = chain.any_worker(dice)
    chain.told.add(name)
    kill(pid, signal.SIGTERM)
    chain.rig.until(lambda: name not in chain.workers, "it ends", within=60)


class LargeMessage(NamedTuple):
    """A message whose payload is a part."""

    queue: str
    id: str
    part: str
    is_bound: bool
    """Whether the payload goes with the message."""


def large_message(chain: QueueChain, queue: str) -> LargeMessage | None:
    """Return the first one that nobody has claimed yet; without one let more be published."""
    rows = chain.rows(
        "SELECT path, message_id, coalesce(messages.part, payloads.part) AS file, coalesce(bound, 0) FROM messages"
        " JOIN queues ON queues.id = queue LEFT JOIN payloads ON key = payload_key"
        " WHERE messages.state = 'pending' AND tries = 0 AND file IS NOT NULL AND path = ?"
        " ORDER BY messages.id LIMIT 1",
        queue,
    )
    if not rows:
        chain.let_flow()
    return LargeMessage(*rows[0]) if rows else None


def payload_lost(chain: QueueChain, dice: random.Random, *, damage: bool = False, step: str = "") -> None:
    """The bytes of a message's payload are gone or damaged: it is dead at its second try, and says so; redriven when
    they are back it passes."""
    while (message := lose_payload(chain, dice, damage, step)) is None:
        pass
    row = dead_message(chain, message.queue, message.id)
    assert row is not None
    assert (row["tries"], row["error"]) == (2, "penstock.errors.Lost"), row
    assert row["payload_key"] in row["text"] or message.part in row["text"], row
    redrive(chain, message.queue, message.id, "after a loss")


def lose_payload(chain: QueueChain, dice: random.Random, damage: bool, step: str) -> LargeMessage | None:
    """Take a payload's bytes away until its message is dead; None if it was done before."""
    server, stage = chain.rig.server, any_stage(chain, dice)
    crash = hook(chain, "crash", step) if step else None
    with all_stopped(chain, stage):
        message = chain.rig.until(partial(large_message, chain, QUEUES[stage]), "a message has a large payload", 60)
        assert message is not None
        file, aside = server.data / "parts" / message.part[:2] / message.part, chain.rig.folder / message.part
        file.rename(aside)
        whole = aside.read_bytes()
        if damage:
            aside.write_bytes(dice.choice((flip, cut))(whole, dice))
            aside.rename(file)
    chain.rig.damaged.add(message.part)
    is_dead = wait_for_end(chain, message, dies=crash is not None)
    if crash is not None:
        crash.unlink(missing_ok=True)
    if is_dead or not message.is_bound:
        aside.write_bytes(whole)
        aside.rename(file)
    (server.data / "quarantine" / message.part).unlink(missing_ok=True)
    return message if is_dead else None


def wait_for_end(chain: QueueChain, message: LargeMessage, *, dies: bool) -> bool:
    """Wait until a message is done or dead; whether it is dead. A server that `dies` of it is started again."""
    query = "SELECT messages.state FROM messages JOIN queues ON queues.id = queue WHERE path = ? AND message_id = ?"
    give_up = time.monotonic() + 120
    while True:
        if dies and chain.rig.server.is_dead():
            chain.rig.server.start()
            dies = False
        states = chain.rows(query, message.queue, message.id)
        if states in ([], [("done",)]) or (states == [("dead",)] and not dies):
            return states == [("dead",)]
        chain.check()
        assert time.monotonic() < give_up, f"message {message.id} is {states}, and its payload is lost"
        time.sleep(0.02)


FAULTS: dict[str, Callable[[QueueChain, random.Random], None]] = {
    **CHAIN_FAULTS,
    **{f"server killed at {step}": partial(server_killed_at, step) for step in SERVER_STEPS},
    "server killed at a step": server_killed_at_any,
    "server's clock jumps": clock_jumps,
    "worker late": worker_late,
    "worker told to end": worker_told_to_end,
    "payload lost": payload_lost,
    "payload damaged": partial(payload_lost, damage=True),
}
"""Its own faults, by kind."""
