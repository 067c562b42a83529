"""Chaos under jobs: on each pool, and with queues in the server or on Kafka, each row is in the dataset once."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from scripts import kafka_broker
from tests.chaos import faults, job_chain
from tests.chaos.chain import Chain, QueueOutcome, Stored
from tests.chaos.deliveries import Deliveries, Lease
from tests.chaos.job_chain import KINDS, ROWS, JobChain, Kind
from tests.chaos.oracle import SentRows, Usage, check
from tests.chaos.run import asked_seed, check_survival

USUAL, *OTHERS = KINDS


class ShortJob(JobChain):
    """Each kind of fault once or not at all."""

    of_all = dict.fromkeys((
        "server killed", "server killed at a step", "connections cut", "driver killed", "worker fails",
        "message poisoned", "worker stopped",
    ), 1)  # fmt: skip
    of_processes = dict.fromkeys(("worker killed", "worker killed at a step", "worker out of memory"), 1)
    of_kafka = dict.fromkeys(("broker killed", "broker stopped"), 1)
    stopped = 2.0


def survive(
    folder: Path, capsys: pytest.CaptureFixture[str], workload: type[JobChain], kind: Kind, seed: int, rows: int
) -> None:
    if kind.pool == "ray":
        pytest.importorskip("ray", reason="Ray is missing: pip install 'penstock-flight[ray]'")
    if kind.on_kafka and (lack := kafka_broker.missing()) is not None:
        pytest.skip(lack)
    plan = workload.plan_of(kind)
    check_survival(folder, partial(workload, kind=kind), capsys, plan, least=plan.faults, rows=rows, seed=seed)


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kinds", [[USUAL], OTHERS], ids=["usual", "other"])
def test_rows_survive_faults_under_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str], kinds: list[Kind]) -> None:
    """No row is lost, changed or doubled, each retry has its fault, and nothing is left behind."""
    seed = asked_seed()
    survive(tmp_path, capsys, ShortJob, kinds[seed % len(kinds)], seed, 3_000)


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.pool}-{'kafka' if kind.on_kafka else 'embedded'}")
def test_rows_survive_many_faults_under_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Kind) -> None:
    survive(tmp_path, capsys, JobChain, kind, asked_seed(), ROWS)


def test_plans_of_jobs_have_every_kind_of_fault() -> None:
    fallen = sum((Counter(JobChain.plan_of(kind).least) for kind in KINDS), Counter())
    assert set(fallen) <= {*faults.FAULTS, *job_chain.FAULTS}
    assert {each for each in job_chain.FAULTS if not each.startswith("worker killed at ")} <= {*fallen, "worker killed"}
    assert set(JobChain.laws) > set(Chain.laws)


@pytest.mark.parametrize(("error", "is_strange"), [("MemoryError", False), ("KeyError", True), (None, False)])
def test_an_error_that_no_fault_explains_is_found(tmp_path: Path, error: str | None, is_strange: bool) -> None:
    sent = SentRows(tmp_path / "sent.jsonl")
    lease = Lease("queue/j/score", "a", "t", "w", 1, 1.0, 1.1, error=error)
    places: dict[str, list[Stored]] = {"source": [], "sink": []}
    deliveries, usage = Deliveries([lease], [], {}, {}, [], 1.0), Usage(1, 1, 1)
    outcome = QueueOutcome(places, places, [usage], usage, usage, [], deliveries=deliveries, finished=1.0, leftovers=[])
    broken = check(sent, outcome, JobChain.laws)
    sent.close()
    assert (broken["strange"] != []) is is_strange
