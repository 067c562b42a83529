"""The shard of each row of a topic: rows with equal keys share one and keep their order, those without one spread."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidRequest
from penstock.queue.topics.topic import Layout

RUN_ROWS = 8_192
"""Rows without a key that go to one shard before the next one gets some."""
_INTERVAL = pa.month_day_nano_interval()
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def check_key(path: str, schema: pa.Schema, key: str) -> None:
    """Reject a key that two equal rows could have in two forms."""
    if schema.get_field_index(key) < 0:
        raise InvalidRequest(
            f"{path} has no column {key[:80]!r} to be its key: expected one of {', '.join(schema.names)}"
        )
    kind = schema.field(key).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    short = pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind)  # which Arrow doesn't encode
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind) or kind == _INTERVAL or short:
        raise InvalidRequest(f"{path}: a key is a number without fraction, text, bytes, a date or a time, not {kind}")


def sharded(
    parts: Iterable[list[pa.RecordBatch]], topic: Layout | None, spread: int
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Part a put's batches by shard. Without a key each part goes to the next shard: cut, parts would be small."""
    for number, batches in enumerate(parts):
        if topic is not None and topic.key is None:
            yield (spread + number) % topic.shards, batches
        else:
            yield from split(batches, topic, spread + number)[0].items()


def split(
    batches: list[pa.RecordBatch], topic: Layout | None, spread: int, unkeyed: str | None = None
) -> tuple[dict[int, list[pa.RecordBatch]], pa.Int32Array | None]:
    """Return the rows by shard, and the shard of each row where there is more than one.

    Rows without a key are cut into runs, the first one for the shard that `spread` says: in a topic without a key into
    as many as have RUN_ROWS rows, as each is a file; in one with a key, where rows are parted anyway, into one for each
    shard. Those whose key is `unkeyed` all go to the first shard: many appends have such rows.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if topic is None or topic.shards == 1:
        return ({0: filled} if filled else {}), None
    rows = sum(batch.num_rows for batch in filled)
    if topic.key is None:
        runs = _runs(rows, min(topic.shards, max(1, rows // RUN_ROWS)), topic.shards, spread)
        by_shard = _cut(filled, runs)
        return by_shard, _shard_of_runs(runs) if len(by_shard) > 1 else None
    by_shard = {}
    shards_of_rows: list[pa.Int32Array] = []
    for batch in filled:
        shard_of_row = _shard_of_row(batch, topic.key, topic.shards)
        if unkeyed is not None:
            has_no_key = pc.equal(batch.column(topic.key), unkeyed)
            shard_of_row = pc.if_else(has_no_key, pa.scalar(spread % topic.shards, pa.int32()), shard_of_row)
        if shard_of_row.null_count:
            before = sum(map(len, shards_of_rows))
            runs = _runs(rows, topic.shards, topic.shards, spread)
            shard_of_row = pc.coalesce(shard_of_row, _shard_of_runs(runs).slice(before, batch.num_rows))
        shards_of_rows.append(shard_of_row)
        present = sorted(pc.unique(shard_of_row).to_pylist())
        for shard in present:
            rows_of_shard = batch if len(present) == 1 else _filtered(batch, pc.equal(shard_of_row, shard))
            by_shard.setdefault(shard, []).append(rows_of_shard)
    return by_shard, pa.concat_arrays(shards_of_rows) if len(by_shard) > 1 else None


_Runs = Sequence[tuple[int, int]]
"""The shard of each run of rows, and the row behind the run."""


def _runs(rows: int, number: int, shards: int, spread: int) -> _Runs:
    """Return so many runs of about as many rows each, in one shard after the other."""
    return [((spread + turn) % shards, rows * (turn + 1) // number) for turn in range(number)]


def _cut(batches: list[pa.RecordBatch], runs: _Runs) -> dict[int, list[pa.RecordBatch]]:
    """Return the rows of each run, without a copy."""
    by_shard: dict[int, list[pa.RecordBatch]] = {}
    ends = [end for _, end in runs]
    before = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            shard, end = runs[bisect_right(ends, before + start)]
            piece = batch.slice(start, end - before - start)
            by_shard.setdefault(shard, []).append(piece)
            start += piece.num_rows
        before += batch.num_rows
    return by_shard


def _shard_of_runs(runs: _Runs) -> pa.Int32Array:
    """Return the shard of each row of all runs."""
    begins = [0, *(end for _, end in runs)]
    arrays = (
        pa.repeat(pa.scalar(shard, pa.int32()), end - begin) for begin, (shard, end) in zip(begins, runs, strict=False)
    )
    return pa.concat_arrays(arrays)


def _shard_of_row(batch: pa.RecordBatch, key: str, shards: int) -> pa.Int32Array:
    """Return the shard of each row; null where it has no key."""
    if batch.schema.get_field_index(key) < 0:  # a column that may be missing reads as null
        return pa.nulls(batch.num_rows, pa.int32())
    column: Any = batch.column(key)
    if pa.types.is_nested(column.type):
        raise InvalidRequest(f"the column {key} is the topic's key, which is no {column.type}")
    if not pa.types.is_dictionary(column.type):
        column = _plain(column).dictionary_encode()
    values = _plain(column.dictionary).to_pylist()
    shard_of_value = [_shard_of(value, shards) for value in values]  # each value once, not each row
    return pa.array(shard_of_value, pa.int32()).take(column.indices)


def _plain(column: Any) -> Any:
    """Return the same values in a type that Arrow encodes, and that Python prints alike with pandas or without."""
    kind = column.type
    if kind in _VIEWS:
        return column.cast(_VIEWS[kind])
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column


def _filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Return the rows of a mask; Arrow filters no views."""
    try:
        if not any(field.type in _VIEWS for field in batch.schema):
            return batch.filter(mask)
        plain = pa.RecordBatch.from_arrays(
            [column.cast(_VIEWS.get(column.type, column.type)) for column in batch.columns], batch.schema.names
        ).filter(mask)
        columns = [column.cast(field.type) for column, field in zip(plain.columns, batch.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    except pa.ArrowNotImplementedError as missing:
        raise InvalidRequest(f"Arrow can't part rows with such columns by their key: {str(missing)[:200]}") from missing


def _shard_of(value: object, shards: int) -> int | None:
    if value is None:
        return None
    return zlib.crc32(value if isinstance(value, bytes) else str(value).encode()) % shards
