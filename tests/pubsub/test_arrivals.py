"""When messages of an age came last, compared with a list of all arrivals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.pubsub.window import Arrivals

TIMES = st.integers(min_value=0, max_value=30)


@given(st.lists(TIMES, max_size=60), TIMES)
def test_the_last_arrival_before_a_moment_is_found(published: list[int], before: int) -> None:
    arrivals = Arrivals()
    for now, moment in enumerate(published):
        arrivals.note(moment, float(now))
    assert arrivals.last_before(before) == max(
        (float(now) for now, moment in enumerate(published) if moment < before), default=None
    )


def test_what_is_remembered_is_bounded() -> None:
    arrivals = Arrivals()
    for now in range(10_000):
        arrivals.note(now, float(now))
    assert arrivals.last_before(9_000) == 8_999.0
    assert arrivals.last_before(100) is None
