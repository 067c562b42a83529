"""What a message is as a record of a Kafka topic: the columns `unsent`, `partition`, `offset` and `acked` of messages.

The row says what became of a message, the topic's consumer group says it to others: `acked` is 1 once the group has
committed the record as done, 2 if that is due although the message is pending again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as _quoted

from penstock.errors import AlreadyExists, InvalidRequest
from penstock.ledger.tables import Transaction
from penstock.queue.work import messages, queues
from penstock.queue.work.lease_queue import NewMessage
from penstock.queue.work.messages import Row, Settling
from penstock.store.database import Reader, Tables
from penstock.wire.message import QueueMessage
from penstock.wire.queue import Failure

TABLES: Tables = {
    7: """
ALTER TABLE queues ADD COLUMN topic TEXT;
CREATE UNIQUE INDEX queues_of_topic ON queues(topic) WHERE topic IS NOT NULL AND path IS NOT NULL;
ALTER TABLE messages ADD COLUMN unsent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN partition INTEGER;
ALTER TABLE messages ADD COLUMN offset INTEGER;
ALTER TABLE messages ADD COLUMN acked INTEGER NOT NULL DEFAULT 0;
CREATE INDEX messages_to_send ON messages(queue, id) WHERE unsent;
CREATE INDEX messages_to_ack ON messages(queue, id)
    WHERE offset IS NOT NULL AND (acked = 2 OR acked = 0 AND state IN ('done', 'dead'));
CREATE TABLE partitions(
    queue INTEGER NOT NULL REFERENCES queues ON DELETE CASCADE, number INTEGER NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY(queue, number)
) WITHOUT ROWID;
"""
}
"""`queues.topic`: kafka://host:port/topic. `messages.unsent`: it is to be sent, or was and isn't read back yet.
`partitions.next`: the first offset that wasn't read."""


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """A queue whose messages are records of a topic."""

    id: int
    path: str
    topic: str
    """kafka://host:port/topic"""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A message to be sent."""

    id: int
    queue: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """A message that is a record."""

    id: int
    queue: int
    partition: int
    offset: int


# --- queues --------------------------------------------------------------------------------


def set_topic(t: Transaction, path: str, topic: str) -> None:
    """Make a queue whose messages are records of a topic; again, it changes nothing."""
    row = queues.make(t, path)
    if row["topic"] == topic:
        return
    if row["topic"] is not None or row["pushed"]:
        raise AlreadyExists(
            f"{path} is on {row['topic'] or 'the server itself'} already: choose another path for {topic}"
        )
    other = t.row("SELECT path FROM queues WHERE topic = ? AND path IS NOT NULL", topic)
    if other is not None:
        raise AlreadyExists(f"{topic} has the messages of {other['path']}: claim from there, or name another topic")
    t.execute("UPDATE queues SET topic = ? WHERE id = ?", topic, row["id"])


def topic_of(reader: Reader, path: str) -> str | None:
    """Return the address of a queue's topic; None for a queue that the ledger alone has."""
    row = reader.row("SELECT topic FROM queues WHERE path = ?", path)
    return None if row is None else row["topic"]


def on_topics(reader: Reader) -> list[TopicQueue]:
    """Return the queues whose messages are records of topics."""
    query = "SELECT id, path, topic FROM queues WHERE topic IS NOT NULL AND path IS NOT NULL ORDER BY id"
    return [TopicQueue(row["id"], row["path"], row["topic"]) for row in reader.rows(query)]


# --- what is to be sent and committed ------------------------------------------------------


def unsent(reader: Reader, queue: int, most: int) -> list[Unsent]:
    """Return messages that aren't records yet, in order."""
    rows = reader.rows(
        "SELECT id, message_id, split_id, payload_key, metadata, timestamp FROM messages"
        " WHERE queue = ? AND unsent ORDER BY id LIMIT ?",
        queue, most,
    )  # fmt: skip
    return [Unsent(row_id, queue, columns[1].encode(), _to_value(*columns)) for row_id, *columns in rows]


def _to_value(message_id: str, split_id: str, payload_key: str, metadata: str, timestamp: float) -> bytes:
    """Return what QueueMessage.encode does, in a quarter of its time: metadata is JSON already."""
    return (
        f'{{"message_id": {_quoted(message_id)}, "split_id": {_quoted(split_id)}, "payload_key": '
        f'{_quoted(payload_key)}, "metadata": {metadata}, "timestamp": {timestamp!r}}}'
    ).encode()


def due(reader: Reader, queue: int, most: int) -> list[Placed]:
    """Return records that are done, or were dead, and that the group hasn't committed, in order."""
    rows = reader.rows(
        "SELECT id, partition, offset FROM messages WHERE queue = ? AND offset IS NOT NULL"
        " AND (acked = 2 OR acked = 0 AND state IN ('done', 'dead')) ORDER BY id LIMIT ?",
        queue, most,
    )  # fmt: skip
    return [Placed(row["id"], queue, row["partition"], row["offset"]) for row in rows]


def note_sent(t: Transaction, records: Sequence[Placed]) -> None:
    """Note what messages that were sent are as records, which needn't be read."""
    t.sql.executemany(
        "UPDATE messages SET unsent = 0, partition = ?, offset = ? WHERE id = ? AND queue = ? AND unsent",
        [(record.partition, record.offset, record.id, record.queue) for record in records],
    )


def refuse(t: Transaction, reasons: Sequence[tuple[Unsent, str]]) -> list[str]:
    """Note messages that are too large for their topics as dead, unless they are done; return why, for each of them."""
    texts = []
    for each, reason in reasons:
        row = t.row(
            "UPDATE messages SET unsent = 0 WHERE id = ? AND queue = ? AND unsent"
            " RETURNING message_id, state, (SELECT topic FROM queues WHERE id = queue) AS topic",
            each.id, each.queue,
        )  # fmt: skip
        if row is None:
            continue
        text = (
            f"message {row['message_id']} is no record of {row['topic']}, as its {len(each.value):,} bytes are refused "
            f"there ({reason}): raise the topic's max.message.bytes and redrive it, or put what is large into a payload"
        )
        texts.append(text)
        if row["state"] in ("pending", "delayed", "claimed"):
            failure = Failure("RecordTooLarge", text).cut()
            _set_aside(t, each.queue, each.id, failure, claimed=int(row["state"] == "claimed"))
    return texts


def note_acked(t: Transaction, records: Sequence[Placed]) -> None:
    """Note that the group has committed these records as done."""
    t.sql.executemany("UPDATE messages SET acked = 1 WHERE id = ?", [(record.id,) for record in records])


# --- what was read -------------------------------------------------------------------------


def position(reader: Reader, queue: int, partition: int) -> int | None:
    """Return the offset to read on from."""
    row = reader.row("SELECT next FROM partitions WHERE queue = ? AND number = ?", queue, partition)
    return None if row is None else int(row["next"])


def waiting(reader: Reader, queue: int, partition: int) -> list[int]:
    """Return the offsets that were read and that the group hasn't committed as done, in order."""
    rows = reader.rows(
        "SELECT offset FROM messages WHERE queue = ? AND partition = ? AND acked <> 1 ORDER BY offset",
        queue, partition,
    )  # fmt: skip
    return [row["offset"] for row in rows]


def row_at(reader: Reader, queue: int, partition: int, offset: int) -> int | None:
    """Return the id of the row of a record."""
    query = "SELECT id FROM messages WHERE queue = ? AND partition = ? AND offset = ? AND acked <> 1"
    row = reader.row(query, queue, partition, offset)
    return None if row is None else int(row["id"])


def set_position(t: Transaction, queue: int, partition: int, next_offset: int) -> None:
    """Note the offset to read on from; a removed queue has none."""
    t.execute(
        "INSERT INTO partitions(queue, number, next) SELECT id, ?, ? FROM queues WHERE id = ? AND path IS NOT NULL"
        " ON CONFLICT(queue, number) DO UPDATE SET next = excluded.next",
        partition, next_offset, queue,
    )  # fmt: skip


def forget_offsets(t: Transaction, queue: int, partition: int) -> None:
    """Note that a partition's offsets mean other records now: those that were read stay messages."""
    t.execute("UPDATE messages SET acked = 1 WHERE queue = ? AND partition = ? AND acked <> 1", queue, partition)


def forget_partitions(t: Transaction, queue: int, existing: set[int]) -> None:
    """Forget partitions that a topic has no more, as it was made again: what was read of them stays messages."""
    for row in t.rows("SELECT number FROM partitions WHERE queue = ?", queue):
        if row["number"] not in existing:
            forget_offsets(t, queue, row["number"])
            t.execute("DELETE FROM partitions WHERE queue = ? AND number = ?", queue, row["number"])


def take(
    t: Transaction, queue: TopicQueue, partition: int, records: Sequence[tuple[int, bytes]], next_offset: int,
    is_committed: Callable[[int], bool],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Make records messages of their queue; return the ids of their rows, and the offsets that are to be done.

    A message that the queue has already, by its id, is the same one: its first record counts, others are done. What
    the group has committed as done is, though this ledger is older than that. A removed queue gets none.
    """
    values = [(offset, *_to_message(queue.topic, partition, offset, value)) for offset, value in records]
    if t.row("SELECT 1 FROM queues WHERE id = ? AND path IS NOT NULL", queue.id) is None:
        return [], []
    settling = Settling(t)
    settling.push([Row.of(NewMessage(queue.path, message)) for _, message, _ in values], queue.path)
    settling.finish()
    ids, waiting, committed = [], [], []
    for offset, message, failure in values:
        row = t.row(
            "UPDATE messages SET unsent = 0, partition = ?, offset = ? WHERE queue = ? AND message_id = ?"
            " AND offset IS NULL RETURNING id",
            partition, offset, queue.id, message.message_id,
        )  # fmt: skip
        if row is None:
            continue
        ids.append(row["id"])
        if is_committed(offset):
            committed.append(row["id"])
        else:
            waiting.append(offset)
        if failure is not None:
            _set_aside(t, queue.id, row["id"], failure)
    _end(t, queue.id, committed)
    set_position(t, queue.id, partition, next_offset)
    return ids, waiting


def _to_message(topic: str, partition: int, offset: int, value: bytes) -> tuple[QueueMessage, Failure | None]:
    """Return the message of a record; of one that isn't any, one that is dead, with the beginning of its bytes."""
    try:
        message = QueueMessage.decode(value)
        Row.of(NewMessage("", message))
        return message, None
    except InvalidRequest as error:
        name = f"{topic.rpartition('/')[2]}-{partition}-{offset}"
        metadata = {"partition": partition, "offset": offset, "value": value[:1_000].decode(errors="replace")}
        return QueueMessage(name, name, "", metadata), Failure(type(error).__name__, str(error)).cut()


def _set_aside(t: Transaction, queue: int, message: int, failure: Failure, *, claimed: int = 0) -> None:
    t.execute(
        "UPDATE messages SET state = 'dead', failure = ?, ended = ? WHERE id = ?",
        json.dumps(failure.to_json()), t.now, message,
    )  # fmt: skip
    queues.count(t, queue, claimed=-claimed, dead=1)
    queues.settle(t, [queue])


def end_committed(t: Transaction, queue: int, partition: int, is_committed: Callable[[int], bool]) -> int:
    """Note as done what the group has committed as done, where the rows are older than that; return how many."""
    rows = t.rows("SELECT id, offset FROM messages WHERE queue = ? AND partition = ? AND acked <> 1", queue, partition)
    return _end(t, queue, [row["id"] for row in rows if is_committed(row["offset"])])


def _end(t: Transaction, queue: int, committed: Sequence[int]) -> int:
    """Note rows as committed as done, and as done unless they are dead or redriven; return how many changed."""
    ids = json.dumps(committed)
    these = "id IN (SELECT value FROM json_each(?))"
    undone = f"{these} AND acked = 0 AND state IN ('pending', 'delayed', 'claimed')"
    rows = t.rows(f"SELECT state, bytes, payload_key, part FROM messages WHERE {undone}", ids)  # noqa: S608  # our own text
    t.execute(f"UPDATE messages SET state = 'done', ended = ? WHERE {undone}", t.now, ids)  # noqa: S608  # our own text
    t.execute(f"UPDATE messages SET acked = 1 WHERE {these}", ids)  # noqa: S608  # our own text
    if rows:
        claimed = sum(row["state"] == "claimed" for row in rows)
        queues.count(t, queue, claimed=-claimed, done=len(rows), bytes=-sum(row["bytes"] for row in rows))
        messages.release_payloads(t, [(row["payload_key"], row["part"]) for row in rows if row["payload_key"]])
        queues.settle(t, [queue])
    return len(rows)
