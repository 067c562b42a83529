"""What writes with a queue tell it: the ledger's `WorkQueues`. A part of a finished write is a split, and a message."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InvalidRequest
from penstock.ledger import datasets, parts
from penstock.ledger.datasets import Dataset
from penstock.ledger.tables import Transaction
from penstock.ledger.writes import Write
from penstock.queue.work import messages, queues
from penstock.queue.work.lease_queue import NewMessage
from penstock.store.database import Reader
from penstock.wire.message import QueueMessage


def open_write(t: Transaction, write: Write) -> None:
    """Note the write as one that fills its queue, in place of others to the same path."""
    if write.queue is None:
        return
    queues.add_upstream(t, write.queue, _upstream(write))
    _take_place(t, write)


def push_parts(t: Transaction, write: Write, attempts: Sequence[str]) -> None:
    """Push a message for each part of these attempts."""
    if write.queue is None:
        return
    key = write.path.removeprefix("store/")
    rows = [
        messages.Row.of(
            NewMessage(
                write.queue,
                QueueMessage(
                    f"{write.id}_{attempt}_{number}",
                    f"{attempt}-{number}",
                    f"{key}@{attempt}-{number}",
                    {"source_stage": key, "num_records": records},
                    t.now,
                ),
                size,
            )
        )
        for attempt in dict.fromkeys(attempts)
        for number, records, size in parts.of_attempt(t, attempt)
    ]
    if rows:
        settling = messages.Settling(t)
        settling.push(rows, _upstream(write))
        settling.finish()


def splits_of(t: Transaction, path: str, queue: str, last: str | None) -> list[tuple[QueueMessage, int]]:
    """Return the parts of a dataset, up to the end to push, as messages for a queue, each with its size.

    Their ids are of that queue alone: outputs are named after them, and may meet those of another queue's. Parts that
    were pushed once are never merged, so that up to one end they are the same each time.
    """
    dataset = datasets.by_path(t, path, t.ledger.incarnation)
    key, prefix = path.removeprefix("store/"), queue.removeprefix("queue/")
    return [
        (
            QueueMessage(
                f"{prefix}/{attempt}_{number}", f"{attempt}-{number}", f"{key}@{attempt}-{number}",
                {"source_stage": key, "num_records": records}, t.now,
            ),
            size,
        )
        for _, attempt, number, records, size in _parts_up_to(t, dataset, last)
    ]  # fmt: skip


def _parts_up_to(t: Transaction, dataset: Dataset, last: str | None) -> list[tuple[int, str, int, int, int]]:
    rows = parts.of_path(t, dataset.path)
    if last is None or last == dataset.end:
        return rows
    made, _, place = last.rpartition(".")
    now, _, end = dataset.end.rpartition(".")
    if made == now and place.isdecimal() and int(place) <= int(end):
        return [row for row in rows if row[0] < int(place)]
    ids = ["", *(f"{attempt}-{number}" for _, attempt, number, _, _ in rows)]  # as a job of an older penstock has it
    if last in ids:
        return rows[: ids.index(last)]
    raise InvalidRequest(
        f"{dataset.path} has no end {last[:80]} any more: it was overwritten since. Begin anew with what it has now "
        "(a job: penstock rm job/…)"
    )


def end_write(t: Transaction, write: Write) -> None:
    """Note that the write has pushed all that it will; again in place of others, which may have taken its own."""
    if write.queue is None:
        return
    queues.add_upstream(t, write.queue, _upstream(write))
    _take_place(t, write)
    queues.set_upstream(t, _upstream(write), "complete")


def fail_write(t: Transaction, write: Write, cause: str) -> None:
    """Note that the write will push nothing, and that its queue isn't what it should be."""
    queues.set_upstream(t, _upstream(write), "failed", cause)


def forget_write(t: Transaction, write: Write) -> None:
    """Note that the write will push nothing, as another one of its run has done it."""
    queues.remove_upstream(t, _upstream(write))


def take_receipts(t: Transaction, path: str) -> list[str]:
    """Return the attempts that the messages of a queue name, and note these as done."""
    return messages.take_receipts(t, path)


def names_payload(reader: Reader, key: str) -> bool:
    """Whether a message that isn't done names a payload."""
    return messages.is_named(reader, key)


def disagreements(reader: Reader) -> list[str]:
    """Describe queues whose counts differ from those of their messages."""
    return queues.disagreements(reader)


def _take_place(t: Transaction, write: Write) -> None:
    """Let the queue wait no more for writes that this one replaces.

    Those to the same path that have failed; and the open ones, whose driver may be dead, unless either appends: of the
    others one alone becomes the dataset. Not those that release partitions, as workers may have their rows.
    """
    assert write.queue is not None
    queues.remove_replaced_writes(t, write.queue, write.path, _upstream(write), open_too=write.mode != "append")


def _upstream(write: Write) -> str:
    return f"write/{write.id}"
