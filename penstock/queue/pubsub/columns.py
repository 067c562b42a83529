"""Pub/Sub's messages as columns: what a subscription's journal holds of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.queue.pubsub.registry import MESSAGES

MOST_BYTES = 8 << 20
"""Bytes of the messages of one batch, but for a single one that is larger (Pub/Sub takes 10 MB)."""
_CHUNK = 1_000
"""Messages that are made columns at once: 10,000 don't fit the processor's cache, and took half as long again each."""


def to_batch(received: Iterable[Any]) -> pa.RecordBatch:
    """Return upb `ReceivedMessage`s as a batch."""
    messages = iter(received)
    chunks = list(map(_to_chunk, iter(lambda: list(islice(messages, _CHUNK)), [])))
    return chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)  # type: ignore[attr-defined]  # not in its stubs


def _to_chunk(received: Sequence[Any]) -> pa.RecordBatch:
    """Return a batch of some messages. 1-2 microseconds each: one list per column, no wrapper per message."""
    messages = [each.message for each in received]
    times = [message.publish_time for message in messages]
    seconds = np.array([time.seconds for time in times], np.int64)
    nanos = np.array([time.nanos for time in times], np.int64)
    attempts = [each.delivery_attempt for each in received]  # 0 where no dead-letter policy counts them
    columns = [
        pa.array([message.message_id for message in messages], pa.string()),
        pa.array(seconds * 1_000_000 + nanos // 1_000).view(MESSAGES.field("publish_time").type),
        pa.array([message.ordering_key for message in messages], pa.string()),
        _attributes([message.attributes for message in messages]),
        pa.array([attempt or None for attempt in attempts], pa.int32()) if any(attempts) else _nulls(len(received)),
        pa.array([message.data for message in messages], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def cut(received: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield messages, of this size together, in pieces of at most `MOST_BYTES`, or one message."""
    if size <= MOST_BYTES:
        yield received
        return
    start = size = 0
    for at, each in enumerate(received):
        more = each.ByteSize()
        if at > start and size + more > MOST_BYTES:
            yield received[start:at]
            start, size = at, 0
        size += more
    yield received[start:]


def _attributes(maps: Sequence[Any]) -> pa.Array:
    ends = np.zeros(len(maps) + 1, np.int32)
    np.cumsum(list(map(len, maps)), out=ends[1:])
    keys = pa.array(list(chain.from_iterable(maps)), pa.string())
    values = pa.array([each[key] for each in maps for key in each], pa.string())  # values() took three times as long
    return pa.MapArray.from_arrays(pa.array(ends), keys, values)


def _nulls(count: int) -> pa.Array:
    return pa.nulls(count, pa.int32())
