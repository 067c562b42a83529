"""Any sequence of writes, ends, crashes and restarts: a reader sees exactly what plain dicts say.

The oracle is a dict of datasets, each a list of attempts, and a dict of writes; it has no SQL and no line of the
ledger's.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, rule

from penstock import steps
from penstock.errors import AlreadyExists, InvalidRequest, Lost, NotFound, WriteEnded
from penstock.ledger import tables
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import Ledger
from penstock.store.database import Database
from penstock.store.medium import Part
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.profiles import examples

pytestmark = pytest.mark.faults  # seconds of them

PATHS = ["store/a", "store/a/b", "store/d"]
DAY = 24 * 3_600
SCHEMA = pa.schema([("n", pa.int64())])
Mode = Literal["error", "append", "overwrite"]
MODES = st.sampled_from(["error", "append", "overwrite"])
RUNS = st.sampled_from([None, "r", "s"])


@dataclass
class Known:
    """What the oracle says of a write."""

    path: str
    mode: Mode
    run: str | None
    touched: float
    state: str = "open"
    whole: dict[str, list[str]] = field(default_factory=dict)
    """Attempt -> the names of its parts."""
    chosen: frozenset[str] = frozenset()


def an_attempt(parts: int) -> Attempt:
    """A whole attempt with so many parts of 5 rows and 40 bytes."""
    name = uuid.uuid4().hex
    return Attempt(name, SCHEMA, parts * 5, tuple(Part(f"{name}-{at}", 5, 40, f"{name}-{at}") for at in range(parts)))


class LedgerMachine(RuleBasedStateMachine):
    writes: Bundle[str] = Bundle("writes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.known: dict[str, Known] = {}
        self.shown: dict[str, list[str]] = {}
        """Path -> the names of the parts that a reader gets, in order."""
        self.ticketed: dict[str, float] = {}
        self.retired: dict[str, float] = {}
        """Part -> the time until which a ticket holds it."""
        self.life = 1
        self.born: dict[str, int] = {}
        """Part -> the life of the store in which it was written."""
        self.start()

    def start(self) -> None:
        self.database = Database(self.folder / "ledger.db", tables.TABLES)
        self.ledger = Ledger(self.database, incarnation=f"life {self.life}", now=self.clock.now)

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    # --- the oracle -------------------------------------------------------------------------

    def may_stand(self, path: str) -> bool:
        """Whether the path is no folder and below no dataset."""
        return not any(other.startswith(path + "/") or path.startswith(other + "/") for other in self.shown)

    def lost(self, path: str) -> bool:
        return any(self.born[name] < self.life for name in self.shown.get(path, []))

    def refusal(self, known: Known) -> type[AlreadyExists | Lost] | None:
        """Why the write may not make or change the dataset at its path."""
        if known.mode != "overwrite" and self.lost(known.path):
            return Lost
        taken = known.mode == "error" and known.path in self.shown
        return AlreadyExists if taken or not self.may_stand(known.path) else None

    def forget_runs(self, path: str) -> None:
        for known in self.known.values():
            if known.path == path and known.state == "finished":
                known.run = None

    def of_run(self, path: str, run: str | None) -> list[str]:
        """The write that has this run, if there is one."""
        return [
            write
            for write, known in self.known.items()
            if run is not None and (known.path, known.run) == (path, run) and known.state in ("open", "finished")
        ]

    def retire(self, names: list[str], until: float = 0) -> None:
        self.retired.update(dict.fromkeys(names, max(until, self.clock.now())))

    def take_away(self, path: str) -> None:
        self.retire(self.shown.pop(path), self.ticketed.pop(path, 0))

    def end(self, known: Known, state: str) -> None:
        known.state = state
        for attempt, names in known.whole.items():
            if attempt not in known.chosen:
                self.retire(names)

    def expect_finished(self, known: Known, attempts: list[str]) -> None:
        known.chosen = frozenset(attempts)
        if known.mode == "overwrite" and known.path in self.shown:
            self.take_away(known.path)
        shown = self.shown.setdefault(known.path, [])
        for attempt in dict.fromkeys(attempts):
            shown.extend(known.whole[attempt])
        self.end(known, "finished")

    # --- rules ------------------------------------------------------------------------------

    @rule(
        target=writes,
        path=st.sampled_from(PATHS),
        mode=MODES,
        run=RUNS,
    )
    def opens(self, path: str, mode: Mode, run: str | None) -> str | MultipleResults[str]:
        same = self.of_run(path, run)
        wanted = Known(path, mode, run, self.clock.now())
        forgets = bool(same) and self.known[same[0]].state == "finished" and self.lost(path)
        if forgets:
            same = []
        if not same and (refusal := self.refusal(wanted)):
            with pytest.raises(refusal):
                self.ledger.open_write(path, mode=mode, run=run, schema=SCHEMA)
            return multiple()
        if forgets:
            self.forget_runs(path)
        if same and self.known[same[0]].mode != mode:
            with pytest.raises(InvalidRequest, match="mode"):
                self.ledger.open_write(path, mode=mode, run=run, schema=SCHEMA)
            return multiple()
        found = self.ledger.open_write(path, mode=mode, run=run, schema=SCHEMA)
        if same:
            assert [found.id] == same
            self.known[found.id].touched = self.clock.now()
        else:
            assert found.id not in self.known
            self.known[found.id] = wanted
        assert found.state == self.known[found.id].state
        return found.id

    @rule(write=writes, parts=st.integers(0, 3))
    def records(self, write: str, parts: int) -> None:
        if self.known[write].state == "open":
            self.record(write, parts)
        else:
            with pytest.raises(WriteEnded):
                self.ledger.record(write, an_attempt(parts))

    def record(self, write: str, parts: int) -> str:
        known, attempt = self.known[write], an_attempt(parts)
        self.ledger.record(write, attempt)
        known.whole[attempt.id] = [part.name for part in attempt.parts]
        self.born.update(dict.fromkeys(known.whole[attempt.id], self.life))
        known.touched = self.clock.now()
        return attempt.id

    @rule(
        target=writes,
        path=st.sampled_from(PATHS),
        mode=MODES,
        run=RUNS,
        parts=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    )
    def writes_all_at_once(
        self, path: str, mode: Mode, run: str | None, parts: list[int]
    ) -> str | MultipleResults[str]:
        known = Known(path, mode, run, self.clock.now())
        if not self.refusal(known) and not self.of_run(path, run):
            write = self.ledger.open_write(path, mode=mode, run=run).id
            self.known[write] = known
            attempts = [self.record(write, number) for number in parts]
            self.ledger.finish(write, attempts[1:] or attempts)
            self.expect_finished(known, attempts[1:] or attempts)
            return write
        return multiple()

    @rule(write=writes, data=st.data(), crash=st.sampled_from([None, None, None, "finish.checked", "finish.shown"]))
    def finishes(self, write: str, data: st.DataObject, crash: str | None) -> None:
        known = self.known[write]
        attempts = data.draw(st.lists(st.sampled_from(sorted(known.whole)), max_size=4)) if known.whole else []
        if known.state == "finished" and known.chosen == frozenset(attempts):
            assert self.ledger.finish(write, attempts) == self.ledger.summary(write)
        elif known.state != "open":
            with pytest.raises(WriteEnded):
                self.ledger.finish(write, attempts)
        elif refusal := self.refusal(known):
            with pytest.raises(refusal):
                self.ledger.finish(write, attempts)
        elif any(self.born[name] < self.life for attempt in attempts for name in known.whole[attempt]):
            with pytest.raises(Lost):
                self.ledger.finish(write, attempts)
        elif crash:
            self.crashes_within_finish(write, attempts, crash)
        else:
            done = self.ledger.finish(write, attempts)
            self.expect_finished(known, attempts)
            assert done.parts == sum(len(known.whole[attempt]) for attempt in known.chosen)

    def crashes_within_finish(self, write: str, attempts: list[str], step: str) -> None:
        with mock.patch.object(steps, "passed", crash_at(step)), pytest.raises(Crash):
            self.ledger.finish(write, attempts)
        self.restarts()

    @rule(write=writes)
    def finishes_with_what_it_never_had(self, write: str) -> None:
        with pytest.raises((NotFound, WriteEnded, AlreadyExists, Lost)):
            self.ledger.finish(write, [*self.known[write].whole, uuid.uuid4().hex])

    @rule(write=writes)
    def aborts(self, write: str) -> None:
        known = self.known[write]
        if known.state == "finished":
            with pytest.raises(WriteEnded):
                self.ledger.abort(write)
            return
        assert self.ledger.abort(write).state == ("aborted" if known.state == "open" else known.state)
        if known.state == "open":
            self.end(known, "aborted")

    @rule(seconds=st.sampled_from([1.0, 3_600.0, DAY / 2 + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def expires(self) -> None:
        idle = {
            w for w, known in self.known.items() if known.state == "open" and known.touched < self.clock.now() - DAY
        }
        assert set(self.ledger.expire()) == idle
        for write in idle:
            self.end(self.known[write], "expired")

    @rule(path=st.sampled_from(PATHS))
    def deletes(self, path: str) -> None:
        if path in self.shown:
            assert self.ledger.delete(path).part_count == len(self.shown[path])
            self.take_away(path)
            self.forget_runs(path)  # who deletes a dataset starts over; an overwrite forgets nothing
        else:
            with pytest.raises(NotFound):
                self.ledger.delete(path)

    @rule(path=st.sampled_from(PATHS), life=st.sampled_from([10.0, 7_200.0]))
    def reads(self, path: str, life: float) -> None:
        if path in self.shown:
            self.ledger.snapshot(path, ticketed_until=self.clock.now() + life)
            self.ticketed[path] = max(self.ticketed.get(path, 0), self.clock.now() + life)

    @rule()
    def frees(self) -> None:
        """What is freed was retired, and no ticket names it any more. (A ticket may hold two minutes longer.)"""
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

    # --- what holds after each --------------------------------------------------------------

    @invariant()
    def readers_see_the_oracles_parts(self) -> None:
        for path in PATHS:
            if path in self.shown:
                dataset, parts = self.ledger.snapshot(path, ticketed_until=0)
                assert [laid.part for laid in parts] == self.shown[path]
                assert (dataset.part_count, dataset.rows) == (len(parts), 5 * len(parts))
                assert (dataset.bytes, dataset.lost) == (40 * len(parts), self.lost(path))
            else:
                with pytest.raises(NotFound):
                    self.ledger.dataset(path)

    @invariant()
    def listings_say_the_same(self) -> None:
        assert [dataset.path for dataset in self.ledger.datasets("store/")] == sorted(self.shown)
        below = sorted({path if path.count("/") == 1 else path[:8] for path in self.shown})
        assert [found.path for found in self.ledger.folder("store")] == below

    @invariant()
    def every_part_is_accounted_for(self) -> None:
        waiting = [
            name
            for known in self.known.values()
            if known.state == "open"
            for names in known.whole.values()
            for name in names
        ]
        shown = [name for names in self.shown.values() for name in names]
        assert sorted(self.ledger.part_names()) == sorted([*waiting, *shown, *self.retired])

    @invariant()
    def writes_are_as_the_oracle_has_them(self) -> None:
        assert {w.write for w in self.ledger.open_writes()} == {
            w for w, known in self.known.items() if known.state == "open"
        }
        for write, known in self.known.items():
            found = self.ledger.summary(write)
            assert (found.state, found.run) == (known.state, known.run)
            counts = [a for a in known.whole if known.state == "open" or a in known.chosen]
            counted = [len(known.whole[attempt]) for attempt in counts]
            assert (found.attempts, found.parts) == (len(counted), sum(counted))
            assert (found.rows, found.bytes) == (5 * sum(counted), 40 * sum(counted))


LedgerMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40)
TestLedgerMachine = LedgerMachine.TestCase
