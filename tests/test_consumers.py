"""Consumers as the server keeps them: positions, sessions, what they hold, when they are forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from penstock.errors import Fenced, Lost, NotFound
from penstock.queue.consumers import UNSEEN, Consumers
from penstock.queue.retention import retain
from tests.fix_topics import TOPIC, Reach

DAY = 24 * 3600.0


@pytest.fixture
def consumers(reach: Reach) -> Consumers:
    """Of a topic with ten rows; a consumer `c` has committed four."""
    for number in range(10):
        reach.put(number)
    found = Consumers(reach.ledger, reach.topics)
    found.attach(reach.topic(), "c", "one", initial={0: 0}, position={0: 4})
    return found


def position(consumers: Consumers, reach: Reach) -> dict[int, int]:
    (consumer,) = consumers.of(reach.topic())
    return consumer.position


def test_a_position_moves_and_never_goes_back(consumers: Consumers, reach: Reach) -> None:
    assert consumers.commit(reach.topic(), "c", "one", {0: 7}) == {0: 7}
    assert consumers.commit(reach.topic(), "c", "one", {0: 5}) == {0: 7}
    assert consumers.commit(reach.topic(), "c", "one", {}) == {0: 7}
    assert position(consumers, reach) == {0: 7}


def test_a_position_beyond_the_end_is_refused(consumers: Consumers, reach: Reach) -> None:
    with pytest.raises(Lost, match="these offsets aren't of this journal"):
        consumers.commit(reach.topic(), "c", "one", {0: 11})
    assert position(consumers, reach) == {0: 4}


def test_a_known_consumer_keeps_its_position_in_a_new_session(consumers: Consumers, reach: Reach) -> None:
    consumers.attach(reach.topic(), "c", "two", initial={0: 0}, position={0: 0})
    assert position(consumers, reach) == {0: 4}


SAYINGS: list[Callable[[Consumers, Reach, str], object]] = [
    lambda consumers, reach, session: consumers.commit(reach.topic(), "c", session, {0: 9}),
    lambda consumers, reach, session: consumers.heard(reach.topic(), "c", session),
    lambda consumers, reach, session: consumers.detach(reach.topic(), "c", session),
]


@pytest.mark.parametrize("say", SAYINGS, ids=["commit", "heard", "detach"])
def test_an_older_session_is_fenced(say: Callable[..., object], consumers: Consumers, reach: Reach) -> None:
    consumers.attach(reach.topic(), "c", "two", initial={}, position={})
    with pytest.raises(Fenced, match="two queries have one checkpoint, or this one is the older of them"):
        say(consumers, reach, "one")
    assert position(consumers, reach) == {0: 4}
    say(consumers, reach, "two")


@pytest.mark.parametrize("say", SAYINGS, ids=["commit", "heard", "detach"])
def test_one_that_isnt_known_is_refused(say: Callable[..., object], consumers: Consumers, reach: Reach) -> None:
    with reach.ledger.transaction() as t:
        t.sql.execute("DELETE FROM consumers")
    with pytest.raises(NotFound, match="has no consumer c"):
        say(consumers, reach, "one")


def test_the_lag_is_what_lies_before_it(consumers: Consumers, reach: Reach) -> None:
    reach.clock.now += 50
    reach.put(10, 11)
    reach.clock.now += 7
    (before,) = consumers.of(reach.topic())
    assert (before.lag_rows, before.lag_seconds) == (8, 57)
    assert before.lag_bytes == pytest.approx(reach.topic().bytes * 8 / 12, rel=0.2)
    consumers.commit(reach.topic(), "c", "one", {0: 12})
    (after,) = consumers.of(reach.topic())
    assert (after.lag_rows, after.lag_bytes, after.lag_seconds) == (0, 0, 0)


def test_who_is_furthest_behind_is_first(consumers: Consumers, reach: Reach) -> None:
    for name, at in (("a", 9), ("b", 2), ("d", 6)):
        consumers.attach(reach.topic(), name, "s", initial={}, position={0: at})
    assert [each.consumer for each in consumers.of(reach.topic())] == ["b", "c", "d", "a"]


def test_rows_wait_for_the_slowest_live_consumer(consumers: Consumers, reach: Reach) -> None:
    consumers.attach(reach.topic(), "slow", "s", initial={}, position={0: 2})
    reach.clock.now += 2 * DAY
    retain(reach.ledger)
    assert reach.ids() == list(range(2, 10))
    consumers.detach(reach.topic(), "slow", "s")
    retain(reach.ledger)
    assert reach.ids() == list(range(4, 10))


def test_one_that_is_unseen_for_long_expires_loudly_and_holds_nothing(
    consumers: Consumers, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    reach.clock.now += UNSEEN
    assert consumers.expire() == []
    reach.clock.now += 1
    assert consumers.expire() == ["c"]
    assert consumers.expire() == []
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "consumer c of topic/x was not seen for 7 days" in told.getMessage()
    retain(reach.ledger)
    assert reach.ids() == []


@pytest.mark.parametrize("say", SAYINGS[:2], ids=["commit", "heard"])
def test_one_that_was_only_slow_is_back_with_its_next_word(
    say: Callable[..., object], consumers: Consumers, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch may take a week. From then on its rows are held again."""
    reach.clock.now += UNSEEN + 1
    consumers.expire()
    say(consumers, reach, "one")
    assert [each.state for each in consumers.of(reach.topic())] == ["live"]
    assert "is back after it had expired" in caplog.records[-1].getMessage()
    retain(reach.ledger)
    assert reach.ids() == list(range(position(consumers, reach)[0], 10))


def test_one_that_asks_now_and_then_doesnt_expire(consumers: Consumers, reach: Reach) -> None:
    for _ in range(30):
        reach.clock.now += DAY
        consumers.heard(reach.topic(), "c", "one")
        assert consumers.expire() == []


def test_one_that_is_gone_for_twice_as_long_is_forgotten(consumers: Consumers, reach: Reach) -> None:
    reach.clock.now += UNSEEN + 1
    consumers.expire()
    reach.clock.now += UNSEEN
    consumers.expire()
    assert consumers.of(reach.topic()) == []


def test_consumers_go_with_their_topic(consumers: Consumers, reach: Reach, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is warned that they hold no rows of a topic that isn't there."""
    reach.topics.remove(TOPIC)
    reach.put(1)
    assert consumers.of(reach.topic()) == []
    reach.clock.now += UNSEEN + 1
    assert consumers.expire() == []
    assert not caplog.records


def test_a_consumer_goes_on_in_a_topic_that_was_made_again(consumers: Consumers, reach: Reach) -> None:
    reach.topics.remove(TOPIC)
    reach.put(1)
    consumers.attach(reach.topic(), "c", "one", initial={}, position={0: 0})
    assert position(consumers, reach) == {0: 0}
