"""What went in, what came out, and the laws that hold between them. Nothing here is penstock's code.

A row's data is a function of the run's seed and the row's number, so that what landed is compared by checksum.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

SCHEMA = pa.schema([("seq", pa.int64()), ("key", pa.int32()), ("text", pa.string()), ("amount", pa.float64())])
KEYS = 997


class Row(NamedTuple):
    """A row's data."""

    seq: int
    key: int
    text: str | None
    amount: float

    @property
    def crc(self) -> int:
        """Of all that it holds."""
        return zlib.crc32(repr(tuple(self)).encode())


def rows(seed: int, producer: int, first: int, count: int) -> list[Row]:
    """A producer's rows; its keys are nobody else's."""
    found = []
    for seq in range(first, first + count):
        noise = hashlib.blake2b(f"{seed}:{seq}".encode()).hexdigest()
        key = int(noise[:6], 16) % KEYS * 10 + producer
        found.append(Row(seq, key, None if seq % 97 == 0 else noise[: 20 + seq % 80], seq % 10_007 / 100))
    return found


def batch(some: Iterable[Row]) -> pa.RecordBatch:
    """Rows as they are published."""
    columns = list(zip(*some, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


@dataclass
class Sent:
    """Rows that were published as one run."""

    run: str
    rows: dict[int, tuple[int, int]]
    """seq: (key, crc)"""
    outcome: Literal["ok", "unknown"] = "unknown"


class Ledger:
    """Append-only: a line when rows are sent, and a line when they are answered for. Safe between threads."""

    def __init__(self, file: Path) -> None:
        self.sent: list[Sent] = []
        self.asked = self.repeated = 0
        self._file = file.open("a")
        self._lock = threading.Lock()

    def send(self, run: str, some: Iterable[Row]) -> Sent:
        """They are about to go out: from now on they may be there."""
        found = Sent(run, {row.seq: (row.key, row.crc) for row in some})
        with self._lock:
            self.sent.append(found)
            self.asked += len(found.rows)
            self._note({"sent": run, "rows": [[seq, *row] for seq, row in found.rows.items()]})
        return found

    def repeat(self) -> None:
        """A run is sent again."""
        with self._lock:
            self.repeated += 1

    def answer(self, sent: Sent) -> None:
        """The server has answered for them: from now on they must be there."""
        with self._lock:
            sent.outcome = "ok"
            self._note({"ok": sent.run})

    def _note(self, what: object) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Landed(NamedTuple):
    """A row that came out, and where the topic had it."""

    shard: int
    offset: int
    seq: int
    key: int
    crc: int


class Sample(NamedTuple):
    """What was seen at one moment: positions first, then the rows that had landed, then the server's process."""

    positions: dict[str, dict[int, int]]
    """consumer: {shard: offset}"""
    landed: int
    threads: int
    descriptors: int
    memory: int


@dataclass
class Outcome:
    """All that a run left."""

    topic: list[Landed]
    again: list[Landed]
    """The same range, read again after a restart."""
    landed: list[Landed]
    """In the order in which the sink gives it back."""
    samples: list[Sample] = field(default_factory=list)
    base: Sample = field(default_factory=lambda: Sample({}, 0, 0, 0, 0))
    """A server that was just started."""
    idle: Sample = field(default_factory=lambda: Sample({}, 0, 0, 0, 0))
    """The server that went through the last faults, with nothing left to do."""
    litter: list[str] = field(default_factory=list)
    """Files that are there after the sweep and belong to nothing."""
    is_ordered: bool = False
    """Whether the sink keeps a key's order."""


def lost(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L1: what was answered for is in the topic, and what is in the topic is in the sink."""
    published, landed = {row.seq for row in seen.topic}, {row.seq for row in seen.landed}
    for sent in ledger.sent:
        if sent.outcome == "ok" and (gone := sent.rows.keys() - published):
            yield from (f"row {seq} of {sent.run} was answered for and isn't in the topic" for seq in gone)
    yield from (f"row {seq} is in the topic and hasn't landed" for seq in published - landed)


def unpublished(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L2: nothing is there that nobody sent."""
    sent = {seq for each in ledger.sent for seq in each.rows}
    yield from (f"row {row.seq} was never sent" for row in [*seen.topic, *seen.landed] if row.seq not in sent)


def changed(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L3: each row has the data that it was sent with."""
    sent = {seq: row for each in ledger.sent for seq, row in each.rows.items()}
    for where, some in (("topic", seen.topic), ("sink", seen.landed)):
        for row in some:
            if sent.get(row.seq, (row.key, row.crc)) != (row.key, row.crc):
                yield f"row {row.seq} has other data in the {where}"


def doubled(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L4: no row is there twice, whatever was repeated."""
    for where, some in (("topic", seen.topic), ("sink", seen.landed)):
        counts = Counter(row.seq for row in some)
        yield from (f"row {seq} is {count} times in the {where}" for seq, count in counts.items() if count > 1)


def misplaced(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L5: offsets are dense, and name the same row for ever: after a restart, and when Spark read it."""
    shards: dict[int, list[int]] = defaultdict(list)
    for row in seen.topic:
        shards[row.shard].append(row.offset)
    for shard, offsets in shards.items():
        if sorted(offsets) != list(range(len(offsets))):
            yield f"shard {shard}: {len(offsets)} rows, and not the offsets 0 to {len(offsets) - 1}"
    if seen.topic != seen.again:
        yield "the topic reads otherwise after a restart"
    at = {(row.shard, row.offset): row for row in seen.topic}
    for row in seen.landed:
        if at.get((row.shard, row.offset)) != row:
            yield f"shard {row.shard} offset {row.offset} was row {row.seq} when Spark read it"


def went_back(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L6: a committed position never goes back."""
    held: dict[tuple[str, int], int] = {}
    for sample in seen.samples:
        for consumer, position in sample.positions.items():
            for shard, offset in position.items():
                if offset < held.get((consumer, shard), 0):
                    yield f"{consumer} went back in shard {shard}: {held[consumer, shard]} to {offset}"
                held[consumer, shard] = offset


def too_early(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L7: nothing is committed before it has landed."""
    for sample in seen.samples:
        for consumer, position in sample.positions.items():
            if sum(position.values()) > sample.landed:
                yield f"{consumer} had committed {sum(position.values())} rows when {sample.landed} had landed"


def disordered(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L8: a key's rows are in one shard, in the order of their puts; but those that nobody answered for."""
    unknown = {seq for each in ledger.sent if each.outcome == "unknown" for seq in each.rows}
    sides = [("topic", sorted(seen.topic, key=lambda row: (row.shard, row.offset)))]
    sides += [("sink", seen.landed)] if seen.is_ordered else []
    for where, some in sides:
        last: dict[int, Landed] = {}
        for row in some:
            if row.seq in unknown:
                continue
            before = last.setdefault(row.key, row)
            if before.shard != row.shard:
                yield f"key {row.key} is in shards {before.shard} and {row.shard} of the {where}"
            if before.seq > row.seq:
                yield f"row {row.seq} of key {row.key} comes behind row {before.seq} in the {where}"
            last[row.key] = row


THREADS, DESCRIPTORS, MEMORY = 24, 32, 200 << 20
"""What an idle server may have more than one that was just started."""
MOST_THREADS, MOST_DESCRIPTORS, MOST_MEMORY = 150, 400, 1 << 30


def kept(ledger: Ledger, seen: Outcome) -> Iterator[str]:
    """L9: threads, descriptors and memory are bounded, and go back; nothing temporary stays."""
    most = Sample({}, 0, MOST_THREADS, MOST_DESCRIPTORS, MOST_MEMORY)
    base = seen.base
    back = Sample({}, 0, base.threads + THREADS, base.descriptors + DESCRIPTORS, base.memory + MEMORY)
    for when, samples, limit in (("at most", seen.samples, most), ("at the end", [seen.idle], back)):
        for what in ("threads", "descriptors", "memory"):
            found = max((getattr(sample, what) for sample in samples), default=0)
            if found > getattr(limit, what):
                yield f"{what} {when}: {found:,}, more than {getattr(limit, what):,}"
    yield from (f"{name} is left" for name in seen.litter)


Law = Callable[[Ledger, Outcome], Iterator[str]]
LAWS: dict[str, Law] = {
    "lost": lost, "unpublished": unpublished, "changed": changed, "doubled": doubled, "misplaced": misplaced,
    "went back": went_back, "too early": too_early, "disordered": disordered, "kept": kept,
}  # fmt: skip


def check(ledger: Ledger, seen: Outcome) -> dict[str, list[str]]:
    """What breaks each law."""
    return {name: list(law(ledger, seen)) for name, law in LAWS.items()}
