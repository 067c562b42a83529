"""A workload: messages are published to Google's emulator, and Spark streams their subscription into a dataset.

Between the emulator and the pullers are a recorder, which sees each ack, and a proxy. There are two pullers: the
server's own, and one that reaches the server through the rig's proxy. A second consumer commits some seconds late.
"""

from __future__ import annotations

import bisect
import json
import math
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import grpc
import pyarrow as pa
import pyarrow.flight as flight

from tests.chaos.faults import server_killed_at
from tests.chaos.oracle import Law, Row, SentRows
from tests.chaos.rig import FAILED, Rig, Unanswered
from tests.chaos.schedule import Plan
from tests.chaos.spark_processes import Driver
from tests.chaos.stream import (
    Landed,
    SparkStream,
    StreamOutcome,
    driver_killed,
    misplaced,
    source_killed,
    too_early,
    went_back,
    worker_killed,
)  # fmt: skip
from tests.kit.processes import child_processes, kill
from tests.kit.proxy import open_proxy
from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import PubSub
from tests.kit.pubsub.emulator import emulator_process
from tests.kit.pubsub.recorder import Ack, Message, recording
from tests.kit.wire import call

PATH, SINK = "subscription/test/events", "store/landed"
TOPIC, SUBSCRIPTION = "projects/test/topics/events", "projects/test/subscriptions/events"
DEADLINE = 10
"""Seconds of a lease: the least that Pub/Sub has."""
SHARDS = 4
LATE = 2.0
"""Seconds for which the second consumer lies behind."""
QUIET = 2.0
"""Seconds after which the messages of a seek have come again."""
SERVER_STEPS = (
    "exchange.received", "part.synced", "append.durable", "append.committed", "pull.committed", "exchange.answered",
    "release.recorded", "ack.recorded",
)  # fmt: skip
PULLER_STEPS = ("puller.received", "puller.sent", "puller.placed", "puller.acking", "puller.acked")
Position = Mapping[int, int]
"""shard: next offset"""


class Committed(NamedTuple):
    """When a consumer was done with the rows below a position, at the earliest."""

    at: float
    position: Position


@dataclass(kw_only=True)
class SubscriptionOutcome(StreamOutcome):
    """What a run left at the server, and what the recorder and the emulator say."""

    messages: Mapping[Message, tuple[int, int]]
    """Shard and offset of each message of the journal."""
    acks: list[Ack]
    unknown_acks: list[str]
    left: set[str]
    """Ids of messages that nobody has acked, or that the emulator still had in the end."""
    commits: Mapping[str, list[Committed]]
    """Of each consumer, in their order."""
    former: set[int]
    """Rows that were published before the subscription was last made."""
    unspooled: int = 0
    """How many rows the journal didn't have when that happened."""

    def forgotten(self) -> set[int]:
        return self.former - {row.seq for row in self.places["journal"]}


# --- laws ---------------------------------------------------------------------------------------


def acked_early(sent: SentRows, outcome: SubscriptionOutcome) -> Iterator[str]:
    """L7: an ack is asked for only when the message is in the journal, and all consumers are done with its row."""
    for message, at in outcome.acks:
        place = outcome.messages.get(message)
        if place is None:
            yield f"message {message.id} was acked and isn't in the journal"
            continue
        shard, offset = place
        for consumer, commits in outcome.commits.items():
            last = bisect.bisect_right(commits, at, key=lambda each: each.at)
            if last == 0 or commits[last - 1].position.get(shard, 0) <= offset:
                yield f"message {message.id} was acked before {consumer} was done with shard {shard} offset {offset}"
    yield from (f"ack id {each} was acked and never given out" for each in outcome.unknown_acks)


def unacked(sent: SentRows, outcome: SubscriptionOutcome) -> Iterator[str]:
    """L11: in the end all messages are acked."""
    yield from (f"message {each} is left in the subscription" for each in outcome.left)


def forgotten(sent: SentRows, outcome: SubscriptionOutcome) -> Iterator[str]:
    """L12: of what was published to a subscription that is gone, only what wasn't in the journal then is missing."""
    gone = len(outcome.forgotten())
    if gone > outcome.unspooled:
        yield f"{gone} rows are missing; the journal lacked {outcome.unspooled} when the subscription was made again"


# --- the workload -------------------------------------------------------------------------------


class SecondConsumer(threading.Thread):
    """Commits what the journal had some seconds ago, once Spark's consumer is there."""

    def __init__(self, stream: SubscriptionStream) -> None:
        super().__init__(name="second-consumer", daemon=True)
        self.stream, self.consumer = stream, str(uuid.uuid4())
        self.commits: list[Committed] = []

    def run(self) -> None:
        while not (self.stream.watch.committed() or self.stream.ended.wait(0.2)):
            pass
        seen: list[Committed] = []
        about: dict[str, Any] = {}
        while not self.stream.ended.wait(0.3):
            with suppress(*FAILED, OSError), flight.connect(self.stream.rig.server.url) as bare:
                about = about or self._attach(bare)
                seen.append(Committed(time.monotonic(), self.stream.next_offsets()))
                while len(seen) > 1 and seen[1].at < time.monotonic() - LATE:
                    seen.pop(0)
                if seen[0].at < time.monotonic() - LATE:
                    position = {str(shard): offset for shard, offset in seen[0].position.items()}
                    self.commits.append(Committed(time.time(), seen[0].position))
                    call(bare, "consumer.commit", flight.FlightCallOptions(timeout=5), position=position, **about)

    def _attach(self, bare: flight.FlightClient) -> dict[str, Any]:
        asked = call(bare, "consumer.offsets", path=PATH)
        about = {"path": PATH, "journal": asked["journal"], "consumer": self.consumer, "session": str(uuid.uuid4())}
        call(bare, "consumer.attach", initial=asked["first"], **about)
        return about


class SubscriptionStream(SparkStream):
    """The workload."""

    name = "a subscription into a dataset"
    laws: Mapping[str, Law] = {
        "misplaced": misplaced, "went back": went_back, "too early": too_early, "acked early": acked_early,
        "unacked": unacked, "forgotten": forgotten,
    }  # fmt: skip
    columns: ClassVar = ["attributes", "data"]
    plan = Plan(
        least={
            **dict.fromkeys((f"server killed at {step}" for step in SERVER_STEPS), 1),
            **dict.fromkeys((f"puller killed at {step}" for step in PULLER_STEPS), 1),
            "server killed": 2, "server stopped": 1, "server's clock jumps": 2, "disk full": 2, "fsync fails": 1,
            "fsync slow": 1, "connections cut": 2, "connections reset": 2, "half-open": 1, "latency": 1, "throttled": 1,
            "puller killed": 3, "puller stopped": 2, "worker killed": 2, "source killed": 1, "driver killed": 1,
            "driver stopped": 1, "emulator restarted": 2, "subscription made again": 1, "seek back": 2,
            "permission lost": 1, "acks fail": 2, "acks refused": 2, "acks' answers lost": 2,
            "Pub/Sub's connections reset": 3, "Pub/Sub half-open": 2, "Pub/Sub slow": 1,
        },
        more=("server killed", "puller killed", "seek back", "acks fail", "acks refused", "acks' answers lost",
              "Pub/Sub's connections reset", "connections reset"),
        faults=60,
    )  # fmt: skip

    def __init__(self, rig: Rig, python: Path, sink: str = SINK, columns: str | None = None) -> None:
        columns = columns or ", ".join(self.columns)
        driver = Driver(rig.folder, python, rig.proxy.url, SUBSCRIPTION, columns, sink, "local[2, 4]")
        super().__init__(rig, driver, PATH, sink)
        self.ended = threading.Event()
        self.available = threading.Event()
        """Cleared while there is no subscription."""
        self.publishing = threading.Lock()
        self.epochs: dict[str, int] = {}
        """In which life of the subscription each run was published."""
        self.epoch, self.unspooled = 0, 0
        self.waiting: dict[str, float] = {}
        """When each of this life's messages that may not be acked yet was published, at the earliest, by id."""
        self.published = math.inf
        """The same of its newest message."""
        self.timers: list[threading.Timer] = []
        self._acks, self._delivered = 0, (0, time.monotonic())
        self._source_lost = 0
        self._stack = ExitStack()
        self.emulator = self._stack.enter_context(emulator_process())
        self.recorder, address = self._stack.enter_context(recording(self.emulator.address))
        self.wire = self._stack.enter_context(open_proxy())
        self.wire.target = int(address.rpartition(":")[2])
        self.endpoint = self.wire.url.removeprefix("grpc://")
        rig.server.settings.update(allow_emulator=True, pubsub_endpoint=self.endpoint, pubsub_lease=DEADLINE, pullers=1)
        self.client = PubSub(self.emulator.address)
        self.second = SecondConsumer(self)
        self.puller: subprocess.Popen[bytes] | None = None
        self.puller_ends: list[str] = []

    def start(self) -> None:
        self.make_subscription()
        with flight.connect(self.rig.server.url) as bare:
            call(bare, "subscription.attach", path=PATH)
        self.driver.start()
        self.start_puller()
        self.watch.apart.add(self.second.consumer)
        self.watch.start()
        self.second.start()
        self.rig.produce(self.publish, self.publish)

    def make_subscription(self) -> None:
        with suppress(grpc.RpcError):  # there is a topic
            self.client.create_topic(TOPIC)
        self.client.create_subscription(SUBSCRIPTION, TOPIC, deadline=DEADLINE)
        self.available.set()

    def message(self, row: Row) -> Any:
        """Return a row as a message."""
        data = json.dumps([row.text, row.amount]).encode()
        return pb.PubsubMessage(data=data, attributes={"seq": str(row.seq), "key": str(row.key)})

    def publish(self, run: str, batch: pa.RecordBatch) -> None:
        """Publish rows as messages; a repeat would be other messages."""
        messages = [self.message(Row(**row)) for row in batch.to_pylist()]
        self.available.wait(60)
        with self.publishing:
            self.epochs[run], at = self.epoch, time.time()
            try:
                ids = self.client.publish(TOPIC, messages)
            except grpc.RpcError as error:
                raise Unanswered from error
            self.waiting.update(dict.fromkeys(ids, at))
            self.published = at

    def progress(self, counted: Literal["published", "landed"]) -> int:
        lost = self.unspooled if counted == "landed" else 0  # at most; else a moment may never come
        return super().progress(counted) + lost

    def decode(self, table: pa.Table) -> list[Landed]:
        landed = []
        for shard, offset, attributes, data in zip(*(column.to_pylist() for column in table.columns), strict=True):
            about, (text, amount) = dict(attributes), json.loads(data)
            row = Row(int(about["seq"]), int(about["key"]), text, amount)
            landed.append(Landed(shard, offset, row.seq, row.key, row.crc))
        return landed

    # --- pullers ----------------------------------------------------------------------------

    def start_puller(self) -> None:
        """Start the puller beside the server's own."""
        with (self.rig.folder / "puller.log").open("ab") as log:
            self.puller = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.chaos.puller", str(self.rig.server.hooks), "pull", PATH,
                    "--url", self.rig.proxy.url, "--pull", "unary", "--endpoint", self.endpoint, "--allow-emulator",
                    "--lease", str(DEADLINE),
                ],
                cwd=Path(__file__).parents[2], stdout=log, stderr=log,
            )  # fmt: skip

    def pullers(self) -> list[int]:
        """Return all pullers that run."""
        pids = child_processes(self.rig.server.process.pid, " pull ")
        return [*pids, self.puller.pid] if self.puller is not None and self.puller.poll() is None else pids

    def check(self) -> None:
        super().check()
        if self.puller is not None and (code := self.puller.poll()) is not None:
            if code != -signal.SIGKILL:
                self.puller_ends.append(f"the puller ended: {(self.rig.folder / 'puller.log').read_text()[-300:]}")
                assert len(self.puller_ends) < 30, f"the puller ends again and again: {self.puller_ends[-1]}"
            self.start_puller()

    # --- the end ----------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Whether all has landed and is acked."""
        if self.recorder.delivered != self._delivered[0]:
            self._delivered = (self.recorder.delivered, time.monotonic())
        quiet = time.monotonic() - self._delivered[1]
        return quiet > self.patience() and not self.unacked() and super().is_done()

    def unacked(self) -> dict[str, float]:
        """Return the messages that nobody has acked, as `waiting`."""
        acks = self.recorder.acks[self._acks :]
        for ack in acks:
            self.waiting.pop(ack.message.id, None)
        self._acks += len(acks)
        return self.waiting

    def patience(self) -> float:
        """Return within how many seconds a message that isn't acked comes again."""
        return DEADLINE + QUIET if self.recorder.unsettled() else QUIET

    def drain(self) -> None:
        self.wait_for_stopped()
        super().drain()

    def wait_for_stopped(self) -> None:
        """Wait until all that is stopped goes on."""
        for timer in self.timers:
            timer.join()

    def outcome(self) -> SubscriptionOutcome:
        patience = self.patience()
        self.ended.set()
        self.second.join(30)
        if self.puller is not None:
            self.puller.terminate()
            self.puller.wait(30)
            self.puller = None
        self.rig.server.settings["pullers"] = 0
        outcome = super().outcome()
        names = ["message_id", "publish_time"]
        table = self.read(PATH, {"_shard": "shard", "_offset": "offset"}, names)
        times = table["publish_time"].cast(pa.int64()).to_pylist()
        messages = map(Message, table["message_id"].to_pylist(), times)
        places = zip(table["shard"].to_pylist(), table["offset"].to_pylist(), strict=True)
        former = {seq for run in self.rig.sent.runs if self.epochs.get(run.name, 0) < self.epoch for seq in run.rows}
        left = {*self.unacked(), *self.pull_what_is_left(patience)}
        commits = {"Spark": spark_commits(self.driver.checkpoint), "the second consumer": self.second.commits}
        every = SubscriptionOutcome(
            **vars(outcome), messages=dict(zip(messages, places, strict=True)), acks=self.recorder.acks,
            unknown_acks=self.recorder.unknown, left=left, commits=commits, former=former,
            unspooled=self.unspooled,
        )  # fmt: skip
        self._source_lost = len(every.forgotten())
        return every

    def pull_what_is_left(self, within: float) -> set[str]:
        """Return the ids of messages that the emulator delivers; a Pull that waits doesn't see a lease that ends."""
        give_up, left = time.monotonic() + within, set[str]()
        while time.monotonic() < give_up:
            left |= {each.message.message_id for each in self.client.pull(SUBSCRIPTION, within=1.0)}
        return left

    def notes(self) -> dict[str, int]:
        return {
            "delivered": self.recorder.delivered, "acks": len(self.recorder.acks), "source lost": self._source_lost,
            "lives of the subscription": self.epoch + 1,
        }  # fmt: skip

    def ends(self) -> list[str]:
        return [*super().ends(), *self.puller_ends]

    def explained(self) -> set[str]:
        return {"PERMISSION_DENIED", "NOT_FOUND", "does not exist at Pub/Sub"}

    def close(self) -> None:
        self.ended.set()
        super().close()
        self.wait_for_stopped()
        if self.puller is not None:
            self.puller.kill()
            self.puller.wait(30)
        self.client.close()
        self._stack.close()


def spark_commits(checkpoint: Path) -> list[Committed]:
    """Return when Spark noted the end of each batch, by its files."""
    commits = []
    for file in (checkpoint / "commits").glob("[0-9]*"):
        offset = json.loads((checkpoint / "offsets" / file.name).read_text().splitlines()[2])
        position = {int(shard): end for shard, end in offset["shards"].items()}
        commits.append(Committed(file.stat().st_mtime, position))
    return sorted(commits, key=lambda each: each.at)


# --- faults -------------------------------------------------------------------------------------


def killed_at(step: str, stream: SubscriptionStream, dice: random.Random) -> None:
    server_killed_at(stream.rig, step)


def puller_killed_at(step: str, stream: SubscriptionStream, dice: random.Random) -> None:
    """Whichever puller comes to the step first."""
    crash, sought = stream.rig.server.hooks / "puller-crash", time.monotonic()
    crash.write_text(step)
    stream.rig.allow(stream.rig.rows // 100)  # messages that pass the step

    def is_dead() -> bool:
        nonlocal sought
        if time.monotonic() > sought + DEADLINE:  # all is published and acked
            sought = time.monotonic()
            seek_back(stream, dice)
            if stream.published == math.inf and not any(each.is_alive() for each in stream.rig.producers):
                crash.unlink(missing_ok=True)  # this life of the subscription has no message, and none comes
                puller_killed(stream, dice)
        return not crash.exists()

    stream.rig.until(is_dead, f"a puller comes to {step}")


def puller_killed(stream: SubscriptionStream, dice: random.Random) -> None:
    kill(dice.choice(stream.rig.until(stream.pullers, "there is a puller")))


def stop_for(stream: SubscriptionStream, pids: list[int], seconds: float) -> None:
    """Stop processes for longer than a lease, while other faults fall."""
    for pid in pids:
        kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in pids:
            kill(pid, signal.SIGCONT)

    timer = threading.Timer(seconds, go_on)
    stream.timers.append(timer)
    timer.start()


def puller_stopped(stream: SubscriptionStream, dice: random.Random) -> None:
    """Its messages go to the other one; when it goes on, its ack ids are stale."""
    pids = stream.rig.until(stream.pullers, "there is a puller")
    stop_for(stream, [dice.choice(pids)], DEADLINE * 1.1)


def driver_stopped(stream: SubscriptionStream, dice: random.Random) -> None:
    """A batch takes longer than a lease."""
    pids = stream.rig.until(lambda: stream.driver.pids("deploy.SparkSubmit"), "Spark runs")
    stop_for(stream, pids, DEADLINE * 1.1)


def emulator_restarted(stream: SubscriptionStream, dice: random.Random) -> None:
    """Topic, subscription and messages are forgotten; ids of messages and acks begin anew. No puller is stopped: it
    may send acks that it had in mind, as ids of the new emulator, before it hears of anything."""
    stream.wait_for_stopped()
    stream.available.clear()
    rows = sum(stream.next_offsets().values())
    stream.emulator.kill()
    with stream.publishing, stream.recorder.refusing("UNAVAILABLE"):
        begin_epoch(stream, rows)
        stream.emulator.start()
        stream.client.close()
        stream.client = PubSub(stream.emulator.address)
        stream.make_subscription()


def subscription_made_again(stream: SubscriptionStream, dice: random.Random) -> None:
    """Its unacked messages are gone, and so are pullers that had some."""
    stream.wait_for_stopped()
    pullers = set(stream.pullers())
    with stream.publishing, stream.recorder.refusing("NOT_FOUND"):
        rows = sum(stream.next_offsets().values())
        stream.client.delete_subscription(SUBSCRIPTION)
        stream.rig.until(lambda: not pullers & set(stream.pullers()), "pullers find it gone")
        begin_epoch(stream, rows)
        stream.make_subscription()


def begin_epoch(stream: SubscriptionStream, rows: int) -> None:
    """Note that a subscription is gone, and how many rows the journal had before."""
    stream.recorder.forget()
    stream.unacked().clear()
    stream.epoch, stream.published = stream.epoch + 1, math.inf
    stream.unspooled = stream.rig.sent.count - rows


def seek_back(stream: SubscriptionStream, dice: random.Random) -> None:
    """What was acked last comes again, however long ago that was. A seek acks all that was published before its time,
    so it is that of the oldest message that isn't acked, or whose ack has failed, or earlier."""
    with stream.publishing:
        failed = [each.micros / 1e6 for each in stream.recorder.unsettled()]
        oldest = min(time.time(), stream.published, *stream.unacked().values(), *failed)
        stream.client.seek(SUBSCRIPTION, oldest - dice.uniform(1, 5))


def permission_lost(stream: SubscriptionStream, dice: random.Random) -> None:
    with stream.recorder.refusing("PERMISSION_DENIED"):
        time.sleep(dice.uniform(1, 3))


def acks_fail(stream: SubscriptionStream, dice: random.Random) -> None:
    codes = ("ABORTED", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED")
    stream.recorder.failing.extend(("before", dice.choice(codes)) for _ in range(5))


def acks_answers_lost(stream: SubscriptionStream, dice: random.Random) -> None:
    stream.recorder.failing.extend(("after", dice.choice(("UNAVAILABLE", "INTERNAL"))) for _ in range(5))


def acks_refused(stream: SubscriptionStream, dice: random.Random) -> None:
    """As of a subscription with exactly-once delivery: some ids for good, some for now."""
    codes = ("PERMANENT_FAILURE_INVALID_ACK_ID", "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE")
    stream.recorder.failing.extend(("refused", dice.choice(codes)) for _ in range(4))


def wire_reset(stream: SubscriptionStream, dice: random.Random) -> None:
    stream.wire.reset()


def wire_half_open(stream: SubscriptionStream, dice: random.Random) -> None:
    with stream.wire.half_open():
        time.sleep(dice.uniform(1, 3))


def wire_slow(stream: SubscriptionStream, dice: random.Random) -> None:
    with stream.wire.slow(delay=dice.uniform(0.02, 0.2)):
        time.sleep(2)


FAULTS: dict[str, Callable[[Any, random.Random], None]] = {
    **{f"server killed at {step}": partial(killed_at, step) for step in SERVER_STEPS},
    **{f"puller killed at {step}": partial(puller_killed_at, step) for step in PULLER_STEPS},
    "puller killed": puller_killed,
    "puller stopped": puller_stopped,
    "driver stopped": driver_stopped,
    "emulator restarted": emulator_restarted,
    "subscription made again": subscription_made_again,
    "seek back": seek_back,
    "permission lost": permission_lost,
    "acks fail": acks_fail,
    "acks' answers lost": acks_answers_lost,
    "acks refused": acks_refused,
    "Pub/Sub's connections reset": wire_reset,
    "Pub/Sub half-open": wire_half_open,
    "Pub/Sub slow": wire_slow,
    "worker killed": worker_killed,
    "source killed": source_killed,
    "driver killed": driver_killed,
}
"""Its own faults, by kind."""
SubscriptionStream.faults = FAULTS
