"""A query's offsets without server and Spark: what a checkpoint has, what counts as done, which rows come next."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import InvalidRequest
from penstock.spark_plugin.offsets import (
    Progress,
    StreamOffset,
    StreamOptions,
    actual_start,
    begin_again,
    beyond_end,
    check_start,
    gap,
    remaining,
    waits_for_rows,
)
from penstock.wire.actions import Offsets
from penstock.wire.position import Position

CHECKPOINT = (
    '{"journal": "6f1f64c9a1b84f0c8d6f0f7f3a5c2b11", "epoch": 3, "consumer": "0c8bd1de7e6e4b0f9b0b6f6c1a2d3e4f", '
    '"initial": {"0": 3, "10": 0}, "shards": {"0": 12, "10": 5}, "v": 1}'
)
"""An offset as Spark has it on disk since the first version that streams."""


def offset(*position: int, consumer: str = "c", initial: tuple[int, ...] | None = None) -> StreamOffset:
    """An offset whose query began at 0."""
    begin = initial or (0,) * len(position)
    return StreamOffset("j", 1, consumer, Position(dict(enumerate(begin))), Position(dict(enumerate(position))))


def offsets(start: tuple[int, ...], end: tuple[int, ...], *, journal: str = "j", epoch: int = 1) -> Offsets:
    """The server's answer about a topic that has its rows from 0 up to 100."""
    positions = ((0,) * len(start), (100,) * len(start), start, end)
    first, last, begin, until = (Position(dict(enumerate(each))) for each in positions)
    return Offsets(journal, epoch, first, last, begin, until, rows=0, bytes=0)


class TestCheckpoint:
    def test_the_stored_form_is_read_and_written_as_it_was(self) -> None:
        """Spark compares offsets as text: another order of names would be another offset."""
        stored = StreamOffset.from_json(json.loads(CHECKPOINT))
        assert (stored.epoch, stored.initial, stored.position) == (3, Position({0: 3, 10: 0}), Position({0: 12, 10: 5}))
        assert json.dumps(stored.to_json()) == CHECKPOINT

    def test_another_version_is_rejected_with_the_cure(self) -> None:
        with pytest.raises(InvalidRequest, match="of version 2, this penstock reads 1: take a new checkpoint"):
            StreamOffset.from_json({"v": 2, "journal": "j"})


# --- what counts as done -------------------------------------------------------------------


def done_by(*said: Any) -> list[int]:
    """What Spark's calls prove to be done: a number asks for a batch from there, a pair plans one, a text commits."""
    progress, done = Progress(), []
    for each in said:
        if isinstance(each, tuple):
            start, end = offset(each[0]), offset(each[1])
            done += [each[0]] if progress.is_done_by_plan(start) else []
            progress = progress.after_plan(start, end, 0.0)
        elif isinstance(each, str):
            done += [int(each)]
            progress = progress.after_commit(offset(int(each)))
        else:
            done += [each] if progress.is_done(offset(each)) else []
            progress = progress.after_request(offset(each))
    return done


@pytest.mark.parametrize(
    ("said", "done"),
    [
        pytest.param([0, (0, 3)], [], id="a first batch is under way"),
        pytest.param([0, (0, 3), 3], [3], id="the next batch is requested"),
        pytest.param([0, (0, 3), 3, 3, 3], [3, 3, 3], id="an idle tail"),
        pytest.param([0, (0, 3), 3, "3", (3, 6), 6], [3, 3, 6], id="one batch after another"),
        pytest.param([(0, 3)], [], id="restarted within the first batch"),
        pytest.param([(3, 6)], [3], id="restarted within a later batch"),
        pytest.param([(3, 6), 6], [3, 6], id="restarted, and landed"),
        pytest.param([0, (0, 3), (0, 3), 3, "3", (3, 6), (3, 6), 6], [3, 3, 6], id="each batch is planned twice"),
        pytest.param([0, (0, 3), 3, (3, 6), 6, (6, 9), 9], [3], id="async: planned without a commit"),
        pytest.param([0, (0, 3), 3, (3, 6), 6, "6", (6, 9), 9], [3, 6], id="async: only commits count"),
        pytest.param([(3, 6), (6, 9), 9], [3], id="async after a restart"),
    ],
)
def test_what_spark_says_proves_what_is_done(said: list[Any], done: list[int]) -> None:
    assert done_by(*said) == done


class SparkModel(RuleBasedStateMachine):
    """Spark from 4.2 on, by its two logs: what isn't in the commit log isn't done.

    But the first batch of a session under async progress tracking, of which Spark doesn't tell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends = [0]
        """The offset log: where the batches end that were planned."""
        self.landed = 0
        """The commit log: how many of them have landed."""
        self.done = 0
        self.start_session()

    def start_session(self) -> None:
        self.progress = Progress()
        self.first_end = 0

    @initialize(sync=st.booleans())
    def choose(self, sync: bool) -> None:
        self.sync = sync

    @precondition(lambda self: not self.sync or self.landed == len(self.ends) - 1)
    @rule(rows=st.integers(1, 5), scans=st.integers(1, 2))
    def next_batch(self, rows: int, scans: int) -> None:
        last = self.ends[-1]
        self.count(last, self.progress.is_done(offset(last)))
        assert self.done == last or not self.sync, "what has landed is done"
        self.progress = self.progress.after_request(offset(last))
        committed = self.landed if self.sync else self.landed - 1  # async: a batch once a later one has landed
        if committed > 0:
            self.progress = self.progress.after_commit(offset(self.ends[committed]))
        self.ends.append(last + rows)
        for _ in range(scans):
            self.plan(len(self.ends) - 1)

    @precondition(lambda self: self.landed < len(self.ends) - 1)
    @rule()
    def land(self) -> None:
        self.landed += 1

    @rule()
    def restart(self) -> None:
        """Plan an empty batch at the end of the offset log, then repeat the first one that hasn't landed."""
        self.start_session()
        self.progress = self.progress.after_request(offset(self.ends[-1]))
        del self.ends[self.landed + 2 :]
        if self.landed < len(self.ends) - 1:
            self.plan(self.landed + 1)

    def plan(self, number: int) -> None:
        start, end = self.ends[number - 1 : number + 1]
        self.first_end = self.first_end or end
        self.count(start, self.progress.is_done_by_plan(offset(start)))
        self.progress = self.progress.after_plan(offset(start), offset(end), 0.0)

    def count(self, position: int, is_done: bool) -> None:
        self.done = max(self.done, position if is_done else 0)

    @invariant()
    def only_what_landed_is_done(self) -> None:
        assert self.done <= max(self.ends[self.landed], 0 if self.sync else self.first_end)


TestSparkModel = SparkModel.TestCase


# --- which offsets come next ---------------------------------------------------------------


def test_in_a_topic_that_was_created_again_it_begins_anew() -> None:
    begin = begin_again(offset(30, 10), offsets((0,), (4,), journal="new"))
    assert (begin.journal, begin.consumer, begin.initial, begin.position) == (
        "new",
        "c",
        Position({0: 0}),
        begin.initial,
    )


def test_an_offset_keeps_the_life_of_its_position() -> None:
    kept = StreamOffset("j", 0, "c", Position({0: 1}, "first"), Position({0: 5}, "second"))
    text = json.dumps(kept.to_json())
    assert text == (
        '{"journal": "j", "life": "second", "epoch": 0, "consumer": "c", '
        '"initial": {"0": 1}, "shards": {"0": 5}, "v": 1}'
    )
    again = StreamOffset.from_json(json.loads(text))
    assert (again, again.position.life, again.initial.life) == (kept, "second", None)


@pytest.mark.parametrize(
    ("rows", "since_last", "options", "waits"),
    [
        (5, 0.0, StreamOptions(), False),
        (5, 0.0, StreamOptions(min_rows=6), True),
        (6, 0.0, StreamOptions(min_rows=6), False),
        (5, 899.0, StreamOptions(min_rows=6), True),
        (0, 900.0, StreamOptions(min_rows=6), False),
        (5, 60.0, StreamOptions(min_rows=6, max_delay=60), False),
        (5, float("inf"), StreamOptions(min_rows=6), False),
    ],
)
def test_few_rows_wait_for_a_while(rows: int, since_last: float, options: StreamOptions, waits: bool) -> None:
    assert waits_for_rows(offsets((3, 0), (3, rows)), options, since_last) == waits


def test_the_first_batch_repeated_is_its_own_consumers() -> None:
    """Spark asks for the initial offset again, and gets that of a new consumer."""
    fresh, end = offset(9, consumer="new", initial=(9,)), offset(5, consumer="old", initial=(2,))
    assert actual_start("topic/x", offset(2, consumer="old"), end, fresh) == offset(2, consumer="old")
    assert actual_start("topic/x", fresh, end, fresh) == replace(end, position=end.initial)
    with pytest.raises(InvalidRequest, match=r"topic/x: .*triggerAvailableNowWrapper\.enabled to false"):
        actual_start("topic/x", offset(3, consumer="other"), end, fresh)


UNREAD = "gone that this query hasn't read .shard"


@pytest.mark.parametrize(
    ("start", "end", "first", "begin", "until", "gone"),
    [
        pytest.param((0, 0), (5, 5), (0, 0), (0, 0), (5, 5), None, id="all there"),
        pytest.param((2, 1), (5, 5), (3, 1), (3, 1), (5, 5), f"1 row is {UNREAD} 0: offsets 2 to 3.", id="a row"),
        pytest.param((5, 1), (5, 5), (10, 1), (10, 1), (10, 5), None, id="none of the batch"),
        pytest.param(
            (2, 1), (5, 5), (10, 2), (10, 2), (10, 5),
            f"9 rows are {UNREAD} 0: offsets 2 to 10, shard 1: offsets 1 to 2.",
            id="more than the batch",
        ),
    ],
)  # fmt: skip
def test_rows_that_are_gone_are_left_out_and_named(
    start: Any, end: Any, first: Any, begin: Any, until: Any, gone: str | None
) -> None:
    range_and_first = [Position(dict(enumerate(each))) for each in (start, end, first)]
    assert [dict(each) for each in remaining(*range_and_first)] == [dict(enumerate(begin)), dict(enumerate(until))]
    text = gap("topic/x", range_and_first[0], range_and_first[2], range_and_first[1])
    assert text is None if gone is None else re.fullmatch(f"topic/x: {gone}", str(text))


def test_before_a_batch_has_an_end_every_gap_counts() -> None:
    assert gap("topic/x", Position({0: 5, 1: 1}), Position({0: 10, 1: 1})) is not None


def test_a_position_beyond_the_end_is_named() -> None:
    assert beyond_end("topic/x", Position({0: 10, 1: 5}), Position({0: 10, 1: 7})) is None
    text = beyond_end("topic/x", Position({0: 12, 1: 5}), Position({0: 10, 1: 7}))
    assert text is not None
    assert text.startswith("topic/x ends before this query's position (shard 0: 12 of 10): the server was put back")


@pytest.mark.parametrize(("start", "is_there"), [((0, 0), True), ((100, 100), True), ((3, 101), False)])
def test_a_start_must_be_there(start: tuple[int, int], is_there: bool) -> None:
    answer = offsets(start, start)
    if is_there:
        check_start("topic/x", answer)
        return
    with pytest.raises(InvalidRequest, match=r"shard 1 of topic/x has offsets 0 to 100, got 101"):
        check_start("topic/x", answer)
