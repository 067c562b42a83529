"""Chaos under queues: under faults of all kinds each row comes out once, and each redelivery has its fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import faults, queue_chain
from tests.chaos.chain import QueueOutcome, Stored
from tests.chaos.deliveries import Deliveries, Fault, Lease
from tests.chaos.oracle import LAWS, SentRows, Usage, check, sent_runs, ten_rows
from tests.chaos.queue_chain import ROWS, QueueChain
from tests.chaos.run import check_survival
from tests.chaos.schedule import Plan, schedule

SEED = 7
PLAN = QueueChain.plan
SECONDS = 2.0


class ShortChain(QueueChain):
    """Of each kind of fault one or two; the steps are drawn."""

    plan = Plan(
        least={
            "server killed at a step": 3, "worker killed at a step": 2, **dict.fromkeys((
                "server killed", "server restarted", "server's clock jumps", "disk full", "fsync fails",
                "connections cut", "connections reset", "half-open", "run sent again", "worker killed",
                "worker late", "worker told to end", "worker fails", "message poisoned", "payload lost",
            ), 1),
        },
        more=(),
        faults=20,
    )  # fmt: skip


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("workload", "count"), [(ShortChain, 15_000), pytest.param(QueueChain, ROWS, marks=pytest.mark.soak)]
)
def test_rows_survive_faults_under_queues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workload: type[QueueChain], count: int
) -> None:
    """No row is lost, changed or doubled, no lease is cut short, and nothing is left behind."""
    check_survival(tmp_path, workload, capsys, workload.plan, least=workload.plan.faults, rows=count)


def test_a_schedule_of_queues_has_every_kind_of_fault() -> None:
    moments = schedule(SEED, ROWS, PLAN)
    assert not Counter(PLAN.least) - Counter(moment.kind for moment in moments)
    known = {*faults.FAULTS, *queue_chain.FAULTS}
    assert set(PLAN.least) == known - {"server killed at a step", "worker killed at a step"}
    assert set(ShortChain.plan.least) <= known


# --- the checker -------------------------------------------------------------------------------


RUNS = [ten_rows(number) for number in range(3)]


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[SentRows]:
    """Two runs that were answered for, and one that wasn't."""
    with sent_runs(tmp_path, *RUNS, answered=2) as sent:
        yield sent


def leased(message: str, worker: str, began: float, **ends: float) -> Lease:
    """Return a lease that began then and ended so."""
    lease = Lease("queue/j/in", message, f"{message}-{began}", worker, 1, began, began + 0.1)
    lease.endings = ends
    lease.outcomes = dict.fromkeys(ends)
    return lease


def good() -> QueueOutcome:
    """Return what they left: a worker was killed with message b, one was late with c, one gave d back."""
    late = leased("c", "late", 10)
    late.endings, late.outcomes = {"forward": 15.0}, {"forward": "lease-lost"}
    again = [replace(leased(name, "w", 14, ack=14.5), tries=2) for name in "bc"]
    leases = [
        leased("a", "w", 10, forward=11.0), leased("b", "killed", 10), late, leased("d", "w", 10, release=11.0),
        leased("d", "w", 12, ack=12.5), *again,
    ]  # fmt: skip
    stops = {"late": [(10.5, 15.0)]}
    deliveries = Deliveries(leases, [], {"killed": 10.5}, stops, [("queue/j/in", 30.0)], SECONDS)
    there = [Stored(row.seq, row.key, row.crc) for row in [*RUNS[0], *RUNS[1]]]
    usage, places = Usage(20, 40, 100 << 20), {"source": there[:10], "sink": there}
    return QueueOutcome(places, places, [usage], usage, usage, [], deliveries=deliveries, finished=20.0, leftovers=[])


Change = Callable[[QueueOutcome], QueueOutcome]


def of(change: Callable[[Deliveries], Deliveries]) -> Change:
    return lambda outcome: replace(outcome, deliveries=change(outcome.deliveries))


def at(place: str, change: Callable[[list[Any]], list[Any]]) -> Change:
    return lambda outcome: replace(outcome, places={**outcome.places, place: change(list(outcome.places[place]))})


def more(*leases: Lease) -> Change:
    return of(lambda known: replace(known, leases=[*known.leases, *leases]))


BREAKS: list[tuple[str, str, Change]] = [
    ("lost", "an answered row", at("sink", lambda rows: rows[:-1])),
    ("lost", "a row of the source", at("source", lambda rows: [*rows, Stored(25, 1, 1)])),
    ("doubled", "in the sink", at("sink", lambda rows: [*rows, rows[0]])),
    ("changed", "in the sink", at("sink", lambda rows: [rows[0]._replace(crc=1), *rows[1:]])),
    ("ended twice", "by two leases", more(replace(leased("b", "w", 18, ack=19.0), tries=3))),
    ("early", "before the lease ended", more(replace(leased("b", "w", 11), tries=2))),
    ("early", "after an extension", more(
        replace(leased("e", "w", 10), extended=13.0), replace(leased("e", "w", 13.5), tries=2))),
    ("unexplained", "nobody was killed", of(lambda known: replace(known, deaths={}))),
    ("unexplained", "nobody was stopped", of(lambda known: replace(known, away={}))),
    ("unexplained", "an unanswered claim", of(
        lambda known: replace(known, deaths={}, leases=[replace(leased("f", "w", 14), tries=3)]))),
    ("complete early", "before the source has ended", lambda outcome: replace(outcome, finished=31.0)),
    ("complete early", "before a message is done", more(leased("g", "w", 30, ack=31.0))),
    ("left", "a payload", lambda outcome: replace(outcome, leftovers=["the payload x"])),
]  # fmt: skip


def test_queues_without_a_broken_law_pass(sent: SentRows) -> None:
    assert check(sent, good(), QueueChain.laws) == {law: [] for law in {**LAWS, **QueueChain.laws}}


@pytest.mark.parametrize(("law", "what", "change"), BREAKS, ids=[f"{law}: {what}" for law, what, _ in BREAKS])
def test_a_law_that_queues_break_is_found(sent: SentRows, law: str, what: str, change: Change) -> None:
    assert check(sent, change(good()), QueueChain.laws)[law] != []


def test_a_fault_of_the_server_explains_a_lapse() -> None:
    first, second = leased("a", "w", 10), replace(leased("a", "v", 13), tries=2)
    deliveries = Deliveries([first, second], [Fault("server killed", 10.5, 11.0)], {}, {}, [], SECONDS)
    assert deliveries.causes() == {"server or wire away": 1}
    assert replace(deliveries, faults=[Fault("server killed", 1.0, 2.0)]).causes() == {"no reason": 1}
