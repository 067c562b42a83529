"""What a puller's leases say of themselves: the rows of the ack ledger."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from penstock.queue.pubsub.history import History, Rows, begun, to_batches
from penstock.queue.pubsub.leases import Leases
from penstock.queue.pubsub.registry import ACKS


def make() -> Leases:
    return Leases(seconds=60.0, random=random.Random(1))


def place(core: Leases, first: int, offsets: Sequence[int], duplicates: Sequence[int] = ()) -> None:
    duplicate = np.zeros(len(offsets), np.bool_)
    duplicate[list(duplicates)] = True
    core.placed(first, np.full(len(offsets), 3), np.asarray(offsets), duplicate)


def states(core: Leases) -> list[tuple[int, str]]:
    """Return offset and state of each lease, sorted."""
    return sorted((int(offset), state) for state, rows in core.history() for offset in rows["offset"])


def rows_in(core: Leases, state: str) -> Rows:
    return np.concatenate([rows for each, rows in core.history() if each == state])


def send(core: Leases, now: float, verb: str, outcome: str = "ok", **failures: str) -> None:
    """Answer the requests of one verb that are due."""
    for request in core.due(now):
        if request.verb == verb:
            core.settle(request, now, outcome, failures)  # type: ignore[arg-type]


def test_a_lease_goes_from_leased_to_confirmed() -> None:
    core = make()
    first = core.received(["a", "b"], arrived=1.0)
    assert states(core) == [(-1, "leased"), (-1, "leased")], "no row has a place"
    place(core, first, [7, 8])
    assert states(core) == [(7, "leased"), (8, "leased")]
    core.released({3: 8})
    assert states(core) == [(7, "released"), (8, "leased")]
    [request] = core.due(2.0)
    assert states(core) == [(7, "ack sent"), (8, "leased")]
    core.settle(request, 3.0, "ok")
    assert states(core) == [(7, "confirmed"), (8, "leased")]
    [row] = rows_in(core, "confirmed")
    assert (row["shard"], row["received"], row["changed"], row["attempts"]) == (3, 1.0, 3.0, 1)


def test_an_ack_that_failed_once_has_two_attempts() -> None:
    core = make()
    place(core, core.received(["a"], arrived=0.0), [0])
    core.released({3: 1})
    send(core, 1.0, "ack", "transient")
    assert states(core) == [(0, "ack sent")]
    send(core, 5.0, "ack")
    [row] = rows_in(core, "confirmed")
    assert row["attempts"] == 2


def test_an_ack_that_pubsub_refused_is_failed() -> None:
    core = make()
    place(core, core.received(["a", "b"], arrived=0.0), [0, 1])
    core.released({3: 2})
    send(core, 1.0, "ack", "ok", b="PERMANENT_FAILURE_INVALID_ACK_ID")
    assert states(core) == [(0, "confirmed"), (1, "failed")]


def test_a_lapsed_lease_shows_why_its_message_came_again() -> None:
    core = make()
    place(core, core.received(["a"], arrived=0.0), [5])
    core.due(61.0)
    assert states(core) == [(5, "lapsed")]
    [row] = rows_in(core, "lapsed")
    assert row["changed"] == 60.0, "it has lapsed at its deadline"
    place(core, core.received(["a2"], arrived=70.0), [5], duplicates=[0])
    assert states(core) == [(5, "leased"), (5, "replaced")]
    [row] = rows_in(core, "leased")
    assert row["duplicate"]


def test_an_ack_of_a_lapsed_lease_does_not_count_as_confirmed() -> None:
    core = make()
    place(core, core.received(["a"], arrived=0.0), [5])
    core.due(61.0)
    core.released({3: 6})
    send(core, 62.0, "ack")
    assert states(core) == [(5, "lapsed")]


def test_what_ends_without_an_ack_says_how() -> None:
    core = make()
    place(core, core.received(["a"], arrived=0.0), [5])
    core.received(["b"], arrived=0.0)
    core.give_back()
    send(core, 1.0, "nack")
    assert states(core) == [(-1, "given back"), (5, "leased")]
    core.forget()
    assert states(core) == [(-1, "given back"), (5, "forgotten")]


def test_groups_that_become_one_keep_their_rows() -> None:
    """Small groups are extended together."""
    core = make()
    for number in range(10):
        place(core, core.received([f"a{number}"], arrived=number / 100), [number])
    send(core, 31.0, "extend")
    assert len(core.due(31.0)) == 0
    received = np.sort(rows_in(core, "leased")["received"])
    assert received.tolist() == [number / 100 for number in range(10)]
    assert states(core) == [(number, "leased") for number in range(10)]


def test_the_last_ended_leases_are_kept() -> None:
    history = History(most=10)
    rows = begun(25, 0.0)
    rows["offset"] = np.arange(25)
    for first in range(0, 25, 4):
        history.add(rows[first : first + 4], "confirmed" if first % 8 else "lapsed", 1.0)
    kept = dict(history.rows())
    assert sorted([*kept["confirmed"]["offset"], *kept["lapsed"]["offset"]]) == list(range(15, 25))
    history.add(rows, "failed", 2.0)
    assert sorted(dict(history.rows())["failed"]["offset"]) == list(range(15, 25)), "more at once than it keeps"


def test_leases_become_rows() -> None:
    core = make()
    first = core.received(["a", "b", "c"], arrived=2.5)
    place(core, first, [7, 8])
    batches = to_batches(core.history(), "here:1", 1_000.0, 2)
    assert [batch.num_rows for batch in batches] == [2, 1]
    assert all(batch.schema.equals(ACKS) for batch in batches)
    moment = datetime.fromtimestamp(1_002.5, UTC)
    placed, unplaced = (batches[0].to_pylist()[0], batches[1].to_pylist()[0])
    assert placed == {
        "shard": 3, "offset": 7, "state": "leased", "attempts": 0, "duplicate": False, "puller": "here:1",
        "received": moment, "changed": moment,
    }  # fmt: skip
    assert (unplaced["shard"], unplaced["offset"], unplaced["state"]) == (None, None, "leased")
