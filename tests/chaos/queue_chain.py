"""A workload: rows are written with a queue, workers claim them, score them into a second queue, and store them.

Three producers fill the first queue: writes of their own, one long write that releases each partition once it is whole,
and pushes. The workers are `tests.chaos.worker`; what they note says why a message was delivered again.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
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
from penstock.client.client import Client
from penstock.client.put import open_attempt
from penstock.errors import PenstockError
from penstock.wire.actions import FINISH_WRITE, OPEN_WRITE, FinishWrite, OpenedWrite, OpenWrite
from penstock.wire.message import QueueMessage
from penstock.wire.put import SparkTask
from tests.chaos.deliveries import Deliveries, Fault, read_deliveries
from tests.chaos.faults import FAULTS as RIG_FAULTS
from tests.chaos.faults import kill_at
from tests.chaos.oracle import SCHEMA, Law, Outcome, Row, SentRows, Usage, batch, rows
from tests.chaos.rig import FAILED, Rig, Unanswered
from tests.chaos.schedule import Plan
from tests.chaos.worker import QUEUES, SINK, SOURCE
from tests.chaos.worker import STEPS as WORKER_STEPS
from tests.kit.faults import cut, flip
from tests.kit.processes import kill
from tests.kit.server import named_parts
from tests.kit.wait import eventually, files
from tests.kit.wire import call, read

ROWS = 60_000
"""Of a long run; each goes through four transactions."""
LEASE = 2.5
"""Seconds: a worker that is stopped is to lose its lease soon."""
WORKERS = {"score": 2, "store": 2}
SPLIT_ROWS = 50
WRITTEN, RELEASED, PUSHED = "store/written", "store/released", "pushed/"
SERVER_STEPS = (
    "part.synced", "part.named", "put.durable", "put.recorded", "finish.checked", "finish.shown", "finish.pushed",
    "finish.done", "release.pushed", "payloads.durable", "payloads.bound", "queue.stored", "push.pushed", "push.done",
    "claim.claimed", "claim.done", "forward.pushed", "forward.settled", "forward.done", "ack.settled", "ack.done",
    "release.settled", "release.done", "drop.settled", "drop.done", "sweep.deleted",
)  # fmt: skip
LONG_AFTER = 20 * 3600
"""Seconds after which tickets and every grace have ended."""
PASSING = 600
"""Rows that pass a step: two or three batches."""
OF_WORKERS = ("worker", "message", "payload")
"""First words of the faults that keep no call from its answer."""
ROUNDS = 3
"""How often all dead messages are redriven at the end: those whose workers were killed five times."""


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
        if not {"fail", "release", "drop"} & set(lease.endings) and following.claimed < lasts:
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

    def __init__(self, rig: Rig) -> None:
        super().__init__(name="watch", daemon=True)
        self.rig, self.landed = rig, 0
        self.usage: list[Usage] = []

    def run(self) -> None:
        options = flight.FlightCallOptions(timeout=3)
        while not self.rig.ended.wait(0.2):
            with contextlib.suppress(*FAILED, OSError, KeyError), flight.connect(self.rig.server.url) as bare:
                self.usage.append(self.rig.server.usage())
                self.landed = call(bare, "describe", options, path=SINK)["rows"]


class QueueChain:
    """The workload."""

    name = "a queue into a queue into store/sink"
    laws: Mapping[str, Law] = {
        "lost": lost, "ended twice": ended_twice, "early": early, "unexplained": unexplained,
        "complete early": complete_early, "left": left,
    }  # fmt: skip
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
        self.rig = rig
        rig.server.settings["queue_lease"] = LEASE
        self.watch = Watch(rig)
        self.logs = rig.folder / "leases"
        self.logs.mkdir()
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.numbers, self.spares = count(), count()
        self.told: set[str] = set()
        """Workers that were told to end."""
        self.unplanned: list[str] = []
        self.fallen: list[Fault] = []
        self.deaths: dict[str, float] = {}
        self.stops: dict[str, list[tuple[float, float]]] = {}
        self.pushing = threading.Lock()
        """Held by a push and by a jump of the clock: a message that is done for an hour is forgotten, so its push may
        not be repeated after that."""
        self.pushed: set[str] = set()
        self.receipts: dict[str, str] = {}
        """The attempt of each partition that the long write has released."""
        self.tasks = count()
        self.finished = 0.0
        self.is_draining = False
        self.redriven = Counter[str]()
        self.redriven_late = math.inf
        self.deliveries: Deliveries | None = None

    def start(self) -> None:
        with self.connect() as client:
            request = OpenWrite(RELEASED, queue=SOURCE, split_rows=SPLIT_ROWS, release="partition")
            self.released = client.call(OPEN_WRITE, request)
        for stage, number in WORKERS.items():
            for _ in range(number):
                self.start_worker(stage)
        self.watch.start()
        self.rig.produce(self.write, self.release, self.push)

    def connect(self, *, proxied: bool = True) -> Client:
        return penstock.connect(self.rig.proxy.url if proxied else self.rig.server.url, retry_for=20)

    # --- producers --------------------------------------------------------------------------

    def write(self, run: str, rows: pa.RecordBatch) -> None:
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

    def let_flow(self) -> None:
        """Let more rows be published; once the producers are done, publish some in their place."""
        self.rig.allow(PASSING)
        if not any(producer.is_alive() for producer in self.rig.producers):
            number = next(self.spares)
            some = rows(self.rig.seed, len(self.rig.producers), 1_000_000_000 + number * PASSING, PASSING)
            run = self.rig.sent.send(f"spare-{number}", some)
            self.write(run.name, batch(some))
            self.rig.sent.answer(run)

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

    def any_worker(self, dice: random.Random) -> tuple[str, int]:
        name, worker = dice.choice(self.rig.until(lambda: list(self.workers.items()), "there is a worker"))
        return name, worker.pid

    # --- the run ----------------------------------------------------------------------------

    def progress(self, counted: Literal["published", "landed"]) -> int:
        return self.rig.sent.count if counted == "published" else self.watch.landed

    def strike(self, kind: str, dice: random.Random) -> bool:
        began = time.monotonic()
        if kind in FAULTS:
            FAULTS[kind](self, dice)
        else:
            RIG_FAULTS[kind](self.rig, dice)
        if not kind.startswith(OF_WORKERS):
            self.fallen.append(Fault(kind, began, time.monotonic()))
        return True

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

    def contents(self) -> dict[str, list[Stored]]:
        with flight.connect(self.rig.server.url) as bare:
            source = [row for path in (WRITTEN, RELEASED) for row in stored(read(bare, path))]
            return {"source": source, "sink": stored(read(bare, SINK))}

    def leftovers(self) -> list[str]:
        """Delete the source, and return what is left long after, besides the sink and the counts of the queues."""
        server = self.rig.server
        with self.connect(proxied=False) as client:
            for path in (WRITTEN, RELEASED):
                client.delete(path)
            penstock.SplitPayloadStore(client.settings.url).clear(PUSHED)
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

    def close(self) -> None:
        self.rig.ended.set()
        for worker in self.workers.values():
            worker.kill()
            worker.wait(30)


def stored(table: pa.Table) -> list[Stored]:
    rows = zip(*(table[name].to_pylist() for name in SCHEMA.names), strict=True)
    return [Stored(row.seq, row.key, row.crc) for row in map(Row._make, rows)]


# --- faults -------------------------------------------------------------------------------------


def hook(chain: QueueChain, name: str, text: str) -> Path:
    file = chain.rig.server.hooks / name
    file.with_suffix(".new").write_text(text)
    return file.with_suffix(".new").rename(file)


def taken(chain: QueueChain, file: Path, what: str) -> None:
    """Wait until a worker comes to a hook, while rows flow."""

    def is_taken() -> bool:
        chain.let_flow()
        return not file.exists()

    chain.rig.until(is_taken, what, within=120)


def any_stage(dice: random.Random) -> str:
    return dice.choice(sorted(WORKERS))


def server_killed_at(step: str, chain: QueueChain, dice: random.Random) -> None:
    if step.startswith("drop."):
        payload_lost(chain, dice, damage=True, step=step)  # one that is gone would be told at the start
        return
    if step.startswith("release.") and step != "release.pushed":
        hook(chain, "fail", any_stage(dice))
    chain.rig.allow(PASSING)
    kill_at(chain.rig, step)
    chain.rig.server.start()


def server_killed_at_any(chain: QueueChain, dice: random.Random) -> None:
    server_killed_at(dice.choice(SERVER_STEPS), chain, dice)


def server_restarted(chain: QueueChain, dice: random.Random) -> None:
    """It ends by itself, under claimed leases."""
    assert chain.rig.server.process.terminate(60) == 0
    chain.rig.server.start()


def clock_jumps(chain: QueueChain, dice: random.Random) -> None:
    with chain.pushing:
        RIG_FAULTS["server's clock jumps"](chain.rig, dice)


def worker_killed(chain: QueueChain, dice: random.Random) -> None:
    name, pid = chain.any_worker(dice)
    chain.deaths[name] = time.monotonic()
    kill(pid)


def worker_killed_at(step: str, chain: QueueChain, dice: random.Random) -> None:
    taken(chain, hook(chain, "worker-crash", f"{any_stage(dice)} {step}"), f"a worker comes to {step}")


def worker_killed_at_any(chain: QueueChain, dice: random.Random) -> None:
    worker_killed_at(dice.choice(WORKER_STEPS), chain, dice)


def worker_stopped(chain: QueueChain, dice: random.Random) -> None:
    """At any moment, past its leases."""
    name, _ = chain.any_worker(dice)
    with all_stopped(chain, name):
        time.sleep(LEASE * 1.2)


@contextlib.contextmanager
def all_stopped(chain: QueueChain, prefix: str) -> Iterator[None]:
    """Stop a worker, or those of a stage."""
    began = time.monotonic()
    stopped = {name: worker for name, worker in chain.workers.items() if name.startswith(prefix)}
    for worker in stopped.values():
        kill(worker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for name, worker in stopped.items():
            chain.stops.setdefault(name, []).append((began, time.monotonic()))
            kill(worker.pid, signal.SIGCONT)


def worker_late(chain: QueueChain, dice: random.Random) -> None:
    """It is stopped past its lease when it is about to forward, and goes on with that: the server refuses it."""
    stopped = chain.rig.server.hooks / "stopped"
    taken(chain, hook(chain, "worker-stop", any_stage(dice)), "a worker stops")
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


def worker_fails(chain: QueueChain, dice: random.Random) -> None:
    taken(chain, hook(chain, "fail", any_stage(dice)), "a worker fails")


def message_poisoned(chain: QueueChain, dice: random.Random) -> None:
    """Each worker fails at a message: it is dead after five tries; redriven, when they are mended, it passes."""
    stage = any_stage(dice)
    taken(chain, hook(chain, "poison", stage), "a worker has the message")
    poisoned = chain.rig.server.hooks / "poisoned"
    chain.rig.until(poisoned.exists, "it has failed")
    message = poisoned.read_text()
    chain.rig.until(lambda: dead_message(chain, QUEUES[stage], message), "it is dead", within=60)
    row = dead_message(chain, QUEUES[stage], message) or {}
    assert (row["tries"], row["error"], row["text"]) == (5, "ValueError", "poison"), row
    poisoned.unlink()
    redrive(chain, QUEUES[stage], message, "after poison")


def dead_message(chain: QueueChain, queue: str, message: str) -> dict[str, Any] | None:
    with flight.connect(chain.rig.server.url) as bare:
        rows = read(bare, f"{queue}/dead").to_pylist()
    return next((row for row in rows if row["message_id"] == message), None)


def redrive(chain: QueueChain, queue: str, message: str, why: str) -> None:
    with chain.connect(proxied=False) as client:
        number = client.call("queue.redrive", {"path": queue, "message_ids": [message]})["messages"]
    assert number == 1, f"{message}: {number}"
    chain.redriven[why] += number


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
    server, stage = chain.rig.server, any_stage(dice)
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
    **{f"server killed at {step}": partial(server_killed_at, step) for step in SERVER_STEPS},
    **{f"worker killed at {step}": partial(worker_killed_at, step) for step in WORKER_STEPS},
    "server killed at a step": server_killed_at_any,
    "worker killed at a step": worker_killed_at_any,
    "server restarted": server_restarted,
    "server's clock jumps": clock_jumps,
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "worker late": worker_late,
    "worker told to end": worker_told_to_end,
    "worker fails": worker_fails,
    "message poisoned": message_poisoned,
    "payload lost": payload_lost,
    "payload damaged": partial(payload_lost, damage=True),
}
"""Its own faults, by kind."""
