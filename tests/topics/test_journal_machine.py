"""Any sequence of puts, crashes, corruption, retention and compaction: an offset names one row for ever, or none.

The oracle is a list of rows for each shard and the offset of the first that is left. Where a put's rows went is read
once, when they are new, and must be so from then on; nothing of the journal's own is asked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from penstock.ledger import tables
from penstock.ledger.ledger import Ledger
from penstock.ledger.sweep import free, recover
from penstock.queue.topics import compaction, journal
from penstock.queue.topics.append import Appender, SmallPut
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.consumers import UNSEEN, Consumers
from penstock.queue.topics.retention import drop_lost, retain
from penstock.queue.topics.topics import Topics
from penstock.store import payloads
from penstock.store.database import Database
from penstock.store.medium import Part
from penstock.store.payloads import SplitPayloadStore
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.profiles import examples

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]  # 14 s of crashes, alone

PATH = "topic/x"
NARROW = pa.schema([pa.field("n", pa.int64(), nullable=False), ("key", pa.int64())])
WIDE = NARROW.append(pa.field("more", pa.string()))
KEEP = 100.0
CRASHES = [None, None, None, None, "written", "append.durable", "append.committed"]
_SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # an fsync there costs nothing


@dataclass(frozen=True)
class _Held:
    """A part as the medium hands it out."""

    table: pa.Table

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
class Disk:
    """What lies on a disk, or in a memory that ends with its server; and who has read a broken part."""

    incarnation: str = ""
    held: dict[str, pa.Table] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    fails: bool = False
    """The process dies while it writes: nothing of the part stays."""
    dead: bool = False
    """Its process has died, and changes nothing any more."""

    def write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Part:
        if self.fails:
            self.dead = True
            raise Crash
        table = pa.Table.from_batches(batches, schema)
        self.held[name] = table
        return Part(name, table.num_rows, table.nbytes, name)

    def open(self, name: str) -> _Held:
        if name not in self.held or name in self.broken:
            raise Lost(f"part {name} is lost")
        return _Held(self.held[name])

    def delete(self, name: str) -> None:
        if not self.dead and name not in self.broken:
            self.held.pop(name, None)

    def names(self, *, before: float = 0) -> Iterator[tuple[str, int]]:
        return iter([(name, table.nbytes) for name, table in self.held.items() if name not in self.broken])

    def quarantined(self) -> list[str]:
        return sorted(self.broken)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Shard:
    """What the oracle says of a shard."""

    rows: list[tuple[int, float]] = field(default_factory=list)
    """Of each offset from 0 on: the row, and when it was appended."""
    first: int = 0
    """The offset of the first one that is left."""


@dataclass
class Ticket:
    """A range that somebody may read until a time."""

    pieces: list[tuple[str, int, int]]
    rows: list[int]
    until: float
    life: int


class JournalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_SHM))
        self.clock, self.disk, self.life = Clock(), Disk(), 1
        self.count = self.puts_made = 0
        self.shards: dict[int, Shard] = {}
        self.keyed = False
        self.keep_bytes: int | None = None
        self.runs: dict[str, list[int]] = {}
        self.places: dict[int, int] = {}
        """Key -> the shard in which it was seen."""
        self.broken: set[int] = set()
        """Rows whose bytes are no longer as they were."""
        self.floors: dict[str, dict[int, int]] = {}
        """Consumer -> how far it has committed."""
        self.tickets: list[Ticket] = []
        self.start()

    @initialize(in_memory=st.booleans())
    def begins(self, in_memory: bool) -> None:
        if in_memory:
            self.disk.incarnation = "life 1"
            self.restarts()

    def start(self) -> None:
        self.disk = Disk(self.disk.incarnation, self.disk.held, self.disk.broken)
        self.database = Database(self.folder / "ledger.db", tables.TABLES, journal.TABLES, payloads.TABLES)
        self.database._connection.execute("PRAGMA synchronous = OFF")
        self.ledger = Ledger(self.database, {"topic": journal}, incarnation=self.disk.incarnation, now=self.clock.now)
        self.store = SplitPayloadStore(self.disk, self.database, url="test:", now=self.clock.now)
        self.topics = Topics(self.ledger, self.store)
        self.consumers = Consumers(self.ledger, self.topics)
        self.compactor = Compactor(self.ledger, self.store)

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    # --- a reader, who knows tickets and parts ----------------------------------------------

    def read(self, shard: int, start: int, end: int, life: float = 0) -> list[tuple[int, int, float]]:
        """Offset, row and time of each offset in a range."""
        topic = self.topics.topic(PATH)
        begin = {each: start if each == shard else 0 for each in self.shards}
        begin = {each: at if each == shard else self.shards[each].first for each, at in begin.items()}
        stop = {each: end if each == shard else at for each, at in begin.items()}
        found = []
        laid = self.topics.range(topic, begin, stop, ticketed_until=self.clock.now() + life)
        for piece in laid:
            assert piece.shard == shard
            table = self.store.open(piece.part).reader().read_all().slice(piece.skip, piece.rows)
            times = [piece.since] * table.num_rows
            if "_time" in table.column_names:
                times = [when / 1e6 for when in table["_time"].cast(pa.int64()).to_pylist()]
            offsets = range(piece.first + piece.skip, piece.first + piece.skip + piece.rows)
            found += list(zip(offsets, table["n"].to_pylist(), times, strict=True))
        if life:
            pieces = [(piece.part, piece.skip, piece.rows) for piece in laid]
            rows = [number for _, number, _ in found]
            self.tickets.append(Ticket(pieces, rows, self.clock.now() + life, self.life))
        return found

    def check_range(self, shard: int, start: int, end: int, life: float = 0) -> None:
        known = self.shards[shard]
        expected = [(at, *known.rows[at]) for at in range(start, min(end, len(known.rows)))]
        if start < known.first or end > len(known.rows) or start > end:
            with pytest.raises(Lost if start < known.first else InvalidRequest):
                self.read(shard, start, end)
        elif any(number in self.broken for _, number, _ in expected):
            with pytest.raises(Lost):
                self.read(shard, start, end)
        else:
            assert self.read(shard, start, end, life) == expected

    def check_all(self) -> None:
        """Every offset that is left, one range after another between the broken ones; and the shards' sums."""
        sums = "shards.parts - count(part) AS parts, shards.bytes - coalesce(sum(journal.bytes), 0) AS bytes"
        query = f"SELECT {sums} FROM shards LEFT JOIN journal USING (path, shard) GROUP BY shards.path, shards.shard"
        assert {tuple(row) for row in self.ledger.database.rows(query)} <= {(0, 0)}
        for number, known in self.shards.items():
            start = known.first
            for at in range(known.first, len(known.rows) + 1):
                if at == len(known.rows) or known.rows[at][0] in self.broken:
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

    def a_put(self, rows: int, run: str | None, wide: bool) -> SmallPut:
        numbers = list(range(self.count, self.count + rows))
        self.count += rows
        columns = {"n": numbers, "key": [number * 7 % 5 for number in numbers], "more": ["x"] * rows}
        schema = WIDE if wide else NARROW
        batch = pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema)
        self.puts_made += 1
        attempt = f"{zlib.crc32(b'%d' % self.puts_made):08x}{self.puts_made:024x}"  # the same in each run of an example
        return SmallPut(PATH, run, attempt, schema, [batch], rows, batch.nbytes)

    @precondition(lambda self: self.shards)
    @rule(
        sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3),
        run=st.sampled_from([None, None, "r", "s"]),
        wide=st.sampled_from([False, False, False, True]),
        crash=st.sampled_from(CRASHES),
    )
    def puts(self, sizes: list[int], run: str | None, wide: bool, crash: str | None) -> None:
        sizes = [max(1, sizes[0]), *sizes[1:]] if run else sizes  # else nobody could tell what a crash has left
        group = [self.a_put(size, run if at == 0 else None, wide) for at, size in enumerate(sizes)]
        if crash is None:
            Appender(self.ledger, self.store).commit(group)
            for put in group:
                numbers = self.numbers(put)
                expected = self.runs.get(put.run or "", numbers) if put.run else numbers
                assert put.answer.result(0).rows == len(expected)
            self.takes_note(group, answered=True)
        else:
            self.dies(crash, lambda: Appender(self.ledger, self.store).commit(group))
            (self.takes_note_of_losses if self.disk.incarnation else self.takes_note)(group, answered=False)

    def takes_note_of_losses(self, group: list[SmallPut], *, answered: bool) -> None:
        """The group was there before its server's memory went, or it wasn't."""
        new = 0
        for number, end in self.topics.topic(PATH).latest().items():
            known = self.shards[number]
            new += end - len(known.rows)
            known.rows += [(-1, 0.0)] * (end - len(known.rows))
            known.first = end
        fresh = [put for put in group if not (put.run and put.run in self.runs)]
        assert new in (0, sum(put.rows for put in fresh)), "half a group, or rows that nobody put"
        if new:
            self.runs.update({put.run: self.numbers(put) for put in fresh if put.run})

    @staticmethod
    def numbers(put: SmallPut) -> list[int]:
        return [number for batch in put.batches for number in batch.column("n").to_pylist()]

    def takes_note(self, group: list[SmallPut], *, answered: bool) -> None:
        """What is new at the ends of the shards is the group's rows, each put whole and in order; then it is known."""
        new: dict[int, tuple[int, int]] = {}
        for number, end in self.topics.topic(PATH).latest().items():
            known = self.shards[number]
            assert end >= len(known.rows), "an end went back"
            before = len(known.rows)
            for at, row, when in self.read(number, before, end):
                assert at == len(known.rows)
                assert when == self.clock.now()
                new[row] = (number, at)
                known.rows.append((row, when))
            assert len(known.rows) == end
        for put in group:
            numbers = self.numbers(put)
            if put.run and put.run in self.runs:
                assert not set(numbers) & set(new), "a run twice"
                continue
            there = [number for number in numbers if number in new]
            assert there == numbers or (not answered and not there), "half a put, or none"
            if put.run and there:
                self.runs[put.run] = numbers
            self.check_order([new.pop(number) for number in there], there)
        assert not new, "rows that nobody put"

    def check_order(self, places: list[tuple[int, int]], numbers: list[int]) -> None:
        assert places == sorted(places) or self.keyed
        if not self.keyed:
            assert len({shard for shard, _ in places}) <= 1
        for (shard, _), number in zip(places, numbers, strict=True):
            if self.keyed:
                assert self.places.setdefault(number * 7 % 5, shard) == shard

    # --- what happens to a process ----------------------------------------------------------

    def dies(self, step: str, doing: Callable[[], object]) -> None:
        """It dies at a step, if it comes to it, and is started again."""
        kill = crash_at(step)

        def passed(at: str) -> None:
            self.disk.dead = at == step
            kill(at)

        self.disk.fails = step == "written"
        with mock.patch.object(steps, "passed", passed), contextlib.suppress(Crash):
            doing()
        self.restarts()

    @rule()
    def restarts(self) -> None:
        self.database.close()
        if self.disk.incarnation:
            self.life += 1
            self.disk.incarnation = f"life {self.life}"
            self.disk.held.clear()
            for known in self.shards.values():
                known.first = len(known.rows)
        self.start()
        drop_lost(self.ledger)
        recover(self.ledger, self.store)
        named = {row["name"] for row in self.database.rows("SELECT name FROM parts")}
        assert set(self.disk.held) - self.disk.broken <= named, "orphans"

    @rule(seconds=st.sampled_from([0.25, 30.0, KEEP + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.shards and self.disk.held)
    @rule(data=st.data())
    def bytes_change(self, data: st.DataObject) -> None:
        """One part is found corrupt from now on."""
        names = [name for name in self.disk.held if name not in self.disk.broken]
        if names:
            name = data.draw(st.sampled_from(names))
            shown = {row["part"] for row in self.database.rows("SELECT part FROM journal WHERE path IS NOT NULL")}
            self.disk.broken.add(name)
            if name in shown:
                self.broken.update(self.disk.held[name]["n"].to_pylist())

    # --- what is done to the journal --------------------------------------------------------

    @precondition(lambda self: self.shards)
    @rule(crash=st.sampled_from([None, None, "written", "compact.durable", "compact.shown"]))
    def compacts(self, crash: str | None) -> None:
        with mock.patch.object(compaction, "MANY", 2):
            if crash is None:
                self.compactor.compact()
            else:
                self.dies(crash, self.compactor.compact)
        self.check_all()

    @precondition(lambda self: self.shards)
    @rule()
    def lets_go(self) -> None:
        """Whole parts from the front: none that is young, none that a consumer needs, and none that may go stays."""
        retain(self.ledger)
        topic = self.topics.topic(PATH)
        for number, first in topic.earliest().items():
            known = self.shards[number]
            floor = min((position[number] for position in self.floors.values()), default=len(known.rows))
            gone = known.rows[known.first : first]
            assert first >= known.first
            assert not gone or first <= floor, "past the slowest consumer"
            assert all(when < self.clock.now() - KEEP for _, when in gone) or self.keep_bytes is not None
            known.first = first
            front = [each for each in self.topics.range(topic, {}, {}, ticketed_until=0) if each.shard == number][:1]
            for part in front:
                young = any(when >= self.clock.now() - KEEP for _, when in known.rows[first : first + part.rows])
                assert young or first + part.rows > floor, "it is old, and nobody needs it"
                assert self.keep_bytes != 0 or first + part.rows > floor, "it is too much"

    @rule()
    def frees(self) -> None:
        free(self.ledger, self.store)

    @precondition(lambda self: self.shards)
    @rule(name=st.sampled_from(["a", "b"]), data=st.data())
    def commits(self, name: str, data: st.DataObject) -> None:
        """A consumer comes with where it stands, or goes on from there."""
        topic = self.topics.topic(PATH)
        held = self.floors.get(name)
        if held is None:
            held = {number: known.first for number, known in self.shards.items()}
        position = {
            number: data.draw(st.integers(at, max(at, len(self.shards[number].rows)))) for number, at in held.items()
        }
        known = {each.consumer: each.state for each in self.consumers.of(topic)}
        self.consumers.attach(topic, self.consumer(name), "session", initial={}, position=position)
        if self.consumer(name) in known:
            self.consumers.commit(topic, self.consumer(name), "session", position)
        self.floors[name] = position

    def consumer(self, name: str) -> str:
        return f"{name} of {self.topics.topic(PATH).journal}"

    @precondition(lambda self: self.floors)
    @rule()
    def a_week_passes(self) -> None:
        self.clock.advance(3 * UNSEEN)  # long enough to be forgotten, too
        self.consumers.expire()
        self.consumers.expire()
        self.floors.clear()

    @precondition(lambda self: self.shards)
    @rule()
    def deletes(self) -> None:
        journal = self.topics.remove(PATH).journal
        self.shards, self.floors, self.places, self.runs = {}, {}, {}, {}
        self.creates(1, False, None)
        assert self.topics.topic(PATH).journal != journal

    # --- what is seen of it -----------------------------------------------------------------

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
    def looks_for_a_time(self, seconds: float) -> None:
        moment = round(self.clock.now() - seconds, 6)
        found = self.topics.at(self.topics.topic(PATH), moment)
        for number, known in self.shards.items():
            left = range(known.first, len(known.rows))
            expected = next((at for at in left if known.rows[at][1] >= moment), len(known.rows))
            assert found[number] == expected or known.rows[expected - 1][0] in self.broken

    @precondition(lambda self: self.shards)
    @invariant()
    def the_ends_are_the_oracles(self) -> None:
        topic = self.topics.topic(PATH)
        assert topic.earliest() == {number: known.first for number, known in self.shards.items()}
        assert topic.latest() == {number: len(known.rows) for number, known in self.shards.items()}

    @rule()
    def all_is_read(self) -> None:
        self.check_all()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What 25,000 steps warn of is no help."""
    caplog.set_level(logging.CRITICAL, "penstock")


JournalMachine.TestCase.settings = settings(max_examples=examples(500), stateful_step_count=50)
TestJournalMachine = JournalMachine.TestCase
