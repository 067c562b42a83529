"""Chaos under a subscription: under faults of all kinds each message lands once, and is acked after that."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("google.pubsub_v1", reason="needs the extra pubsub")

from tests.chaos import faults, subscription_stream
from tests.chaos.oracle import LAWS, SentRows, Usage, check, sent_runs, ten_rows
from tests.chaos.rig import Rig
from tests.chaos.run import check_survival_with_spark
from tests.chaos.schedule import schedule
from tests.chaos.stream import Landed, Sample
from tests.chaos.subscription_stream import Committed, SubscriptionOutcome, SubscriptionStream, seek_back
from tests.kit.pubsub.recorder import Ack, Message

SEED = 7
PLAN = SubscriptionStream.plan
SOME = 30_000
"""Rows of a run that takes minutes; those of `make soak`'s table have 200,000."""
KINDS = 16
"""Kinds of faults of a run that takes one."""


class ShortStream(SubscriptionStream):
    """Some kinds of faults, drawn from the seed, fall once each; but a driver's start costs a quarter of a minute."""

    def __init__(self, rig: Rig, python: Path) -> None:
        super().__init__(rig, python)
        self.plan = PLAN.drawn(rig.seed, KINDS, without={"driver killed"})


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("workload", "least", "count"),
    [
        (ShortStream, KINDS, SOME * KINDS // PLAN.faults),
        pytest.param(SubscriptionStream, PLAN.faults, SOME, marks=pytest.mark.soak),
    ],
)
def test_messages_survive_faults_of_all_kinds(
    tmp_path: Path,
    bare_python: Path,
    capsys: pytest.CaptureFixture[str],
    workload: type[SubscriptionStream],
    least: int,
    count: int,
) -> None:
    """No message is lost, changed or doubled, none is acked before its commit, and in the end all are acked."""
    check_survival_with_spark(tmp_path, workload, bare_python, capsys, PLAN, least=least, rows=count)


def test_a_schedule_of_messages_has_every_kind_of_fault() -> None:
    moments = schedule(SEED, 200_000, PLAN)
    assert not Counter(PLAN.least) - Counter(moment.kind for moment in moments)
    assert set(PLAN.least) == {*faults.FAULTS, *subscription_stream.FAULTS} - {"run sent again"}


@pytest.mark.parametrize("oldest", ["published", "waiting", "failed"])
def test_a_seek_brings_the_newest_message_and_acks_no_other(oldest: str) -> None:
    """Published an hour ago, or later: a seek by seconds would bring nothing, and a fault that needs an ack waits."""
    now = time.time()
    at = dict.fromkeys(("published", "waiting", "failed"), now - 1_800) | {oldest: now - 3_600}
    sought: list[float] = []
    stream: Any = SimpleNamespace(
        publishing=threading.Lock(), published=at["published"], unacked=lambda: {"1": at["waiting"]},
        recorder=SimpleNamespace(unsettled=lambda: {Message("2", int(at["failed"] * 1e6))}),
        client=SimpleNamespace(seek=lambda subscription, seconds: sought.append(seconds)),
    )  # fmt: skip
    seek_back(stream, random.Random(SEED))
    assert now - 3_610 < sought[0] < now - 3_600


# --- the checker -------------------------------------------------------------------------------


RUNS = [ten_rows(number) for number in range(3)]


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[SentRows]:
    """Three runs that were answered for, the first one before the subscription was made again."""
    with sent_runs(tmp_path, *RUNS, answered=3) as sent:
        yield sent


def message(seq: int) -> Message:
    return Message(str(seq % 20), seq)


def good() -> SubscriptionOutcome:
    """Return what they left: of the first run, half; the rest is there, and acked once two consumers were done."""
    there = [*RUNS[0][:5], *RUNS[1], *RUNS[2]]
    landed = [Landed(2, offset, row.seq, row.key, row.crc) for offset, row in enumerate(there)]
    usage, places = Usage(20, 40, 100 << 20), {"journal": landed, "sink": landed}
    return SubscriptionOutcome(
        places, places, [usage], usage, usage, [], {2: 25}, [Sample({"c": {2: 5}}, 5)],
        messages={message(row.seq): (2, row.offset) for row in landed},
        acks=[Ack(message(row.seq), 20.0 if row.offset < 15 else 30.0) for row in landed],
        unknown_acks=[], left=set(),
        commits={"Spark": [Committed(10.0, {2: 20}), Committed(25.0, {2: 25})], "other": [Committed(19.0, {2: 25})]},
        former={row.seq for row in RUNS[0]}, unspooled=5,
    )  # fmt: skip


Change = Callable[[SubscriptionOutcome], SubscriptionOutcome]
BREAKS: list[tuple[str, str, Change]] = [
    ("acked early", "before Spark was done", lambda o: replace(o, acks=[*o.acks, Ack(message(29), 24.0)])),
    ("acked early", "before the other was done", lambda o: replace(o, acks=[*o.acks, Ack(message(0), 18.0)])),
    ("acked early", "before anybody was done", lambda o: replace(o, acks=[*o.acks, Ack(message(0), 1.0)])),
    ("acked early", "never stored", lambda o: replace(o, acks=[*o.acks, Ack(message(9), 40.0)])),
    ("acked early", "an id of another time", lambda o: replace(o, acks=[*o.acks, Ack(Message("0", 99), 40.0)])),
    ("acked early", "an ack id of nobody", lambda o: replace(o, unknown_acks=["7"])),
    ("unacked", "still there", lambda o: replace(o, left={"3"})),
    ("forgotten", "more than the journal lacked", lambda o: replace(o, unspooled=4)),
    ("lost", "of this life of the subscription", lambda o: replace(o, former=set())),
]  # fmt: skip


def test_a_subscription_without_a_fault_breaks_no_law(sent: SentRows) -> None:
    assert check(sent, good(), SubscriptionStream.laws) == {law: [] for law in {**LAWS, **SubscriptionStream.laws}}


@pytest.mark.parametrize(("law", "what", "change"), BREAKS, ids=[f"{law}: {what}" for law, what, _ in BREAKS])
def test_a_law_that_messages_break_is_found(sent: SentRows, law: str, what: str, change: Change) -> None:
    assert check(sent, change(good()), SubscriptionStream.laws)[law] != []
