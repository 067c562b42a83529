"""Small puts to topics share the fsyncs that make them durable, and nothing else: each succeeds or fails by itself."""

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
from penstock.errors import AlreadyExists, InvalidRequest, SchemaMismatch, StoreFull, TimedOut, Unavailable, WriteEnded
from penstock.ledger.attempts import Attempt
from penstock.queue.topics import append, keys
from penstock.queue.topics.append import Appender, SmallPut
from penstock.store.database import Unsettled
from penstock.store.disk import DiskMedium
from tests.kit.faults import Crash, crash_at, varied
from tests.kit.server import named_parts, process_server, served
from tests.kit.topics import TOPIC, Reach, small_put
from tests.kit.wait import eventually, files
from tests.kit.wire import TRIPS, at, ids, new_attempt, put, trips


def error_of(put: SmallPut) -> BaseException:
    """Return the error that a put was answered with."""
    error = put.answer.exception(0)
    assert error is not None
    return error


def test_a_group_is_one_part_for_each_topic_and_shard(reach: Reach) -> None:
    group = [small_put(1, 2), small_put(3, path="topic/y"), small_put(4), small_put(5, 6, path="topic/y")]

    Appender(reach.ledger, reach.store).commit(group)

    assert reach.read() == [(0, 0, 1, reach.clock.now()), (0, 1, 2, reach.clock.now()), (0, 2, 4, reach.clock.now())]
    assert reach.ids("topic/y") == [3, 5, 6]
    assert [put.answer.result(0).rows for put in group] == [2, 1, 1, 2]
    assert len(reach.kept()) == 2


def test_puts_that_wait_form_one_group(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first put is made durable 20 others come: they take one write to the disk together."""
    started, resume, writes = threading.Event(), threading.Event(), []
    write = DiskMedium.write

    def slow(medium: DiskMedium, name: str, *arguments: object) -> object:
        writes.append(name)
        started.set()
        assert resume.wait(20)
        return write(medium, name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskMedium, "write", slow)
    appender = Appender(reach.ledger, reach.store)
    appender.start()
    with ThreadPoolExecutor(21) as pool:
        first = pool.submit(appender.append, small_put(0))
        assert started.wait(20)
        others = [small_put(number) for number in range(1, 21)]
        answers = [pool.submit(appender.append, put) for put in others]
        while appender._waiting.qsize() < len(others):
            threading.Event().wait(0.01)
        resume.set()
        assert {answer.result(20).rows for answer in (first, *answers)} == {1}
    appender.close()

    assert len(writes) == 2
    assert reach.ids()[0] == 0
    assert sorted(reach.ids()) == list(range(21))


def test_a_group_ends_at_its_size_limit(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts that wait at close are committed, too."""
    monkeypatch.setattr(append, "GROUP_BYTES", 3 * small_put(1).bytes)
    appender = Appender(reach.ledger, reach.store)
    for number in range(7):
        appender._waiting.put(small_put(number))
    appender.start()
    appender.close()

    assert reach.ids() == list(range(7))
    assert len(reach.parts()) == 3
    Appender(reach.ledger, reach.store).close()  # one that was never started closes, too


def test_a_put_that_comes_after_the_end_is_told_so(reach: Reach) -> None:
    """As one may whose call a drain has given up; it would wait for ever."""
    appender = Appender(reach.ledger, reach.store)
    appender.start()
    appender.close()
    with pytest.raises(Unavailable, match="shutting down: put again"):
        appender.append(small_put(1))


def test_a_put_does_not_wait_for_ever_for_the_disk(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome is unknown then; the same run put again is stored once."""
    started, resume = threading.Event(), threading.Event()
    write = DiskMedium.write

    def hanging(medium: DiskMedium, *arguments: Any) -> object:
        started.set()
        assert resume.wait(20)
        return write(medium, *arguments)

    monkeypatch.setattr(DiskMedium, "write", hanging)
    monkeypatch.setattr(append, "PATIENCE", 0.05)
    appender = Appender(reach.ledger, reach.store)
    appender.start()
    with pytest.raises(TimedOut, match=r"1 row waits for the disk for 0\.05 s; .* isn't known: put it again"):
        appender.append(small_put(1, run="r"))
    assert started.is_set()
    resume.set()
    monkeypatch.setattr(append, "PATIENCE", 20)
    assert appender.append(small_put(1, run="r")).rows == 1
    appender.close()
    assert reach.ids() == [1]


def test_the_end_does_not_wait_for_ever_for_the_disk(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    started, resume = threading.Event(), threading.Event()

    def hanging(medium: DiskMedium, *arguments: Any) -> object:
        started.set()
        assert resume.wait(20)
        raise OSError("too late")

    monkeypatch.setattr(DiskMedium, "write", hanging)
    monkeypatch.setattr(append, "PATIENCE", 0.05)
    appender = Appender(reach.ledger, reach.store)
    appender.start()
    with pytest.raises(TimedOut):
        appender.append(small_put(1))
    assert started.is_set()
    appender.close()
    assert not resume.is_set()
    resume.set()
    monkeypatch.setattr(append, "PATIENCE", 20)
    appender.close()


# --- refused puts ----------------------------------------------------------------------------


def test_refused_puts_leave_the_rest_of_their_group(reach: Reach) -> None:
    reach.put(0)
    other = pa.RecordBatch.from_pydict({"id": ["text"]})
    reserved = pa.RecordBatch.from_pydict({"id": [1], "_time": [1]})
    bad = {
        SchemaMismatch: small_put(rows=other),
        InvalidRequest: small_put(rows=reserved, path="topic/z"),
        AlreadyExists: small_put(9, path="topic/x/below"),
    }
    group = [small_put(1), *bad.values(), small_put(2), small_put(3, path="topic/y")]

    Appender(reach.ledger, reach.store).commit(group)

    for kind, refused in bad.items():
        assert type(error_of(refused)) is kind
    assert (reach.ids(), reach.ids("topic/y")) == ([0, 1, 2], [3])
    assert reach.kept() == {*reach.parts(), *reach.parts("topic/y")}
    assert reach.topics.find("topic/z") is None
    with pytest.raises(SchemaMismatch, match=r"id is int64, got string"):
        raise error_of(bad[SchemaMismatch])


def test_a_put_that_arrow_refuses_fails_alone(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = small_put(666)
    split = keys.split

    def refuse_666(batches: list[pa.RecordBatch], *arguments: Any) -> object:
        if any(666 in batch.column("id").to_pylist() for batch in batches):
            raise pa.ArrowNotImplementedError("no kernel")
        return split(batches, *arguments)

    monkeypatch.setattr(keys, "split", refuse_666)
    group = [small_put(1), bad, small_put(2)]
    Appender(reach.ledger, reach.store).commit(group)
    assert reach.ids() == [1, 2]
    assert isinstance(error_of(bad), pa.ArrowNotImplementedError)


def test_a_full_store_refuses_a_group_and_keeps_nothing(reach: Reach) -> None:
    reach.put(0)
    reach.store.quota = reach.store.used + 10
    group = [small_put(1), small_put(2)]
    Appender(reach.ledger, reach.store).commit(group)
    for refused in group:
        assert isinstance(error_of(refused), StoreFull)
    assert reach.ids() == [0]
    assert reach.kept() == set(reach.parts())


def test_a_commit_of_unknown_outcome_keeps_its_bytes(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows may be visible after a crash, and then they need their bytes; the next start decides."""
    reach.put(0)

    def fails(database: object) -> None:
        raise Unsettled("no memory", retry_after=1)

    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.database.Database._commit", fails)
        put = small_put(1)
        Appender(reach.ledger, reach.store).commit([put])
    assert isinstance(error_of(put), Unavailable)
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


def test_repeats_in_one_group_are_published_once(reach: Reach) -> None:
    by_run, attempt = [small_put(1, 2, run="r") for _ in range(3)], "a" * 32
    by_attempt = [small_put(5, attempt=attempt) for _ in range(3)]
    Appender(reach.ledger, reach.store).commit([*by_run, small_put(3), *by_attempt, small_put(4, run="s")])
    assert sorted(reach.ids()) == [1, 2, 3, 4, 5]
    assert len({put.answer.result(0) for put in by_run}) == 1
    assert len({put.answer.result(0) for put in by_attempt}) == 1


def test_the_repeat_of_a_refused_put_may_succeed(reach: Reach) -> None:
    reach.put(0)
    bad = small_put(rows=pa.RecordBatch.from_pydict({"id": ["text"]}), run="r")
    good = small_put(1, run="r")
    Appender(reach.ledger, reach.store).commit([bad, good])
    assert isinstance(error_of(bad), SchemaMismatch)
    assert good.answer.result(0).rows == 1
    assert reach.ids() == [0, 1]


def test_an_attempt_repeated_with_other_rows_is_refused(reach: Reach) -> None:
    """So is an attempt that was put to another topic."""
    first = reach.put(1, 2, attempt="a" * 32)
    assert reach.put(1, 2, attempt="a" * 32) == first
    for others in ((3,), (2, 1)):
        with pytest.raises(AlreadyExists, match=rf"recorded with 2 rows \(.*\); the {len(others)} row"):
            reach.put(*others, attempt="a" * 32)
    with pytest.raises(AlreadyExists, match="belongs to another write"):
        reach.put(1, 2, attempt="a" * 32, path="topic/y")
    assert reach.ids() == [1, 2]


def test_a_run_that_another_write_has_open_is_refused(reach: Reach) -> None:
    reach.ledger.open_write(TOPIC, mode="append", run="r", schema=TRIPS)
    with pytest.raises(AlreadyExists, match="run 'r' of topic/x is being put by another"):
        reach.put(1, run="r")


# --- rows of a put ---------------------------------------------------------------------------


def test_puts_without_rows_make_a_topic_and_no_part(reach: Reach) -> None:
    without_rows = small_put()
    without_batches = SmallPut(TOPIC, None, "b" * 32, TRIPS, [], 0, 0)
    group = [without_rows, small_put(1), without_batches, small_put(), small_put(2)]
    Appender(reach.ledger, reach.store).commit(group)
    assert [put.answer.result(0).rows for put in group] == [0, 1, 0, 0, 1]
    assert reach.ids() == [1, 2]
    assert reach.put(path="topic/empty").rows == 0
    assert reach.topic("topic/empty").latest() == {0: 0}
    assert len(reach.kept()) == 1


def test_columns_of_every_layout_share_a_part(reach: Reach) -> None:
    batches = varied().to_batches()
    group = [small_put(rows=batch) for batch in batches * 2]
    Appender(reach.ledger, reach.store).commit(group)
    (part,) = reach.parts()
    assert [put.answer.result(0).rows for put in group] == [40] * 4
    table = reach.store.open(part).reader().read_all()
    assert table.to_pylist() == [row for batch in batches * 2 for row in batch.to_pylist()]


def test_a_key_set_while_the_first_put_runs_is_kept(reach: Reach) -> None:
    """The rows were written for a topic with one shard; they are written anew, each key in one shard."""
    rows = trips(*range(40))
    once = iter([True])

    def create_topic(step: str) -> None:
        if step == "append.durable" and next(once, False):
            reach.create(key="id", shards=4)

    with mock.patch.object(steps, "passed", create_topic):
        assert reach.put(rows=rows).rows == 40
    reach.put(rows=rows)
    shards_of: dict[int, set[int]] = {}
    for shard, _, number, _ in reach.read():
        shards_of.setdefault(number, set()).add(shard)
    assert {len(shards) for shards in shards_of.values()} == {1}
    assert len(set.union(*shards_of.values())) > 1
    assert reach.kept() == set(reach.parts())


def test_finish_refuses_rows_written_for_another_topic(reach: Reach) -> None:
    """The topic got its key, as a new topic or one made anew, after the rows had been written."""
    for existed in (True, False):
        if existed:
            reach.create()
        write = reach.ledger.open_write(TOPIC, mode="append", schema=TRIPS).id
        batch = trips(1, 2, 3)
        part = reach.store.write(f"part-{existed}", TRIPS, [batch], path="store/a")
        attempt = Attempt("a" * 31 + str(int(existed)), TRIPS, part.rows, (part,), (0,))
        reach.ledger.record(write, attempt)
        if existed:
            reach.topics.remove(TOPIC)
        reach.create(key="id", shards=4)
        with pytest.raises(WriteEnded, match="made anew meanwhile"):
            reach.ledger.finish(write, [attempt.id])
        assert reach.read() == []
        reach.topics.remove(TOPIC)


# --- crashes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "is_there"), [("append.durable", False), ("append.committed", True)])
def test_a_crash_leaves_a_group_whole_or_absent(reach: Reach, step: str, is_there: bool) -> None:
    """Its repeat makes it visible once."""
    reach.put(0)
    group = [small_put(number, run=f"r{number}") for number in (1, 2)]
    with (
        mock.patch.object(steps, "passed", crash_at(step)),
        mock.patch.object(type(reach.store), "discard"),  # a dead process cleans nothing up
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
def test_a_kill_at_a_step_of_an_append_keeps_answered_rows(tmp_path: Path, step: str, is_there: bool) -> None:
    """No other bytes stay, and the repeat of the killed put is there once."""
    data = tmp_path / "d"
    killed = at(TOPIC, attempt=new_attempt(), run="the run")
    with process_server(data, crash_at=step, crash_on=2) as server, flight.connect(server.url) as bare:
        put(bare, at(TOPIC), [trips(1, 2)])
        with pytest.raises((flight.FlightError, pa.ArrowException, AssertionError)):
            put(bare, killed, [trips(3, 4)])
        assert server.process.wait(20) == -9, "the server never came to the step"

    with served(data) as restarted, flight.connect(restarted.url) as bare:
        assert files(data / "parts") == named_parts(data)
        assert ids(bare, TOPIC) == ([1, 2, 3, 4] if is_there else [1, 2])
        put(bare, killed, [trips(3, 4)])
        put(bare, at(TOPIC), [trips(5)])
        assert ids(bare, TOPIC) == [1, 2, 3, 4, 5]


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_kills_under_load_lose_and_double_nothing(tmp_path: Path, kills: int) -> None:
    """Kill at random while four clients put row by row; each client's rows stay in its order."""
    data, answered, sent = tmp_path / "d", set[int](), set[int]()
    dice = random.Random(7)
    for round_ in range(kills):
        with process_server(data) as server, ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(put_row_by_row, server.url, round_ * 4 + n, sent, answered) for n in range(4)]
            enough = len(answered) + 20
            eventually(lambda enough=enough: len(answered) >= enough, within=60, what="20 more puts are answered")  # type: ignore[misc]
            threading.Event().wait(dice.uniform(0, 0.2))  # how far the clients get is left to chance
            server.kill()
            for client in clients:
                client.result(30)
        with served(data) as restarted, flight.connect(restarted.url) as bare:
            eventually(
                lambda: files(data / "parts") == named_parts(data), what="each part has bytes, and all bytes a part"
            )
            numbers = ids(bare, TOPIC)
            assert len(numbers) == len(set(numbers)), "doubled"
            assert answered <= set(numbers), "lost"
            assert set(numbers) <= sent, "never sent"
            for client_number in range(round_ * 4 + 4):
                mine = [number for number in numbers if number // 1_000_000 == client_number]
                assert mine == sorted(mine)
    assert len(answered) > 50


def put_row_by_row(url: str, client: int, sent: set[int], answered: set[int]) -> None:
    """Put one row after another until the server dies."""
    with flight.connect(url) as bare:
        for number in range(client * 1_000_000, client * 1_000_000 + 100_000):
            sent.add(number)
            try:
                put(bare, at(TOPIC, attempt=new_attempt(), run=f"row {number}"), [trips(number)])
            except (flight.FlightError, pa.ArrowException, AssertionError):
                return
            answered.add(number)
