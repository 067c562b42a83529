"""Numbered appends: each answered once it is durable, a repeat adds nothing, and of two sessions the newer goes on."""

from __future__ import annotations

import logging
import threading
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from penstock import steps
from penstock.errors import (
    Expired,
    Fenced,
    InvalidRequest,
    LimitExceeded,
    Lost,
    PenstockError,
    StoreFull,
    TimedOut,
    Unavailable,
)  # fmt: skip
from penstock.queue.topics import append, producers
from penstock.queue.topics.append import Append, Placed
from penstock.queue.topics.producers import UNSEEN
from penstock.store.database import Unsettled
from penstock.wire.exchange import MOST_UNACKED, Answer
from tests.kit.faults import Crash, crash_at
from tests.kit.producers import ProducerRig, Told
from tests.kit.topics import TOPIC, Reach, small_put
from tests.kit.wait import eventually
from tests.kit.wire import trips


@pytest.fixture
def rig(reach: Reach) -> ProducerRig:
    return ProducerRig(reach)


def appended(rig: ProducerRig, told: Told, *numbers: int, acked: int = 0) -> None:
    """Append batches of one row, whose id is their number, and commit them."""
    for n in numbers:
        told.append(n, n, acked=acked)
    rig.commit()


def error_of(told: Told) -> Exception:
    (refusal,) = told.refusals
    return refusal


def test_an_answer_says_where_the_rows_are(rig: ProducerRig, reach: Reach) -> None:
    reach.put(0)
    told = rig.hello()
    told.append(1, 1, 2)
    told.append(2, 3)
    rig.commit()
    assert told.answers == [Answer(1, {0: (1, 3)}), Answer(2, {0: (3, 4)})]
    assert reach.ids() == [0, 1, 2, 3]


def test_nothing_is_answered_before_the_commit(rig: ProducerRig, reach: Reach) -> None:
    told = rig.hello()
    told.append(1, 1)
    with mock.patch.object(reach.ledger, "change", side_effect=Unavailable("busy")):
        rig.commit()
    assert told.answers == []
    assert reach.topics.find(TOPIC) is None


def test_batches_and_puts_that_wait_share_one_part(rig: ProducerRig, reach: Reach) -> None:
    """Of eight producers and a put: one write to the disk, one transaction."""
    all_told = [rig.hello() for _ in range(8)]
    for number, told in enumerate(all_told):
        told.append(1, 10 * number)
        told.append(2, 10 * number + 1)
    put = small_put(100)
    commits = reach.database.commits
    rig.appender.commit([*rig.waiting(), put])
    assert reach.database.commits == commits + 1
    assert len(reach.parts()) == 1
    assert [told.numbers() for told in all_told] == [[1, 2]] * 8
    assert put.answer.result(0).rows == 1
    placed = {row[1]: row[2] for row in reach.read()}
    for number, told in enumerate(all_told):
        for answer in told.answers:
            assert answer.shards is not None
            first, end = answer.shards[0]
            assert [placed[offset] for offset in range(first, end)] == [10 * number + answer.n - 1]


def test_rows_of_a_keyed_topic_are_found_by_their_answer(rig: ProducerRig, reach: Reach) -> None:
    reach.create(key="id", shards=4)
    reach.put(50, 51)
    told = rig.hello()
    told.append(1, *range(10))
    told.append(2, *range(10, 20))
    rig.commit()
    rows = {(shard, offset): number for shard, offset, number, _ in reach.read()}
    for answer, numbers in zip(told.answers, (range(10), range(10, 20)), strict=True):
        assert answer.shards is not None
        placed = [rows[shard, at] for shard, (first, end) in answer.shards.items() for at in range(first, end)]
        assert sorted(placed) == list(numbers)


def test_an_append_learns_the_shard_of_each_row(rig: ProducerRig, reach: Reach) -> None:
    class Noted(Append):
        def __init__(self, *ids: int) -> None:
            self.path, self.batches, self.bytes = TOPIC, [trips(*ids[:3]), trips(*ids[3:])], 1
            self.schema = self.batches[0].schema

        def settle(self, placed: Placed) -> None:
            self.placed = placed

    reach.create(key="id", shards=4)
    noted = Noted(*range(12))
    rig.appender.commit([noted])
    shard_of = {number: shard for shard, _, number, _ in reach.read()}
    assert noted.placed.shard_of_row is not None
    assert noted.placed.shard_of_row.to_pylist() == [shard_of[number] for number in range(12)]


def test_a_batch_without_rows_is_answered(rig: ProducerRig, reach: Reach) -> None:
    told = rig.hello()
    told.append(1)
    told.append(2, 5)
    rig.commit()
    assert told.answers == [Answer(1, {}), Answer(2, {0: (0, 1)})]


def test_all_batches_of_a_producer_go_to_one_shard(rig: ProducerRig, reach: Reach) -> None:
    """Where the topic has no key: their order holds."""
    reach.create(shards=4)
    all_told = [rig.hello() for _ in range(16)]
    for n in (1, 2, 3):
        for told in all_told:
            told.append(n, n)
        rig.commit()
    shards = [{shard for answer in told.answers for shard in answer.shards or ()} for told in all_told]
    assert {len(each) for each in shards} == {1}
    assert len(set.union(*shards)) > 1


# --- repeats, gaps ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 4, 100])
def test_any_number_but_the_next_is_refused(rig: ProducerRig, reach: Reach, n: int) -> None:
    told = rig.hello()
    appended(rig, told, 1, 2)
    with pytest.raises(InvalidRequest, match=f"expected batch 3, got {n}"):
        told.append(n, 99)
    rig.commit()
    assert reach.ids() == [1, 2]


def test_a_producer_that_returns_learns_what_is_stored(rig: ProducerRig, reach: Reach) -> None:
    """Answers that it has are forgotten, the others are repeated."""
    told = rig.hello()
    appended(rig, told, 1, 2, 3)
    again = rig.hello(told.session.producer, acked=1)
    assert (again.session.last, again.session.answers) == (3, tuple(told.answers[1:]))
    assert again.session.welcome(60).journal == reach.topic().journal
    with pytest.raises(InvalidRequest, match="expected batch 4, got 3"):
        again.append(3, 3)
    appended(rig, again, 4, acked=3)
    assert reach.ids() == [1, 2, 3, 4]
    third = rig.hello(told.session.producer, acked=3)
    assert third.session.answers == tuple(again.answers)


def test_acked_answers_are_forgotten_as_batches_come(rig: ProducerRig, reach: Reach) -> None:
    told = rig.hello()
    for n in range(1, 6):
        appended(rig, told, n, acked=n - 1)
    assert len(reach.database.rows("SELECT * FROM answers")) == 1


@pytest.mark.parametrize("acked", [3, 4, 1 << 40])
def test_an_answer_that_cannot_have_come_is_refused(rig: ProducerRig, acked: int) -> None:
    told = rig.hello()
    appended(rig, told, 1, 2)
    with pytest.raises(InvalidRequest, match=f"the answers up to {acked} have come; expected at most 2"):
        told.append(3, 3, acked=acked)


def test_a_client_that_reads_no_answers_is_refused(rig: ProducerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger keeps only so many."""
    monkeypatch.setattr(producers, "MOST_UNACKED", 5)
    told = rig.hello()
    appended(rig, told, *range(1, 6))
    with pytest.raises(InvalidRequest, match="at least 1: read the answers"):
        told.append(6, 6)
    told.append(6, 6, acked=1)
    assert MOST_UNACKED >= 1_000


# --- fencing ---------------------------------------------------------------------------------


def test_a_new_session_fences_the_old_one(rig: ProducerRig, reach: Reach) -> None:
    old = rig.hello()
    appended(rig, old, 1)
    new = rig.hello(old.session.producer, acked=1)
    assert isinstance(error_of(old), Fenced)
    with pytest.raises(Fenced, match="another session of producer"):
        old.append(2, 2)
    appended(rig, new, 2, acked=1)
    assert (reach.ids(), new.refusals) == ([1, 2], [])


def test_batches_that_wait_are_fenced_with_their_session(rig: ProducerRig, reach: Reach) -> None:
    old = rig.hello()
    old.append(1, 1)
    new = rig.hello(old.session.producer)
    new.append(1, 100)
    rig.commit()
    assert reach.ids() == [100]
    assert (old.answers, new.numbers()) == ([], [1])


def test_the_ledger_fences_a_session_that_nobody_told(rig: ProducerRig, reach: Reach) -> None:
    """The new one's hello came between its check and its commit; others of the group are stored."""
    old, other = rig.hello(), rig.hello()
    old.append(1, 1)
    other.append(1, 2)

    def attach(step: str) -> None:
        if step == "append.durable" and not new:
            new.append(ProducerRig(reach).hello(old.session.producer))

    new: list[Told] = []
    with mock.patch.object(steps, "passed", attach):
        rig.commit()
    assert isinstance(error_of(old), Fenced)
    assert (reach.ids(), other.numbers(), new[0].session.last) == ([2], [1], 0)
    assert reach.kept() == set(reach.parts())


def test_of_two_hellos_the_later_one_goes_on(rig: ProducerRig, reach: Reach) -> None:
    """Also where the ledger has answered it first."""
    producer = rig.hello().session.producer
    change = reach.ledger.change
    later: list[Told] = []

    def delayed(function: Any) -> Any:
        session = change(function)
        if not later:
            later.append(Told())
            later[0] = rig.hello(producer)
        return session

    with mock.patch.object(reach.ledger, "change", delayed):
        earlier = rig.hello(producer)
    assert isinstance(error_of(earlier), Fenced)
    appended(rig, later[0], 1)
    assert (reach.ids(), later[0].refusals) == ([1], [])


# --- what is unknown, or lost ----------------------------------------------------------------


def test_an_unknown_producer_has_expired(rig: ProducerRig, reach: Reach) -> None:
    """It is never taken for a new one: its repeats would be stored twice."""
    told = rig.hello()
    appended(rig, told, 1)
    for producer, path in (("0" * 32, TOPIC), (told.session.producer, "topic/y")):
        with pytest.raises(Expired, match=f"{path} has no producer {producer}"):
            rig.hello(producer, path=path)


def test_a_deleted_topic_forgets_its_producers(rig: ProducerRig, reach: Reach) -> None:
    told, waiting = rig.hello(), rig.hello()
    appended(rig, told, 1)
    waiting.append(1, 1)
    reach.topics.remove(TOPIC)
    rig.commit()
    assert isinstance(error_of(waiting), Expired)
    assert reach.topics.find(TOPIC) is None
    with pytest.raises(Expired):
        rig.hello(told.session.producer)


def test_more_answers_than_batches_are_a_loss(rig: ProducerRig, reach: Reach) -> None:
    """The data folder was put back to an older state."""
    told = rig.hello()
    appended(rig, told, 1)
    with pytest.raises(Lost, match="has the answers up to batch 2, the server has 1"):
        rig.hello(told.session.producer, acked=2)


def test_a_producer_expires_unseen_and_loudly(rig: ProducerRig, reach: Reach, caplog: pytest.LogCaptureFixture) -> None:
    away, here = rig.hello(), rig.hello()
    appended(rig, away, 1)
    away.session.__exit__(None, None, None)
    reach.clock.advance(UNSEEN - 1)
    assert rig.producers.expire() == []
    reach.clock.advance(2)
    with caplog.at_level(logging.WARNING):
        assert rig.producers.expire() == [away.session.producer]
    assert f"producer {away.session.producer} of {TOPIC} was not seen for 7 days" in caplog.text
    with pytest.raises(Expired):
        rig.hello(away.session.producer, acked=1)
    assert rig.hello(here.session.producer).session.last == 0  # it has a stream
    assert reach.database.rows("SELECT * FROM answers") == []


def test_a_producer_that_says_bye_is_forgotten(rig: ProducerRig, reach: Reach) -> None:
    told = rig.hello()
    appended(rig, told, 1)
    told.session.forget()
    with pytest.raises(Expired):
        rig.hello(told.session.producer)
    assert reach.ids() == [1]


def test_a_fenced_session_forgets_nothing(rig: ProducerRig) -> None:
    old = rig.hello()
    new = rig.hello(old.session.producer)
    old.session.forget()
    assert rig.hello(new.session.producer).session.last == 0


def test_a_server_remembers_only_so_many(rig: ProducerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MOST", 2)
    told = rig.hello()
    rig.hello()
    with pytest.raises(LimitExceeded, match="knows 2 producers, its most"):
        rig.hello()
    rig.hello(told.session.producer)


# --- batches that are not stored --------------------------------------------------------------


@pytest.mark.parametrize("grouped", [True, False])
def test_nothing_behind_a_refused_batch_is_stored(rig: ProducerRig, reach: Reach, grouped: bool) -> None:
    """It would be out of order, and its number would hide the gap. The producer returns once there is room."""
    told = rig.hello()
    appended(rig, told, 1)
    reach.store.quota = reach.store.used + 10
    told.append(2, 2)
    if grouped:
        told.append(3, 3)
    rig.commit()
    reach.store.quota = None
    assert isinstance(error_of(told), StoreFull)
    with pytest.raises(StoreFull):
        told.append(3 + grouped, 3)
    assert reach.ids() == [1]
    again = rig.hello(told.session.producer, acked=1)
    appended(rig, again, 2, 3, acked=1)
    assert reach.ids() == [1, 2, 3]


def test_a_refused_batch_takes_no_other_producers(rig: ProducerRig, reach: Reach) -> None:
    good, bad = rig.hello(), rig.hello()
    reach.put(0)
    good.append(1, 1)
    bad.append(1, rows=pa.RecordBatch.from_pydict({"id": ["text"]}))
    bad.append(2, 666)
    good.append(2, 2)
    rig.commit()
    assert (good.numbers(), bad.answers, reach.ids()) == ([1, 2], [], [0, 1, 2])
    assert isinstance(error_of(bad), Unavailable)  # its rows were cast to what the types were; the server casts anew
    assert reach.kept() == set(reach.parts())


def test_a_commit_of_unknown_outcome_is_settled_by_hello(
    rig: ProducerRig, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = rig.hello()
    appended(rig, told, 1)
    told.append(2, 2)

    def fails(database: object) -> None:
        raise Unsettled("no memory", retry_after=1)

    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.database.Database._commit", fails)
        rig.commit()
    assert isinstance(error_of(told), Unsettled)
    assert told.numbers() == [1], "answered before the end of the commit is known"
    again = rig.hello(told.session.producer, acked=1)
    assert again.session.last == 1
    appended(rig, again, 2, acked=1)
    assert reach.ids() == [1, 2]


@pytest.mark.parametrize(("step", "last"), [("append.durable", 1), ("append.committed", 3)])
def test_a_crash_keeps_number_answer_and_rows_together(reach: Reach, step: str, last: int) -> None:
    rig = ProducerRig(reach)
    told = rig.hello()
    appended(rig, told, 1)
    told.append(2, 2)
    told.append(3, 3)
    with (
        mock.patch.object(steps, "passed", crash_at(step)),
        mock.patch.object(type(reach.store), "discard"),  # a dead process cleans nothing up
        pytest.raises(Crash),
    ):
        rig.commit()
    reach.restart()

    again = ProducerRig(reach).hello(told.session.producer, acked=1)
    assert again.session.last == last
    assert [answer.n for answer in again.session.answers] == list(range(2, last + 1))
    assert reach.ids() == list(range(1, last + 1))


def test_a_producer_with_much_waiting_is_read_no_further(
    rig: ProducerRig, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "_UNSETTLED_BYTES", trips(1).nbytes)
    told = rig.hello()
    told.append(1, 1)
    second = threading.Thread(target=told.append, args=(2, 2))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    rig.commit()
    second.join(10)
    rig.commit()
    assert reach.ids() == [1, 2]


def test_a_batch_that_comes_after_the_end_is_told_so(rig: ProducerRig, reach: Reach) -> None:
    told = rig.hello()
    rig.appender.start()
    told.append(1, 1)
    rig.appender.close()
    with pytest.raises(PenstockError, match="shutting down"):
        told.append(2, 2)
    told.session.wait()
    eventually(lambda: told.numbers() == [1])
    assert isinstance(error_of(told), Unavailable)


def test_a_producer_does_not_wait_for_ever_for_the_disk(rig: ProducerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with its next batch nor at its end; when it comes back it learns what is stored."""
    monkeypatch.setattr(append, "PATIENCE", 0.05)
    monkeypatch.setattr(producers, "_UNSETTLED_BYTES", 1)
    told = rig.hello()
    told.append(1, 1)
    producer = told.session.producer
    words = f"1 batches of producer {producer} wait for the disk for 0.05 s"
    with pytest.raises(TimedOut, match=words):
        told.append(2, 2)
    with pytest.raises(TimedOut, match=words), told.session:
        pass
    assert rig.producers.live() == 0
    rig.commit()
    assert rig.hello(producer).session.last == 1
