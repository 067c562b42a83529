"""A workload: Spark decodes the messages of a subscription, and publishes the rows to a second topic.

Some payloads don't decode: they are dead rows of the query. The recorder says what Pub/Sub has taken; what comes out of
the second topic's subscription is pulled by a plain client.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight

from penstock.queue.pubsub.publish import MOST_REQUESTS
from tests.chaos import subscription_stream
from tests.chaos.oracle import Law, Row, SentRows
from tests.chaos.rig import Rig
from tests.chaos.schedule import Plan
from tests.chaos.stream import BRIEFLY, Landed, misplaced, went_back, worker_killed, worker_stopped
from tests.chaos.subscription_stream import (
    PATH,
    SubscriptionOutcome,
    SubscriptionStream,
    acked_early,
    forgotten,
    killed_at,
    stop_for,
    unacked,
)  # fmt: skip
from tests.kit.processes import child_processes, kill
from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import PubSub
from tests.kit.pubsub.recorder import Publish
from tests.kit.wire import call

CLEAN, CLEAN_SUBSCRIPTION = "projects/test/topics/clean", "projects/test/subscriptions/clean"
SCHEMA = "seq long, key int, text string, amount double"
DEAD = f"{PATH}/dead"
BAD = 89
"""Of so many payloads one doesn't decode."""
PUBLISHER_STEPS = ("publisher.sent", "publisher.answered", "publisher.noted")
SERVER_STEPS = (
    "put.durable", "put.recorded", "publish.named", "finish.checked", "finish.shown", "publish.noted", "dead.found",
    "append.committed",
)  # fmt: skip


@dataclass(kw_only=True)
class PublishOutcome(SubscriptionOutcome):
    """What a run left, with the second topic. Its `sink` has each row that was published, once, and the dead ones."""

    publishes: list[Publish]
    taken: Mapping[str, Landed]
    """The rows that Pub/Sub has taken, by their penstock-id."""
    pulled: list[tuple[str, Landed]]
    """What came out of the second subscription: each message's penstock-id, and its row."""
    gone: set[str]
    """Of the taken ones, those that a restarted emulator or a deleted topic had not given out."""


# --- laws ---------------------------------------------------------------------------------------


def undelivered(sent: SentRows, outcome: PublishOutcome) -> Iterator[str]:
    """L13: what Pub/Sub has taken comes out of the second subscription as it is, and nothing else does."""
    names = {name for name, _ in outcome.pulled}
    yield from (f"message {name} never came" for name in outcome.taken.keys() - names - outcome.gone)
    for name, row in outcome.pulled:
        if outcome.taken.get(name) != row:
            yield f"message {name} came as row {row.seq}, and nobody was told that Pub/Sub has it"


def copied(sent: SentRows, outcome: PublishOutcome) -> Iterator[str]:
    """L14: published again is only what wasn't noted: of a connection that broke at most the requests under way."""
    last = {id_of(message): number for number, each in enumerate(outcome.publishes) for message in each.messages}
    peers = dict(enumerate(each.peer for each in outcome.publishes))
    again = Counter[str]()
    for number, each in enumerate(outcome.publishes):
        later = {last[id_of(message)] for message in each.messages} - {number}
        if each.is_answered and later:
            again[each.peer] += 1
            if peers[max(later)] == each.peer:
                yield f"message {id_of(each.messages[0])} was answered for, and published again by the same connection"
    for peer, requests in again.items():
        if requests > MOST_REQUESTS:
            yield f"{requests} requests of {peer} were answered for, and published again"


def overtaken(sent: SentRows, outcome: PublishOutcome) -> Iterator[str]:
    """L15: messages of an ordering key are published in the order of the task that has put them."""
    seen, newest = set[str](), dict[tuple[str, str], int]()
    for message in chain.from_iterable(each.messages for each in outcome.publishes):
        name = id_of(message)
        if name in seen:
            continue
        seen.add(name)
        part, _, row = name.rpartition("/")
        if int(row) < newest.get((part, message.ordering_key), -1):
            yield f"message {name} of key {message.ordering_key} came behind a later one"
        newest[part, message.ordering_key] = int(row)


def id_of(message: Any) -> str:
    return str(message.attributes["penstock-id"])


def row_of(message: Any) -> Landed:
    """Return the row of a message that was published."""
    fields = json.loads(message.data)
    row = Row(fields["seq"], fields["key"], fields["text"], float(fields["amount"]))  # 31.0 is written as 31
    return Landed(fields["shard"], fields["at"], row.seq, row.key, row.crc)


# --- the workload -------------------------------------------------------------------------------


class Puller(threading.Thread):
    """Pulls the second subscription, as any subscriber does."""

    def __init__(self, address: str) -> None:
        super().__init__(name="second-subscription", daemon=True)
        self.address, self.ended = address, threading.Event()
        self.messages: dict[tuple[str, int], Any] = {}
        """By id and publish time: a redelivery has the same."""

    def run(self) -> None:
        while not self.ended.is_set():
            client = PubSub(self.address)
            try:
                while not self.ended.is_set():
                    self._pull(client)
            except grpc.RpcError:  # the emulator is away, or the subscription, or no message has come
                self.ended.wait(0.2)
            finally:
                client.close()

    def _pull(self, client: PubSub) -> None:
        request = pb.PullRequest(subscription=CLEAN_SUBSCRIPTION, max_messages=1_000)
        received = client.call(request, timeout=10).received_messages
        if not received:  # the emulator answers at once
            self.ended.wait(0.2)
            return
        for each in received:
            message = each.message
            self.messages[message.message_id, message.publish_time.ToNanoseconds()] = message
        client.acknowledge(CLEAN_SUBSCRIPTION, [each.ack_id for each in received])


class PublishStream(SubscriptionStream):
    """The workload."""

    name = "a subscription into a topic"
    laws: Mapping[str, Law] = {
        "misplaced": misplaced, "went back": went_back, "acked early": acked_early, "unacked": unacked,
        "forgotten": forgotten, "undelivered": undelivered, "copied": copied, "overtaken": overtaken,
    }  # fmt: skip
    plan = Plan(
        least={
            **dict.fromkeys((f"server killed at {step}" for step in SERVER_STEPS), 1),
            **dict.fromkeys((f"publisher killed at {step}" for step in PUBLISHER_STEPS), 2),
            "server killed": 2, "server stopped": 1, "server's clock jumps": 2, "disk full": 2, "fsync fails": 1,
            "fsync slow": 1, "connections cut": 2, "connections reset": 2, "half-open": 1, "latency": 1, "throttled": 1,
            "publisher killed": 3, "publisher stopped": 1, "puller killed": 1, "worker killed": 3, "worker stopped": 1,
            "source killed": 1, "driver killed": 2, "emulator restarted": 2, "topic made again": 1,
            "permission lost": 1, "publishes fail": 2, "publishes' answers lost": 2, "Pub/Sub's connections reset": 2,
            "Pub/Sub half-open": 1, "Pub/Sub slow": 1,
        },
        more=("server killed", "publisher killed", "worker killed", "publishes fail", "publishes' answers lost",
              "Pub/Sub's connections reset", "connections reset"),
        faults=60,
    )  # fmt: skip

    def __init__(self, rig: Rig, python: Path) -> None:
        super().__init__(rig, python, CLEAN, SCHEMA)
        self.rows: dict[str, Landed] = {}
        """What Pub/Sub has taken, by penstock-id."""
        self.gone: set[str] = set()
        self.second_puller = Puller(self.emulator.address)
        self._seen = 0
        self._counting = threading.Lock()  # rows, _seen

    def start(self) -> None:
        super().start()
        self.second_puller.start()

    def make_subscription(self) -> None:
        self.make_clean_topic()
        super().make_subscription()

    def make_clean_topic(self) -> None:
        """Make the second topic and its subscription; what the ones before had not given out is gone."""
        self.gone |= self.taken().keys() - self.came()
        self.client.create_topic(CLEAN)
        self.client.create_subscription(CLEAN_SUBSCRIPTION, CLEAN)

    def message(self, row: Row) -> Any:
        data = json.dumps(row._asdict())
        return pb.PubsubMessage(
            data=(data[:-1] if row.seq % BAD == 0 else data).encode(),
            attributes={"seq": str(row.seq), "key": str(row.key)},
        )

    def decode(self, table: pa.Table) -> list[Landed]:
        landed = []
        for shard, offset, attributes, data in zip(*(column.to_pylist() for column in table.columns), strict=True):
            is_bad = int(dict(attributes)["seq"]) % BAD == 0
            row = Row(**json.loads(data + b"}" if is_bad else data))
            landed.append(Landed(shard, offset, row.seq, row.key, row.crc))
        return landed

    # --- what has landed --------------------------------------------------------------------

    def taken(self) -> dict[str, Landed]:
        """Return what Pub/Sub has taken by now."""
        with self._counting:
            messages = self.recorder.taken[self._seen :]
            self._seen += len(messages)
            for message in messages:
                self.rows.setdefault(id_of(message), row_of(message))
            return dict(self.rows)

    def came(self) -> set[str]:
        """Return the ids of what has come from the second subscription by now."""
        return {id_of(message) for message in list(self.second_puller.messages.values())}

    def count_landed(self, bare: flight.FlightClient) -> int:
        dead = 0
        with suppress(flight.FlightServerError, KeyError):  # there is none yet
            dead = int(call(bare, "describe", BRIEFLY, path=DEAD)["rows"])
        return len(self.taken()) + dead

    def is_done(self) -> bool:
        return super().is_done() and self.taken().keys() <= self.came() | self.gone

    def contents(self) -> dict[str, list[Landed]]:
        dead: list[Landed] = []
        with suppress(flight.FlightServerError, KeyError):  # the checker says what is missing
            dead = self.decode(self.read(DEAD, {"_dead_shard": "shard", "_dead_offset": "offset"}))
        journal = self.decode(self.read(PATH, {"_shard": "shard", "_offset": "offset"}))
        return {"journal": journal, "sink": [*self.taken().values(), *dead]}

    def outcome(self) -> PublishOutcome:
        outcome = super().outcome()
        self.second_puller.ended.set()
        self.second_puller.join(30)
        pulled = [(id_of(message), row_of(message)) for message in self.second_puller.messages.values()]
        return PublishOutcome(
            **vars(outcome), publishes=self.recorder.publishes, taken=self.taken(), pulled=pulled, gone=self.gone
        )

    def notes(self) -> dict[str, int]:
        pulled = len(self.second_puller.messages)
        return {
            **super().notes(), "dead": self.watch.landed - len(self.rows), "published": pulled,
            "copies": pulled - len(self.came()), "gone with the topic": len(self.gone - self.came()),
        }  # fmt: skip

    def publishers(self) -> list[int]:
        """Return the publishers that run; an epoch makes one, if there are rows to come."""
        return child_processes(self.rig.server.process.pid, " publisher ")

    def is_over(self) -> bool:
        """Whether no rows are to come."""
        return not any(each.is_alive() for each in self.rig.producers)

    def close(self) -> None:
        self.second_puller.ended.set()
        if self.second_puller.is_alive():
            self.second_puller.join(30)
        super().close()


# --- faults -------------------------------------------------------------------------------------


def publisher_killed(stream: PublishStream, dice: random.Random) -> None:
    stream.rig.allow(stream.rig.rows // 100)
    stream.rig.until(lambda: stream.publishers() or stream.is_over(), "there is a publisher")
    for pid in stream.publishers():
        kill(pid)


def publisher_killed_at(step: str, stream: PublishStream, dice: random.Random) -> None:
    crash = stream.rig.server.hooks / "puller-crash"
    crash.write_text(step)
    stream.rig.allow(stream.rig.rows // 100)  # rows that pass the step
    give_up = time.monotonic() + 60

    def is_dead() -> bool:
        if stream.is_over() and time.monotonic() > give_up:
            crash.unlink(missing_ok=True)
        return not crash.exists()

    stream.rig.until(is_dead, f"a publisher comes to {step}")


def publisher_stopped(stream: PublishStream, dice: random.Random) -> None:
    stop_for(stream, stream.publishers(), dice.uniform(2, 6))


def topic_made_again(stream: PublishStream, dice: random.Random) -> None:
    """An epoch fails; made again, the topic gets the rest of it. What nobody had pulled is gone."""
    ends = len(stream.driver.ends())
    stream.client.delete_topic(CLEAN)
    stream.client.delete_subscription(CLEAN_SUBSCRIPTION)
    stream.rig.allow(stream.rig.rows // 50)
    give_up = time.monotonic() + 60

    def has_failed() -> bool:
        return len(stream.driver.ends()) > ends or (stream.is_over() and time.monotonic() > give_up)

    stream.rig.until(has_failed, "the query has failed")
    stream.make_clean_topic()


def publishes_fail(stream: PublishStream, dice: random.Random) -> None:
    codes = ("ABORTED", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
    stream.recorder.failing_publishes.extend(("before", dice.choice(codes)) for _ in range(20))


def publishes_answers_lost(stream: PublishStream, dice: random.Random) -> None:
    codes = ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED")
    stream.recorder.failing_publishes.extend(("after", dice.choice(codes)) for _ in range(10))


_SHARED = (
    "puller killed", "source killed", "driver killed", "emulator restarted", "permission lost",
    "Pub/Sub's connections reset", "Pub/Sub half-open", "Pub/Sub slow",
)  # fmt: skip
FAULTS: dict[str, Callable[[Any, random.Random], None]] = {
    **{kind: subscription_stream.FAULTS[kind] for kind in _SHARED},
    **{f"server killed at {step}": partial(killed_at, step) for step in SERVER_STEPS},
    **{f"publisher killed at {step}": partial(publisher_killed_at, step) for step in PUBLISHER_STEPS},
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "publisher killed": publisher_killed,
    "publisher stopped": publisher_stopped,
    "topic made again": topic_made_again,
    "publishes fail": publishes_fail,
    "publishes' answers lost": publishes_answers_lost,
}
"""Its own faults, by kind."""
PublishStream.faults = FAULTS
