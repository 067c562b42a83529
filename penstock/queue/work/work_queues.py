"""What writes with a queue tell it: the ledger's `WorkQueues`. A part of a finished write is a split, and a message."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger import parts
from penstock.ledger.tables import Transaction
from penstock.ledger.writes import Write
from penstock.queue.work import messages, queues
from penstock.queue.work.lease_queue import NewMessage
from penstock.store.database import Reader
from penstock.wire.message import QueueMessage


def open_write(t: Transaction, write: Write) -> None:
    """Note the write as one that fills its queue, in place of those to the same path that have failed."""
    if write.queue is None:
        return
    queues.add_upstream(t, write.queue, _upstream(write))
    queues.remove_failed_writes(t, write.queue, write.path)


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


def end_write(t: Transaction, write: Write) -> None:
    """Note that the write has pushed all that it will."""
    queues.set_upstream(t, _upstream(write), "complete")


def fail_write(t: Transaction, write: Write, cause: str) -> None:
    """Note that the write will push nothing, and that its queue isn't what it should be."""
    queues.set_upstream(t, _upstream(write), "failed", cause)


def forget_write(t: Transaction, write: Write) -> None:
    """Note that the write will push nothing, as another one of its run has done it."""
    queues.remove_upstream(t, _upstream(write))


def names_payload(reader: Reader, key: str) -> bool:
    """Whether a message that isn't done names a payload."""
    return messages.is_named(reader, key)


def _upstream(write: Write) -> str:
    return f"write/{write.id}"
