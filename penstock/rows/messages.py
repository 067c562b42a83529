"""Rows as Pub/Sub's messages: the columns data, attributes and ordering_key, checked against what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.text import suggest

MESSAGES = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("ordering_key", pa.string(), nullable=False),
    ]
)
"""The columns in which messages are staged."""
LEFT_OUT = ("message_id", "publish_time", "delivery_attempt")
"""Columns of a subscription that Pub/Sub gives each message anew."""
_ELSEWHERE = {"value": "data", "payload": "data", "key": "ordering_key", "headers": "attributes"}
"""How these columns are called by Kafka's sink, and by others."""
REQUEST_BYTES = 10_000_000
"""Bytes of a request at most, and so of a message with its envelope."""
MOST_ATTRIBUTES, ATTRIBUTE_KEY_BYTES, ATTRIBUTE_VALUE_BYTES, ORDERING_KEY_BYTES = 100, 256, 1_024, 1_024
_GOOGLES = "goog"
_ENVELOPE = 700
"""Bytes that a request has besides its messages' values: the topic's name, and the lengths of a message's fields."""
_FIELD = 14
"""Bytes of the lengths of an attribute and its key and value."""
_Fault = tuple[pa.Array, Callable[[int], str]]
"""Which rows or attributes are wrong, and why one of these is."""


def check_columns(schema: pa.Schema, path: str) -> None:
    """Reject columns of which no message can be made."""
    if (schema.get_field_index("data"), schema.get_field_index("attributes")) == (-1, -1):
        renamed = ", ".join(f"{name} to {ours}" for name, ours in _ELSEWHERE.items() if name in schema.names)
        raise SchemaMismatch(
            f"{path} takes messages: expected a column data (binary or text), got {', '.join(schema.names[:8])}. "
            + (f"Rename {renamed}, or to" if renamed else "To")
            + " publish each row as JSON pass encode='json'"
        )
    known = (*MESSAGES.names, *LEFT_OUT)
    for field in schema:
        if field.name not in known:
            raise SchemaMismatch(
                f"{path}: no message has a column {field.name!r}; {suggest(field.name, MESSAGES.names)} To publish it "
                "as a part of data, encode the rows (encode='json')"
            )
        if not _TYPES.get(field.name, lambda _: True)(field.type):
            raise SchemaMismatch(f"{path}: the column {field.name} is {field.type}, expected {_EXPECTED[field.name]}")


def to_messages(batches: Iterable[pa.RecordBatch], path: str, *, more_attributes: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield rows in the columns of MESSAGES; reject the first that Pub/Sub would refuse for good.

    `more_attributes` are added to each when it is published.
    """
    first = 0
    for batch in batches:
        messages = _to_messages(batch)
        _check(messages, path, first, more_attributes)
        yield messages
        first += batch.num_rows


def unpublishable(batch: pa.RecordBatch) -> tuple[pa.Array, str]:
    """Return which rows of a subscription Pub/Sub would refuse for good, and why the first of them."""
    messages = _to_messages(without_googles(batch))
    wrong, reasons = pa.repeat(pa.scalar(False), len(messages)), dict[int, str]()
    for rows, reason in _faults(messages, 0):
        wrong, row = pc.or_(wrong, rows), pc.index(rows, True).as_py()
        reasons.setdefault(row, reason(row))
    return wrong, reasons[min(reasons)] if reasons else ""


def without_googles(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a subscription without the attributes that Google gives them, and takes from nobody."""
    at = batch.schema.get_field_index("attributes")
    if at < 0 or not types.is_map(batch.schema.field(at).type):
        return batch
    attributes = _attributes(batch)
    kept = pc.invert(pc.starts_with(attributes.keys, _GOOGLES))
    sums = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(kept.cast(pa.int32()))])
    lengths = pc.subtract(sums.take(attributes.offsets[1:]), sums.take(attributes.offsets[:-1]))
    return batch.set_column(
        at, "attributes", _maps(lengths, attributes.keys.filter(kept), attributes.items.filter(kept))
    )


def _is_text(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        return _is_bytes(kind.value_type)
    return (
        _is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )  # fmt: skip


def _is_attributes(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return _is_text(kind.key_type) and _is_text(kind.item_type)
    return types.is_null(kind) or (types.is_struct(kind) and all(_is_text(field.type) for field in kind))


_TYPES = {"data": _is_bytes, "attributes": _is_attributes, "ordering_key": _is_text}
_EXPECTED = {
    "data": "binary or text", "attributes": "a map of text to text, or a struct of texts", "ordering_key": "text",
}  # fmt: skip


def _to_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    data, key = _filled(batch, "data", pa.binary(), b""), _filled(batch, "ordering_key", pa.string(), "")
    return pa.RecordBatch.from_arrays([data, _attributes(batch), key], schema=MESSAGES)


def _filled(batch: pa.RecordBatch, name: str, kind: pa.DataType, missing: bytes | str) -> pa.Array:
    """Return a column with a value in each row."""
    if batch.schema.get_field_index(name) < 0:
        return pa.repeat(pa.scalar(missing, kind), batch.num_rows)
    column = batch.column(name)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return pc.fill_null(column.cast(kind), pa.scalar(missing, kind))


def _attributes(batch: pa.RecordBatch) -> pa.Array:
    """Return the attributes as maps, an empty one where a row has none."""
    column = batch.column("attributes") if batch.schema.get_field_index("attributes") >= 0 else None
    if column is None or types.is_null(column.type):
        lengths = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
        return _maps(lengths, pa.array([], pa.string()), pa.array([], pa.string()))
    if types.is_struct(column.type):
        return _of_struct(column)
    entries = column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))
    lengths = pc.fill_null(pc.list_value_length(entries), 0)
    keys, values = entries.flatten().flatten()
    return _maps(lengths, _texts(keys), pc.fill_null(_texts(values), ""))


def _of_struct(column: pa.Array) -> pa.Array:
    """Return the fields of structs as maps: a field that is null is no attribute."""
    lengths, rows = pa.repeat(pa.scalar(0, pa.int32()), len(column)), pa.array([], pa.uint64())
    keys = values = pa.array([], pa.string())
    for field, value in zip(column.type, column.flatten(), strict=True):
        there = pc.is_valid(value)
        lengths = pc.add(lengths, there.cast(pa.int32()))
        rows = pa.concat_arrays([rows, pc.indices_nonzero(there)])
        values = pa.concat_arrays([values, _texts(value.filter(there))])
        keys = pa.concat_arrays([keys, pa.repeat(pa.scalar(field.name), len(values) - len(keys))])
    order = pc.sort_indices(rows)
    return _maps(lengths, keys.take(order), values.take(order))


def _texts(column: pa.Array) -> pa.Array:
    return (column.dictionary_decode() if types.is_dictionary(column.type) else column).cast(pa.string())


def _maps(lengths: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.MapArray.from_arrays(offsets, keys, values)


# --- what Pub/Sub refuses for good ------------------------------------------------------------


def _check(messages: pa.RecordBatch, path: str, first: int, more_attributes: int) -> None:
    """Reject a message that can never be published, with its row: in a request it would fail all others, too."""
    for rows, reason in _faults(messages, more_attributes):
        row = pc.index(rows, True).as_py()
        raise InvalidRequest(f"{path}: row {first + row:,} of this put can't be published: {reason(row)}")


def _faults(messages: pa.RecordBatch, more_attributes: int) -> Iterator[_Fault]:
    """Yield the faults that some rows have."""
    data, attributes, key = messages.columns
    names, values = attributes.keys, attributes.items
    starts, ends = attributes.offsets[:-1], attributes.offsets[1:]
    counts = pc.subtract(ends, starts)
    data_sizes, key_sizes, name_sizes, value_sizes = map(pc.binary_length, (data, key, names, values))
    of_entries = pc.add(name_sizes, value_sizes).cast(pa.int64())
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(of_entries)])
    entries_sizes = pc.add(pc.subtract(sums.take(ends), sums.take(starts)), pc.multiply(counts, _FIELD))
    sizes = pc.add(pc.add(data_sizes.cast(pa.int64()), key_sizes), entries_sizes)
    most = MOST_ATTRIBUTES - more_attributes

    of_rows: list[_Fault] = [
        (
            pc.and_(pc.equal(data_sizes, 0), pc.equal(counts, 0)),
            lambda _: "it has neither data nor attributes, and Pub/Sub takes no empty message",
        ),
        (
            pc.greater(key_sizes, ORDERING_KEY_BYTES),
            lambda row: f"its ordering_key has {key_sizes[row]} bytes, Pub/Sub takes {ORDERING_KEY_BYTES:,}",
        ),
        (
            pc.greater(counts, most),
            lambda row: (
                f"it has {counts[row]} attributes, Pub/Sub takes {most} besides penstock's own {more_attributes}"
            ),
        ),
        (
            pc.greater(sizes, REQUEST_BYTES - _ENVELOPE),
            lambda row: (
                f"it has {sizes[row].as_py():,} bytes, Pub/Sub takes a request of 10 MB: store it elsewhere, and "
                "publish its name"
            ),
        ),
    ]
    of_attributes: list[_Fault] = [
        (pc.equal(name_sizes, 0), lambda _: "an attribute has no name"),
        (
            pc.greater(name_sizes, ATTRIBUTE_KEY_BYTES),
            lambda each: f"an attribute's name has {name_sizes[each]} bytes, Pub/Sub takes {ATTRIBUTE_KEY_BYTES}",
        ),
        (
            pc.greater(value_sizes, ATTRIBUTE_VALUE_BYTES),
            lambda each: (
                f"the attribute {names[each]} has {value_sizes[each]} bytes, Pub/Sub takes {ATTRIBUTE_VALUE_BYTES:,}"
            ),
        ),
        (
            pc.starts_with(names, _GOOGLES),
            lambda each: f"the attribute {names[each]} begins with {_GOOGLES!r}, which is Google's own: rename it",
        ),
    ]
    yield from ((wrong, reason) for wrong, reason in of_rows if pc.any(wrong).as_py())
    for wrong, reason in of_attributes:
        if pc.any(wrong).as_py():
            sums = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(wrong.cast(pa.int32()))])
            rows = pc.greater(sums.take(ends), sums.take(starts))
            yield rows, partial(_reason_of_first, starts, wrong, reason)


def _reason_of_first(starts: pa.Array, wrong: pa.Array, reason: Callable[[int], str], row: int) -> str:
    """Return the reason of the first wrong attribute of a row, whose first attribute is at `starts`."""
    start = starts[row].as_py()
    return reason(start + pc.index(wrong.slice(start), True).as_py())
