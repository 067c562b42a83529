"""A ledger that is damaged, a clock that jumps: a topic's rows are all there and the same, or an error says why not."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from penstock.errors import PenstockError
from penstock.queue.topics import compaction
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.retention import retain
from tests.kit.clock import Clock
from tests.kit.topics import Reach

pytestmark = pytest.mark.faults

SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # an fsync there costs nothing
HOUR = 3600.0
TOLD = (PenstockError, pa.ArrowException)
"""How damage is told: Arrow's own errors are named by the server."""


# --- the ledger's file ------------------------------------------------------------------------

Damage = Callable[[bytearray, random.Random], None]


def flip(raw: bytearray, dice: random.Random) -> None:
    raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)


def noise(raw: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(raw) - 16)
    raw[start : start + 16] = dice.randbytes(16)


def blank(raw: bytearray, dice: random.Random) -> None:
    """A sector that was never written."""
    start = dice.randrange(len(raw) // 512) * 512
    raw[start : start + 512] = bytes(512)


def cut(raw: bytearray, dice: random.Random) -> None:
    del raw[dice.randrange(len(raw)) :]


@dataclass
class Kept:
    """A folder with a topic of two shards, and what was put there."""

    folder: Path
    clock: Clock
    rows: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: []})


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    folder = Path(tempfile.mkdtemp(dir=SHM))
    found = Kept(folder / "whole", Clock())
    found.folder.mkdir()
    reach = Reach(found.folder, found.clock)
    reach.create(shards=2)
    for number in range(60):
        some = range(number * 10, number * 10 + 1 + number % 3)
        reach.put(*some, attempt=f"{number % 2:08x}{number:024x}")
        found.rows[number % 2] += some
    Consumers(reach.ledger, reach.topics).attach(reach.topic(), "c", "s", initial={}, position={0: 4, 1: 4})
    reach.close()
    yield found
    shutil.rmtree(folder)


def check(reach: Reach, kept: Kept) -> int:
    """Each shard has its rows at their offsets, never others and never fewer; or an error. How many were errors."""
    told = 0
    for shard, rows in kept.rows.items():
        try:
            ends = reach.topic().latest()
            others = {each: end for each, end in ends.items() if each != shard}
            found = reach.read(start=others)
        except TOLD:
            told += 1
            continue
        assert [row[:2] for row in found] == [(shard, offset) for offset in range(len(found))]
        assert [row[2] for row in found][: len(rows)] == rows
    return told


@pytest.mark.parametrize("damage", [flip, noise, blank, cut])
@pytest.mark.parametrize("seeds", [range(at, at + 10) for at in range(0, 40, 10)], ids=lambda seeds: str(seeds.start))
def test_a_damaged_ledger_shows_all_rows_or_is_an_error(kept: Kept, seeds: range, damage: Damage) -> None:
    """Also behind a put, which may be refused."""
    for seed in seeds:
        dice = random.Random(f"{seed} {damage.__name__}")
        folder = kept.folder.with_name(f"{damage.__name__} {seed}")
        shutil.copytree(kept.folder, folder)
        raw = bytearray((folder / "ledger.db").read_bytes())
        damage(raw, dice)
        (folder / "ledger.db").write_bytes(raw)
        try:
            reach = Reach(folder, kept.clock)
        except TOLD:
            continue
        try:
            reach.restart()
            check(reach, kept)
            reach.put(9_999)
            check(reach, kept)
        except TOLD:
            pass
        finally:
            reach.close()
            shutil.rmtree(folder)


def test_a_whole_ledger_shows_all_rows(kept: Kept) -> None:
    """The one beside, which says that the tests above look at something."""
    reach = Reach(kept.folder, kept.clock)
    try:
        assert check(reach, kept) == 0
    finally:
        reach.close()


@pytest.mark.parametrize("change", ["next = next - 3", "next = next - 1"])
def test_an_end_that_went_back_is_no_shorter_topic(reach: Reach, change: str) -> None:
    """Another cell of the ledger than the parts' own, which `tests/topics/test_topics.py` changes."""
    for number in range(6):
        reach.put(number)
    reach.ledger.change(lambda t: t.execute(f"UPDATE shards SET {change}"))
    with pytest.raises(PenstockError):
        reach.ids()


# --- the clock --------------------------------------------------------------------------------

JUMPS = [-400 * 24 * HOUR, -3 * HOUR, -60.0, -0.001, 0.0, 0.001, 60.0, 3 * HOUR, 400 * 24 * HOUR]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_clock_does_an_offset_names_its_row_and_a_time_finds_the_first_row_since(
    reach: Reach, seed: int
) -> None:
    """Puts, restarts and compaction between jumps of up to 400 days, forwards and back."""
    dice = random.Random(seed)
    reach.create(keep_seconds=1e12)
    reach.clock.set(2e9)
    known: list[tuple[int, float]] = []
    for step in range(40):
        reach.clock.advance(dice.choice(JUMPS))
        some = range(len(known), len(known) + dice.randrange(1, 4))
        reach.put(*some)
        known += [(number, round(reach.clock.now(), 6)) for number in some]
        if step % 10 == 9:
            with mock.patch.object(compaction, "MANY", 2):
                Compactor(reach.ledger, reach.store).compact()
            retain(reach.ledger)
            reach.restart()
        found = reach.read()
        assert [(row[1], row[2]) for row in found] == [(offset, number) for offset, (number, _) in enumerate(known)]
        assert [row[3] for row in found] == pytest.approx([when for _, when in known], abs=2e-6)
        moment = dice.choice(known)[1]
        first = next(offset for offset, (_, when) in enumerate(known) if when >= moment)
        assert reach.topics.at(reach.topic(), moment) == {0: first}


@pytest.mark.parametrize("jump", [3 * HOUR, 30 * HOUR, 6 * 24 * HOUR])
def test_a_clock_that_jumps_ahead_takes_no_row_from_who_has_still_to_read_it(reach: Reach, jump: float) -> None:
    """Within the seven days for which a consumer may be away; the rows behind it leave as their time says."""
    for number in range(6):
        reach.put(number)
    consumers = Consumers(reach.ledger, reach.topics)
    consumers.attach(reach.topic(), "c", "s", initial={}, position={0: 2})
    reach.clock.advance(jump)
    consumers.expire()
    retain(reach.ledger)
    assert reach.ids() == ([0, 1, 2, 3, 4, 5] if jump < 24 * HOUR else [2, 3, 4, 5])
    reach.clock.advance(-jump)
    consumers.commit(reach.topic(), "c", "s", {0: 4})
    reach.put(6)
    assert [row[1:3] for row in reach.read(start={0: 4})] == [(4, 4), (5, 5), (6, 6)]


def test_a_clock_that_is_set_back_keeps_rows_longer_and_never_shorter(reach: Reach) -> None:
    reach.put(0)
    reach.clock.advance(-10 * HOUR)
    reach.put(1)
    reach.clock.advance(25 * HOUR)  # the first is 15 hours old, the one behind it 25
    retain(reach.ledger)
    assert reach.ids() == [0, 1]
    reach.clock.advance(10 * HOUR)
    retain(reach.ledger)
    assert reach.ids() == []
    reach.restart()
    reach.put(2)
    assert [row[1:3] for row in reach.read()] == [(2, 2)]


def test_a_run_that_is_put_again_after_the_clock_was_set_back_is_still_known(reach: Reach) -> None:
    reach.put(1, run="r")
    reach.clock.advance(-400 * 24 * HOUR)
    reach.ledger.expire()
    reach.put(1, run="r")
    assert reach.ids() == [1]
