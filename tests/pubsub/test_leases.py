"""The leases of a puller, one situation each; test_leases_machine has all the others."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from penstock.queue.pubsub import leases
from penstock.queue.pubsub.lease_groups import pack
from penstock.queue.pubsub.leases import Leases, Request
from penstock.queue.pubsub.readers import Watchdog


def make() -> Leases:
    return Leases(seconds=60.0, random=random.Random(1))


def ids(count: int, name: str = "a") -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def place(core: Leases, first: int, offsets: Sequence[int], *, duplicates: Sequence[int] = (), shard: int = 0) -> None:
    """Answer a batch: its rows' offsets, and which rows are duplicates."""
    duplicate = np.zeros(len(offsets), np.bool_)
    duplicate[list(duplicates)] = True
    core.placed(first, np.full(len(offsets), shard), np.asarray(offsets), duplicate)


def sent(core: Leases, now: float, verb: str = "ack") -> list[str]:
    """Answer everything that is due, and return the ids of one verb."""
    every: list[str] = []
    while requests := core.due(now):
        for request in requests:
            every += request.ack_ids if request.verb == verb else []
            core.settle(request, now, "ok")
    return every


def only(requests: list[Request]) -> Request:
    [request] = requests
    return request


def test_a_row_is_acked_once_it_is_released() -> None:
    core = make()
    first = core.received(ids(4), arrived=0.0)
    core.released({0: 2})
    assert not sent(core, 1.0), "no row has a place"
    place(core, first, [0, 1, 2, 3])
    assert sent(core, 1.0) == ["a0", "a1"]
    core.released({0: 4, 1: 9})
    assert sent(core, 1.0) == ["a2", "a3"]
    assert (len(core), core.take_acked()) == (0, {0: [(0, 4)]})
    assert core.counters["acks_confirmed"] == 4


def test_every_confirmed_ack_is_counted_once() -> None:
    """Of rows that lie in two shards by turns, and in requests that many batches share."""
    core = make()
    for batch in range(10):
        first = core.received(ids(100, f"{batch}-"), arrived=0.0)
        offsets = np.arange(batch * 50, batch * 50 + 50).repeat(2)
        core.placed(first, np.tile([1, 0], 50), offsets, np.zeros(100, np.bool_))
    core.released({0: 499, 1: 480})
    assert len(sent(core, 1.0)) == 979
    assert (core.counters["acks_confirmed"], len(core)) == (979, 21)
    assert core.take_acked() == {0: [(0, 499)], 1: [(0, 480)]}


def test_a_duplicate_below_the_released_is_acked_at_once() -> None:
    core = make()
    core.released({0: 100})
    first = core.received(ids(3), arrived=0.0)
    place(core, first, [7, 120, 99], duplicates=[0, 2])
    assert sorted(sent(core, 0.0)) == ["a0", "a2"]
    assert len(core) == 1


def test_the_newest_id_of_a_row_is_the_one_that_is_acked() -> None:
    core = make()
    for name in "abc":
        place(core, core.received(ids(3, name), arrived=0.0), [5, 6, 7], duplicates=[0, 1, 2] if name > "a" else [])
    assert (len(core), core.counters["replaced"]) == (3, 6)
    core.released({0: 8})
    assert sent(core, 0.0) == ["c0", "c1", "c2"]


def test_a_row_may_be_twice_in_one_batch() -> None:
    core = make()
    place(core, core.received(ids(4), arrived=0.0), [5, 5, 6, 5], duplicates=[1, 3])
    core.released({0: 8})
    assert sorted(sent(core, 0.0)) == ["a2", "a3"]
    assert len(core) == 0


def test_leases_are_extended_before_half_of_them_is_over() -> None:
    core = make()
    core.received(ids(2_500), arrived=100.0)
    assert not core.due(123.9)
    requests = [request for now in np.arange(124.0, 130.5, 0.5) for request in core.due(now)]
    assert [len(request.ack_ids) for request in requests].count(1_000) == 2
    assert sorted(each for request in requests for each in request.ack_ids) == sorted(ids(2_500))
    assert {request.seconds for request in requests} == {60}
    for request in requests:
        core.settle(request, 131.0, "ok")
    assert not core.due(147.0)
    assert sum(len(request.ack_ids) for request in core.due(161.0)) == 2_500
    assert core.counters["extensions"] == 2_500


def test_the_first_lease_may_be_shorter() -> None:
    core = make()
    core.received(["a"], arrived=0.0, seconds=10.0)
    assert not core.due(3.9)
    assert only(core.due(5.0)).seconds == 60


def test_small_neighbours_are_extended_together() -> None:
    core = make()
    for number in range(300):
        core.received([f"a{number}"], arrived=number / 100)
    assert len(sent(core, 30.0, "extend")) == 300
    assert len(core.due(59.9)) <= 3, "they have one deadline now"


def test_a_million_leases_are_extended_in_parallel() -> None:
    core = make()
    for number in range(1_000):
        core.received(ids(1_000, f"{number}-"), arrived=0.0)
    extended = 0
    for now in np.arange(24.0, 30.1, 0.1):
        for _ in range(4):  # round trips of 25 ms
            for request in core.due(now):
                extended += len(request.ack_ids)
                core.settle(request, now, "ok")
    assert (extended, core.counters["lapses"]) == (1_000_000, 0)


def test_no_more_requests_are_under_way_than_the_bound() -> None:
    core = make()
    core.received(ids(20_000), arrived=0.0)
    extensions = core.due(30.0)
    assert [request.verb for request in extensions] == ["extend"] * leases.MOST_PARALLEL
    assert not core.due(30.0)
    core.settle(extensions[0], 30.0, "ok")
    assert len(core.due(30.0)) == 1


def test_acks_go_out_while_extensions_are_under_way() -> None:
    core = make()
    first = core.received(ids(20_000), arrived=0.0)
    assert len(core.due(30.0)) == leases.MOST_PARALLEL
    place(core, first, range(20_000))
    core.released({0: 10})
    assert only(core.due(30.0)).ack_ids == ids(10)


def test_an_extension_is_tried_again_while_the_lease_lasts() -> None:
    core = make()
    core.received(["a"], arrived=0.0)
    now, tries = 30.0, 0
    while now < 70.0:
        for request in core.due(now):
            tries += 1
            core.settle(request, now, "transient")
        now += 0.25
    assert 8 <= tries <= 12
    assert core.counters["lapses"] == 1
    assert core.wait(now) is None


def test_a_lapsed_lease_is_acked_without_being_confirmed() -> None:
    """Its ack may or may not count; if not, the message comes again, is recognised and acked."""
    core = make()
    place(core, core.received(["a"], arrived=0.0), [0])
    assert not sent(core, 60.0, "extend")
    core.released({0: 1})
    assert sent(core, 61.0) == ["a"]
    assert (core.counters["lapses"], core.counters["acks_sent"], core.counters["acks_confirmed"]) == (1, 1, 0)
    assert core.take_acked() == {0: [(0, 1)]}


def test_an_ack_that_fails_is_sent_again_and_its_lease_extended() -> None:
    core = make()
    place(core, core.received(["a"], arrived=0.0), [0])
    core.released({0: 1})
    core.settle(only(core.due(0.0)), 0.0, "transient")
    assert not core.due(0.9)
    core.settle(only(core.due(1.0)), 1.0, "transient")
    assert core.wait(1.0) == 2.0
    core.settle(only(core.due(3.0)), 3.0, "transient")
    assert not core.due(6.9)
    for request in core.due(29.9):
        core.settle(request, 29.9, "ok" if request.verb == "extend" else "transient")
    assert (core.counters["extensions"], core.counters["lapses"], core.unsettled) == (1, 0, 1)
    assert not core.take_acked()
    assert sent(core, 40.0) == ["a"]
    assert core.take_acked() == {0: [(0, 1)]}


def test_single_ids_fail_on_subscriptions_that_confirm() -> None:
    core = make()
    place(core, core.received(ids(3), arrived=0.0), [0, 1, 2])
    core.released({0: 3})
    failures = {"a0": "PERMANENT_FAILURE_INVALID_ACK_ID", "a1": "TRANSIENT_FAILURE_X"}
    core.settle(only(core.due(0.0)), 0.0, "ok", failures)
    assert (core.counters["acks_confirmed"], core.counters["acks_failed"], len(core)) == (1, 1, 1)
    assert core.take_acked() == {0: [(2, 3)]}, "what failed for good isn't acked, and comes again"
    assert only(core.due(1.0)).ack_ids == ["a1"]


def test_an_id_that_cannot_be_extended_has_lapsed() -> None:
    core = make()
    place(core, core.received(ids(2), arrived=0.0), [0, 1])
    core.settle(only(core.due(30.0)), 30.0, "ok", {"a0": "PERMANENT_FAILURE_INVALID_ACK_ID"})
    assert (core.counters["lapses"], core.counters["extensions"], len(core)) == (1, 1, 1)
    core.released({0: 2})
    assert sent(core, 31.0) == ["a1"]


def test_forgotten_leases_are_neither_extended_nor_acked() -> None:
    """After a restart of the emulator a held id would acknowledge a new message."""
    core = make()
    first, second = core.received(ids(3), arrived=0.0), core.received(ids(3, "b"), arrived=0.0)
    place(core, first, [0, 1, 2])
    core.released({0: 2})
    [ack] = core.due(0.0)
    core.forget()
    third = core.received(ids(1, "c"), arrived=0.0)
    core.settle(ack, 0.0, "transient")
    place(core, second, [3, 4, 5])
    place(core, third, [3], duplicates=[0])
    core.released({0: 10})
    assert sent(core, 50.0) == ["c0"]
    assert (core.counters["forgotten"], len(core), core.take_acked()) == (6, 0, {0: [(0, 2), (3, 4)]}), (
        "those were sent"
    )


def test_what_has_no_place_is_given_back() -> None:
    core = make()
    place(core, core.received(ids(2), arrived=0.0), [0, 1])
    core.received(ids(2, "b"), arrived=0.0)
    core.give_back()
    request = only(core.due(0.0))
    assert (request.verb, request.ack_ids, request.seconds) == ("nack", ["b0", "b1"], 0)
    core.settle(request, 0.0, "ok")
    assert (len(core), core.unsettled, core.counters["nacks"]) == (2, 0, 2)


def test_the_oldest_lease_is_known() -> None:
    assert make().oldest is None
    core = make()
    place(core, core.received(ids(2), arrived=5.0), [0, 1])
    core.received(ids(2, "b"), arrived=6.0)
    assert core.oldest == 5.0
    core.released({0: 2})
    sent(core, 7.0)
    assert core.oldest == 6.0


@pytest.mark.parametrize("length", [1, 184, 700, 600_000])
def test_requests_stay_below_the_limits(length: int) -> None:
    ack_ids = ["x" * length] * (2_500 if length < 1_000 else 3)
    ranges = list(pack(ack_ids))
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == len(ack_ids)
    for start, end in ranges:
        size = sum(len(each) + 4 for each in ack_ids[start:end])
        assert end - start <= 1_000
        assert size < 512_000 or end - start == 1, "a single id that is too long is refused by itself"


def test_acks_of_many_small_releases_share_requests() -> None:
    core = make()
    place(core, core.received(ids(3_000), arrived=0.0), range(3_000))
    for end in range(1, 3_001):
        core.released({0: end})
    assert [len(each.ack_ids) for each in core.due(0.0)] == [1_000, 1_000, 1_000]


@pytest.mark.parametrize(
    ("seconds", "expecting", "answers", "stalled"),
    [
        (599.0, False, False, False),
        (601.0, False, False, True),
        (89.0, True, False, False),
        (91.0, True, False, True),  # messages are known to be there
        (89.0, False, True, False),
        (91.0, False, True, True),  # a heartbeat was answered on this stream before
    ],
)
def test_a_silent_stream_is_opened_again(seconds: float, expecting: bool, answers: bool, stalled: bool) -> None:
    watchdog = Watchdog(0.0)
    watchdog.heard(5.0, empty=answers)
    assert watchdog.stalled(5.0 + seconds, expecting=expecting) == stalled
