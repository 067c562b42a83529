"""write.open with a queue: the parts of the finished attempts are its splits."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.errors import InvalidRequest, PenstockError, WriteEnded
from penstock.flight_server.server import PenstockServer
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.wire.actions import ABORT_WRITE, FINISH_WRITE, OPEN_WRITE, AbortWrite, FinishWrite, OpenedWrite, OpenWrite
from penstock.wire.message import QueueMessage

IN = "queue/j/in"


@pytest.fixture
def queue(server: PenstockServer) -> LedgerQueue:
    return LedgerQueue(server.state.ledger)


def opened(client: Client, **options: object) -> OpenedWrite:
    return client.call(OPEN_WRITE, OpenWrite(**{"path": "store/j/in", "queue": IN, **options}))  # type: ignore[arg-type]


def put_ids(client: Client, write: OpenedWrite, *ids: range) -> str:
    """Put an attempt of a batch for each of the ranges, and return its id."""
    with client.attempt(write.ticket, pa.schema([("id", pa.int64())])) as writer:
        for some in ids:
            writer.write(pa.RecordBatch.from_pydict({"id": pa.array(some, pa.int64())}))
    return writer.close().attempt


def finish(client: Client, write: OpenedWrite, *attempts: str) -> int:
    return client.call(FINISH_WRITE, FinishWrite(write.ticket, attempts)).parts


def claimed(queue: LedgerQueue) -> list[QueueMessage]:
    claim = queue.claim(IN, str(time.monotonic_ns()), worker="w", most=1_000)
    return [lease.message for lease in claim.leases]


def test_a_finished_write_pushes_a_split_for_each_part(client: Client, queue: LedgerQueue) -> None:
    write = opened(client, split_rows=40)
    first, second, lost = (put_ids(client, write, *each) for each in (
        (range(10), range(10, 100)), (range(100, 130), range(130, 140)), (range(100),),
    ))  # fmt: skip
    assert claimed(queue) == []
    assert finish(client, write, first, second) == 4

    splits = claimed(queue)
    assert [(split.split_id, split.metadata["num_records"]) for split in splits] == [
        (f"{first}-0", 40), (f"{first}-1", 40), (f"{first}-2", 20), (f"{second}-0", 40),
    ]  # fmt: skip
    assert [split.payload_key for split in splits] == [f"j/in@{split.split_id}" for split in splits]
    assert lost not in str(splits)
    assert queue.counts(IN).pushed == 4


def test_a_batch_without_rows_is_no_split(client: Client, queue: LedgerQueue) -> None:
    write = opened(client)
    attempt = put_ids(client, write, range(0))
    assert finish(client, write, attempt) == 0
    assert queue.counts(IN).state == "complete"


def test_a_finish_again_pushes_nothing_twice(client: Client, queue: LedgerQueue) -> None:
    for _ in range(2):
        write = opened(client, run="nightly", mode="append")
        if write.state == "open":
            attempt = put_ids(client, write, range(10))
        for _ in range(2):
            finish(client, write, attempt)
    assert queue.counts(IN).pushed == 1


def test_several_writes_fill_one_queue(client: Client, queue: LedgerQueue) -> None:
    """The queue is complete once all have ended, and each message is done."""
    writes = [opened(client, path=f"store/j/{name}") for name in "ab"]
    for number, write in enumerate(writes):
        finish(client, write, put_ids(client, write, range(number + 1)))
        assert queue.counts(IN).state == "open"
    assert [split.payload_key[:4] for split in claimed(queue)] == ["j/a@", "j/b@"]


def test_an_aborted_write_fails_its_queue_until_it_is_done_again(client: Client, queue: LedgerQueue) -> None:
    write = opened(client)
    put_ids(client, write, range(10))
    client.call(ABORT_WRITE, AbortWrite(write.ticket))
    counts = queue.counts(IN)
    assert (counts.state, counts.pushed) == ("failed", 0)
    assert f"write/{write.write} was aborted" in str(counts.cause)

    again = opened(client)
    assert queue.counts(IN).state == "open"
    finish(client, again, put_ids(client, again, range(10)))
    assert len(claimed(queue)) == 1


def test_another_datasets_write_mends_no_failed_queue(client: Client, queue: LedgerQueue) -> None:
    client.call(ABORT_WRITE, AbortWrite(opened(client).ticket))
    opened(client, path="store/j/other")
    assert queue.counts(IN).state == "failed"


@pytest.mark.parametrize(("options", "cure"), [
    ({"queue": None, "split_rows": 5}, "with it"),
    ({"split_rows": 0}, "1 row or more"),
    ({"queue": "store/j/out"}, "store/j/out is no queue: expected queue/NAME"),
    ({"queue": "queue/j/dead"}, "the last name isn't 'dead'"),
    ({"path": "topic/t"}, "so write to store/"),
])  # fmt: skip
def test_options_that_contradict_are_refused(client: Client, options: dict[str, object], cure: str) -> None:
    with pytest.raises(InvalidRequest, match=cure):
        opened(client, **options)
    assert len(client.list("write/")) == 0


@pytest.mark.parametrize("other", [{"queue": "queue/j/other"}, {"queue": None}, {"split_rows": 7}])
def test_a_run_has_one_queue(client: Client, other: dict[str, object]) -> None:
    opened(client, run="r")
    with pytest.raises(InvalidRequest, match="use the same, or another run"):
        opened(client, run="r", **other)


def test_a_silent_driver_fails_the_queue_a_living_one_does_not(
    server: PenstockServer, client: Client, queue: LedgerQueue
) -> None:
    ledger, write = server.state.ledger, opened(client)
    now = ledger.monotonic
    assert ledger.expire() == []
    ledger.monotonic = lambda: now() + 540
    client.call("write.touch", {"ticket": write.ticket})
    ledger.monotonic = lambda: now() + 660
    assert ledger.expire() == []
    ledger.monotonic = lambda: now() + 1300
    assert ledger.expire() == [write.write]

    assert queue.counts(IN).state == "failed"
    with pytest.raises(WriteEnded, match="its driver needs an open write"):
        client.call("write.touch", {"ticket": write.ticket})
    with pytest.raises(PenstockError, match="expired"):
        finish(client, write)
