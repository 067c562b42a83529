"""Any sequence of stores, reads, deletes, ends of lives, crashes and restarts, against a plain dict."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import steps
from penstock.errors import StoreFull
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.medium import Medium
from penstock.store.memory import MemoryMedium
from penstock.store.payloads import TABLES, SplitPayload, SplitPayloadStore
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.profiles import examples
from tests.kit.rows import as_stream, numbers

pytestmark = pytest.mark.faults  # seconds of them

KEYS = st.sampled_from(["a", "a/b", "a/b/c", "b", "B", "a_b"])
ROWS = st.sampled_from([0, 1, 7, 400])
LIVES = st.none() | st.sampled_from([0.0, 1.0, 10.0])
QUOTA = 30_000


@dataclass
class Held:
    """What the dict says of a key."""

    first: int
    rows: int
    split_id: str
    metadata: dict[str, int]
    over: float | None


class StoreMachine(RuleBasedStateMachine):
    """The rules. A subclass says where the bytes lie."""

    survives = True
    """Whether payloads outlive the process."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.held: dict[str, Held] = {}
        self.count = 0
        self.start()

    @abstractmethod
    def medium(self) -> Medium:
        """The medium of a process that has just started."""

    def start(self) -> None:
        self.database = Database(self.folder / "ledger.db", TABLES)
        self.store = SplitPayloadStore(self.medium(), self.database, url="test:", quota=QUOTA, now=self.clock.now)
        self.store.discard(self.store.orphans())

    def end(self) -> None:
        self.store.close()
        self.database.close()

    def teardown(self) -> None:
        self.end()
        shutil.rmtree(self.folder)

    def live(self) -> dict[str, Held]:
        return {key: held for key, held in self.held.items() if held.over is None or held.over > self.clock.now()}

    def payload(self, rows: int) -> tuple[Held, SplitPayload]:
        self.count += 1
        held = Held(self.count * 1_000, rows, f"split {self.count}", {"n": self.count}, None)
        return held, SplitPayload(numbers(rows, held.first), held.split_id, held.metadata)

    # --- rules ------------------------------------------------------------------------------

    @rule(key=KEYS, rows=ROWS, ttl=LIVES)
    def stores(self, key: str, rows: int, ttl: float | None) -> None:
        held, payload = self.payload(rows)
        held.over = None if ttl is None else self.clock.now() + ttl
        try:
            self.store.store(key, payload, ttl=ttl)
        except StoreFull:
            assert self.store.used + payload.data.nbytes > QUOTA
        else:
            self.held[key] = held

    @rule(key=KEYS, rows=ROWS)
    def stores_bytes(self, key: str, rows: int) -> None:
        held, payload = self.payload(rows)
        try:
            self.store.store(key, as_stream(payload.data))
        except StoreFull:
            return
        self.held[key] = Held(held.first, rows, key, {}, None)

    @rule(key=KEYS)
    def deletes(self, key: str) -> None:
        assert self.store.delete(key) == (key in self.live())
        self.held.pop(key, None)

    @rule()
    def clears(self) -> None:
        assert self.store.clear() == len(self.live())
        self.held.clear()
        assert self.store.used == 0

    @rule(seconds=st.sampled_from([0.5, 1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def sweeps(self) -> None:
        assert self.store.sweep() == len(self.held) - len(self.live())
        self.held = self.live()

    @rule()
    @precondition(lambda self: self.survives)
    def restarts(self) -> None:
        self.end()
        self.start()

    @rule(key=KEYS, rows=ROWS, step=st.sampled_from(["part.synced", "part.named"]))
    @precondition(lambda self: self.survives)
    def crashes_while_storing(self, key: str, rows: int, step: str) -> None:
        with mock.patch.object(steps, "passed", crash_at(step)), pytest.raises((Crash, StoreFull)):
            self.store.store(key, self.payload(rows)[1])
        self.database.close()  # no word to the store: it has no time to let go of anything
        self.start()

    # --- what holds after each --------------------------------------------------------------

    @invariant()
    def keys_are_the_dicts(self) -> None:
        assert self.store.keys() == sorted(self.live())
        assert self.store.keys("a/") == sorted(key for key in self.live() if key.startswith("a/"))

    @invariant()
    def payloads_are_the_dicts(self) -> None:
        for key in ("a", "a/b", "a/b/c", "b", "B", "a_b"):
            found, held = self.store.get(key), self.live().get(key)
            assert (found is None) == (held is None)
            if found is not None and held is not None:
                assert found.data.equals(numbers(held.rows, held.first))
                assert (found.split_id, found.metadata) == (held.split_id, held.metadata)

    @invariant()
    def every_byte_has_a_key(self) -> None:
        assert len(list(self.store.medium.names())) == len(self.held)
        assert self.store.orphans() == []
        assert self.store.used == 0 or self.held


class DiskMachine(StoreMachine):
    def medium(self) -> Medium:
        return DiskMedium(self.folder)


class MemoryMachine(StoreMachine):
    survives = False

    def medium(self) -> Medium:
        return MemoryMedium(self.folder, max_bytes=1 << 20)


class SpillingMachine(StoreMachine):
    survives = False

    def medium(self) -> Medium:
        return MemoryMedium(self.folder, max_bytes=5_000)


_SOME = settings(max_examples=examples(40), stateful_step_count=30)
for machine in (DiskMachine, MemoryMachine, SpillingMachine):
    machine.TestCase.settings = _SOME
TestDiskMachine = DiskMachine.TestCase
TestMemoryMachine = MemoryMachine.TestCase
TestSpillingMachine = SpillingMachine.TestCase
