"""The rows that went in, the rows that came out, and the laws that hold between them. Nothing here is penstock's code.

A row's data is a function of the run's seed and the row's number, so that rows are compared by checksum.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

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
        """The checksum of all its fields."""
        return zlib.crc32(repr(tuple(self)).encode())


def rows(seed: int, producer: int, first: int, count: int) -> list[Row]:
    """Make rows of a producer; no other one has its keys."""
    made = []
    for seq in range(first, first + count):
        noise = hashlib.blake2b(f"{seed}:{seq}".encode()).hexdigest()
        key = int(noise[:6], 16) % KEYS * 10 + producer
        made.append(Row(seq, key, None if seq % 97 == 0 else noise[: 20 + seq % 80], seq % 10_007 / 100))
    return made


def batch(some: Iterable[Row]) -> pa.RecordBatch:
    """Return rows as a batch to be published."""
    columns = list(zip(*some, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


@dataclass
class Run:
    """Rows that were sent as one run."""

    name: str
    rows: dict[int, tuple[int, int]]
    """seq: (key, crc)"""
    outcome: Literal["ok", "unknown"] = "unknown"


class SentRows:
    """The rows that went in: a line when they are sent, a line when they are answered for. Safe between threads."""

    def __init__(self, file: Path) -> None:
        self.runs: list[Run] = []
        self.count = self.repeated = 0
        self._file = file.open("a")
        self._lock = threading.Lock()

    def send(self, name: str, some: Iterable[Row]) -> Run:
        """Note rows that are about to go out: from now on they may come out."""
        run = Run(name, {row.seq: (row.key, row.crc) for row in some})
        with self._lock:
            self.runs.append(run)
            self.count += len(run.rows)
            self._note({"sent": name, "rows": [[seq, *row] for seq, row in run.rows.items()]})
        return run

    def repeat(self) -> None:
        """Count a run that is sent again."""
        with self._lock:
            self.repeated += 1

    def answer(self, run: Run) -> None:
        """Note that the server has answered for a run: from now on its rows must come out."""
        with self._lock:
            run.outcome = "ok"
            self._note({"ok": run.name})

    def unknown(self) -> set[int]:
        """Return the rows that nobody answered for; they may come out or not."""
        return {seq for run in self.runs if run.outcome == "unknown" for seq in run.rows}

    def _note(self, what: object) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def ten_rows(run: int, *, key: int | None = None) -> list[Row]:
    """Return the rows of one of a checker's runs, perhaps of one key."""
    some = rows(7, 0, run * 10, 10)
    return some if key is None else [row._replace(key=key) for row in some]


@contextmanager
def sent_runs(folder: Path, *runs: list[Row], answered: int) -> Iterator[SentRows]:
    """Yield runs that were sent, the first ones answered for."""
    with closing(SentRows(folder / "sent.jsonl")) as sent:
        for number, some in enumerate(runs):
            run = sent.send(f"run-{number}", some)
            if number < answered:
                sent.answer(run)
        yield sent


class Arrived(Protocol):
    """A row that came out; workloads add where."""

    @property
    def seq(self) -> int: ...
    @property
    def key(self) -> int: ...
    @property
    def crc(self) -> int: ...


class Usage(NamedTuple):
    """What the server's process uses."""

    threads: int = 0
    descriptors: int = 0
    memory: int = 0


@dataclass
class Outcome:
    """All that a run left. Workloads add what they alone know."""

    places: Mapping[str, Sequence[Arrived]]
    """What came out at each place, after a restart of the server; each place is fed by the one before it."""
    before: Mapping[str, Sequence[Arrived]]
    """The same, before that restart."""
    usage: list[Usage]
    """While faults fell."""
    idle: Usage
    """Of the server that went through the last faults, with nothing left to do."""
    fresh: Usage
    """Of a server that was just started."""
    litter: list[str]
    """Files that are there after the sweep and belong to nothing."""

    def removed(self) -> set[int]:
        """Return the rows that the first place need not have any more."""
        return set()

    def forgotten(self) -> set[int]:
        """Return the rows that no place need have: what answered for them forgot them."""
        return set()


def lost(sent: SentRows, outcome: Outcome) -> Iterator[str]:
    """L1: what was answered for is at the first place, and what is at one place is at the next."""
    (first, rows), *others = outcome.places.items()
    there = {row.seq for row in rows} | outcome.removed()
    forgotten = outcome.forgotten()
    for run in sent.runs:
        if run.outcome == "ok" and (gone := run.rows.keys() - there - forgotten):
            yield from (f"row {seq} of {run.name} was answered for and isn't in the {first}" for seq in gone)
    for name, rows in others:
        reached = {row.seq for row in rows}
        yield from (f"row {seq} is in the {first} and hasn't reached the {name}" for seq in there - reached)
        first, there = name, reached


def unpublished(sent: SentRows, outcome: Outcome) -> Iterator[str]:
    """L2: nothing is there that nobody sent."""
    known = {seq for run in sent.runs for seq in run.rows}
    for place, rows in outcome.places.items():
        yield from (f"row {row.seq} in the {place} was never sent" for row in rows if row.seq not in known)


def changed(sent: SentRows, outcome: Outcome) -> Iterator[str]:
    """L3: each row has the data that it was sent with."""
    data = {seq: row for run in sent.runs for seq, row in run.rows.items()}
    for place, rows in outcome.places.items():
        for row in rows:
            if data.get(row.seq, (row.key, row.crc)) != (row.key, row.crc):
                yield f"row {row.seq} has other data in the {place}"


def doubled(sent: SentRows, outcome: Outcome) -> Iterator[str]:
    """L4: no row is there twice, whatever was repeated."""
    for place, rows in outcome.places.items():
        counts = Counter(row.seq for row in rows)
        yield from (f"row {seq} is {count} times in the {place}" for seq, count in counts.items() if count > 1)


IDLE = Usage(threads=24, descriptors=32, memory=200 << 20)
"""What an idle server may use more than one that was just started."""
MOST = Usage(threads=150, descriptors=400, memory=1 << 30)


def kept(sent: SentRows, outcome: Outcome) -> Iterator[str]:
    """L9: threads, descriptors and memory are bounded, and go back; nothing temporary stays."""
    back = Usage(*(fresh + more for fresh, more in zip(outcome.fresh, IDLE, strict=True)))
    for when, usage, limit in (("at most", outcome.usage, MOST), ("at the end", [outcome.idle], back)):
        for name, most, allowed in zip(Usage._fields, map(max, zip(*usage, strict=True)), limit, strict=True):
            if most > allowed:
                yield f"{name} {when}: {most:,}, more than {allowed:,}"
    yield from (f"{name} is left" for name in outcome.litter)


Law = Callable[[SentRows, Any], Iterator[str]]
LAWS: dict[str, Law] = {"lost": lost, "unpublished": unpublished, "changed": changed, "doubled": doubled, "kept": kept}
"""The laws of every workload."""


def check(sent: SentRows, outcome: Outcome, laws: Mapping[str, Law]) -> dict[str, list[str]]:
    """Return what breaks each law."""
    return {name: list(law(sent, outcome)) for name, law in {**LAWS, **laws}.items()}
