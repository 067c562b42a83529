"""Rows as JSON: each an object, made column by column, with the values as `decode="json"` reads them back."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.errors import SchemaMismatch
from penstock.rows import slices

_KEPT = ("attributes", "ordering_key")
"""Columns that are the message's own."""
_GIVEN = ("message_id", "publish_time", "delivery_attempt", "_shard", "_offset", "_time", "_error", "_rest")
"""Columns that a reader fills by itself, so that they can't be read back from a payload."""
_ESCAPED = {"\\": "\\\\", '"': '\\"', **{chr(code): json.dumps(chr(code))[1:-1] for code in range(32)}}


@dataclass(frozen=True, slots=True)
class JsonEncoding:
    """Makes an object of all columns of a row but attributes and ordering_key; it travels to Spark's tasks."""

    path: str
    """Where the rows are put, for errors."""

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of encoded rows; reject columns that JSON has no values for."""
        for field in schema:
            if field.name in _GIVEN:
                raise SchemaMismatch(
                    f"{self.path}: a reader fills the column {field.name!r} by itself, so it can't be a part of the "
                    "payload: rename it, or drop it"
                )
            if schema.names.count(field.name) > 1:
                raise SchemaMismatch(f"{self.path}: two columns are called {field.name!r}: rename one of them")
            if field.name not in _KEPT:
                _check(field.type, field.name, self.path)
        if {*schema.names} <= {*_KEPT}:
            names = ", ".join(schema.names)
            raise SchemaMismatch(f"{self.path}: the rows have no column that could be encoded, only {names}")
        return pa.schema([pa.field("data", pa.binary()), *(field for field in schema if field.name in _KEPT)])

    def batches(self, rows: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield rows in the schema of encoded ones."""
        for each in rows:
            for batch in [each] if isinstance(each, pa.RecordBatch) else each.to_batches():
                for piece in slices.sliced(batch):
                    names = [name for name in piece.schema.names if name not in _KEPT]
                    data = _object(names, [piece.column(name) for name in names], piece.num_rows).cast(pa.binary())
                    kept = [piece.column(field.name).cast(field.type) for field in schema if field.name != "data"]
                    yield pa.RecordBatch.from_arrays([data, *kept], schema=schema)


def _check(kind: pa.DataType, name: str, path: str) -> None:
    """Reject a type that no JSON value stands for."""
    if types.is_map(kind) and not _is_text(kind.key_type):
        raise SchemaMismatch(f"{path}: the column {name!r} has a map with keys of {kind.key_type}: expected text")
    if types.is_dictionary(kind):
        _check(kind.value_type, name, path)
    elif types.is_nested(kind) and not types.is_union(kind):
        for number in range(kind.num_fields):
            _check(kind.field(number).type, name, path)
    elif not (_is_text(kind) or _is_bytes(kind) or _is_plain(kind)):
        raise SchemaMismatch(f"{path}: the column {name!r} is {kind}, which JSON has no value for: cast it to text")


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _is_plain(kind: pa.DataType) -> bool:
    return (
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
        or types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_null(kind)
    )  # fmt: skip


def _object(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return an object for each row."""
    pieces: list[pa.Array | pa.Scalar] = []
    for name, column in zip(names, columns, strict=True):
        pieces += [pa.scalar(f"{',' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}:"), _texts(column)]
    if not pieces:
        return pa.repeat(pa.scalar("{}"), rows)
    return _joined(*pieces, pa.scalar("}"), null_handling="replace", null_replacement="null")


def _joined(*pieces: pa.Array | pa.Scalar, **how: Any) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, pa.scalar(""), **how)


def _texts(column: pa.Array) -> pa.Array:
    """Return each value as JSON; null for null."""
    kind = column.type
    if types.is_dictionary(kind):
        return _texts(column.dictionary_decode())
    if types.is_struct(kind):
        text = _object([field.name for field in kind], column.flatten(), len(column))
        return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))
    if types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        return _list(column, "{", "}")
    if types.is_nested(kind):
        return _list(column, "[", "]")
    return _scalars(column)


def _list(column: pa.Array, begin: str, end: str) -> pa.Array:
    """Return arrays, or objects of keys and values."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    elements = column.flatten()
    if begin == "{":
        keys, values = elements.flatten()
        texts = _joined(_texts(keys), pa.scalar(":"), pc.fill_null(_texts(values), "null"))
    else:
        texts = pc.fill_null(_texts(elements), "null")
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    text = _joined(pa.scalar(begin), pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ","), pa.scalar(end))
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _scalars(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is_text(kind):
        return _quoted(_escaped(column.cast(pa.string())))
    if _is_bytes(kind):  # row by row: Arrow has no base64
        return _quoted(pa.array([value and b64encode(value).decode() for value in column.to_pylist()], pa.string()))
    if types.is_timestamp(kind):
        utc = column if kind.tz is None else column.cast(pa.timestamp(kind.unit, "UTC"))
        return _quoted(pc.replace_substring(utc.cast(pa.string()), " ", "T", max_replacements=1))
    if types.is_date(kind):
        return _quoted(column.cast(pa.date32()).cast(pa.string()))
    if types.is_time(kind):
        return _quoted(column.cast(pa.string()))
    if types.is_floating(kind):
        return _numbers(column.cast(pa.float32()) if types.is_float16(kind) else column)
    return column.cast(pa.string())


def _numbers(column: pa.Array) -> pa.Array:
    """Return floats, and as text what is no number in JSON, as Spark and Java write it."""
    text = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return text
    text = pc.if_else(pc.is_nan(column), '"NaN"', text)
    infinite = pc.if_else(pc.greater(column, pa.scalar(0, column.type)), '"Infinity"', '"-Infinity"')
    return pc.if_else(pc.is_inf(column), infinite, text)


def _quoted(column: pa.Array) -> pa.Array:
    return _joined(pa.scalar('"'), column, pa.scalar('"'))


def _escaped(column: pa.Array) -> pa.Array:
    """Return text with its quotes, backslashes and control characters escaped; most has none."""
    if not pc.any(pc.match_substring_regex(column, r'[\x00-\x1f"\\]')).as_py():
        return column
    for character, escaped in _ESCAPED.items():
        if pc.any(pc.match_substring(column, character)).as_py():
            column = pc.replace_substring(column, character, escaped)
    return column
