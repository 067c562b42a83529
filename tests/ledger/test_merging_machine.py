"""Any sequence of appends, overwrites, deletes, merges, crashes and reads: the rows of a dataset, in their order.

The oracle is a list of numbers for each dataset, and for each ticket the numbers that it was issued for.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import steps
from penstock.ledger import merging, parts
from penstock.ledger.parts import Slice
from penstock.store.disk import DiskMedium
from penstock.store.payloads import Store
from tests.kit.clock import Clock
from tests.kit.datasets import Datasets
from tests.kit.faults import Crash
from tests.kit.profiles import examples
from tests.kit.rows import numbers
from tests.kit.topics import SHM

pytestmark = pytest.mark.faults  # seconds of them

PATHS = st.sampled_from(["store/a", "store/b"])
STEPS = ["part.synced", "part.named", "compact.durable", "compact.shown"]


@dataclass
class Ticket:
    """Rows that may be read until some time."""

    path: str
    slices: list[Slice]
    rows: list[int]
    until: float


class MergingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(dir=SHM))
        self.clock = Clock()
        self.folder = Datasets(self.path, self.clock)
        self.rows: dict[str, list[int]] = {}
        self.wide: set[str] = set()
        """The datasets that have got a column more."""
        self.runs: set[tuple[str, str]] = set()
        self.pinned: dict[str, list[str]] = {}
        """Parts that a message names, or a reader by its number."""
        self.tickets: list[Ticket] = []
        self.next = 0

    def teardown(self) -> None:
        self.folder.close()
        shutil.rmtree(self.path)

    def table(self, path: str, count: int) -> pa.Table:
        table = numbers(count, self.next)
        self.next += count
        return table.append_column("more", table["n"]) if path in self.wide else table

    def numbers(self, path: str, slices: list[Slice]) -> list[int]:
        return self.folder.table_of(slices, path)["n"].to_pylist() if slices else []

    # --- writes -----------------------------------------------------------------------------

    @rule(path=PATHS, counts=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def appends(self, path: str, counts: list[int]) -> None:
        for count in counts:
            table = self.table(path, count)
            self.folder.write(table, path=path)
            self.rows.setdefault(path, []).extend(table["n"].to_pylist())

    @rule(path=PATHS, run=st.sampled_from(["q/1", "q/2", "q/3"]))
    def appends_a_run(self, path: str, run: str) -> None:
        table = self.table(path, 1)
        self.folder.write(table, path=path, run=run)
        if (path, run) not in self.runs:
            self.runs.add((path, run))
            self.rows.setdefault(path, []).extend(table["n"].to_pylist())

    @rule(path=PATHS)
    def widens(self, path: str) -> None:
        self.wide.add(path)

    @rule(path=PATHS)
    def overwrites(self, path: str) -> None:
        self.wide.discard(path)
        table = self.table(path, 2)
        self.folder.write(table, path=path, mode="overwrite")
        self.rows[path] = table["n"].to_pylist()
        self.pinned.pop(path, None)

    @rule(path=PATHS)
    def deletes(self, path: str) -> None:
        if path in self.rows:
            self.folder.ledger.delete(path)
            del self.rows[path]
            self.wide.discard(path)
            self.runs = {each for each in self.runs if each[0] != path}
            self.pinned.pop(path, None)

    # --- compaction -------------------------------------------------------------------------

    @rule(many=st.integers(2, 5), everywhere=st.booleans())
    def merges(self, many: int, everywhere: bool) -> None:
        with mock.patch.object(merging, "MANY", many):
            self.folder.compactor.compact(everywhere=everywhere)

    @rule(step=st.sampled_from(STEPS), at=st.integers(1, 2))
    def crashes_while_it_merges(self, step: str, at: int) -> None:
        times = 0

        def crash(name: str) -> None:
            nonlocal times
            times += name == step
            if times == at:
                raise Crash

        try:
            with (
                mock.patch.object(merging, "MANY", 2),
                mock.patch.object(steps, "passed", crash),
                mock.patch.object(Store, "discard"),  # a dead process cleans nothing up
            ):
                self.folder.compactor.compact()
        except Crash:
            self.folder.restart(DiskMedium(self.path))

    @rule(data=st.data(), path=PATHS)
    def changes_while_it_merges(self, data: st.DataObject, path: str) -> None:
        changes: list[Callable[[], None]] = [
            lambda: self.appends(path, [1, 2]), lambda: self.overwrites(path), lambda: self.deletes(path),
            lambda: self.pins(path), lambda: self.names_a_part(path, data), self.frees, lambda: self.reads(path, 100.0),
        ]  # fmt: skip
        change = data.draw(st.sampled_from(changes))
        with (
            mock.patch.object(merging, "MANY", 2),
            mock.patch.object(steps, "passed", lambda name: change() if name == "compact.durable" else None),
        ):
            self.folder.compactor.compact()

    # --- readers ----------------------------------------------------------------------------

    @rule(path=PATHS)
    def pins(self, path: str) -> None:
        if path in self.rows:
            self.folder.ledger.pin(path)
            self.pinned[path] = self.folder.parts(path)

    @rule(path=PATHS, data=st.data())
    def names_a_part(self, path: str, data: st.DataObject) -> None:
        names = self.folder.parts(path) if path in self.rows else []
        if names:
            name = data.draw(st.sampled_from(names))
            self.folder.ledger.change(lambda t: parts.hold(t, [name]))
            self.folder.ledger.change(lambda t: parts.let_go(t, name))
            self.pinned.setdefault(path, []).append(name)

    @rule(path=PATHS, life=st.sampled_from([10.0, 100.0, 1_000.0]))
    def reads(self, path: str, life: float) -> None:
        if path in self.rows:
            until = self.clock.now() + life
            slices = self.folder.slices(path, ticketed_until=until)
            self.tickets.append(Ticket(path, slices, list(self.rows[path]), until))

    @rule(seconds=st.sampled_from([1.0, 70.0, 2_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def frees(self) -> None:
        self.folder.free()

    @rule()
    def restarts(self) -> None:
        self.folder.restart(DiskMedium(self.path))

    # --- what must hold after each rule -----------------------------------------------------

    @invariant()
    def each_dataset_has_its_rows_in_order(self) -> None:
        assert [dataset.path for dataset in self.folder.ledger.datasets("store/")] == sorted(self.rows)
        for path, rows in self.rows.items():
            dataset, slices = self.folder.ledger.snapshot(path, ticketed_until=0)
            assert self.numbers(path, slices) == rows
            assert (dataset.rows, dataset.part_count) == (len(rows), len(slices))
            assert dataset.bytes == sum(each.bytes for each in slices)
            names = [each.part for each in slices]
            assert set(self.pinned.get(path, [])) <= set(names)

    @precondition(lambda self: self.tickets)
    @invariant()
    def tickets_read_what_they_were_issued_for(self) -> None:
        self.tickets = [ticket for ticket in self.tickets if ticket.until >= self.clock.now()]
        for ticket in self.tickets:
            assert self.numbers(ticket.path, ticket.slices) == ticket.rows

    @invariant()
    def all_bytes_are_named(self) -> None:
        assert self.folder.kept() == set(self.folder.ledger.part_names())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")


MergingMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestMergingMachine = MergingMachine.TestCase
