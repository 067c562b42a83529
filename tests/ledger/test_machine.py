"""Any sequence of writes, ends, crashes and restarts: a reader sees exactly what plain dicts predict.

The oracle is a dict of datasets, each a list of parts, and a dict of writes: no SQL, and none of the ledger's code.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, rule

from penstock import steps
from penstock.errors import AlreadyExists, InvalidRequest, Lost, NotFound, WriteEnded
from penstock.ledger import jobs, tables
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import Ledger
from penstock.ledger.writes import Write
from penstock.store import payload_table
from penstock.store.database import Database
from penstock.wire.put import DatasetOptions
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.ledger import SCHEMA, make_attempt
from tests.kit.profiles import examples

pytestmark = pytest.mark.faults  # seconds of them

PATHS = ["store/a", "store/a/b", "store/d"]
DAY = 24 * 3_600
Mode = Literal["error", "append", "overwrite"]
MODES = st.sampled_from(["error", "append", "overwrite"])
RUNS = st.sampled_from([None, "r", "s"])
PARTITIONS = st.sampled_from([None, None, "p", "q"])


@dataclass
class ExpectedWrite:
    """A write as the oracle expects it."""

    path: str
    mode: Mode
    run: str | None
    touched: float
    partition: str | None = None
    state: str = "open"
    attempts: dict[str, list[str]] = field(default_factory=dict)
    """Whole attempt -> the names of its parts."""
    listed: frozenset[str] = frozenset()
    """The attempts that its finish listed."""


def attempt_of(parts: int) -> Attempt:
    """Return a whole attempt with so many parts of 5 rows and 50 bytes."""
    return make_attempt(*[5] * parts)


class LedgerMachine(RuleBasedStateMachine):
    writes: Bundle[str] = Bundle("writes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.expected: dict[str, ExpectedWrite] = {}
        self.visible: dict[str, list[str]] = {}
        """Path -> the names of the parts that a reader gets, in order."""
        self.ticketed: dict[str, float] = {}
        self.retired: dict[str, float] = {}
        """Part -> the time until which a ticket holds it."""
        self.life = 1
        self.life_of: dict[str, int] = {}
        """Part -> the life of the store that wrote it."""
        self.partition_of: dict[str, str | None] = {}
        self.start()

    def start(self) -> None:
        self.database = Database(self.folder / "ledger.db", tables.TABLES, jobs.TABLES, payload_table.TABLES)
        self.ledger = Ledger(self.database, incarnation=f"life {self.life}", now=self.clock.now)

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    # --- the oracle -------------------------------------------------------------------------

    def may_be_dataset(self, path: str) -> bool:
        """Tell whether the path is neither a folder nor below a dataset."""
        return not any(other.startswith(path + "/") or path.startswith(other + "/") for other in self.visible)

    def is_lost(self, path: str) -> bool:
        return any(self.life_of[name] < self.life for name in self.visible.get(path, []))

    def refusal(self, expected: ExpectedWrite) -> type[AlreadyExists | Lost] | None:
        """Return the error of a write that may not make or change the dataset at its path."""
        replaces_all = expected.mode == "overwrite" and expected.partition is None
        if not replaces_all and self.is_lost(expected.path):
            return Lost
        taken = expected.mode == "error" and expected.path in self.visible
        return AlreadyExists if taken or not self.may_be_dataset(expected.path) else None

    def forget_runs(self, path: str) -> None:
        for expected in self.expected.values():
            if expected.path == path and expected.state == "finished":
                expected.run = None

    def writes_of_run(self, path: str, run: str | None) -> list[str]:
        """Return the write of this run, if there is one."""
        running = ((w, each) for w, each in self.expected.items() if each.state in ("open", "finished"))
        return [w for w, each in running if run is not None and (each.path, each.run) == (path, run)]

    def retire(self, names: list[str], until: float = 0) -> None:
        self.retired.update(dict.fromkeys(names, max(until, self.clock.now())))

    def remove_dataset(self, path: str) -> None:
        self.retire(self.visible.pop(path), self.ticketed.get(path, 0))  # a ticket holds whatever is at its path

    def remove_partition(self, path: str, partition: str) -> None:
        gone = [name for name in self.visible[path] if self.partition_of[name] == partition]
        self.retire(gone, self.ticketed.get(path, 0))
        self.visible[path] = [name for name in self.visible[path] if name not in gone]

    def end(self, expected: ExpectedWrite, state: str) -> None:
        expected.state = state
        for attempt, names in expected.attempts.items():
            if attempt not in expected.listed:
                self.retire(names)

    def expect_finished(self, expected: ExpectedWrite, attempts: list[str]) -> None:
        expected.listed = frozenset(attempts)
        if expected.mode == "overwrite" and expected.path in self.visible:
            if expected.partition is None:
                self.remove_dataset(expected.path)
            else:
                self.remove_partition(expected.path, expected.partition)
        visible = self.visible.setdefault(expected.path, [])
        for attempt in dict.fromkeys(attempts):
            visible.extend(expected.attempts[attempt])
        self.end(expected, "finished")

    # --- rules ------------------------------------------------------------------------------

    def open(self, path: str, mode: Mode, run: str | None, partition: str | None) -> Write:
        options = DatasetOptions(partition)
        return self.ledger.open_write(path, mode=mode, run=run, schema=SCHEMA, dataset=options)

    @rule(target=writes, path=st.sampled_from(PATHS), mode=MODES, run=RUNS, partition=PARTITIONS)
    def opens(self, path: str, mode: Mode, run: str | None, partition: str | None) -> str | MultipleResults[str]:
        joined = self.writes_of_run(path, run)
        requested = ExpectedWrite(path, mode, run, self.clock.now(), partition)
        is_forgotten = bool(joined) and self.expected[joined[0]].state == "finished" and self.is_lost(path)
        if is_forgotten:
            joined = []
        if not joined and (refusal := self.refusal(requested)):
            with pytest.raises(refusal):
                self.open(path, mode, run, partition)
            return multiple()
        if is_forgotten:
            self.forget_runs(path)
        if joined and (self.expected[joined[0]].mode, self.expected[joined[0]].partition) != (mode, partition):
            with pytest.raises(InvalidRequest, match="was opened with"):
                self.open(path, mode, run, partition)
            return multiple()
        write = self.open(path, mode, run, partition)
        if joined:
            assert [write.id] == joined
            self.expected[write.id].touched = self.clock.now()
        else:
            assert write.id not in self.expected
            self.expected[write.id] = requested
        assert write.state == self.expected[write.id].state
        return write.id

    @rule(write=writes, parts=st.integers(0, 3))
    def records(self, write: str, parts: int) -> None:
        if self.expected[write].state == "open":
            self.record(write, parts)
        else:
            with pytest.raises(WriteEnded):
                self.ledger.record(write, attempt_of(parts))

    def record(self, write: str, parts: int) -> str:
        expected, attempt = self.expected[write], attempt_of(parts)
        self.ledger.record(write, attempt)
        expected.attempts[attempt.id] = [part.name for part in attempt.parts]
        self.life_of.update(dict.fromkeys(expected.attempts[attempt.id], self.life))
        self.partition_of.update(dict.fromkeys(expected.attempts[attempt.id], expected.partition))
        expected.touched = self.clock.now()
        return attempt.id

    @rule(
        target=writes,
        path=st.sampled_from(PATHS),
        mode=MODES,
        run=RUNS,
        partition=PARTITIONS,
        parts=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    )
    def writes_all_at_once(
        self, path: str, mode: Mode, run: str | None, partition: str | None, parts: list[int]
    ) -> str | MultipleResults[str]:
        expected = ExpectedWrite(path, mode, run, self.clock.now(), partition)
        if not self.refusal(expected) and not self.writes_of_run(path, run):
            write = self.open(path, mode, run, partition).id
            self.expected[write] = expected
            attempts = [self.record(write, number) for number in parts]
            self.ledger.finish(write, attempts[1:] or attempts)
            self.expect_finished(expected, attempts[1:] or attempts)
            return write
        return multiple()

    @rule(write=writes, data=st.data(), crash=st.sampled_from([None, None, None, "finish.checked", "finish.shown"]))
    def finishes(self, write: str, data: st.DataObject, crash: str | None) -> None:
        expected = self.expected[write]
        names = sorted(expected.attempts)
        attempts = data.draw(st.lists(st.sampled_from(names), max_size=4)) if names else []
        if expected.state == "finished" and expected.listed == frozenset(attempts):
            assert self.ledger.finish(write, attempts) == self.ledger.summary(write)
        elif expected.state != "open":
            with pytest.raises(WriteEnded):
                self.ledger.finish(write, attempts)
        elif refusal := self.refusal(expected):
            with pytest.raises(refusal):
                self.ledger.finish(write, attempts)
        elif any(self.life_of[name] < self.life for attempt in attempts for name in expected.attempts[attempt]):
            with pytest.raises(Lost):
                self.ledger.finish(write, attempts)
        elif crash:
            self.crashes_within_finish(write, attempts, crash)
        else:
            done = self.ledger.finish(write, attempts)
            self.expect_finished(expected, attempts)
            assert done.parts == sum(len(expected.attempts[attempt]) for attempt in expected.listed)

    def crashes_within_finish(self, write: str, attempts: list[str], step: str) -> None:
        with mock.patch.object(steps, "passed", crash_at(step)), pytest.raises(Crash):
            self.ledger.finish(write, attempts)
        self.restarts()

    @rule(write=writes)
    def finishes_with_an_unknown_attempt(self, write: str) -> None:
        with pytest.raises((NotFound, WriteEnded, AlreadyExists, Lost)):
            self.ledger.finish(write, [*self.expected[write].attempts, uuid.uuid4().hex])

    @rule(write=writes)
    def aborts(self, write: str) -> None:
        expected = self.expected[write]
        if expected.state == "finished":
            with pytest.raises(WriteEnded):
                self.ledger.abort(write)
            return
        assert self.ledger.abort(write).state == ("aborted" if expected.state == "open" else expected.state)
        if expected.state == "open":
            self.end(expected, "aborted")

    @rule(seconds=st.sampled_from([1.0, 3_600.0, DAY / 2 + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def expires(self) -> None:
        oldest = self.clock.now() - DAY
        idle = {w for w, each in self.expected.items() if each.state == "open" and each.touched < oldest}
        assert set(self.ledger.expire()) == idle
        for write in idle:
            self.end(self.expected[write], "expired")

    @rule(path=st.sampled_from(PATHS))
    def deletes(self, path: str) -> None:
        if path in self.visible:
            assert self.ledger.delete(path).part_count == len(self.visible[path])
            self.remove_dataset(path)
            self.forget_runs(path)  # a delete starts over, an overwrite forgets no run
        else:
            with pytest.raises(NotFound):
                self.ledger.delete(path)

    @rule(path=st.sampled_from(PATHS), life=st.sampled_from([10.0, 7_200.0]))
    def reads(self, path: str, life: float) -> None:
        if path in self.visible:
            self.ledger.snapshot(path, ticketed_until=self.clock.now() + life)
            self.ticketed[path] = max(self.ticketed.get(path, 0), self.clock.now() + life)

    @rule()
    def frees(self) -> None:
        """Only retired parts are freed, and only once their tickets have expired (or two minutes later)."""
        free = self.ledger.freeable()
        assert all(self.retired[name] <= self.clock.now() for name in free)
        assert set(free) >= {name for name, until in self.retired.items() if until <= self.clock.now() - 120}
        self.ledger.forget(free)
        for name in free:
            del self.retired[name]

    @rule()
    def restarts(self) -> None:
        self.database.close()
        self.start()

    @rule()
    def restarts_without_its_memory(self) -> None:
        self.life += 1
        self.restarts()

    # --- what must hold after each rule -----------------------------------------------------

    @invariant()
    def readers_see_the_oracles_parts(self) -> None:
        for path in PATHS:
            if path in self.visible:
                dataset, parts = self.ledger.snapshot(path, ticketed_until=0)
                assert [laid.part for laid in parts] == self.visible[path]
                assert (dataset.part_count, dataset.rows) == (len(parts), 5 * len(parts))
                assert (dataset.bytes, dataset.lost) == (50 * len(parts), self.is_lost(path))
            else:
                with pytest.raises(NotFound):
                    self.ledger.dataset(path)

    @invariant()
    def listings_say_the_same(self) -> None:
        assert [dataset.path for dataset in self.ledger.datasets("store/")] == sorted(self.visible)
        below = sorted({path if path.count("/") == 1 else path[:8] for path in self.visible})
        assert [entry.path for entry in self.ledger.folder("store")] == below

    @invariant()
    def every_part_is_accounted_for(self) -> None:
        waiting = [
            name
            for expected in self.expected.values()
            if expected.state == "open"
            for names in expected.attempts.values()
            for name in names
        ]
        visible = [name for names in self.visible.values() for name in names]
        assert sorted(self.ledger.part_names()) == sorted([*waiting, *visible, *self.retired])

    @invariant()
    def writes_are_as_the_oracle_has_them(self) -> None:
        still_open = {w for w, expected in self.expected.items() if expected.state == "open"}
        assert {w.write for w in self.ledger.open_writes()} == still_open
        for write, expected in self.expected.items():
            summary = self.ledger.summary(write)
            assert (summary.state, summary.run) == (expected.state, expected.run)
            counted = [a for a in expected.attempts if expected.state == "open" or a in expected.listed]
            parts = sum(len(expected.attempts[attempt]) for attempt in counted)
            assert (summary.attempts, summary.parts) == (len(counted), parts)
            assert (summary.rows, summary.bytes) == (5 * parts, 50 * parts)


LedgerMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40)
TestLedgerMachine = LedgerMachine.TestCase
