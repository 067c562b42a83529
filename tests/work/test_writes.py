"""Writes with a queue: a message for each part at finish, parts that outlive their dataset, failures that are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import AlreadyExists, InvalidRequest
from penstock.ledger import payloads
from penstock.queue.work.lease_queue import Forward
from penstock.store import payload_table
from penstock.store.payload_table import PayloadRow
from penstock.wire.queue import Failure
from tests.kit.clock import Clock
from tests.kit.ledger import PATH, SCHEMA, make_attempt, part_names
from tests.kit.work.queues import IN, LAST, LEASE, OUT, LedgerQueues, claim, claimed, names, new

KEY = PATH.removeprefix("store/")


@pytest.fixture
def queues(tmp_path: Path, clock: Clock) -> Iterator[LedgerQueues]:
    with closing(LedgerQueues(tmp_path, clock)) as opened:
        yield opened


def open_write(queues: LedgerQueues, path: str = PATH, **options: str) -> str:
    return queues.ledger.open_write(path, schema=SCHEMA, queue=IN, **options).id  # type: ignore[arg-type]


def test_finish_pushes_a_message_for_each_part(queues: LedgerQueues, clock: Clock) -> None:
    write, chosen, other = open_write(queues), make_attempt(3, 2), make_attempt(9)
    queues.ledger.record(write, chosen)
    queues.ledger.record(write, other)
    assert (queues.queue.counts(IN).pushed, claim(queues.queue, IN).state) == (0, "open")
    queues.ledger.finish(write, [chosen.id])
    queues.ledger.finish(write, [chosen.id])
    leases = claim(queues.queue, IN, 9).leases
    assert [lease.message.to_json() for lease in leases] == [
        {
            "message_id": f"{write}_{chosen.id}_{number}",
            "split_id": f"{chosen.id}-{number}",
            "payload_key": f"{KEY}@{chosen.id}-{number}",
            "metadata": {"source_stage": KEY, "num_records": rows},
            "timestamp": clock.now(),
        }
        for number, rows in enumerate((3, 2))
    ]
    assert [(lease.part, lease.bytes) for lease in leases] == [(part.name, part.bytes) for part in chosen.parts]
    queues.queue.ack([lease.key for lease in leases])
    assert queues.queue.counts(IN).state == "complete"


def test_a_write_without_parts_completes_its_queue(queues: LedgerQueues) -> None:
    queues.ledger.finish(open_write(queues), [])
    assert claim(queues.queue, IN).state == "complete"


def test_a_part_stays_until_its_last_message_is_done(queues: LedgerQueues) -> None:
    write, attempt = open_write(queues), make_attempt(1, 1)
    queues.ledger.record(write, attempt)
    queues.ledger.finish(write, [attempt.id])
    queues.ledger.delete(PATH)
    assert queues.ledger.freeable() == []
    first, second = claimed(queues.queue, IN, 2)
    again = new(OUT, "again", key=f"{KEY}@{attempt.id}-1")
    queues.queue.forward([Forward((first,), ()), Forward((second,), tuple(again))])
    assert queues.ledger.freeable() == part_names(attempt)[:1]
    queues.queue.ack(claimed(queues.queue, OUT))
    assert sorted(queues.ledger.freeable()) == sorted(part_names(attempt))


def test_a_message_names_a_part_of_its_own_path_alone(queues: LedgerQueues) -> None:
    attempt = make_attempt(1)
    write = queues.ledger.open_write(PATH, schema=SCHEMA).id
    queues.ledger.record(write, attempt)
    queues.ledger.finish(write, [attempt.id])
    queues.queue.push(new(IN, "a", key=f"{KEY}@{attempt.id}-0") + new(IN, "b", key=f"other@{attempt.id}-0"))
    assert [lease.part for lease in claim(queues.queue, IN, 2).leases] == [part_names(attempt)[0], None]


@pytest.mark.parametrize("end", ["abort", "silence"])
def test_claimers_learn_why_a_write_failed(queues: LedgerQueues, clock: Clock, end: str) -> None:
    queues.queue.push(new(IN, "a"))
    write = open_write(queues)
    claim(queues.queue, IN, to=[OUT])
    if end == "abort":
        queues.ledger.abort(write)
    else:
        assert expired_after(queues, clock, 599) == []
        clock.advance(1)
        assert queues.ledger.expire() == [write]
    state = {"abort": "aborted", "silence": "expired"}[end]
    assert claim(queues.queue, IN).state == claim(queues.queue, OUT).state == "failed"
    cause = claim(queues.queue, IN).cause
    assert cause is not None
    assert cause.startswith(f"write/{write} was {state}")
    assert claim(queues.queue, OUT).cause == f"{IN} has failed: {cause}"


def expired_after(queues: LedgerQueues, clock: Clock, seconds: float) -> list[str]:
    """Return the writes that expire when those that are open now are silent for so long."""
    assert queues.ledger.expire() == []
    clock.advance(seconds)
    return queues.ledger.expire()


def test_a_restart_and_a_jump_of_the_clock_are_no_silence(tmp_path: Path, queues: LedgerQueues, clock: Clock) -> None:
    write, monotonic = open_write(queues), Clock()
    queues.close()
    clock.advance(3_600)
    with closing(LedgerQueues(tmp_path, clock, monotonic)) as again:
        assert again.ledger.expire() == []
        clock.advance(-7_200)
        assert expired_after(again, monotonic, 599) == []
        again.ledger.touch(write, "its driver")
        assert expired_after(again, monotonic, 599) == []
        assert expired_after(again, monotonic, 1) == [write]


# --- another write in the place of one ------------------------------------------------------


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_a_second_try_takes_the_place_of_a_dead_driver(queues: LedgerQueues, clock: Clock, mode: str) -> None:
    """The queue is complete without the dead one, whose silence fails it no more, before and after the finish."""
    first = open_write(queues, mode=mode)
    assert expired_after(queues, clock, 500) == []
    second = open_write(queues, mode=mode)
    clock.advance(100)
    assert queues.ledger.expire() == [first]
    third = open_write(queues, mode=mode)
    queues.queue.push(new(IN, "a"))
    queues.queue.finish(IN)
    queues.queue.ack(claimed(queues.queue, IN))
    queues.ledger.finish(third, [])
    assert claim(queues.queue, IN).state == "complete"
    assert expired_after(queues, clock, 600) == [second]
    assert claim(queues.queue, IN).state == "complete"


def test_the_driver_that_was_thought_dead_may_finish(queues: LedgerQueues) -> None:
    slow, second = open_write(queues), open_write(queues)
    attempt = make_attempt(1)
    queues.ledger.record(slow, attempt)
    queues.ledger.finish(slow, [attempt.id])
    with pytest.raises(AlreadyExists):
        queues.ledger.finish(second, [])
    queues.ledger.abort(second)
    queues.queue.ack(claimed(queues.queue, IN))
    assert claim(queues.queue, IN).state == "complete"


def test_no_write_takes_the_place_of_one_that_appends(queues: LedgerQueues, clock: Clock) -> None:
    first = open_write(queues, mode="append")
    assert queues.ledger.expire() == []
    clock.advance(300)
    queues.ledger.finish(open_write(queues, mode="append"), [])
    assert claim(queues.queue, IN).state == "open"
    clock.advance(300)
    assert queues.ledger.expire() == [first]
    assert claim(queues.queue, IN).state == "failed"


def test_a_failed_queue_gives_no_messages(queues: LedgerQueues) -> None:
    queues.queue.push(new(IN, "a"))
    queues.ledger.abort(open_write(queues))
    assert names(claim(queues.queue, IN)) == []


def test_a_write_after_a_failed_one_opens_its_queue_again(queues: LedgerQueues) -> None:
    failed = open_write(queues)
    claim(queues.queue, IN, to=[OUT])
    queues.ledger.abort(failed)
    write = open_write(queues)
    assert [queues.queue.counts(path).state for path in (IN, OUT)] == ["open", "open"]
    queues.ledger.finish(write, [])
    assert [queues.queue.counts(path).state for path in (IN, OUT)] == ["complete", "complete"]


def test_a_write_of_the_same_run_joins_its_queue(queues: LedgerQueues) -> None:
    write = open_write(queues, run="night")
    assert open_write(queues, run="night") == write
    with pytest.raises(InvalidRequest, match="queue"):
        queues.ledger.open_write(PATH, schema=SCHEMA, run="night")
    queues.ledger.finish(write, [])
    assert queues.queue.upstreams(IN) == [(f"write/{write}", "complete")]


def test_a_write_whose_run_is_done_fails_no_queue(queues: LedgerQueues) -> None:
    first = open_write(queues, run="night")
    queues.ledger.finish(first, [])
    second = open_write(queues, mode="append")
    queues.ledger.finish(second, [], run="night")
    assert queues.queue.upstreams(IN) == [(f"write/{first}", "complete")]
    assert queues.queue.counts(IN).state == "complete"


def test_only_datasets_are_written_with_a_queue(queues: LedgerQueues) -> None:
    with pytest.raises(InvalidRequest, match="dataset"):
        queues.ledger.open_write("topic/x", schema=SCHEMA, queue=IN)
    with pytest.raises(InvalidRequest):
        queues.ledger.open_write(PATH, schema=SCHEMA, queue="store/y")


# --- payloads by key -----------------------------------------------------------------------


def small(key: str) -> PayloadRow:
    """Return the row of a payload that lies in the ledger."""
    table = pa.table({"id": [1, 2]})
    return PayloadRow(key, None, payload_table.encode(table.schema, table.to_batches()), 2, 100)


def test_a_payload_goes_with_the_last_message_that_names_it(queues: LedgerQueues) -> None:
    queues.queue.push(new(IN, "a"))
    forward = Forward(tuple(claimed(queues.queue, IN)), tuple(new(OUT, "x", key="t/1") + new(LAST, "x", key="t/1")))
    queues.queue.forward([forward], bind=lambda index, t: payloads.bind(t, small(f"t/{index + 1}"), bound=True))
    queues.queue.ack(claimed(queues.queue, OUT))
    assert queues.ledger.payload("t/1") is not None
    queues.queue.drop(claimed(queues.queue, LAST), Failure("E"))
    assert queues.ledger.payload("t/1") is not None
    queues.queue.redrive(LAST)
    queues.queue.ack(claimed(queues.queue, LAST))
    assert queues.ledger.payload("t/1") is None


def test_a_late_forward_binds_no_payload(queues: LedgerQueues, clock: Clock) -> None:
    queues.queue.push(new(IN, "a"))
    forward = Forward(tuple(claimed(queues.queue, IN)), tuple(new(OUT, "x", key="t/1")))
    clock.advance(LEASE)
    queues.queue.forward([forward], bind=lambda index, t: payloads.bind(t, small("t/1"), bound=True))
    assert queues.ledger.payload("t/1") is None


def test_a_payload_that_is_deleted_stays_for_its_message(queues: LedgerQueues) -> None:
    queues.ledger.bind_payloads([small("mine"), small("kept")])
    queues.queue.push(new(IN, "a", key="mine") + new(IN, "b", key="kept"))
    queues.ledger.remove_payload("mine")
    assert queues.ledger.payload("mine") is not None
    queues.queue.ack(claimed(queues.queue, IN, 2))
    assert queues.ledger.payload("mine") is None
    assert queues.ledger.payload("kept") is not None
