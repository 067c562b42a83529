"""The ledger's queues and the memory's keep what a LeaseQueue promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.queue.work.lease_queue import LeaseQueue
from tests.kit.clock import Clock
from tests.kit.work.contract import LeaseQueueContract
from tests.kit.work.memory_queue import MemoryQueue
from tests.kit.work.queues import LedgerQueues


class TestLedgerQueue(LeaseQueueContract):
    @pytest.fixture
    def queue(self, tmp_path: Path, clock: Clock) -> Iterator[LeaseQueue]:
        with closing(LedgerQueues(tmp_path, clock)) as opened:
            yield opened.queue


class TestMemoryQueue(LeaseQueueContract):
    @pytest.fixture
    def queue(self, clock: Clock) -> LeaseQueue:
        return MemoryQueue(clock.now)
