"""A damaged ledger, a clock that jumps: a topic has all its rows as they were, or an error says why not."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from penstock.errors import PenstockError
from penstock.ledger import merging
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.retention import retain
from tests.kit.clock import Clock
from tests.kit.faults import Damage, blank, cut, flip, noise
from tests.kit.topics import SHM, Reach

pytestmark = pytest.mark.faults

HOUR = 3600.0
DAMAGE_ERRORS = (PenstockError, pa.ArrowException)
"""The errors that damage may cause; the server translates Arrow's own."""


# --- the ledger's file ------------------------------------------------------------------------


@dataclass
class FilledTopic:
    """A folder with a topic of two shards, and the rows that were put to it."""

    folder: Path
    clock: Clock
    rows: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: []})


@pytest.fixture(scope="module")
def filled() -> Iterator[FilledTopic]:
    folder = Path(tempfile.mkdtemp(dir=SHM))
    filled = FilledTopic(folder / "whole", Clock())
    filled.folder.mkdir()
    reach = Reach(filled.folder, filled.clock)
    reach.create(shards=2)
    for number in range(60):
        numbers = range(number * 10, number * 10 + 1 + number % 3)
        reach.put(*numbers, attempt=f"{number % 2:08x}{number:024x}")
        filled.rows[number % 2] += numbers
    Consumers(reach.ledger, reach.topics).attach(reach.topic(), "c", "s", initial={}, position={0: 4, 1: 4})
    reach.close()
    yield filled
    shutil.rmtree(folder)


def count_errors(reach: Reach, filled: FilledTopic) -> int:
    """Check that each shard has its rows at their offsets, neither others nor fewer, or fails; count the failures."""
    errors = 0
    for shard, rows in filled.rows.items():
        try:
            ends = reach.topic().latest()
            others = {number: end for number, end in ends.items() if number != shard}
            visible = reach.read(start=others)
        except DAMAGE_ERRORS:
            errors += 1
            continue
        assert [row[:2] for row in visible] == [(shard, offset) for offset in range(len(visible))]
        assert [row[2] for row in visible][: len(rows)] == rows
    return errors


@pytest.mark.parametrize("damage", [flip, noise, blank, cut])
@pytest.mark.parametrize("seeds", [range(at, at + 10) for at in range(0, 40, 10)], ids=lambda seeds: str(seeds.start))
def test_a_damaged_ledger_shows_all_rows_or_is_an_error(filled: FilledTopic, seeds: range, damage: Damage) -> None:
    """So it does after a put, which may itself be refused."""
    for seed in seeds:
        dice = random.Random(f"{seed} {damage.__name__}")
        folder = filled.folder.with_name(f"{damage.__name__} {seed}")
        shutil.copytree(filled.folder, folder)
        (folder / "ledger.db").write_bytes(damage((folder / "ledger.db").read_bytes(), dice))
        try:
            reach = Reach(folder, filled.clock)
        except DAMAGE_ERRORS:
            continue
        try:
            reach.restart()
            count_errors(reach, filled)
            reach.put(9_999)
            count_errors(reach, filled)
        except DAMAGE_ERRORS:
            pass
        finally:
            reach.close()
            shutil.rmtree(folder)


def test_a_whole_ledger_shows_all_rows(filled: FilledTopic) -> None:
    """The control of the test above: without damage there is no error."""
    reach = Reach(filled.folder, filled.clock)
    try:
        assert count_errors(reach, filled) == 0
    finally:
        reach.close()


@pytest.mark.parametrize("change", ["next = next - 3", "next = next - 1"])
def test_an_end_that_went_back_is_an_error(reach: Reach, change: str) -> None:
    """The shard's row is damaged; `test_topics.py` damages the rows of its parts."""
    for number in range(6):
        reach.put(number)
    reach.ledger.change(lambda t: t.execute(f"UPDATE shards SET {change}"))
    with pytest.raises(PenstockError):
        reach.ids()


# --- the clock --------------------------------------------------------------------------------

JUMPS = [-400 * 24 * HOUR, -3 * HOUR, -60.0, -0.001, 0.0, 0.001, 60.0, 3 * HOUR, 400 * 24 * HOUR]


@pytest.mark.parametrize("seed", range(20))
def test_clock_jumps_change_no_offset_and_no_row(reach: Reach, seed: int) -> None:
    """Jumps of up to 400 days, forwards and back, fall between puts, restarts and compaction. A time finds the first
    row since then.
    """
    dice = random.Random(seed)
    reach.create(keep_seconds=1e12)
    reach.clock.set(2e9)
    appended: list[tuple[int, float]] = []
    for step in range(40):
        reach.clock.advance(dice.choice(JUMPS))
        numbers = range(len(appended), len(appended) + dice.randrange(1, 4))
        reach.put(*numbers)
        appended += [(number, round(reach.clock.now(), 6)) for number in numbers]
        if step % 10 == 9:
            with mock.patch.object(merging, "MANY", 2):
                Compactor(reach.ledger, reach.store).compact()
            retain(reach.ledger)
            reach.restart()
        rows = reach.read()
        assert [(row[1], row[2]) for row in rows] == [(offset, number) for offset, (number, _) in enumerate(appended)]
        assert [row[3] for row in rows] == pytest.approx([when for _, when in appended], abs=2e-6)
        moment = dice.choice(appended)[1]
        first = next(offset for offset, (_, when) in enumerate(appended) if when >= moment)
        assert reach.topics.at(reach.topic(), moment) == {0: first}


@pytest.mark.parametrize("jump", [3 * HOUR, 30 * HOUR, 6 * 24 * HOUR])
def test_a_clock_jump_takes_no_row_from_a_consumer(reach: Reach, jump: float) -> None:
    """A consumer may be away for seven days; rows that it has committed are removed in their time."""
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


def test_a_clock_that_is_set_back_keeps_rows_longer(reach: Reach) -> None:
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


def test_a_run_is_known_after_the_clock_was_set_back(reach: Reach) -> None:
    reach.put(1, run="r")
    reach.clock.advance(-400 * 24 * HOUR)
    reach.ledger.expire()
    reach.put(1, run="r")
    assert reach.ids() == [1]
