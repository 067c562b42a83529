"""Topics without a server: a ledger, a store and a clock over one folder, puts, and what a reader gets."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.sweep import free, recover
from penstock.queue.destinations import TABLES
from penstock.queue.topics import journal
from penstock.queue.topics.append import Appender, SmallPut
from penstock.queue.topics.retention import drop_lost
from penstock.queue.topics.topic import Topic
from penstock.queue.topics.topics import Topics
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.medium import Medium
from penstock.store.payloads import Store
from penstock.wire.put import Receipt
from tests.kit.clock import Clock
from tests.kit.wire import TRIPS, trips

TOPIC = "topic/x"
SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory, where an fsync costs nothing."""


def small_put(
    *ids: int, path: str = TOPIC, run: str | None = None, attempt: str | None = None, rows: pa.RecordBatch | None = None
) -> SmallPut:
    """Return a put of some trips, or of other rows."""
    batch = trips(*ids) if rows is None else rows
    brief = run is None or bool(re.fullmatch("put-[0-9a-f]{32}", run))
    return SmallPut(path, run, attempt or uuid.uuid4().hex, batch.schema, [batch], batch.num_rows, batch.nbytes, brief)


class Reach:
    """A ledger, a store and the topics on them, without a server."""

    def __init__(self, folder: Path, clock: Clock, medium: Medium | None = None) -> None:
        self.folder, self.clock = folder, clock
        self.start(medium or DiskMedium(folder))

    def start(self, medium: Medium) -> None:
        """Open all of it as a process that starts does."""
        self.database = Database(self.folder / "ledger.db", *TABLES)
        self.ledger = Ledger(self.database, {"topic": journal}, incarnation=medium.incarnation, now=self.clock.now)
        self.store = Store(medium, self.database, url="test:", now=self.clock.now)
        self.topics = Topics(self.ledger, self.store)

    def restart(self, medium: Medium | None = None) -> None:
        """Close all of it, and start again as a server does."""
        self.close()
        self.start(medium or DiskMedium(self.folder))
        drop_lost(self.ledger)
        recover(self.ledger, self.store)

    def close(self) -> None:
        self.store.close()
        self.database.close()

    def put(self, *ids: int, path: str = TOPIC, **options: Any) -> Receipt:
        """Commit a put that comes alone; return its receipt, or raise its error."""
        put = small_put(*ids, path=path, **options)
        Appender(self.ledger, self.store).commit([put])
        return put.answer.result(0)

    def topic(self, path: str = TOPIC) -> Topic:
        return self.topics.topic(path)

    def create(self, path: str = TOPIC, **options: Any) -> Topic:
        return self.topics.create(path, TRIPS, **options)

    def parts(self, path: str = TOPIC) -> list[str]:
        """Return the names of the visible parts, shard by shard."""
        return [laid.part for laid in self.topics.range(self.topic(path), {}, {}, ticketed_until=0)]

    def read(
        self,
        path: str = TOPIC,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        ticketed_until: float = 0,
    ) -> list[tuple[int, int, int, float]]:
        """Return shard, offset, id and time of each row in a range."""
        rows = []
        for laid in self.topics.range(self.topic(path), start or {}, end or {}, ticketed_until=ticketed_until):
            assert laid.shard is not None
            table = self.store.open(laid.part).reader().read_all()
            assert table.num_rows == laid.part_rows
            times = [laid.since] * table.num_rows
            if "_time" in table.column_names:
                times = [when / 1e6 for when in table["_time"].cast(pa.int64()).to_pylist()]
            visible = list(zip(table["id"].to_pylist(), times, strict=True))[laid.skip : laid.skip + laid.rows]
            rows += [(laid.shard, laid.first + laid.skip + number, *row) for number, row in enumerate(visible)]
        return rows

    def ids(self, path: str = TOPIC) -> list[int]:
        return [row[2] for row in self.read(path)]

    def kept(self) -> set[str]:
        """Return the parts that have bytes."""
        return {name for name, _ in self.store.medium.names()}

    def free(self) -> int:
        return free(self.ledger, self.store)


@pytest.fixture
def reach(tmp_path: Path, clock: Clock) -> Iterator[Reach]:
    reach = Reach(tmp_path, clock)
    yield reach
    reach.close()
