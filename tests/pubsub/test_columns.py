"""Pub/Sub's messages as columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.queue.pubsub import columns
from penstock.queue.pubsub.registry import MESSAGES
from tests.kit.pubsub import messages as pb


def received(*messages: Any, attempt: int = 0) -> list[Any]:
    return [pb.ReceivedMessage(ack_id="a", message=each, delivery_attempt=attempt) for each in messages]


def test_every_field_of_a_message_is_a_column() -> None:
    first = pb.PubsubMessage(data=b"\xff\x00", message_id="17", ordering_key="k", attributes={"b": "1", "ä": ""})
    first.publish_time.FromDatetime(datetime(2026, 11, 19, 8, 30, 1, 999_999))  # noqa: DTZ001  # protobuf's are naive
    batch = columns.to_batch(received(first, pb.PubsubMessage(message_id="x"), attempt=3))
    batch.validate(full=True)
    assert batch.schema.equals(MESSAGES)
    one, two = batch.to_pylist()
    assert sorted(one.pop("attributes")) == [("b", "1"), ("ä", "")]
    assert one == {
        "message_id": "17", "publish_time": datetime(2026, 11, 19, 8, 30, 1, 999_999, UTC), "ordering_key": "k",
        "delivery_attempt": 3, "data": b"\xff\x00",
    }  # fmt: skip
    assert (two["message_id"], two["attributes"], two["data"], two["ordering_key"]) == ("x", [], b"", "")


def test_nanoseconds_are_cut_off() -> None:
    """The place of a message is looked up by its time: each delivery has the same one."""
    message = pb.PubsubMessage(data=b"x")
    message.publish_time.seconds, message.publish_time.nanos = -2, 999_999_999
    assert columns.to_batch(received(message)).column("publish_time").cast(pa.int64()).to_pylist() == [-1_000_001]


def test_attempts_are_null_where_nobody_counts_them() -> None:
    assert columns.to_batch(received(pb.PubsubMessage(), pb.PubsubMessage())).column("delivery_attempt").null_count == 2


def test_messages_are_cut_by_bytes() -> None:
    messages = received(*(pb.PubsubMessage(data=b"x" * size) for size in (5_000_000, 5_000_000, 9_000_000, 10, 10)))
    pieces = list(columns.cut(messages, sum(each.ByteSize() for each in messages)))
    assert [len(piece) for piece in pieces] == [1, 1, 1, 2]
    assert [each for piece in pieces for each in piece] == messages
    assert len(list(columns.cut(messages, 1_000))) == 1
