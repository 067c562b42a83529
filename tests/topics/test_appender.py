"""Small puts to a topic share what makes them durable, and nothing else: each is whole or refused by itself."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock import steps
from penstock.errors import AlreadyExists, InvalidRequest, SchemaMismatch, StoreFull, Unavailable, WriteEnded
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import serving
from penstock.ledger.attempts import Attempt
from penstock.queue.topics import append, keys
from penstock.queue.topics.append import Appender, SmallPut
from penstock.store.database import Unsettled
from penstock.store.disk import DiskMedium
from tests.kit.faults import Crash, crash_at, varied
from tests.kit.server import ANY_PORT, named_parts, process_server
from tests.kit.topics import TOPIC, Reach, small_put
from tests.kit.wait import eventually, files
from tests.kit.wire import TRIPS, at, ids, new_attempt, put, trips


def failed(one: SmallPut) -> BaseException:
    """The error that a put was answered."""
    error = one.answer.exception(0)
    assert error is not None
    return error


def test_a_group_is_one_part_for_each_topic_and_shard(reach: Reach) -> None:
    group = [small_put(1, 2), small_put(3, path="topic/y"), small_put(4), small_put(5, 6, path="topic/y")]

    Appender(reach.ledger, reach.store).commit(group)

    assert reach.read() == [(0, 0, 1, reach.clock.now()), (0, 1, 2, reach.clock.now()), (0, 2, 4, reach.clock.now())]
    assert reach.ids("topic/y") == [3, 5, 6]
    assert [put.answer.result(0).rows for put in group] == [2, 1, 1, 2]
    assert len(reach.kept()) == 2


def test_what_comes_meanwhile_is_one_group(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first put is being made durable 20 others come: they take one write to the disk together."""
    begun, go_on, writes = threading.Event(), threading.Event(), []
    write = DiskMedium.write

    def slow(medium: DiskMedium, name: str, *given: object) -> object:
        writes.append(name)
        begun.set()
        assert go_on.wait(20)
        return write(medium, name, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskMedium, "write", slow)
    running = Appender(reach.ledger, reach.store)
    running.start()
    with ThreadPoolExecutor(21) as pool:
        first = pool.submit(running.append, small_put(0))
        assert begun.wait(20)
        others = [small_put(number) for number in range(1, 21)]
        answers = [pool.submit(running.append, one) for one in others]
        while running._waiting.qsize() < len(others):
            threading.Event().wait(0.01)
        go_on.set()
        assert {answer.result(20).rows for answer in (first, *answers)} == {1}
    running.close()

    assert len(writes) == 2
    assert reach.ids()[0] == 0
    assert sorted(reach.ids()) == list(range(21))


def test_a_group_ends_where_it_is_large(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "GROUP_BYTES", 3 * small_put(1).bytes)
    waiting = Appender(reach.ledger, reach.store)
    for number in range(7):
        waiting._waiting.put(small_put(number))
    waiting.start()
    waiting.close()

    assert reach.ids() == list(range(7))
    assert len(reach.parts()) == 3


def test_what_waits_is_committed_before_the_end(reach: Reach) -> None:
    waiting, puts = Appender(reach.ledger, reach.store), [small_put(number) for number in range(5)]
    for one in puts:
        waiting._waiting.put(one)
    waiting.start()
    waiting.close()
    assert reach.ids() == list(range(5))
    Appender(reach.ledger, reach.store).close()  # one that never began ends, too


# --- one that is refused ---------------------------------------------------------------------


def test_puts_that_do_not_fit_are_refused_and_the_others_of_the_group_are_kept(reach: Reach) -> None:
    reach.put(0)
    other = pa.RecordBatch.from_pydict({"id": ["text"]})
    taken = pa.RecordBatch.from_pydict({"id": [1], "_time": [1]})
    bad = {
        SchemaMismatch: small_put(rows=other),
        InvalidRequest: small_put(rows=taken, path="topic/z"),
        AlreadyExists: small_put(9, path="topic/x/below"),
    }
    group = [small_put(1), *bad.values(), small_put(2), small_put(3, path="topic/y")]

    Appender(reach.ledger, reach.store).commit(group)

    for kind, one in bad.items():
        assert type(failed(one)) is kind
    assert (reach.ids(), reach.ids("topic/y")) == ([0, 1, 2], [3])
    assert reach.kept() == {*reach.parts(), *reach.parts("topic/y")}
    assert reach.topics.find("topic/z") is None
    with pytest.raises(SchemaMismatch, match=r"id is int64, got string"):
        raise failed(bad[SchemaMismatch])


def test_what_arrow_refuses_hurts_nobody_else(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = small_put(666)
    sharded = keys.sharded

    def some(parts: list[list[pa.RecordBatch]], *given: Any) -> object:
        if any(666 in batch.column("id").to_pylist() for part in parts for batch in part):
            raise pa.ArrowNotImplementedError("no kernel")
        return sharded(parts, *given)

    monkeypatch.setattr(keys, "sharded", some)
    group = [small_put(1), bad, small_put(2)]
    Appender(reach.ledger, reach.store).commit(group)
    assert reach.ids() == [1, 2]
    assert isinstance(failed(bad), pa.ArrowNotImplementedError)


def test_a_full_store_refuses_all_of_a_group_and_leaves_nothing(reach: Reach) -> None:
    reach.put(0)
    reach.store.quota = reach.store.used + 10
    group = [small_put(1), small_put(2)]
    Appender(reach.ledger, reach.store).commit(group)
    for one in group:
        assert isinstance(failed(one), StoreFull)
    assert reach.ids() == [0]
    assert reach.kept() == set(reach.parts())


def test_a_commit_that_nobody_knows_of_keeps_its_bytes(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row may be there after a crash: its bytes must be there then. The next start finds out."""
    reach.put(0)

    def fails(database: object) -> None:
        raise Unsettled("no memory", retry_after=1)

    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.database.Database._commit", fails)
        one = small_put(1)
        Appender(reach.ledger, reach.store).commit([one])
    assert isinstance(failed(one), Unavailable)
    assert len(reach.kept()) == 2
    reach.restart()
    assert reach.kept() == set(reach.parts())
    assert reach.ids() == [0]


# --- once ------------------------------------------------------------------------------------


def test_a_run_is_published_once(reach: Reach) -> None:
    first = reach.put(1, 2, run="r")
    assert reach.put(3, run="r") == first
    assert reach.put(4, run="r", path="topic/y") != first
    assert (reach.ids(), reach.ids("topic/y")) == ([1, 2], [4])


def test_twins_in_one_group_are_published_once(reach: Reach) -> None:
    by_run, attempt = [small_put(1, 2, run="r") for _ in range(3)], "a" * 32
    by_attempt = [small_put(5, attempt=attempt) for _ in range(3)]
    Appender(reach.ledger, reach.store).commit([*by_run, small_put(3), *by_attempt, small_put(4, run="s")])
    assert sorted(reach.ids()) == [1, 2, 3, 4, 5]
    assert len({put.answer.result(0) for put in by_run}) == 1
    assert len({put.answer.result(0) for put in by_attempt}) == 1


def test_the_twin_of_a_refused_put_has_its_own_chance(reach: Reach) -> None:
    reach.put(0)
    bad = small_put(rows=pa.RecordBatch.from_pydict({"id": ["text"]}), run="r")
    good = small_put(1, run="r")
    Appender(reach.ledger, reach.store).commit([bad, good])
    assert isinstance(failed(bad), SchemaMismatch)
    assert good.answer.result(0).rows == 1
    assert reach.ids() == [0, 1]


def test_an_attempt_that_comes_again_with_other_rows_or_elsewhere_is_refused(reach: Reach) -> None:
    first = reach.put(1, 2, attempt="a" * 32)
    assert reach.put(1, 2, attempt="a" * 32) == first
    with pytest.raises(AlreadyExists, match=r"recorded with 2 rows \(.*\); the 1 rows"):
        reach.put(3, attempt="a" * 32)
    with pytest.raises(AlreadyExists, match="belongs to another write"):
        reach.put(1, 2, attempt="a" * 32, path="topic/y")
    assert reach.ids() == [1, 2]


def test_a_run_that_is_being_put_otherwise_is_told_so(reach: Reach) -> None:
    reach.ledger.open_write(TOPIC, mode="append", run="r", schema=TRIPS)
    with pytest.raises(AlreadyExists, match="run 'r' of topic/x is being put by another"):
        reach.put(1, run="r")


# --- what a put may hold ---------------------------------------------------------------------


def test_puts_without_rows_make_a_topic_and_no_part(reach: Reach) -> None:
    none = small_put()
    without_batches = SmallPut(TOPIC, None, "b" * 32, TRIPS, [], 0, 0)
    group = [none, small_put(1), without_batches, small_put(), small_put(2)]
    Appender(reach.ledger, reach.store).commit(group)
    assert [put.answer.result(0).rows for put in group] == [0, 1, 0, 0, 1]
    assert reach.ids() == [1, 2]
    assert reach.put(path="topic/empty").rows == 0
    assert reach.topic("topic/empty").latest() == {0: 0}
    assert len(reach.kept()) == 1


def test_columns_of_every_layout_go_together(reach: Reach) -> None:
    batches = varied().to_batches()
    group = [small_put(rows=batch) for batch in batches * 2]
    Appender(reach.ledger, reach.store).commit(group)
    (part,) = reach.parts()
    assert [put.answer.result(0).rows for put in group] == [40] * 4
    held = reach.store.open(part).reader().read_all()
    assert held.to_pylist() == [row for batch in batches * 2 for row in batch.to_pylist()]


def test_a_topic_that_is_made_with_a_key_while_the_first_put_is_on_its_way_keeps_the_key_in_one_shard(
    reach: Reach,
) -> None:
    """The rows were laid for a topic of one shard; they are laid anew."""
    rows = trips(*range(40))
    made = iter([True])

    def make(step: str) -> None:
        if step == "append.durable" and next(made, False):
            reach.create(key="id", shards=4)

    with mock.patch.object(steps, "passed", make):
        assert reach.put(rows=rows).rows == 40
    reach.put(rows=rows)
    places: dict[int, set[int]] = {}
    for shard, _, number, _ in reach.read():
        places.setdefault(number, set()).add(shard)
    assert {len(shards) for shards in places.values()} == {1}
    assert len(set.union(*places.values())) > 1
    assert reach.kept() == set(reach.parts())


def test_rows_laid_for_a_topic_that_was_made_anew_with_a_key_are_refused_at_their_finish(reach: Reach) -> None:
    for make_first in (True, False):
        if make_first:
            reach.create()
        write = reach.ledger.open_write(TOPIC, mode="append", schema=TRIPS).id
        batch = trips(1, 2, 3)
        part = reach.store.write(f"part-{make_first}", TRIPS, [batch])
        attempt = Attempt("a" * 31 + str(int(make_first)), TRIPS, part.rows, (part,), (0,))
        reach.ledger.record(write, attempt)
        if make_first:
            reach.topics.remove(TOPIC)
        reach.create(key="id", shards=4)
        with pytest.raises(WriteEnded, match="made anew meanwhile"):
            reach.ledger.finish(write, [attempt.id])
        assert reach.read() == []
        reach.topics.remove(TOPIC)


# --- crashes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "is_there"), [("append.durable", False), ("append.committed", True)])
def test_a_crash_leaves_a_group_there_or_not_there_and_its_repeat_makes_it_once(
    reach: Reach, step: str, is_there: bool
) -> None:
    reach.put(0)
    group = [small_put(number, run=f"r{number}") for number in (1, 2)]
    with (
        mock.patch.object(steps, "passed", crash_at(step)),
        mock.patch.object(type(reach.store), "discard"),  # a process that is dead tidies nothing up
        pytest.raises(Crash),
    ):
        Appender(reach.ledger, reach.store).commit(group)
    assert len(reach.kept()) == 2
    reach.restart()

    assert reach.ids() == ([0, 1, 2] if is_there else [0])
    assert reach.kept() == set(reach.parts())
    for number in (1, 2):
        assert reach.put(number, run=f"r{number}").rows == 1
    assert reach.ids() == [0, 1, 2]


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize(
    ("step", "is_there"), [("part.synced", False), ("append.durable", False), ("append.committed", True)]
)
def test_a_kill_at_a_step_of_the_append_leaves_what_was_answered_and_no_more_bytes(
    tmp_path: Path, step: str, is_there: bool
) -> None:
    data = tmp_path / "d"
    again = at(TOPIC, attempt=new_attempt(), run="the run")
    with process_server(data, crash_at=step, crash_on=2) as server, flight.connect(server.url) as bare:
        put(bare, at(TOPIC), [trips(1, 2)])
        with pytest.raises((flight.FlightError, pa.ArrowException, AssertionError)):
            put(bare, again, [trips(3, 4)])
        assert server.process.wait(20) == -9, "the step was never passed"

    with serving(ServerConfig(data=data, listen=ANY_PORT)) as restarted, flight.connect(restarted.url) as bare:
        assert files(data / "parts") == named_parts(data)
        assert ids(bare, TOPIC) == ([1, 2, 3, 4] if is_there else [1, 2])
        put(bare, again, [trips(3, 4)])
        put(bare, at(TOPIC), [trips(5)])
        assert ids(bare, TOPIC) == [1, 2, 3, 4, 5]


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_kills_under_load_lose_and_double_nothing_that_was_answered(tmp_path: Path, kills: int) -> None:
    """Kills at random steps while four clients put row by row; each client's rows stay in its order."""
    data, answered, asked = tmp_path / "d", set[int](), set[int]()
    dice = random.Random(7)
    for round_ in range(kills):
        with process_server(data) as server, ThreadPoolExecutor(4) as pool:
            running = [pool.submit(row_by_row, server.url, round_ * 4 + n, asked, answered) for n in range(4)]
            enough = len(answered) + 20
            eventually(lambda enough=enough: len(answered) >= enough, within=60, what="they put")  # type: ignore[misc]
            threading.Event().wait(dice.uniform(0, 0.2))  # how far they get then is left to chance
            server.kill()
            for each in running:
                each.result(30)
        with serving(ServerConfig(data=data, listen=ANY_PORT)) as restarted, flight.connect(restarted.url) as bare:
            eventually(
                lambda: files(data / "parts") == named_parts(data), what="each part has bytes, and all bytes a part"
            )
            seen = ids(bare, TOPIC)
            assert len(seen) == len(set(seen)), "doubled"
            assert answered <= set(seen), "lost"
            assert set(seen) <= asked, "never asked for"
            for client in range(round_ * 4 + 4):
                assert (mine := [number for number in seen if number // 1_000_000 == client]) == sorted(mine)
    assert len(answered) > 50


def row_by_row(url: str, client: int, asked: set[int], answered: set[int]) -> None:
    """Put until the server dies."""
    with flight.connect(url) as bare:
        for number in range(client * 1_000_000, client * 1_000_000 + 100_000):
            asked.add(number)
            try:
                put(bare, at(TOPIC, attempt=new_attempt(), run=f"row {number}"), [trips(number)])
            except (flight.FlightError, pa.ArrowException, AssertionError):
                return
            answered.add(number)
