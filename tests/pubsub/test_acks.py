"""The ack ledger at the server: what pullers answer, and those that don't."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidRequest
from penstock.queue.pubsub.acks import pack, unpack
from penstock.queue.pubsub.rate import Rate, streams_needed
from penstock.queue.pubsub.registry import ACKS, MESSAGES
from tests.kit.clock import Clock
from tests.kit.pubsub.owner import Owned, Puller, messages
from tests.kit.wait import eventually


@pytest.fixture
def owned(tmp_path: Path, clock: Clock) -> Iterator[Owned]:
    owned = Owned(tmp_path, clock)
    owned.attach()
    yield owned
    owned.close()


def leases(*offsets: int, puller: str = "p") -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"shard": 0, "offset": offset, "state": "leased", "puller": puller} for offset in offsets], schema=ACKS
    )


def gathered(owned: Owned, *answers: Callable[[], None], within: float = 30.0) -> list[dict[str, Any]]:
    """Return the rows of an ack ledger, to whose request these functions answer."""
    batches: list[pa.RecordBatch] = []
    thread = threading.Thread(target=lambda: batches.extend(owned.owner.acks(within)))
    thread.start()
    for answer in answers:
        answer()
    thread.join(30)
    assert not thread.is_alive()
    return pa.Table.from_batches(batches, ACKS).to_pylist()  # type: ignore[no-any-return]


def answer(owned: Owned, puller: Puller, *batches: pa.RecordBatch | None) -> Callable[[], None]:
    """Return a function that waits for the request to a puller, and sends its leases."""

    def answer() -> None:
        eventually(lambda: puller.asked)
        for batch in batches:
            owned.owner.take_acks(puller.stream, puller.asked[0], batch and pack(batch))

    return answer


def test_the_rows_of_all_pullers_come(owned: Owned) -> None:
    one, two = owned.puller(), owned.puller()
    rows = gathered(
        owned, answer(owned, one, leases(1, 2), leases(3), None), answer(owned, two, leases(9, puller="q"), None)
    )
    assert sorted((row["puller"], row["offset"]) for row in rows) == [("p", 1), ("p", 2), ("p", 3), ("q", 9)]


def test_without_pullers_there_are_no_rows(owned: Owned) -> None:
    assert gathered(owned) == []


def test_a_puller_that_does_not_answer_is_named(owned: Owned) -> None:
    one, silent = owned.puller(), owned.puller()
    owned.owner.report(silent.stream, counters={}, acked={}, name="there:7")
    rows = gathered(owned, answer(owned, one, leases(1), None), answer(owned, silent, leases(2)), within=0.5)
    assert {(row["puller"], row["state"]) for row in rows} == {("p", "leased"), ("there:7", "no answer")}


def test_a_puller_that_leaves_is_not_waited_for(owned: Owned) -> None:
    puller = owned.puller()
    rows = gathered(owned, lambda: eventually(lambda: puller.asked), lambda: owned.owner.disconnect(puller.stream))
    assert [(row["puller"], row["state"]) for row in rows] == [("stream 1", "no answer")]


def test_an_answer_that_comes_late_is_dropped(owned: Owned) -> None:
    puller = owned.puller()
    gathered(owned, within=0.0)
    first = puller.asked.pop()
    late = lambda: owned.owner.take_acks(puller.stream, first, pack(leases(1)))  # noqa: E731
    assert gathered(owned, late, answer(owned, puller, leases(2), None))[0]["offset"] == 2


def test_rows_travel_as_a_message(owned: Owned) -> None:
    packed = pack(leases(*range(1_000)))
    assert packed.schema.equals(MESSAGES)
    packed.validate(full=True)
    assert pa.Table.from_batches(unpack(packed)).equals(pa.Table.from_batches([leases(*range(1_000))]))


@pytest.mark.parametrize("data", [b"", b"no stream"])
def test_a_malformed_answer_is_refused(owned: Owned, data: bytes) -> None:
    batch = messages([("1", 1)]).set_column(5, MESSAGES.field(5), pa.array([data]))
    with pytest.raises(InvalidRequest, match="an ack ledger's batch"):
        owned.owner.take_acks(owned.puller().stream, "r", batch)


def test_rows_of_other_columns_are_refused(owned: Owned) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"x": pa.array([1], pa.int64())}))
    batch = messages([("1", 1)]).set_column(5, MESSAGES.field(5), pa.array([sink.getvalue().to_pybytes()]))
    with pytest.raises(InvalidRequest, match="expected shard"):
        owned.owner.take_acks(owned.puller().stream, "r", batch)


def test_a_rate_is_that_of_the_last_ten_seconds() -> None:
    rate = Rate()
    assert rate.per_second() == 0.0
    for second in range(30):
        rate.look(float(second))
        rate.total += 1_000 if second < 10 else 25_000_000
    assert rate.per_second() == 25_000_000
    assert [streams_needed(each) for each in (0.0, 1.0, 10e6, 25e6)] == [0, 1, 1, 3]
    for second in range(30, 60):
        rate.look(float(second))
    assert rate.per_second() == 0.0
