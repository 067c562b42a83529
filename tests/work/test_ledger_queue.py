"""Queues in the ledger: restarts, clocks, what is dead or done for long, and statements that stay fast."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from penstock import steps
from penstock.errors import InvalidRequest, NotFound
from penstock.ledger import payloads
from penstock.ledger.tables import Transaction
from penstock.queue.work import messages
from penstock.queue.work.lease_queue import Forward, NewMessage
from penstock.queue.work.leases import Leases
from penstock.store.payload_table import PayloadRow, encode
from penstock.wire.message import QueueMessage
from penstock.wire.queue import Failure
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.work.queues import IN, LEASE, OUT, LedgerQueues, claim, claimed, names, new, results

HOUR = 3_600.0


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], LedgerQueues]]:
    """Open the queues as a process that has just started does."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(LedgerQueues(tmp_path, clock)))


@pytest.fixture
def queues(start: Callable[[], LedgerQueues]) -> LedgerQueues:
    return start()


def test_leases_that_have_ended_take_no_memory(clock: Clock) -> None:
    leases = Leases(LEASE, clock.now)
    tracemalloc.start()
    for turn in range(100):
        tokens = [f"{turn}.{number}" for number in range(300)]
        leases.begin(IN, f"claim-{turn}", tokens, is_durable=True)
        leases.end(tokens)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 30_000 * 100


# --- restarts ------------------------------------------------------------------------------


def test_a_lease_is_full_again_after_a_restart(
    queues: LedgerQueues, start: Callable[[], LedgerQueues], clock: Clock
) -> None:
    queues.queue.push(new(IN, "a", "b"))
    a, b = claimed(queues.queue, IN, 2)
    queues.close()
    clock.advance(HOUR)
    queue = start().queue
    clock.advance(LEASE - 1)
    assert names(claim(queue, IN)) == []
    assert results(queue.ack([a])) == ["done"]
    clock.advance(1)
    assert results(queue.ack([b])) == ["lease-lost"]
    assert names(claim(queue, IN)) == ["b"]


def test_answers_are_the_same_after_a_restart(queues: LedgerQueues, start: Callable[[], LedgerQueues]) -> None:
    queues.queue.push(new(IN, "a", "b", "c"))
    first = queues.queue.claim(IN, "c1", worker="w", most=2)
    forward = Forward((first.leases[0].key,), tuple(new(OUT, "a")))
    queues.queue.forward([forward])
    queues.close()
    queue = start().queue
    assert queue.claim(IN, "c1", worker="w", most=2).leases == first.leases[1:]
    assert results(queue.forward([forward])) == ["done"]
    assert queue.counts(OUT).pushed == 1


def test_delays_are_over_after_a_restart(queues: LedgerQueues, start: Callable[[], LedgerQueues]) -> None:
    queues.queue.push(new(IN, "a"))
    queues.queue.release(claimed(queues.queue, IN), delay=HOUR)
    queues.close()
    assert names(claim(start().queue, IN)) == ["a"]


def test_a_jump_of_the_clock_ends_no_lease(tmp_path: Path, clock: Clock) -> None:
    monotonic = Clock()
    with closing(LedgerQueues(tmp_path, clock, monotonic)) as queues:
        queue = queues.queue
        queue.push(new(IN, "a", "b", "c"))
        a, b = claimed(queue, IN, 2)
        queue.release([b], delay=5)
        clock.advance(1_000 * HOUR)
        assert results(queue.extend([a])) == ["claimed"]
        clock.advance(-2_000 * HOUR)
        monotonic.advance(5)
        assert names(claim(queue, IN, 2)) == ["b", "c"]
        assert results(queue.ack([a])) == ["done"]


# --- crashes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "is_done"), [("forward.pushed", False), ("forward.settled", False), ("forward.done", True)]
)
def test_a_crash_in_a_forward_leaves_all_or_nothing(
    queues: LedgerQueues, start: Callable[[], LedgerQueues], step: str, is_done: bool
) -> None:
    queues.queue.push(new(IN, "a"))
    forward = Forward(tuple(claimed(queues.queue, IN, to=[OUT])), tuple(new(OUT, "a/0", "a/1")))
    with mock.patch.object(steps, "passed", crash_at(step)), pytest.raises(Crash):
        queues.queue.forward([forward])
    queues.close()
    queue = start().queue
    assert (queue.counts(IN).done, queue.counts(OUT).pushed) == ((1, 2) if is_done else (0, 0))
    assert results(queue.forward([forward])) == ["done"]
    assert (queue.counts(IN).done, queue.counts(OUT).pushed) == (1, 2)


def test_a_payload_stays_until_the_ack_is_durable(queues: LedgerQueues, start: Callable[[], LedgerQueues]) -> None:
    row = PayloadRow("queue/j/a", None, encode(pa.schema([]), []), 0, 10)
    queues.queue.push(new(IN, "a", key=row.key), bind=lambda index, t: payloads.bind(t, row, bound=True))
    leases = claimed(queues.queue, IN)
    with mock.patch.object(steps, "passed", crash_at("ack.settled")), pytest.raises(Crash):
        queues.queue.ack(leases)
    queues.close()
    queues = start()
    assert queues.ledger.payload(row.key) is not None
    queues.queue.ack(leases)
    assert queues.ledger.payload(row.key) is None


@pytest.mark.parametrize("step", ["claim.claimed", "claim.done"])
def test_a_crash_in_a_claim_costs_no_message(
    queues: LedgerQueues, start: Callable[[], LedgerQueues], step: str
) -> None:
    queues.queue.push(new(IN, "a", "b"))
    with mock.patch.object(steps, "passed", crash_at(step)), pytest.raises(Crash):
        queues.queue.claim(IN, "c1", worker="w")
    queues.close()
    queue = start().queue
    repeated = queue.claim(IN, "c1", worker="w")
    assert (names(repeated), repeated.leases[0].tries) == (["a"], 1)
    assert names(claim(queue, IN, 2)) == ["b"]


# --- dead, done, removed -------------------------------------------------------------------


def test_a_dead_message_has_its_cause_and_worker(queues: LedgerQueues, clock: Clock) -> None:
    queue, failure = queues.queue, Failure("ValueError", "no such column", "Traceback …")
    queue.push(new(IN, "a", "b", "c"))
    for _ in range(5):
        a, b, _ = claimed(queue, IN, 3)
        assert results(queue.release([a], failure=failure))[0] in ("pending", "dead")
        queue.release([b], failure=Failure("E"))
        clock.advance(LEASE)
    queue.tend(lambda: False)
    dead = {each.message.message_id: each for each in queue.peek(IN, dead=True)}
    assert (dead["a"].failure, dead["a"].tries, dead["a"].worker) == (failure, 5, "host:1")
    failures = [dead[name].failure for name in "bc"]
    assert [each and each.error for each in failures] == ["E", "LeaseExpired"]
    assert [each.message.message_id for each in queue.peek(IN, dead=True, most=1)] == ["a"]


def test_12_000_dead_messages_are_redriven(queues: LedgerQueues) -> None:
    """In more than one transaction; each is claimed again, with no tries, and done once."""
    queue, halves = queues.queue, [range(6_000), range(6_000, 12_000)]
    for half in halves:
        queue.push(new(IN, *map(str, half)))
    queue.finish(IN)
    for _ in halves:
        queue.drop(claimed(queue, IN, 6_000), Failure("E"))
    assert (queue.counts(IN).state, queue.counts(IN).dead) == ("complete", 12_000)
    assert queue.redrive(IN) == 12_000
    done: list[str] = []
    for _ in halves:
        leases = claim(queue, IN, 6_000).leases
        assert {lease.tries for lease in leases} == {1}
        queue.ack([lease.key for lease in leases])
        done += [lease.key.message_id for lease in leases]
    assert sorted(map(int, done)) == list(range(12_000))
    counts = queue.counts(IN)
    assert (counts.state, counts.pending, counts.done, counts.dead) == ("complete", 0, 12_000, 0)


def test_leases_end_where_nobody_claims(queues: LedgerQueues, clock: Clock) -> None:
    queues.queue.push(new(IN, "a"))
    claimed(queues.queue, IN)
    clock.advance(LEASE)
    queues.queue.tend(lambda: False)
    assert (queues.queue.counts(IN).pending, queues.queue.counts(IN).claimed) == (1, 0)


def test_done_messages_are_forgotten_after_an_hour(queues: LedgerQueues, clock: Clock) -> None:
    queue = queues.queue
    queue.push(new(IN, "a", "b"))
    leases = claimed(queue, IN)
    queue.ack(leases)
    clock.advance(HOUR)
    queue.tend(lambda: False)
    assert results(queue.ack(leases)) == ["done"]
    clock.advance(1)
    queue.tend(lambda: False)
    assert results(queue.ack(leases)) == ["lease-lost"]
    assert (queue.counts(IN).pushed, queue.counts(IN).done) == (2, 1)


def test_a_removed_queue_leaves_nothing(queues: LedgerQueues) -> None:
    queue = queues.queue
    queue.push(new(IN, *"abc"))
    leases = claimed(queue, IN, to=[OUT])
    queue.remove(IN)
    with pytest.raises(NotFound):
        queue.counts(IN)
    assert results(queue.ack(leases)) == ["lease-lost"]
    assert (queue.counts(OUT).state, queue.counts(OUT).cause) == ("failed", f"{IN} was removed")
    queue.push(new(IN, "a"))
    queue.tend(lambda: False)
    assert queue.counts(IN).pushed == 1
    assert [row["message_id"] for row in queues.database.rows("SELECT message_id FROM messages")] == ["a"]


@pytest.mark.parametrize("path", ["store/x", "queue/x/dead", "queue/", "queue"])
def test_a_path_that_is_no_queue_is_refused(queues: LedgerQueues, path: str) -> None:
    with pytest.raises(InvalidRequest):
        queues.queue.push(new(path, "a"))


def test_metadata_that_json_lacks_is_refused(queues: LedgerQueues) -> None:
    with pytest.raises(InvalidRequest, match="metadata"):
        queues.queue.push([NewMessage(IN, QueueMessage("a", "a", "", {"x": float("nan")}, 0.0))])


# --- statements ----------------------------------------------------------------------------


def test_no_statement_of_a_queue_reads_all_messages(queues: LedgerQueues) -> None:
    """With a million messages a claim costs what it costs with ten: each statement finds its rows by an index."""
    statements: set[str] = set()
    queues.ledger.change(lambda t: t.sql.set_trace_callback(statements.add))
    queue = queues.queue
    queue.push(new(IN, "a", "b", "c", "d"))
    a, b, c, d = claimed(queue, IN, 4, to=[OUT])
    queue.ack([a])
    queue.release([b], delay=9)
    queue.drop([c], Failure("E"))
    queue.forward([Forward((d,), tuple(new(OUT, "d", key="k@" + "0" * 32 + "-0")))])
    queue.ack(claimed(queue, OUT))
    queue.redrive(IN)
    queue.tend(lambda: False)
    queues.ledger.change(lambda t: t.sql.set_trace_callback(None))
    scans = []
    for statement in statements:
        if "messages" in statement:
            plan = queues.ledger.change(partial(_plan, statement))
            scans += [(statement, step) for step in plan if step.startswith("SCAN messages")]
    assert scans == []
    assert len(statements) > 20


def _plan(statement: str, t: Transaction) -> list[str]:
    return [row["detail"] for row in t.rows(f"EXPLAIN QUERY PLAN {statement}")]


def test_a_call_has_at_most_10_000_messages(queues: LedgerQueues) -> None:
    with pytest.raises(InvalidRequest, match="at most 10,000"):
        queues.queue.push(new(IN, *map(str, range(10_001))))


def test_undone_messages_are_peeked_at(queues: LedgerQueues) -> None:
    queues.queue.push(new(IN, "a", "b"))
    claimed(queues.queue, IN)
    assert [(each.message.message_id, each.state, each.tries) for each in queues.queue.peek(IN)] == [
        ("a", "claimed", 1), ("b", "pending", 0),
    ]  # fmt: skip
    assert queues.queue.upstreams(IN) == [("put", "open")]
    assert messages.GRACE == HOUR


def test_many_workers_at_once_forward_each_message_once(queues: LedgerQueues) -> None:
    """Their changes share transactions."""
    queue, number = queues.queue, 200
    queue.push(new(IN, *map(str, range(number))))
    queue.finish(IN)

    def work(worker: int) -> int:
        done = 0
        while (lease := queue.claim(IN, f"{worker}-{done}", worker=str(worker), to=[OUT])).leases:
            key = lease.leases[0].key
            assert results(queue.forward([Forward((key,), tuple(new(OUT, f"{key.message_id}/0")))])) == ["done"]
            done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == number
    assert (queue.counts(IN).state, queue.counts(OUT).pushed) == ("complete", number)
    assert len({name for _ in range(2) for name in names(claim(queue, OUT, number))}) == number
