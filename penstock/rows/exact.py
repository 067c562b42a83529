"""Values of JSON and of text as a column of a given type: exactly, or not at all."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

_TEXT = (pa.string(), pa.large_string(), pa.string_view())
_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
_ERRORS = (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError)


class Misfit(Exception):
    """A value that isn't one of the type: its row, the value, and why, where that isn't plain."""

    def __init__(self, row: int, value: object, why: str) -> None:
        super().__init__(why)
        self.row, self.value, self.why = row, value, why


class _Reason(ValueError):
    """An error whose text explains a misfit to people."""


def column_of(values: Any, kind: pa.DataType) -> pa.Array:
    """Convert a list of JSON values (fractions as `Decimal`), or an array of text (nested values as JSON).

    Raises `Misfit` for the first value that would lose something.
    """
    is_text, is_nested = isinstance(values, pa.Array), types.is_nested(kind) and not types.is_dictionary(kind)
    if is_text and values.type.equals(kind):
        return values
    if is_text and types.is_timestamp(values.type):  # of CSV, whose reader finds a unit by the first rows
        return values.cast(kind)
    try:
        if not is_nested:
            return cast_text(
                values if is_text else pa.array([_text(value, kind) for value in values], pa.string()), kind
            )
    except _ERRORS:  # one by one they tell which
        pass
    converted = []
    for row, value in enumerate(values.to_pylist() if is_text else values):
        try:
            parsed = json.loads(value, parse_float=Decimal) if is_text and is_nested and value is not None else value
            converted.append(_convert(parsed, kind))
        except _ERRORS as error:
            raise Misfit(row, value, explain(error, kind)) from error
    column = pa.array(converted, kind)
    if not column.type.equals(kind):  # Arrow gives a dictionary longer indices where it has no room for all values
        raise Misfit(len(converted) - 1, converted[-1], "")
    return column


def time_type(column: pa.Array) -> pa.DataType:
    """Return the type of a column's times, which may be text in ISO 8601; the column's own type if it has others.

    Times with a zone are UTC, times without one have none; text that mixes both stays text. The unit is Spark's
    microseconds whatever the first rows have, as later ones may have fractions of a second.
    """
    values, kind = column.drop_null(), column.type
    if len(values) == 0 or not (types.is_timestamp(kind) or kind == pa.string()):
        return kind
    zones = (kind.tz,) if types.is_timestamp(kind) else ("UTC", None)
    for time in (pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in zones):
        try:
            values.cast(time)
        except pa.ArrowException:
            continue
        return time
    return kind


def explain(error: Exception, kind: pa.DataType) -> str:
    """Return why a value isn't one of a type, if that isn't plain."""
    if "expected a zone offset" in str(error):
        return "a time with its zone is needed, such as 2026-11-18T20:00:00Z"
    if "expected no zone offset" in str(error):
        return "a time without a zone is needed, such as 2026-11-18T20:00:00"
    if isinstance(error, pa.ArrowNotImplementedError):
        return f"text can't become {kind}: put an Arrow or Parquet file"
    return str(error) if isinstance(error, _Reason) else ""


def _convert(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as what `pa.array` takes for the type."""
    if value is None:
        return None
    if types.is_struct(kind):
        if unknown := value.keys() - {field.name for field in kind}:
            raise _Reason(f"it has no field {min(unknown)[:80]!r}")
        return {field.name: _child(value.get(field.name), field) for field in kind}
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_child(key, kind.key_field), _child(item, kind.item_field)) for key, item in pairs]
    if types.is_nested(kind) and not types.is_dictionary(kind):
        if not isinstance(value, list):
            raise TypeError(value)
        return [_child(child, kind.value_field) for child in value]
    scalar = cast_text(pa.array([_text(value, kind)], pa.string()), kind)[0]
    return scalar.value if types.is_temporal(kind) else scalar.as_py()  # Python's times would be rounded


def _child(value: Any, field: pa.Field) -> Any:
    if value is None and not field.nullable:
        raise _Reason(f"{field.name} is never null")
    return _convert(value, field.type)


def _text(value: Any, kind: pa.DataType) -> str | None:
    """Return a value of JSON as text for `cast_text`, if it can mean this type."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) and (types.is_boolean(kind) or kind in _TEXT):
        return "true" if value else "false"
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or types.is_boolean(kind) or _is_binary(kind):
        raise TypeError(value)
    if types.is_temporal(kind):
        raise _Reason("a number tells no time without its unit: write it as text, 2026-11-18T20:00:00Z")
    if types.is_integer(kind) and value != int(value):
        raise _Reason("it has a fraction")
    return str(int(value) if types.is_integer(kind) else value)


def cast_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text. Arrow's cast refuses what would lose digits; what it lacks, or does badly, is done here."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)  # of any type
    if types.is_dictionary(kind):
        return cast_text(texts, kind.value_type).dictionary_encode().cast(kind)
    if kind in _TEXT:
        return texts.cast(kind)
    if _is_binary(kind):
        return pa.array([None if text is None else _decode(text) for text in texts.to_pylist()], kind)
    texts = pc.utf8_trim_whitespace(texts)
    if types.is_time(kind):
        moments = pc.binary_join_element_wise("1970-01-01T", texts, "")
        return moments.cast(pa.timestamp(kind.unit)).cast(kind)
    if not types.is_floating(kind):
        return texts.cast(kind)
    column = texts.cast(pa.float64()).cast(kind)
    infinite = pc.match_substring(pc.utf8_lower(texts), "inf")
    if pc.any(pc.and_not(pc.is_inf(column.cast(pa.float64())), infinite)).as_py():  # 1e400 isn't infinite
        raise _Reason("too large")
    return column


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _Reason("bytes are written in base64") from error


def _is_binary(kind: pa.DataType) -> bool:
    return kind in _BINARY or types.is_fixed_size_binary(kind)
