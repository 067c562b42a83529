"""Any sequence of pushes, claims, acks, writes, crashes and restarts: the ledger's queues do what lists in memory do.

What is compared: each outcome, each claim, the counts and the state of each queue, and which parts may be deleted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, rule

from penstock import steps
from penstock.errors import InvalidRequest, NotFound
from penstock.queue.work import queues
from penstock.queue.work.lease_queue import Claim, Forward, LeaseQueue, NewMessage
from penstock.wire.message import QueueMessage
from penstock.wire.queue import Failure, LeaseKey, LeaseOutcome
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.ledger import SCHEMA, make_attempt
from tests.kit.profiles import examples
from tests.kit.work.memory_queue import MemoryQueue
from tests.kit.work.queues import IN, LAST, OUT, LedgerQueues, new, results

pytestmark = pytest.mark.faults  # seconds of them

PATHS = [IN, OUT, LAST]
BELOW = {IN: [OUT, LAST], OUT: [LAST], LAST: []}
NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3, unique=True)
CRASHES = st.sampled_from([None, None, None, "inside", "settled", "done"])
_T = TypeVar("_T")


class Pair:
    """A lease as the ledger's queue and the oracle have it: their tokens differ."""

    def __init__(self, real: LeaseKey, expected: LeaseKey) -> None:
        self.real, self.expected = real, expected


class QueueMachine(RuleBasedStateMachine):
    leases: Bundle[Pair] = Bundle("leases")
    writes: Bundle[str] = Bundle("writes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.oracle = MemoryQueue(self.clock.now)
        self.numbers = iter(range(10**6))
        self.opened: dict[str, tuple[str, str]] = {}
        """Open write -> the paths of its queue and its dataset."""
        self.deleted: dict[str, str] = {}
        """Key of a part of a deleted dataset -> the part."""
        self.claims: list[tuple[str, str, float]] = []
        """Path, id and time of the claims so far."""
        self.real = LedgerQueues(self.folder, self.clock)

    def teardown(self) -> None:
        self.real.close()
        shutil.rmtree(self.folder)

    def both(self, verb: str, run: Callable[[LeaseQueue, bool], _T], crash: str | None = None) -> tuple[_T, _T] | None:
        """Do the same with both; with a crash, with both or none, and start the ledger's again."""
        if crash is None:
            return run(self.real.queue, True), run(self.oracle, False)
        step = {"inside": f"{verb}.pushed", "settled": f"{verb}.settled", "done": f"{verb}.done"}[crash]
        try:
            with mock.patch.object(steps, "passed", crash_at(step)):
                outcome = run(self.real.queue, True)
        except Crash:
            if crash == "done":
                run(self.oracle, False)
            self.restarts()
            return None
        return outcome, run(self.oracle, False)  # it never came to the step

    def compare(self, verb: str, run: Callable[[LeaseQueue, bool], list[LeaseOutcome]], crash: str | None) -> None:
        outcomes = self.both(verb, run, crash)
        if outcomes is not None:
            assert results(outcomes[0]) == results(outcomes[1])

    # --- rules ------------------------------------------------------------------------------

    @rule(path=st.sampled_from(PATHS), names=NAMES, size=st.integers(0, 3), crash=CRASHES)
    def pushes(self, path: str, names: list[str], size: int, crash: str | None) -> None:
        def push(queue: LeaseQueue, _: bool) -> int | str:
            try:
                return queue.push(new(path, *names, size=size))
            except InvalidRequest:
                return "finished"

        numbers = self.both("push", push, crash)
        assert numbers is None or numbers[0] == numbers[1]

    @rule(
        target=leases,
        path=st.sampled_from(PATHS),
        most=st.integers(1, 3),
        data=st.data(),
        repeats=st.booleans(),
        crash=st.sampled_from([None, None, None, "settled", "done"]),
    )
    def claims_some(
        self, path: str, most: int, data: st.DataObject, repeats: bool, crash: str | None
    ) -> MultipleResults[Pair]:
        to = data.draw(st.lists(st.sampled_from(BELOW[path]), unique=True)) if BELOW[path] else []
        known = [(path, claim) for path, claim, since in self.claims if self.clock.now() - since < 600]
        if repeats and known:
            path, claim = data.draw(st.sampled_from(known))
            to = []
        else:
            claim = f"claim-{next(self.numbers)}"
            self.claims.append((path, claim, self.clock.now()))

        def claim_some(queue: LeaseQueue, _: bool) -> Claim | None:
            try:
                return queue.claim(path, claim, worker="w", most=most, to=to)
            except NotFound:
                return None

        answers = self.both("claim", claim_some, crash) or self.both("claim", claim_some)
        assert answers is not None
        real, expected = answers
        assert (real is None) == (expected is None)
        if real is None or expected is None:
            return multiple()
        assert real.state == expected.state
        assert [(lease.message, lease.tries, lease.bytes) for lease in real.leases] == [
            (lease.message, lease.tries, lease.bytes) for lease in expected.leases
        ]
        return multiple(*(Pair(a.key, b.key) for a, b in zip(real.leases, expected.leases, strict=True)))

    @rule(pairs=st.lists(leases, min_size=1, max_size=3), crash=CRASHES)
    def acks(self, pairs: list[Pair], crash: str | None) -> None:
        self.compare("ack", lambda queue, real: queue.ack(keys_of(pairs, real)), crash)

    @rule(pairs=st.lists(leases, min_size=1, max_size=2), delay=st.sampled_from([0.0, 10.0, 60.0]), crash=CRASHES)
    def releases(self, pairs: list[Pair], delay: float, crash: str | None) -> None:
        failure = Failure("E") if delay else None
        self.compare(
            "release", lambda queue, real: queue.release(keys_of(pairs, real), delay=delay, failure=failure), crash
        )

    @rule(pairs=st.lists(leases, min_size=1, max_size=2), crash=CRASHES)
    def drops(self, pairs: list[Pair], crash: str | None) -> None:
        self.compare("drop", lambda queue, real: queue.drop(keys_of(pairs, real), Failure("E")), crash)

    @rule(pairs=st.lists(leases, min_size=1, max_size=3))
    def extends(self, pairs: list[Pair]) -> None:
        self.compare("extend", lambda queue, real: queue.extend(keys_of(pairs, real)), None)

    @rule(pair=leases, other=leases, both=st.booleans(), data=st.data(), names=NAMES, crash=CRASHES)
    def forwards(
        self, pair: Pair, other: Pair, both: bool, data: st.DataObject, names: list[str], crash: str | None
    ) -> None:
        pairs = [pair, other] if both and pair.real.message_id != other.real.message_id else [pair]
        path = data.draw(st.sampled_from([pair.real.queue, *BELOW[pair.real.queue]]))
        if any(path not in (each.real.queue, *BELOW[each.real.queue]) for each in pairs):
            return
        outputs = tuple(new(path, *(f"{pair.real.message_id}/{name}" for name in names[:2]), size=1))
        self.compare(
            "forward",
            lambda queue, real: queue.forward([Forward(tuple(keys_of(pairs, real)), outputs)]),
            crash,
        )

    @rule(path=st.sampled_from(PATHS), names=NAMES | st.just([]))
    def redrives(self, path: str, names: list[str]) -> None:
        if path in self.oracle.paths():
            assert self.real.queue.redrive(path, names) == self.oracle.redrive(path, names)

    @rule(path=st.sampled_from(PATHS))
    def finishes(self, path: str) -> None:
        self.real.queue.finish(path)
        self.oracle.finish(path)

    # --- writes -----------------------------------------------------------------------------

    @rule(target=writes, path=st.sampled_from(PATHS))
    def opens_write(self, path: str) -> str:
        dataset = f"store/w{next(self.numbers)}"
        write = self.real.ledger.open_write(dataset, schema=SCHEMA, queue=path).id
        self.opened[write] = (path, dataset)
        self.oracle.add_upstream(path, f"write/{write}")
        return write

    @rule(
        write=writes,
        rows=st.lists(st.integers(1, 3), max_size=3),
        crash=st.sampled_from([None, None, "finish.shown", "finish.pushed"]),
    )
    def finishes_write(self, write: str, rows: list[int], crash: str | None) -> None:
        """Finish a write of one attempt with these parts; its dataset is deleted at once."""
        if write not in self.opened:
            return
        attempt = make_attempt(*rows)
        self.real.ledger.record(write, attempt)
        if crash is not None:
            with mock.patch.object(steps, "passed", crash_at(crash)), pytest.raises(Crash):
                self.real.ledger.finish(write, [attempt.id])
            self.restarts()
        self.real.ledger.finish(write, [attempt.id])
        path, dataset = self.opened.pop(write)
        key = dataset.removeprefix("store/")
        messages = [
            QueueMessage(
                f"{write}_{attempt.id}_{number}", f"{attempt.id}-{number}", f"{key}@{attempt.id}-{number}",
                {"source_stage": key, "num_records": rows[number]}, self.clock.now(),
            )
            for number in range(len(rows))
        ]  # fmt: skip
        self.oracle.push_parts(
            path,
            [NewMessage(path, message, part.bytes) for message, part in zip(messages, attempt.parts, strict=True)],
        )
        self.oracle.set_upstream(f"write/{write}", "complete")
        self.real.ledger.delete(dataset)
        parts = zip(messages, attempt.parts, strict=True)
        self.deleted.update({message.payload_key: part.name for message, part in parts})

    @rule(write=writes)
    def aborts_write(self, write: str) -> None:
        if self.opened.pop(write, None):
            self.real.ledger.abort(write)
            self.oracle.set_upstream(f"write/{write}", "failed")

    # --- time and restarts ------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 10.0, 29.0, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def tends(self) -> None:
        if self.clock.now() < 1_003_600:  # done messages are known
            self.real.queue.tend(lambda: False)
            for path in self.oracle.paths():
                self.oracle.expire(path)

    @rule()
    def restarts(self) -> None:
        self.real.close()
        self.real = LedgerQueues(self.folder, self.clock)
        self.oracle.restart()

    # --- what must hold after each rule -----------------------------------------------------

    @invariant()
    def queues_are_as_the_oracle_has_them(self) -> None:
        for path in self.oracle.paths():
            real, expected = self.real.queue.counts(path), self.oracle.counts(path)
            assert (real.state, real.pushed, real.pending, real.claimed, real.done, real.dead, real.bytes) == (
                expected.state, expected.pushed, expected.pending, expected.claimed, expected.done, expected.dead,
                expected.bytes,
            )  # fmt: skip
            assert (real.cause is not None) == (real.state == "failed")
        assert [counts.path for counts in self.real.queue.below("queue/")] == sorted(self.oracle.paths())
        assert queues.disagreements(self.real.database) == []

    @invariant()
    def parts_stay_while_a_message_names_them(self) -> None:
        named = self.oracle.named_keys()
        freeable = {part for key, part in self.deleted.items() if key not in named}
        assert set(self.real.ledger.freeable()) == freeable


def keys_of(pairs: list[Pair], real: bool) -> list[LeaseKey]:
    return [pair.real if real else pair.expected for pair in pairs]


QueueMachine.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much],  # most rules need a lease or a write
)
TestQueueMachine = QueueMachine.TestCase
