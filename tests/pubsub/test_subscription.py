"""A subscription's owner: duplicates, what is released, the bounds, what is forgotten, and what a restart knows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest, NotFound, StoreFull, Unavailable
from penstock.queue.pubsub import dedup, registry
from penstock.queue.topics.retention import retain
from tests.kit.clock import Clock
from tests.kit.pubsub.owner import PATH, Key, Owned

NOW = 1_790_000_000


def some(first: int, count: int = 1, time: int = NOW * 10**6) -> list[Key]:
    return [(str(10**15 + number), time + number) for number in range(first, first + count)]


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Owned]:
    owned = Owned(tmp_path, Clock(float(NOW)), window_ids=100, window_seconds=3600.0)
    owned.attach()
    yield owned
    owned.close()


# --- duplicates ---------------------------------------------------------------------------------


def test_a_message_that_comes_again_has_its_first_place(owned: Owned) -> None:
    puller = owned.puller()
    first = owned.pull(puller, *some(0, 5))
    assert [duplicate for _, duplicate in first] == [False] * 5
    again = owned.pull(puller, *some(3, 4))
    assert again[:2] == [(place, True) for place, _ in first[3:]]
    assert [duplicate for _, duplicate in again[2:]] == [False, False]
    assert sorted(owned.rows().values()) == some(0, 7)


def test_one_id_with_another_time_is_a_new_message(owned: Owned) -> None:
    puller = owned.puller()
    places = [owned.pull(puller, ("1", time))[0] for time in (1, 2, 1)]
    assert [duplicate for _, duplicate in places] == [False, False, True]
    assert places[0][0] == places[2][0] != places[1][0]


def test_a_message_twice_in_one_batch_is_stored_once(owned: Owned) -> None:
    answer = owned.pull(owned.puller(), *some(0, 2), *some(0, 2), ("x", 0), ("x", 0))
    assert [duplicate for _, duplicate in answer] == [False, False, True, True, False, True]
    assert len({place for place, _ in answer}) == 3 == len(owned.rows())


def test_a_message_twice_in_one_group_is_stored_once(owned: Owned) -> None:
    one, two = owned.puller(), owned.puller()
    numbers = [owned.send(puller, some(0, 3)) for puller in (one, two)]
    owned.appender.flush()
    first, second = one.answers[numbers[0]], two.answers[numbers[1]]
    assert [place for place, _ in first] == [place for place, _ in second]
    assert all(duplicate for _, duplicate in second)
    assert not any(duplicate for _, duplicate in first)
    assert len(owned.rows()) == 3


def test_each_duplicate_is_counted_by_its_cause(owned: Owned) -> None:
    owned.consume("c", {})
    one, two = owned.puller(), owned.puller()
    places = owned.pull(one, *some(0, 4))
    owned.pull(one, *some(0))
    owned.pull(two, *some(1))
    owned.owner.disconnect(one.stream)
    owned.pull(two, *some(2))
    owned.commit("c", {0: 4})
    assert places[3][0] == (0, 3)
    owned.pull(two, *some(3))
    expected = {"released": 1, "lease lapsed": 1, "other puller": 1, "restart of puller": 1, "restart of server": 0}
    assert owned.owner.state().duplicates == expected
    owned.pull(two, *some(4))
    owned.restart()
    owned.pull(owned.puller(), *some(4))
    assert owned.owner.state().duplicates["restart of server"] == 1


# --- shards -------------------------------------------------------------------------------------


def test_messages_without_a_key_spread_over_all_shards(owned: Owned) -> None:
    puller = owned.puller()
    for number in range(5):
        owned.pull(puller, *some(number * 4_096, 4_096))
    assert owned.ends() == {0: 8192, 1: 4096, 2: 4096, 3: 4096}


def test_rows_of_an_ordering_key_are_in_one_shard_in_order(tmp_path: Path) -> None:
    owned = Owned(tmp_path, Clock(float(NOW)))
    owned.attach(ordered=True)
    puller = owned.puller()
    keys = ["", "a", "b", "", "c", "d", "e", ""]
    for number in range(40):
        owned.send(puller, some(number * 8, 8), keys)
        owned.send(puller, some(number * 8, 3), keys[:3])  # a redelivery in between
    owned.appender.flush()
    shards: dict[str, set[int]] = {}
    last: dict[str, int] = {}
    for (shard, _), (message, _) in sorted(owned.rows().items()):
        number = int(message) - 10**15
        key = keys[number % 8]
        shards.setdefault(key, set()).add(shard)
        if key:
            assert last.get(key, -1) < number
            last[key] = number
    assert all(len(shards[key]) == 1 for key in "abcde")
    assert len(owned.rows()) == 320
    owned.close()


def test_messages_without_a_key_spread_beside_keys(tmp_path: Path) -> None:
    owned = Owned(tmp_path, Clock(float(NOW)))
    owned.attach(ordered=True)
    puller = owned.puller()
    for number in range(4):
        owned.pull(puller, *some(number * 4_100, 4_100), ordering=["k"] + [""] * 4_099)
    assert min(owned.ends().values()) >= 4_099
    owned.close()


# --- what is released ---------------------------------------------------------------------------


def test_released_is_the_slowest_live_consumer(owned: Owned) -> None:
    puller = owned.puller()
    owned.pull(puller, *some(0, 10))
    assert owned.owner.released()[0] == 0, "nobody has read it"
    owned.consume("a", {0: 0})
    owned.consume("b", {0: 0})
    owned.commit("a", {0: 8})
    assert puller.pushed == []
    owned.commit("b", {0: 5})
    assert [position[0] for position in puller.pushed] == [5]
    owned.detach("b")
    assert [position[0] for position in puller.pushed] == [5, 8]


def test_released_never_goes_back_for_a_later_consumer(owned: Owned) -> None:
    puller = owned.puller()
    owned.pull(puller, *some(0, 10))
    owned.consume("a", {0: 0})
    owned.commit("a", {0: 8})
    owned.consume("late", {0: 2})
    owned.commit("a", {0: 10})
    assert owned.owner.released()[0] == 8
    owned.commit("late", {0: 10})
    assert owned.owner.released()[0] == 10


def test_nothing_moves_without_a_live_consumer(owned: Owned) -> None:
    owned.pull(owned.puller(), *some(0, 10))
    owned.consume("a", {0: 0})
    owned.commit("a", {0: 3})
    owned.detach("a")
    owned.pull(owned.puller(), *some(10, 10))
    assert owned.owner.released()[0] == 3
    owned.restart()
    assert owned.owner.released()[0] == 3


def test_ack_journal_releases_what_is_durable(tmp_path: Path) -> None:
    owned = Owned(tmp_path, Clock(float(NOW)))
    owned.attach(ack="journal")
    puller = owned.puller()
    owned.pull(puller, *some(0, 10))
    assert [position[0] for position in puller.pushed] == [10]
    owned.attach(ack="commit")
    owned.pull(puller, *some(10, 10))
    assert owned.owner.released()[0] == 10, "what was released stays so"
    owned.close()


def test_released_is_said_at_each_hello(owned: Owned) -> None:
    owned.pull(owned.puller(), *some(0, 10))
    owned.consume("a", {0: 0})
    owned.commit("a", {0: 7})
    for _ in range(2):
        assert owned.puller().welcomed[0][0] == 7
        owned.restart()


def test_an_ack_beyond_what_is_released_is_refused(owned: Owned) -> None:
    puller = owned.puller()
    owned.pull(puller, *some(0, 10))
    with pytest.raises(InvalidRequest, match="released is up to 0"):
        owned.acked(puller, [(0, 0)])


# --- bounds -------------------------------------------------------------------------------------


def test_answers_wait_beyond_max_unreleased_rows(owned: Owned, caplog: pytest.LogCaptureFixture) -> None:
    owned.attach(max_unreleased_rows=10)
    puller = owned.puller()
    owned.consume("a", {0: 0})
    with caplog.at_level(logging.INFO):
        owned.pull(puller, *some(0, 10))
        waits = [owned.send(puller, some(10, 5)), owned.send(puller, some(15, 5))]
        owned.appender.flush()
        assert set(puller.answers) == {1}
        assert owned.owner.state().unreleased_rows == 10
        owned.commit("a", {0: 1})
        owned.appender.flush()
        assert set(puller.answers) == {1, waits[0]}
        owned.commit("a", {0: 10})
        owned.appender.flush()
        assert set(puller.answers) == {1, *waits}
        owned.commit("a", {0: 20})
    lines = [record.getMessage() for record in caplog.records if "pulling" in record.getMessage()]
    paused = f"{PATH}: pulling pauses, 10 rows aren't released, max_unreleased_rows is 10"
    assert lines == [f"{paused}; it goes on by itself when its consumers commit", f"{PATH}: pulling goes on"]


def test_answers_wait_beyond_max_unreleased_bytes(owned: Owned) -> None:
    owned.attach(max_unreleased_bytes=1)
    puller = owned.puller()
    owned.consume("a", {0: 0})
    owned.pull(puller, *some(0, 10))
    waits = owned.send(puller, some(10, 10))
    owned.appender.flush()
    assert waits not in puller.answers
    owned.commit("a", {0: 10})
    owned.appender.flush()
    assert waits in puller.answers


def test_duplicates_are_answered_beyond_the_bounds(owned: Owned) -> None:
    """After a restart all that isn't released is redelivered, and its puller needs the places."""
    owned.attach(max_unreleased_rows=10)
    owned.pull(owned.puller(), *some(0, 10))
    owned.restart()
    assert all(duplicate for _, duplicate in owned.pull(owned.puller(), *some(0, 10)))


def test_a_full_disk_delays_the_answer(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    puller = owned.puller()
    with monkeypatch.context() as full:

        def write(*_: object, **__: object) -> None:
            raise StoreFull("no room")

        full.setattr(owned.reach.store, "write", write)
        first, second = owned.send(puller, some(0, 5)), owned.send(puller, some(5, 5))
        owned.appender.flush()
    third = owned.send(puller, some(10, 5))
    owned.appender.flush()
    assert puller.answers == {}
    assert puller.refusals == []
    for _ in range(8):
        owned.tick()
        owned.appender.flush()
    assert list(puller.answers) == [first, second, third]
    assert sorted(owned.rows()) == [(0, offset) for offset in range(15)]


def test_a_batch_that_fails_ends_its_stream_alone(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later batch of the same puller could have a later message of the same ordering key."""
    one, two = owned.puller(), owned.puller()
    with monkeypatch.context() as failing:
        real = owned.reach.store.write

        def write(name: str, schema: object, rows: list[object], **options: object) -> object:
            if sum(batch.num_rows for batch in rows) != 2:  # type: ignore[attr-defined]
                raise OSError("a bad sector")
            return real(name, schema, rows, **options)  # type: ignore[arg-type]

        failing.setattr(owned.reach.store, "write", write)
        owned.send(one, some(0, 5))
        owned.send(one, some(5, 2))
        fine = owned.send(two, some(10, 2))
        owned.appender.flush()
    assert len(one.refusals) == 1
    assert one.answers == {}
    assert list(two.answers) == [fine]
    assert sorted(owned.rows().values()) == some(10, 2)


# --- what is forgotten --------------------------------------------------------------------------


def release_all(owned: Owned, consumer: str = "c") -> None:
    owned.consume(consumer, {})
    owned.commit(consumer, owned.ends())


def test_an_acked_id_is_known_for_the_window(owned: Owned) -> None:
    puller = owned.puller()
    places = [place for place, _ in owned.pull(puller, *some(0, 5))]
    release_all(owned)
    owned.acked(puller, places)
    for _ in range(59):
        owned.tick(60)
        assert owned.pull(puller, *some(0))[0] == (places[0], True)
    for _ in range(4):
        owned.tick(60)
    assert owned.pull(puller, *some(0))[0][1] is False, "past the window it is a new message"


def test_an_id_whose_ack_was_not_reported_stays_known(owned: Owned) -> None:
    puller = owned.puller()
    places = [place for place, _ in owned.pull(puller, *some(0, 5))]
    release_all(owned)
    owned.acked(puller, places[:2])
    for hours in range(6 * 24):
        owned.tick(3600)
        if hours % 24 == 0:
            owned.restart()
            puller = owned.puller()
        again = owned.pull(puller, *some(2, 3))
        assert again == [(place, True) for place in places[2:]]


def test_rows_of_acks_not_reported_are_left_to_retention(owned: Owned) -> None:
    """A killed puller never reports some acks that it has sent: nothing is kept for them but their ids."""
    puller = owned.puller()
    places = [place for place, _ in owned.pull(puller, *some(0, 5), ("text", NOW * 10**6))]
    release_all(owned)
    owned.acked(puller, places[2:5])
    for _ in range(23):
        owned.tick(3600)
        assert retain(owned.reach.ledger) == 0, "released rows are kept for 24 h"
    owned.tick(3600)
    owned.tick(3600)
    assert retain(owned.reach.ledger) == 6
    assert owned.owner.state().ids == 3
    owned.restart()
    puller = owned.puller()
    again = owned.pull(puller, *some(0, 2), ("text", NOW * 10**6))
    assert again == [(place, True) for place in (*places[:2], places[5])]
    assert owned.owner.state().duplicates["released"] == 3


def test_a_straggler_is_forgotten_after_its_ack(owned: Owned) -> None:
    puller = owned.puller()
    places = [place for place, _ in owned.pull(puller, *some(0, 5))]
    release_all(owned)
    owned.acked(puller, places[1:])
    for _ in range(30):
        owned.tick(3600)
    assert retain(owned.reach.ledger) == 5
    assert registry.stragglers(owned.reach.database, PATH) == [registry.Straggler(*places[0], *some(0)[0])]
    owned.restart()
    puller = owned.puller()
    owned.acked(puller, places[:1])
    for _ in range(59):
        owned.tick(60)
    assert owned.pull(puller, *some(0)) == [(places[0], True)]
    for _ in range(4):
        owned.tick(60)
    assert registry.stragglers(owned.reach.database, PATH) == []
    assert registry.acked(owned.reach.database, PATH) == []
    assert owned.pull(puller, *some(0))[0][1] is False


def test_no_more_stragglers_are_kept_than_their_bound(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it rows are kept for them."""
    monkeypatch.setattr(dedup, "MOST_STRAGGLERS", 3)
    owned.attach(keep_seconds=0)
    puller = owned.puller()
    for first in (0, 2, 4):
        owned.pull(puller, *some(first, 2))
    release_all(owned)
    for _ in range(10):
        owned.tick(3600)
    retain(owned.reach.ledger)
    assert sorted(owned.rows().values()) == some(2, 4)
    for _ in range(2):
        assert all(duplicate for _, duplicate in owned.pull(puller, *some(0, 6)))
        owned.restart()
        puller = owned.puller()


def test_an_id_older_than_its_retention_is_forgotten(owned: Owned) -> None:
    puller = owned.puller()
    owned.pull(puller, *some(0, 5))
    release_all(owned)
    for _ in range(8 * 24):
        owned.tick(3600)
    assert owned.owner.state().ids == 0
    assert registry.stragglers(owned.reach.database, PATH) == []
    assert retain(owned.reach.ledger) == 5


def test_the_window_counts_only_connected_time(owned: Owned) -> None:
    puller = owned.puller()
    places = [place for place, _ in owned.pull(puller, *some(0, 5))]
    release_all(owned)
    owned.acked(puller, places)
    owned.tick()
    owned.owner.disconnect(puller.stream)
    for _ in range(100):
        owned.tick(3600)
    assert owned.pull(owned.puller(), *some(0, 5)) == [(place, True) for place in places]


def test_the_window_ends_with_its_ids_too(owned: Owned) -> None:
    puller = owned.puller()
    owned.consume("c", {})
    for number in range(30):
        places = [place for place, _ in owned.pull(puller, *some(number * 10, 10))]
        owned.commit("c", owned.ends())
        owned.acked(puller, places)
        owned.tick()
    assert 100 <= owned.owner.state().ids <= 130
    assert owned.pull(puller, *some(200))[0][1] is True


def test_retention_takes_no_row_whose_id_is_needed(owned: Owned) -> None:
    owned.attach(keep_seconds=0)
    puller = owned.puller()
    owned.consume("c", {})
    first = [place for place, _ in owned.pull(puller, *some(0, 5))]
    owned.pull(puller, *some(5, 5))
    owned.tick(10)
    assert retain(owned.reach.ledger) == 0
    owned.commit("c", {0: 5})
    owned.acked(puller, first)
    owned.detach("c")
    owned.tick(10)
    assert retain(owned.reach.ledger) == 0
    for _ in range(62):
        owned.tick(60)
    assert retain(owned.reach.ledger) == 5
    assert sorted(owned.rows().values()) == some(5, 5)


# --- its life -----------------------------------------------------------------------------------


def test_a_restart_reads_the_index_back(owned: Owned) -> None:
    puller = owned.puller()
    first = owned.pull(puller, *some(0, 5), ("text", 3))
    more = owned.pull(puller, *some(5, 5))
    owned.restart()
    puller = owned.puller()
    assert owned.pull(puller, *some(0, 10), ("text", 3)) == [
        (place, True) for place, _ in [*first[:5], *more, first[5]]
    ]


def test_no_puller_is_served_before_the_index_is_back(owned: Owned) -> None:
    owned.owner._is_ready.clear()
    with pytest.raises(Unavailable, match="being read back"):
        owned.puller()


def test_rows_of_a_detached_subscription_are_not_stored(owned: Owned) -> None:
    """Nor those of the one that was attached before, in the journal of the next."""
    for again in (False, True):
        puller = owned.puller()
        owned.send(puller, some(0, 5))
        owned.reach.topics.remove(PATH)
        if again:
            owned.reach.ledger.change(
                lambda t: registry.attach(t, PATH, registry.Options(), ack="commit", is_ordered=False, retention=1.0)
            )
        owned.appender.flush()
        assert isinstance(puller.refusals[0], NotFound)
        if again:
            assert owned.rows() == {}
        else:
            assert owned.reach.topics.find(PATH) is None
            del owned.owner
            owned.attach()


def test_acks_of_pullers_are_kept_as_ranges(owned: Owned) -> None:
    puller = owned.puller()
    owned.pull(puller, *some(0, 20))
    release_all(owned)
    for offsets in ([1, 2], [5], [3, 4], [9], [0], [8]):
        owned.acked(puller, [(0, offset) for offset in offsets])
        owned.tick()
    assert registry.acked(owned.reach.database, PATH) == [(0, 0, 6), (0, 8, 10)]
