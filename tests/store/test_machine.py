"""Any sequence of stores, reads, deletes, expiries, crashes and restarts, compared with a plain dict."""

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
from penstock.errors import AlreadyExists, StoreFull
from penstock.rows.payload import SplitPayload
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.medium import Medium
from penstock.store.memory import MemoryMedium
from penstock.store.payload_table import TABLES
from penstock.store.payloads import Store
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
class ExpectedPayload:
    """A payload as the dict has it."""

    first: int
    rows: int
    split_id: str
    metadata: dict[str, int]
    expires: float | None


class StoreMachine(RuleBasedStateMachine):
    """The rules; a subclass chooses the medium."""

    survives = True
    """Whether payloads survive the process."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.expected: dict[str, ExpectedPayload] = {}
        self.count = 0
        self.start()

    @abstractmethod
    def medium(self) -> Medium:
        """The medium of a process that has just started."""

    def start(self) -> None:
        self.database = Database(self.folder / "ledger.db", TABLES)
        self.store = Store(self.medium(), self.database, url="test:", quota=QUOTA, now=self.clock.now)
        self.store.discard(self.store.orphans())

    def end(self) -> None:
        self.store.close()
        self.database.close()

    def teardown(self) -> None:
        self.end()
        shutil.rmtree(self.folder)

    def live(self) -> dict[str, ExpectedPayload]:
        now = self.clock.now()
        return {key: each for key, each in self.expected.items() if each.expires is None or each.expires > now}

    def clashes(self, key: str) -> bool:
        """Whether a payload is above or below this key."""
        return any(key.startswith(other + "/") or other.startswith(key + "/") for other in self.live())

    def payload(self, rows: int) -> tuple[ExpectedPayload, SplitPayload]:
        self.count += 1
        expected = ExpectedPayload(self.count * 1_000, rows, f"split {self.count}", {"n": self.count}, None)
        return expected, SplitPayload(numbers(rows, expected.first), expected.split_id, expected.metadata)

    # --- rules ------------------------------------------------------------------------------

    @rule(key=KEYS, rows=ROWS, ttl=LIVES)
    def stores(self, key: str, rows: int, ttl: float | None) -> None:
        expected, payload = self.payload(rows)
        expected.expires = None if ttl is None else self.clock.now() + ttl
        try:
            self.store.store(key, payload, ttl=ttl)
        except StoreFull:
            assert self.store.used + payload.data.nbytes + 2_000 > QUOTA  # a stream has a head, too
        except AlreadyExists:
            assert self.clashes(key)
        else:
            assert not self.clashes(key)
            self.expected[key] = expected

    @rule(key=KEYS, rows=ROWS)
    def stores_bytes(self, key: str, rows: int) -> None:
        expected, payload = self.payload(rows)
        try:
            self.store.store(key, as_stream(payload.data))
        except StoreFull:
            return
        except AlreadyExists:
            assert self.clashes(key)
            return
        self.expected[key] = ExpectedPayload(expected.first, rows, key, {}, None)

    @rule(key=KEYS)
    def deletes(self, key: str) -> None:
        assert self.store.delete(key) == (key in self.live())
        self.expected.pop(key, None)

    @rule()
    def clears(self) -> None:
        assert self.store.clear() == len(self.live())
        self.expected.clear()
        assert self.store.used == 0

    @rule(seconds=st.sampled_from([0.5, 1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def sweeps(self) -> None:
        assert self.store.sweep() == len(self.expected) - len(self.live())
        self.expected = self.live()

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
        self.database.close()  # the store isn't closed: a process that dies cleans nothing up
        self.start()

    # --- what must hold after each rule -----------------------------------------------------

    @invariant()
    def keys_are_the_dicts(self) -> None:
        assert self.store.keys() == sorted(self.live())
        assert self.store.keys("a/") == sorted(key for key in self.live() if key.startswith("a/"))

    @invariant()
    def payloads_are_the_dicts(self) -> None:
        for key in ("a", "a/b", "a/b/c", "b", "B", "a_b"):
            payload, expected = self.store.get(key), self.live().get(key)
            assert (payload is None) == (expected is None)
            if payload is not None and expected is not None:
                assert payload.data.equals(numbers(expected.rows, expected.first))
                assert (payload.split_id, payload.metadata) == (expected.split_id, expected.metadata)

    @invariant()
    def every_byte_has_a_key(self) -> None:
        assert len(list(self.store.medium.names())) == len(self.expected)
        assert self.store.orphans() == []
        assert self.store.used == 0 or self.expected


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


_SETTINGS = settings(max_examples=examples(40), stateful_step_count=30)
for machine in (DiskMachine, MemoryMachine, SpillingMachine):
    machine.TestCase.settings = _SETTINGS
TestDiskMachine = DiskMachine.TestCase
TestMemoryMachine = MemoryMachine.TestCase
TestSpillingMachine = SpillingMachine.TestCase
