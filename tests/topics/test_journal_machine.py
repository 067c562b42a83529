"""Any sequence of puts, crashes, corruption, retention and compaction: an offset names one row for ever, or none.

The oracle is, for each shard, a list of rows and the offset of the first row left. Where the rows of a put went is
read once, when they are new, and must stay so; the oracle takes nothing else from the journal.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock import steps
from penstock.errors import InvalidRequest, Lost
from penstock.ledger import merging
from penstock.ledger.sweep import free, recover
from penstock.queue.topics.append import Appender, SmallPut
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.consumers import UNSEEN, Consumers
from penstock.queue.topics.retention import drop_lost, retain
from penstock.store.medium import NotOnDisk, Part, Room
from penstock.store.records import Label
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.profiles import examples
from tests.kit.topics import SHM, Reach

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]  # 14 s of crashes, alone

PATH = "topic/x"
NARROW = pa.schema([pa.field("n", pa.int64(), nullable=False), ("key", pa.int64())])
WIDE = NARROW.append(pa.field("more", pa.string()))
KEEP = 100.0
CRASHES = [None, None, None, None, "written", "append.durable", "append.committed"]


@dataclass(frozen=True)
class StoredPart:
    """A part as the medium returns it."""

    table: pa.Table
    digest: str
    label: None = None

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.table.nbytes)

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        return (self.table if columns is None else self.table.select(list(columns))).to_reader()

    def descriptor(self) -> None:
        return None


@dataclass
class Disk(NotOnDisk):
    """The parts of a disk, or of a memory that ends with its server, and those of them that are broken."""

    incarnation: str = ""
    stored: dict[str, pa.Table] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    fails: bool = False
    """The process dies while it writes: nothing of the part is kept."""
    dead: bool = False
    """The process has died: it deletes nothing any more."""

    def write(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], label: Label | None = None
    ) -> Part:
        if self.fails:
            self.dead = True
            raise Crash
        table = pa.Table.from_batches(batches, schema)
        self.stored[name] = table
        return Part(name, table.num_rows, table.nbytes, name)

    def room(self) -> Room:
        return Room(1 << 40, 1 << 40)

    def open(self, name: str) -> StoredPart:
        if name not in self.stored or name in self.broken:
            raise Lost(f"part {name} is lost")
        return StoredPart(self.stored[name], name)

    def delete(self, name: str) -> None:
        if not self.dead and name not in self.broken:
            self.stored.pop(name, None)

    def missing(self, names: Collection[str]) -> list[str]:
        return []

    def label(self, name: str) -> None:
        return None

    def set_aside(self, name: str) -> None:
        self.delete(name)

    def drop_set_aside(self, *, before: float) -> int:
        return 0

    def names(self, *, before: float = 0) -> Iterator[tuple[str, int]]:
        return iter([(name, table.nbytes) for name, table in self.stored.items() if name not in self.broken])

    def quarantined(self) -> list[str]:
        return sorted(self.broken)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Shard:
    """A shard as the oracle expects it."""

    rows: list[tuple[int, float]] = field(default_factory=list)
    """The row and the time of its append, for each offset from 0 on."""
    first: int = 0
    """The offset of the first row left."""


@dataclass
class Ticket:
    """A range that may be read until some time."""

    pieces: list[tuple[str, int, int]]
    rows: list[int]
    until: float
    life: int


class JournalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHM))
        self.clock, self.disk, self.life = Clock(), Disk(), 1
        self.count = self.puts_made = 0
        self.shards: dict[int, Shard] = {}
        self.keyed = False
        self.keep_bytes: int | None = None
        self.runs: dict[str, list[int]] = {}
        self.shard_of_key: dict[int, int] = {}
        """Key -> the shard that has its rows."""
        self.broken: set[int] = set()
        """Rows in broken parts."""
        self.positions: dict[str, dict[int, int]] = {}
        """Consumer -> its position."""
        self.tickets: list[Ticket] = []
        self.start()

    @initialize(in_memory=st.booleans())
    def begins(self, in_memory: bool) -> None:
        if in_memory:
            self.disk.incarnation = "life 1"
            self.restarts()

    def start(self) -> None:
        self.disk = Disk(self.disk.incarnation, self.disk.stored, self.disk.broken)
        reach = Reach(self.folder, self.clock, self.disk)
        self.database, self.ledger, self.store, self.topics = reach.database, reach.ledger, reach.store, reach.topics
        self.database._connection.execute("PRAGMA synchronous = OFF")
        self.consumers = Consumers(self.ledger, self.topics, steady=self.clock.now)
        self.compactor = Compactor(self.ledger, self.store)

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    # --- a reader -------------------------------------------------------------------------------

    def read(self, shard: int, start: int, end: int, life: float = 0) -> list[tuple[int, int, float]]:
        """Return offset, row and time of each offset in a range."""
        topic = self.topics.topic(PATH)
        begin = {each: start if each == shard else 0 for each in self.shards}
        begin = {each: at if each == shard else self.shards[each].first for each, at in begin.items()}
        stop = {each: end if each == shard else at for each, at in begin.items()}
        rows = []
        laid = self.topics.range(topic, begin, stop, ticketed_until=self.clock.now() + life)
        for piece in laid:
            assert piece.shard == shard
            table = self.store.open(piece.part).reader().read_all().slice(piece.skip, piece.rows)
            times = [piece.since] * table.num_rows
            if "_time" in table.column_names:
                times = [when / 1e6 for when in table["_time"].cast(pa.int64()).to_pylist()]
            offsets = range(piece.first + piece.skip, piece.first + piece.skip + piece.rows)
            rows += list(zip(offsets, table["n"].to_pylist(), times, strict=True))
        if life:
            pieces = [(piece.part, piece.skip, piece.rows) for piece in laid]
            numbers = [number for _, number, _ in rows]
            self.tickets.append(Ticket(pieces, numbers, self.clock.now() + life, self.life))
        return rows

    def check_range(self, number: int, start: int, end: int, life: float = 0) -> None:
        shard = self.shards[number]
        expected = [(at, *shard.rows[at]) for at in range(start, min(end, len(shard.rows)))]
        if start < shard.first or end > len(shard.rows) or start > end:
            with pytest.raises(Lost if start < shard.first else InvalidRequest):
                self.read(number, start, end)
        elif any(row in self.broken for _, row, _ in expected):
            with pytest.raises(Lost):
                self.read(number, start, end)
        else:
            assert self.read(number, start, end, life) == expected

    def check_all(self) -> None:
        """Check each range of offsets between the broken ones, and the sums that each shard keeps."""
        sums = "shards.parts - count(part) AS parts, shards.bytes - coalesce(sum(journal.bytes), 0) AS bytes"
        query = f"SELECT {sums} FROM shards LEFT JOIN journal USING (path, shard) GROUP BY shards.path, shards.shard"
        assert {tuple(row) for row in self.ledger.database.rows(query)} <= {(0, 0)}
        for number, shard in self.shards.items():
            start = shard.first
            for at in range(shard.first, len(shard.rows) + 1):
                if at == len(shard.rows) or shard.rows[at][0] in self.broken:
                    self.check_range(number, start, at)
                    start = at + 1

    # --- puts -------------------------------------------------------------------------------

    @precondition(lambda self: not self.shards)
    @rule(shards=st.integers(1, 3), keyed=st.booleans(), keep_bytes=st.sampled_from([None, None, 0, 200]))
    def creates(self, shards: int, keyed: bool, keep_bytes: int | None) -> None:
        key = "key" if keyed else None
        self.topics.create(PATH, NARROW, shards=shards, key=key, keep_seconds=KEEP, keep_bytes=keep_bytes)
        self.shards = {number: Shard() for number in range(shards)}
        self.keyed, self.keep_bytes = keyed, keep_bytes

    def make_put(self, rows: int, run: str | None, wide: bool) -> SmallPut:
        numbers = list(range(self.count, self.count + rows))
        self.count += rows
        columns = {"n": numbers, "key": [number * 7 % 5 for number in numbers], "more": ["x"] * rows}
        schema = WIDE if wide else NARROW
        batch = pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema)
        self.puts_made += 1
        attempt = f"{zlib.crc32(b'%d' % self.puts_made):08x}{self.puts_made:024x}"  # as in each run of the example
        return SmallPut(PATH, run, attempt, schema, [batch], rows, batch.nbytes)

    @precondition(lambda self: self.shards)
    @rule(
        sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3),
        run=st.sampled_from([None, None, "r", "s"]),
        wide=st.sampled_from([False, False, False, True]),
        crash=st.sampled_from(CRASHES),
    )
    def puts(self, sizes: list[int], run: str | None, wide: bool, crash: str | None) -> None:
        if run:  # without rows the oracle could not tell whether a crash left the run
            sizes = [max(1, sizes[0]), *sizes[1:]]
        group = [self.make_put(size, run if at == 0 else None, wide) for at, size in enumerate(sizes)]
        if crash is None:
            Appender(self.ledger, self.store).commit(group)
            for put in group:
                numbers = self.numbers(put)
                expected = self.runs.get(put.run or "", numbers) if put.run else numbers
                assert put.answer.result(0).rows == len(expected)
            self.record_rows(group, answered=True)
        else:
            self.crashes(crash, lambda: Appender(self.ledger, self.store).commit(group))
            (self.record_losses if self.disk.incarnation else self.record_rows)(group, answered=False)

    def record_losses(self, group: list[SmallPut], *, answered: bool) -> None:
        """Learn from the ends of the shards whether the group was appended before the memory was lost."""
        new = 0
        for number, end in self.topics.topic(PATH).latest().items():
            shard = self.shards[number]
            new += end - len(shard.rows)
            shard.rows += [(-1, 0.0)] * (end - len(shard.rows))
            shard.first = end
        fresh = [put for put in group if not (put.run and put.run in self.runs)]
        assert new in (0, sum(put.rows for put in fresh)), "half a group, or rows of no put"
        if new:
            self.runs.update({put.run: self.numbers(put) for put in fresh if put.run})

    @staticmethod
    def numbers(put: SmallPut) -> list[int]:
        return [number for batch in put.batches for number in batch.column("n").to_pylist()]

    def record_rows(self, group: list[SmallPut], *, answered: bool) -> None:
        """Check that the new rows are the group's, each put whole and in order, and record where they are."""
        new: dict[int, tuple[int, int]] = {}
        for number, end in self.topics.topic(PATH).latest().items():
            shard = self.shards[number]
            assert end >= len(shard.rows), "an end went back"
            before = len(shard.rows)
            for at, row, when in self.read(number, before, end):
                assert at == len(shard.rows)
                assert when == self.clock.now()
                new[row] = (number, at)
                shard.rows.append((row, when))
            assert len(shard.rows) == end
        for put in group:
            numbers = self.numbers(put)
            if put.run and put.run in self.runs:
                assert not set(numbers) & set(new), "a run is there twice"
                continue
            visible = [number for number in numbers if number in new]
            assert visible == numbers or (not answered and not visible), "half a put, or none though it was answered"
            if put.run and visible:
                self.runs[put.run] = numbers
            self.check_order([new.pop(number) for number in visible], visible)
        assert not new, "rows of no put"

    def check_order(self, places: list[tuple[int, int]], numbers: list[int]) -> None:
        assert places == sorted(places) or self.keyed
        if not self.keyed:
            assert len({shard for shard, _ in places}) <= 1
        for (shard, _), number in zip(places, numbers, strict=True):
            if self.keyed:
                assert self.shard_of_key.setdefault(number * 7 % 5, shard) == shard

    # --- crashes, time, corruption --------------------------------------------------------------

    def crashes(self, step: str, operation: Callable[[], object]) -> None:
        """Crash at a step of the operation, if it comes to it, and start again."""
        kill = crash_at(step)

        def passed(at: str) -> None:
            self.disk.dead = at == step
            kill(at)

        self.disk.fails = step == "written"
        with mock.patch.object(steps, "passed", passed), contextlib.suppress(Crash):
            operation()
        self.restarts()

    @rule()
    def restarts(self) -> None:
        self.database.close()
        if self.disk.incarnation:
            self.life += 1
            self.disk.incarnation = f"life {self.life}"
            self.disk.stored.clear()
            for shard in self.shards.values():
                shard.first = len(shard.rows)
        self.start()
        drop_lost(self.ledger)
        recover(self.ledger, self.store)
        named = {row["name"] for row in self.database.rows("SELECT name FROM parts")}
        assert set(self.disk.stored) - self.disk.broken <= named, "orphans"

    @rule(seconds=st.sampled_from([0.25, 30.0, KEEP + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.shards and self.disk.stored)
    @rule(data=st.data())
    def corrupts(self, data: st.DataObject) -> None:
        """Break one part from now on."""
        names = [name for name in self.disk.stored if name not in self.disk.broken]
        if names:
            name = data.draw(st.sampled_from(names))
            visible = {row["part"] for row in self.database.rows("SELECT part FROM journal WHERE path IS NOT NULL")}
            self.disk.broken.add(name)
            if name in visible:
                self.broken.update(self.disk.stored[name]["n"].to_pylist())

    # --- compaction, retention, consumers -------------------------------------------------------

    @precondition(lambda self: self.shards)
    @rule(crash=st.sampled_from([None, None, "written", "compact.durable", "compact.shown"]))
    def compacts(self, crash: str | None) -> None:
        with mock.patch.object(merging, "MANY", 2):
            if crash is None:
                self.compactor.compact()
            else:
                self.crashes(crash, self.compactor.compact)
        self.check_all()

    @precondition(lambda self: self.shards)
    @rule()
    def retains(self) -> None:
        """Remove whole parts from the front: neither young ones nor those a consumer needs, but all others."""
        retain(self.ledger)
        topic = self.topics.topic(PATH)
        for number, first in topic.earliest().items():
            shard = self.shards[number]
            slowest = min((position[number] for position in self.positions.values()), default=len(shard.rows))
            removed = shard.rows[shard.first : first]
            assert first >= shard.first
            assert not removed or first <= slowest, "retention passed the slowest consumer"
            assert all(when < self.clock.now() - KEEP for _, when in removed) or self.keep_bytes is not None
            shard.first = first
            front = [part for part in self.topics.range(topic, {}, {}, ticketed_until=0) if part.shard == number][:1]
            for part in front:
                young = any(when >= self.clock.now() - KEEP for _, when in shard.rows[first : first + part.rows])
                assert young or first + part.rows > slowest, "an old part that no consumer needs is kept"
                assert self.keep_bytes != 0 or first + part.rows > slowest, "a part beyond keep_bytes is kept"

    @rule()
    def frees(self) -> None:
        free(self.ledger, self.store)

    @precondition(lambda self: self.shards)
    @rule(name=st.sampled_from(["a", "b"]), data=st.data())
    def commits(self, name: str, data: st.DataObject) -> None:
        """Attach a consumer, or commit a later position of one that is attached."""
        topic = self.topics.topic(PATH)
        before = self.positions.get(name) or {number: shard.first for number, shard in self.shards.items()}
        position = {
            number: data.draw(st.integers(at, max(at, len(self.shards[number].rows)))) for number, at in before.items()
        }
        attached = {each.consumer for each in self.consumers.of(topic)}
        self.consumers.attach(topic, self.consumer(name), "session", initial={}, position=position)
        if self.consumer(name) in attached:
            self.consumers.commit(topic, self.consumer(name), "session", position)
        self.positions[name] = position

    def consumer(self, name: str) -> str:
        return f"{name} of {self.topics.topic(PATH).journal}"

    @precondition(lambda self: self.positions)
    @rule()
    def a_week_passes(self) -> None:
        self.consumers.expire()  # the first time after a start nobody expires
        self.clock.advance(3 * UNSEEN)  # long enough to be forgotten, too
        self.consumers.expire()
        self.consumers.expire()
        self.positions.clear()

    @precondition(lambda self: self.shards)
    @rule()
    def deletes(self) -> None:
        journal = self.topics.remove(PATH).journal
        self.shards, self.positions, self.shard_of_key, self.runs = {}, {}, {}, {}
        self.creates(1, False, None)
        assert self.topics.topic(PATH).journal != journal

    # --- reads ----------------------------------------------------------------------------------

    @precondition(lambda self: self.shards)
    @rule(data=st.data(), life=st.sampled_from([0.0, 40.0, 400.0]))
    def reads(self, data: st.DataObject, life: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.shards)))
        ends = st.integers(0, len(self.shards[number].rows) + 1)
        self.check_range(number, data.draw(ends), data.draw(ends), life)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def reads_again_by_a_ticket(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        if ticket.until < self.clock.now() or ticket.life < self.life or self.broken & set(ticket.rows):
            self.tickets.remove(ticket)
        elif not any(part in self.disk.broken for part, _, _ in ticket.pieces):
            tables = [self.store.open(part).reader().read_all().slice(skip, rows) for part, skip, rows in ticket.pieces]
            assert [number for table in tables for number in table["n"].to_pylist()] == ticket.rows

    @precondition(lambda self: self.shards)
    @rule(seconds=st.floats(0, 300))
    def finds_a_time(self, seconds: float) -> None:
        moment = round(self.clock.now() - seconds, 6)
        offsets = self.topics.at(self.topics.topic(PATH), moment)
        for number, shard in self.shards.items():
            left = range(shard.first, len(shard.rows))
            expected = next((at for at in left if shard.rows[at][1] >= moment), len(shard.rows))
            assert offsets[number] == expected or shard.rows[expected - 1][0] in self.broken

    @precondition(lambda self: self.shards)
    @invariant()
    def ends_are_as_expected(self) -> None:
        topic = self.topics.topic(PATH)
        assert topic.earliest() == {number: shard.first for number, shard in self.shards.items()}
        assert topic.latest() == {number: len(shard.rows) for number, shard in self.shards.items()}

    @rule()
    def reads_all(self) -> None:
        self.check_all()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the warnings of thousands of steps."""
    caplog.set_level(logging.CRITICAL, "penstock")


JournalMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50)
TestJournalMachine = JournalMachine.TestCase
