"""What is said of waits, by a clock that is passed in."""

from __future__ import annotations

from penstock.queue.pubsub.waits import LONG, Waits


def test_a_long_wait_is_said_once_and_that_it_is_over() -> None:
    waits = Waits()
    assert not [*waits.look(5.0, {"rain": "none"})]
    assert not [*waits.look(5.0 + LONG - 1, {"rain": "none"})]
    assert [*waits.look(5.0 + LONG, {"rain": "a cloud"})] == ["has waited for rain for 60 s: a cloud"]
    assert not [*waits.look(5.0 + 9 * LONG, {"rain": "a cloud"})]
    assert [*waits.look(6.0 + 9 * LONG, {})] == ["waits no longer for rain"]
    assert not [*waits.look(7.0 + 9 * LONG, {"rain": "none"})]


def test_a_wait_begins_anew_when_some_of_it_has_come() -> None:
    waits = Waits()
    for second in range(0, 10 * int(LONG), 30):
        assert not [*waits.look(float(second), {"rain": "some"})]
        waits.moved("rain")
    assert not [*waits.look(10 * LONG, {"rain": "some"})]
    assert [*waits.look(11 * LONG, {"rain": "some"})]
    waits.moved("rain")
    assert [*waits.look(11 * LONG + 1, {"rain": "some"})] == ["waits no longer for rain"]
