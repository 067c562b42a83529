"""Consumers as the server keeps them: positions, sessions, the rows that they hold, expiry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pyarrow.flight as flight
import pytest

from penstock.errors import AlreadyExists, Fenced, LimitExceeded, Lost, NotFound
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics import consumers as module
from penstock.queue.topics.consumers import UNSEEN, Consumers
from penstock.queue.topics.retention import retain
from tests.kit.clock import Clock
from tests.kit.topics import TOPIC, Reach
from tests.kit.wire import at, call, put, refused, trips

DAY = 24 * 3600.0


@pytest.fixture
def consumers(reach: Reach) -> Consumers:
    """Return the consumers of a topic with ten rows, of which `c` has committed four."""
    for number in range(10):
        reach.put(number)
    consumers = Consumers(reach.ledger, reach.topics, steady=reach.clock.now)
    consumers.attach(reach.topic(), "c", "one", initial={0: 0}, position={0: 4})
    assert consumers.expire() == []
    return consumers


def position(consumers: Consumers, reach: Reach) -> dict[int, int]:
    (consumer,) = consumers.of(reach.topic())
    return dict(consumer.position)


def test_a_position_moves_and_never_goes_back(consumers: Consumers, reach: Reach) -> None:
    assert consumers.commit(reach.topic(), "c", "one", {0: 7}) == {0: 7}
    assert consumers.commit(reach.topic(), "c", "one", {0: 5}) == {0: 7}
    assert consumers.commit(reach.topic(), "c", "one", {}) == {0: 7}
    assert position(consumers, reach) == {0: 7}


def test_removed_rows_that_a_consumer_skips_are_counted_once(reach: Reach) -> None:
    for number in range(10):
        reach.put(number)
    gaps: list[tuple[str, int]] = []
    consumers = Consumers(reach.ledger, reach.topics, lambda path, rows: gaps.append((path, rows)))
    consumers.attach(reach.topic(), "c", "one", initial={0: 0}, position={0: 2})
    reach.ledger.change(lambda t: t.execute("UPDATE shards SET first = 6"))
    consumers.commit(reach.topic(), "c", "one", {0: 4})
    consumers.commit(reach.topic(), "c", "one", {0: 8})
    consumers.commit(reach.topic(), "c", "one", {0: 9})
    assert gaps == [(TOPIC, 2), (TOPIC, 2)]


def test_a_new_consumer_never_stands_below_the_oldest_row(reach: Reach) -> None:
    """Retention removes rows between a reader's look and its registration."""
    for number in range(10):
        reach.put(number)
    seen = reach.topic()
    reach.ledger.change(lambda t: t.execute("UPDATE shards SET first = 6"))
    consumers = Consumers(reach.ledger, reach.topics)
    assert consumers.attach(seen, "c", "one", initial={0: 0}, position={0: 2}) == {0: 6}
    assert position(consumers, reach) == {0: 6}


def test_a_position_beyond_the_end_is_refused(consumers: Consumers, reach: Reach) -> None:
    with pytest.raises(Lost, match="these offsets aren't of this journal"):
        consumers.commit(reach.topic(), "c", "one", {0: 11})
    assert position(consumers, reach) == {0: 4}


def test_a_known_consumer_keeps_its_position_in_a_new_session(consumers: Consumers, reach: Reach) -> None:
    consumers.attach(reach.topic(), "c", "two", initial={0: 0}, position={0: 0})
    assert position(consumers, reach) == {0: 4}


ACTIONS: list[Callable[[Consumers, Reach, str], object]] = [
    lambda consumers, reach, session: consumers.commit(reach.topic(), "c", session, {0: 9}),
    lambda consumers, reach, session: consumers.heard(reach.topic(), "c", session),
    lambda consumers, reach, session: consumers.detach(reach.topic(), "c", session),
]


@pytest.mark.parametrize("act", ACTIONS, ids=["commit", "heard", "detach"])
def test_an_older_session_is_fenced(act: Callable[..., object], consumers: Consumers, reach: Reach) -> None:
    consumers.attach(reach.topic(), "c", "two", initial={}, position={})
    with pytest.raises(Fenced, match="two queries have one checkpoint, or this one is the older of them"):
        act(consumers, reach, "one")
    assert position(consumers, reach) == {0: 4}
    act(consumers, reach, "two")


@pytest.mark.parametrize("act", ACTIONS, ids=["commit", "heard", "detach"])
def test_an_unknown_consumer_is_refused(act: Callable[..., object], consumers: Consumers, reach: Reach) -> None:
    reach.ledger.change(lambda t: t.execute("DELETE FROM consumers"))
    with pytest.raises(NotFound, match="has no consumer c"):
        act(consumers, reach, "one")


def test_the_lag_counts_the_rows_after_the_position(consumers: Consumers, reach: Reach) -> None:
    reach.clock.advance(50)
    reach.put(10, 11)
    reach.clock.advance(7)
    (before,) = consumers.of(reach.topic())
    assert (before.lag_rows, before.lag_seconds) == (8, 57)
    assert before.lag_bytes == pytest.approx(reach.topic().bytes * 8 / 12, rel=0.2)
    consumers.commit(reach.topic(), "c", "one", {0: 12})
    (after,) = consumers.of(reach.topic())
    assert (after.lag_rows, after.lag_bytes, after.lag_seconds) == (0, 0, 0)


def test_an_absent_consumer_that_holds_rows_is_warned_of(
    consumers: Consumers, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the topic would remove them without it; again only when it was back."""

    def warnings() -> int:
        consumers.warn([reach.topic()])
        return sum("was not seen for" in record.getMessage() for record in caplog.records)

    def is_absent() -> bool:
        (consumer,) = consumers.of(reach.topic())
        return consumer.absent

    reach.clock.advance(DAY / 2)  # rows of that age stay anyhow
    assert (is_absent(), warnings()) == (False, 0)
    reach.clock.advance(DAY)
    assert (is_absent(), warnings(), warnings()) == (True, 1, 1)
    assert "holds 6 rows (" in caplog.text
    assert f"penstock rm consumer/{TOPIC}/c" in caplog.text
    consumers.heard(reach.topic(), "c", "one")
    assert (is_absent(), warnings()) == (False, 1)
    reach.clock.advance(700)
    assert (is_absent(), warnings()) == (True, 2)
    consumers.commit(reach.topic(), "c", "one", {0: 10})
    reach.clock.advance(700)
    assert (is_absent(), warnings()) == (False, 2)


def test_rows_beyond_the_size_and_acks_are_held_too(reach: Reach) -> None:
    reach.create(keep_bytes=1)
    reach.put(1)
    reach.put(1, path="topic/acks")
    consumers = Consumers(
        reach.ledger, reach.topics, steady=reach.clock.now, holds_acks=lambda _, path: path == "topic/acks"
    )
    for path, name in ((TOPIC, "c"), ("topic/acks", "d")):
        consumers.attach(reach.topic(path), name, "s", initial={}, position={0: 0})
    reach.clock.advance(601)
    assert [each.absent for path in (TOPIC, "topic/acks") for each in consumers.of(reach.topic(path))] == [True, True]


def test_a_removed_consumer_holds_no_rows(consumers: Consumers, reach: Reach) -> None:
    consumers.remove(reach.topic(), "c")
    assert consumers.of(reach.topic()) == []
    with pytest.raises(NotFound, match="has no consumer c"):
        consumers.remove(reach.topic(), "c")
    with pytest.raises(NotFound, match="has no consumer c"):
        consumers.commit(reach.topic(), "c", "one", {0: 9})


def test_consumers_are_listed_the_slowest_first(consumers: Consumers, reach: Reach) -> None:
    for name, offset in (("a", 9), ("b", 2), ("d", 6)):
        consumers.attach(reach.topic(), name, "s", initial={}, position={0: offset})
    assert [consumer.consumer for consumer in consumers.of(reach.topic())] == ["b", "c", "d", "a"]


def test_rows_wait_for_the_slowest_live_consumer(consumers: Consumers, reach: Reach) -> None:
    consumers.attach(reach.topic(), "slow", "s", initial={}, position={0: 2})
    reach.clock.advance(2 * DAY)
    retain(reach.ledger)
    assert reach.ids() == list(range(2, 10))
    consumers.detach(reach.topic(), "slow", "s")
    retain(reach.ledger)
    assert reach.ids() == list(range(4, 10))


def test_an_unseen_consumer_expires_and_holds_no_rows(
    consumers: Consumers, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """The log warns of it."""
    reach.clock.advance(UNSEEN)
    assert consumers.expire() == []
    reach.clock.advance(1)
    assert consumers.expire() == ["c"]
    assert consumers.expire() == []
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "consumer c of topic/x was not seen for 7 days" in warning.getMessage()
    retain(reach.ledger)
    assert reach.ids() == []


@pytest.mark.parametrize("act", ACTIONS[:2], ids=["commit", "heard"])
def test_an_expired_consumer_is_live_again_when_it_returns(
    act: Callable[..., object], consumers: Consumers, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch may take a week; from then on the consumer's rows are held again."""
    reach.clock.advance(UNSEEN + 1)
    consumers.expire()
    act(consumers, reach, "one")
    assert [consumer.state for consumer in consumers.of(reach.topic())] == ["live"]
    assert "is back after it had expired" in caplog.records[-1].getMessage()
    retain(reach.ledger)
    assert reach.ids() == list(range(position(consumers, reach)[0], 10))


def test_a_consumer_that_is_heard_of_does_not_expire(consumers: Consumers, reach: Reach) -> None:
    for _ in range(30):
        reach.clock.advance(DAY)
        consumers.heard(reach.topic(), "c", "one")
        assert consumers.expire() == []


def test_a_jump_of_the_clock_expires_nobody(consumers: Consumers, reach: Reach) -> None:
    """Time that has passed does."""
    steady = Clock()
    consumers = Consumers(reach.ledger, reach.topics, steady=steady.now)
    assert consumers.expire() == []
    reach.clock.advance(30 * DAY)
    assert consumers.expire() == []
    for clock in (steady, reach.clock):
        clock.advance(UNSEEN + 1)
    assert consumers.expire() == ["c"]


def test_a_start_expires_nobody(consumers: Consumers, reach: Reach) -> None:
    """Server and query were away for a month, or the clock was wrong: who isn't back within an hour expires."""
    reach.clock.advance(30 * DAY)
    started = Consumers(reach.ledger, reach.topics, steady=reach.clock.now)
    assert started.expire() == []
    retain(reach.ledger)
    assert reach.ids() == list(range(4, 10))
    reach.clock.advance(3600)
    assert started.expire() == []
    reach.clock.advance(1)
    assert started.expire() == ["c"]


def test_a_consumer_unseen_for_twice_as_long_is_forgotten(consumers: Consumers, reach: Reach) -> None:
    reach.clock.advance(UNSEEN + 1)
    consumers.expire()
    reach.clock.advance(UNSEEN)
    consumers.expire()
    assert consumers.of(reach.topic()) == []


def test_consumers_are_removed_with_their_topic(
    consumers: Consumers, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """No warning says later that they hold no rows of it."""
    reach.topics.remove(TOPIC)
    reach.put(1)
    assert consumers.of(reach.topic()) == []
    reach.clock.advance(UNSEEN + 1)
    assert consumers.expire() == []
    assert not caplog.records


def test_a_consumer_may_attach_to_a_topic_made_again(consumers: Consumers, reach: Reach) -> None:
    reach.topics.remove(TOPIC)
    reach.put(1)
    consumers.attach(reach.topic(), "c", "one", initial={}, position={0: 0})
    assert position(consumers, reach) == {0: 0}


# --- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initial", "position"), [({0: 0}, {0: 11}), ({0: 11}, {0: 0}), ({0: 0}, {0: 2**63 - 1})], ids=str
)
def test_a_consumer_beyond_the_end_is_not_registered(
    initial: dict[int, int], position: dict[int, int], consumers: Consumers, reach: Reach
) -> None:
    """Its lag would be negative, and each of its commits would be refused."""
    with pytest.raises(Lost, match=r"topic/x ends before shard 0: \d+ of 10"):
        consumers.attach(reach.topic(), "far", "s", initial=initial, position=position)
    assert [consumer.consumer for consumer in consumers.of(reach.topic())] == ["c"]
    consumers.attach(reach.topic(), "far", "s", initial={0: 10}, position={0: 10})
    assert [consumer.lag_rows for consumer in consumers.of(reach.topic())] == [6, 0]


def test_a_recorded_position_beyond_the_end_has_no_lag(consumers: Consumers, reach: Reach) -> None:
    """An older copy of a ledger that was put back has one, or a ledger from before there was a bound."""
    reach.ledger.change(lambda t: t.execute("UPDATE consumers SET position = ?", f'{{"0": {2**70}}}'))
    (consumer,) = consumers.of(reach.topic())
    assert (consumer.lag_rows, consumer.lag_bytes, consumer.lag_seconds) == (0, 0, 0)


# --- one name, one topic ---------------------------------------------------------------------


def test_a_consumer_of_another_topic_is_refused(consumers: Consumers, reach: Reach) -> None:
    """It keeps its position there."""
    reach.put(1, path="topic/y")
    with pytest.raises(AlreadyExists, match=r"consumer c reads topic/x.*detach it there first"):
        consumers.attach(reach.topic("topic/y"), "c", "two", initial={}, position={0: 0})
    assert position(consumers, reach) == {0: 4}
    assert consumers.of(reach.topic("topic/y")) == []
    consumers.commit(reach.topic(), "c", "one", {0: 5})


@pytest.mark.parametrize("end", ["detached", "its topic is gone"])
def test_a_name_that_reads_no_topic_any_more_is_free(end: str, consumers: Consumers, reach: Reach) -> None:
    reach.put(1, path="topic/y")
    if end == "detached":
        consumers.detach(reach.topic(), "c", "one")
    else:
        reach.topics.remove(TOPIC)
    consumers.attach(reach.topic("topic/y"), "c", "two", initial={}, position={0: 1})
    (consumer,) = consumers.of(reach.topic("topic/y"))
    assert (consumer.state, dict(consumer.position)) == ("live", {0: 1})


# --- how many there are ----------------------------------------------------------------------


@pytest.fixture
def full(consumers: Consumers, reach: Reach) -> Iterator[Consumers]:
    """Attach as many consumers as a topic may have."""
    with mock.patch.object(module, "MOST", 3):
        for name in ("d", "e"):
            consumers.attach(reach.topic(), name, "s", initial={}, position={0: 0})
        yield consumers


REFUSAL = r"topic/x has 3 live consumers, its most: .*consumer.detach.*nobody has seen for 7 days"


def test_one_consumer_too_many_is_refused_with_the_cure(full: Consumers, reach: Reach) -> None:
    with pytest.raises(LimitExceeded, match=REFUSAL):
        full.attach(reach.topic(), "f", "s", initial={}, position={0: 0})
    full.attach(reach.topic(), "c", "two", initial={}, position={0: 0})  # one of them, in a new session
    reach.put(1, path="topic/y")
    full.attach(reach.topic("topic/y"), "g", "s", initial={}, position={0: 0})
    full.detach(reach.topic(), "d", "s")
    full.attach(reach.topic(), "f", "s", initial={}, position={0: 0})
    assert {consumer.consumer for consumer in full.of(reach.topic()) if consumer.state == "live"} == {"c", "e", "f"}


@pytest.mark.parametrize(
    "act",
    [*ACTIONS[:2], lambda consumers, reach, _: consumers.attach(reach.topic(), "c", "n", initial={}, position={})],
    ids=["commit", "heard", "attach"],
)
def test_a_returning_consumer_counts_again(act: Callable[..., object], full: Consumers, reach: Reach) -> None:
    full.detach(reach.topic(), "c", "one")
    full.attach(reach.topic(), "f", "s", initial={}, position={0: 0})
    with pytest.raises(LimitExceeded, match=REFUSAL):
        act(full, reach, "one")
    full.detach(reach.topic(), "f", "s")
    act(full, reach, "one")


def test_only_the_latest_detached_consumers_are_kept(full: Consumers, reach: Reach) -> None:
    """Else a reader with a new name for each run would leave thousands, for two weeks."""
    for number in range(20):
        reach.clock.advance(1)
        full.detach(reach.topic(), *(("d", "s") if number == 0 else (f"n{number - 1}", "s")))
        full.attach(reach.topic(), f"n{number}", "s", initial={}, position={0: 0})
    by_state = {each.consumer: each.state for each in full.of(reach.topic())}
    assert {name for name, state in by_state.items() if state == "live"} == {"c", "e", "n19"}
    assert {name for name, state in by_state.items() if state == "detached"} == {"n16", "n17", "n18"}


# --- over the wire ---------------------------------------------------------------------------


@pytest.fixture
def reader(bare: flight.FlightClient) -> dict[str, Any]:
    """Return the fields by which a reader of a topic of two rows names itself."""
    put(bare, at(TOPIC), [trips(1, 2)])
    journal = call(bare, "describe", path=TOPIC)["journal"]
    return {"path": TOPIC, "journal": journal, "consumer": "c", "session": "s"}


NAMES = {
    "empty": "",
    "too long": "c" * 81,
    "escape": "c\x1b[2J",
    "new line": "c\n",
    "quote": 'c"} 1',
    "space": "a b",
    "foreign digit": "\u0663",
    "slash": "a/b",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
@pytest.mark.parametrize("field", ["consumer", "session"])
@pytest.mark.parametrize("action", ["attach", "offsets", "commit", "detach"])
def test_names_are_short_and_plain(
    action: str, field: str, name: str, bare: flight.FlightClient, reader: dict[str, Any]
) -> None:
    """They are labels of metrics, and logs and terminals show them as they are."""
    more = {"position": {"0": 0}} if action == "commit" else {}
    with refused("invalid", f"{field} ", "1 to 80 characters of A-Z a-z 0-9 . _ -", f"got {len(name)}"):
        call(bare, f"consumer.{action}", **reader | {field: name} | more)
    assert call(bare, "describe", path=TOPIC)["consumers"] == []


def test_names_of_all_plain_characters_are_accepted(bare: flight.FlightClient, reader: dict[str, Any]) -> None:
    reader |= {"consumer": "Ab.9_-" + "c" * 74, "session": "."}
    call(bare, "consumer.attach", **reader)
    assert call(bare, "consumer.commit", **reader, position={"0": 2})["position"]["0"] == 2


@pytest.mark.parametrize(
    ("shard", "offset"),
    [("0", 2**63), ("0", 2**70), ("0", 10**4000), ("9" * 5000, 1), ("00", 1), ("\u0660", 1), ("+0", 1)],
    ids=["2^63", "2^70", "4,001 digits", "shard of 5,000 digits", "00", "foreign digit", "sign"],
)
@pytest.mark.parametrize("action", ["attach", "offsets", "commit"])
def test_an_impossible_position_is_refused(
    action: str, shard: str, offset: int, bare: flight.FlightClient, server: PenstockServer, reader: dict[str, Any]
) -> None:
    """Neither `describe` nor the metrics break."""
    call(bare, "consumer.attach", **reader)
    position = {"start" if action == "offsets" else "position": {shard: offset}}
    with refused("invalid", "shard ", "expected an offset"):
        call(bare, f"consumer.{action}", **reader, **position)
    (consumer,) = call(bare, "describe", path=TOPIC)["consumers"]
    assert consumer["lag_rows"] == 2
    assert 'penstock_consumer_lag_rows{consumer="c",topic="topic/x"} 2.0' in server.state.metrics.text()
