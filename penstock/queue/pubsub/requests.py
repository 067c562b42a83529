"""Publish requests from columns: the bytes of all messages of a part are made at once, without an object for each.

A cursor counts positions: the rows of a part in the order of their ordering keys, those of a key as they were put. It
means the same after a restart, however requests are cut then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.rows.messages import REQUEST_BYTES

MOST_ROWS = 1_000
"""Messages of one request at most, as Pub/Sub takes them."""
ID_ATTRIBUTE = "penstock-id"
_TOPIC, _MESSAGES = 1, 2  # fields of PublishRequest
_DATA, _ATTRIBUTES, _ORDERING_KEY = 1, 2, 5  # fields of PubsubMessage
_NAME, _VALUE = 1, 2  # fields of an attribute

Range = tuple[int, int]
"""The first position, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Request:
    """One Publish request: messages of one ordering key, or without one."""

    part: int
    first: int
    end: int
    key: str
    body: bytes


def requests_of(
    topic: str, part: int, rows: pa.RecordBatch, published: Iterable[Range], *, id_prefix: str | None = None
) -> Iterator[Request]:
    """Yield the requests of those of a part's rows that aren't published, in order.

    With an `id_prefix` each message gets the attribute penstock-id: the prefix, then the part and the row.
    """
    keys, numbers = rows.column("ordering_key"), pa.array(np.arange(len(rows)))
    if _has_any(keys):
        numbers = pc.sort_indices(keys)  # which is stable
        rows = rows.take(numbers)
        keys = rows.column("ordering_key")
    ids = None
    if id_prefix is not None:
        ids = pc.binary_join_element_wise(pa.scalar(f"{id_prefix}/{part}/"), numbers.cast(pa.string()), "")
    messages = _encoded_messages(rows, ids)
    head = _tag(_TOPIC) + _varint(len(topic.encode())) + topic.encode()
    ends = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset : messages.offset + len(messages) + 1]
    data = memoryview(messages.buffers()[2])
    runs = np.flatnonzero(np.append(pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False), True)) + 1
    for start, end in _without(published, len(rows)):
        first = start
        while first < end:
            run_end = int(runs[np.searchsorted(runs, first, "right")])
            most = int(np.searchsorted(ends, ends[first] + REQUEST_BYTES - len(head), "right")) - 1
            cut = min(end, run_end, first + MOST_ROWS, max(most, first + 1))
            yield Request(part, first, cut, keys[first].as_py(), head + data[ends[first] : ends[cut]])
            first = cut


def _without(published: Iterable[Range], rows: int) -> Iterator[Range]:
    """Yield the ranges of a part that aren't published."""
    reached = 0
    for first, end in sorted(published):
        if first > reached:
            yield reached, first
        reached = max(reached, end)
    if reached < rows:
        yield reached, rows


# --- protobuf, by columns ---------------------------------------------------------------------


def _encoded_messages(rows: pa.RecordBatch, ids: pa.Array | None) -> pa.Array:
    """Return each row as a field `messages` of a PublishRequest."""
    attributes = rows.column("attributes")
    pieces = [_field(_DATA, rows.column("data"))]
    entries = _field(_ATTRIBUTES, _joined(_field(_NAME, attributes.keys), _field(_VALUE, attributes.items)))
    if len(entries):
        within = pa.ListArray.from_arrays(attributes.offsets, entries)
        pieces.append(pc.binary_join(within, pa.scalar(b"", pa.binary())))
    if ids is not None:
        name = pa.repeat(pa.scalar(ID_ATTRIBUTE), len(rows))
        pieces.append(_field(_ATTRIBUTES, _joined(_field(_NAME, name), _field(_VALUE, ids))))
    if _has_any(rows.column("ordering_key")):
        pieces.append(_field(_ORDERING_KEY, rows.column("ordering_key")))
    return _field(_MESSAGES, _joined(*pieces))


def _field(number: int, values: pa.Array) -> pa.Array:
    """Return each value as a field of bytes: tag, length, value."""
    values = values.cast(pa.binary())
    sizes, positions = np.unique(pc.binary_length(values).to_numpy(zero_copy_only=False), return_inverse=True)
    heads = pa.array([_tag(number) + _varint(int(size)) for size in sizes], pa.binary())
    return _joined(heads.take(pa.array(positions.astype(np.int32))), values)


def _joined(*pieces: pa.Array) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _has_any(texts: pa.Array) -> bool:
    """Whether one of the texts isn't empty."""
    return bool(pc.max(pc.binary_length(texts)).as_py())


def _tag(field: int) -> bytes:
    return bytes([field << 3 | 2])


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
