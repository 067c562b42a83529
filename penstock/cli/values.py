"""Values of text and JSON as columns of a given type, exactly, or not at all."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

_ZONE = "a time with its zone is needed, such as 2026-11-18T20:00:00Z"
_NO_ZONE = "a time without a zone is needed, such as 2026-11-18T20:00:00"
_BROKEN = (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError, OverflowError)


class Unfit(Exception):
    """The value at this place isn't one of the type."""

    def __init__(self, at: int, value: object, why: str) -> None:
        super().__init__(why)
        self.at, self.value, self.why = at, value, why


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """What json.loads(…, parse_float=Decimal) gave, as a column."""
    texts = not _is_text(kind) and not _is_nested(kind) and all(v is None or isinstance(v, str) for v in values)
    if texts:
        return column_of_text(pa.array(values, pa.string()), kind)
    return _located(lambda some: _finite(pa.array([_value(v, kind) for v in some], kind)), values, kind)


def column_of_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """What a file of text says, as a column."""
    if _is_text(kind):
        return column.cast(kind)
    if _is_nested(kind):
        return column_of(_located(_loaded, column.to_pylist(), kind), kind)
    return _located(lambda some: _cast(pa.array(some, pa.string()), kind), column, kind)


def _located(make: Callable[[Any], Any], values: Any, kind: pa.DataType) -> Any:
    """What `make` makes of all of them; else the first that it makes nothing of is looked for."""
    try:
        return make(values)
    except _BROKEN as wrong:
        low, high = 0, len(values)
        while high - low > 1:  # the first is in low..high
            middle = (low + high) // 2
            try:
                make(values[low:middle])
                low = middle
            except _BROKEN:
                high = middle
        one = values[low]
        raise Unfit(low, one.as_py() if isinstance(one, pa.Scalar) else one, _why(wrong, kind)) from wrong


def _why(wrong: Exception, kind: pa.DataType) -> str:
    said = str(wrong)
    if "expected a zone offset" in said:
        return _ZONE
    if "expected no zone offset" in said:
        return _NO_ZONE
    if isinstance(wrong, pa.ArrowNotImplementedError):
        return f"text can't become {kind}: put an Arrow or Parquet file"
    return said if isinstance(wrong, _Why) else ""


class _Why(ValueError):
    """Words that help more than Arrow's."""


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Text to a type that isn't nested. Arrow's cast refuses what would lose digits; what it can't do is done here."""
    if types.is_dictionary(kind):
        return _cast(texts, kind.value_type).dictionary_encode().cast(kind)
    if _is_text(kind):
        return texts.cast(kind)
    if _is_bytes(kind):
        return pa.array([_value(text, kind) for text in texts.to_pylist()], kind)
    texts = pc.utf8_trim_whitespace(texts)
    if types.is_time(kind):
        day = pc.binary_join_element_wise("1970-01-01T", texts, "")
        return day.cast(pa.timestamp(kind.unit)).cast(kind)
    if types.is_decimal(kind):
        return pa.array([_value(text, kind) for text in texts.to_pylist()], kind)
    if types.is_floating(kind):
        said_so = pc.match_substring(pc.utf8_lower(texts), "inf")
        return _finite(texts.cast(pa.float64()).cast(kind), unless=said_so)
    return texts.cast(kind)


def _finite(column: pa.Array, unless: pa.Array | None = None) -> pa.Array:
    """The column; 1e400 isn't infinite."""
    if types.is_floating(column.type):
        infinite = pc.is_inf(column.cast(pa.float64()))
        if pc.any(infinite if unless is None else pc.and_not(infinite, unless)).as_py():
            raise _Why("too large")
    return column


# --- one value: what pa.array takes for this type -------------------------------------------


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if types.is_dictionary(kind):
        return _value(value, kind.value_type)
    if _is_nested(kind):
        return _nested(value, kind)
    if _is_text(kind):
        return _text(value)
    if types.is_boolean(kind) and isinstance(value, bool):
        return value
    if _is_bytes(kind) and isinstance(value, str):
        return _bytes(value)
    if isinstance(value, str) and not types.is_decimal(kind):
        return _raw(_cast(pa.array([value], pa.string()), kind)[0])
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise TypeError(value)
    return _number(value, kind)


def _number(value: int | Decimal | str, kind: pa.DataType) -> Any:
    if types.is_decimal(kind):
        return Decimal(value)
    if types.is_floating(kind):
        return float(value)
    if types.is_integer(kind):
        if value != int(value):
            raise _Why("it has a fraction")
        return int(value)
    if types.is_temporal(kind):
        raise _Why("a number tells no time without its unit: write it as text, 2026-11-18T20:00:00Z")
    raise TypeError(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | Decimal):
        return str(value)
    raise TypeError(value)


def _bytes(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as wrong:
        raise _Why("bytes are written in base64") from wrong


def _nested(value: Any, kind: pa.DataType) -> Any:
    if types.is_struct(kind):
        unknown = value.keys() - {field.name for field in kind}
        if unknown:
            raise _Why(f"it has no field {min(unknown)[:80]!r}")
        return {field.name: _needed(value.get(field.name), field) for field in kind}
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_value(key, kind.key_type), _value(held, kind.item_type)) for key, held in pairs]
    if not isinstance(value, list):
        raise TypeError(value)
    return [_needed(held, kind.value_field) for held in value]


def _needed(value: Any, field: pa.Field) -> Any:
    if value is None and not field.nullable:
        raise _Why(f"{field.name} is never null")
    return _value(value, field.type)


def _raw(scalar: Any) -> Any:
    """A scalar's value as pa.array takes it back without a loss: a time as its number."""
    return scalar.value if types.is_temporal(scalar.type) else scalar.as_py()


def _loaded(texts: Sequence[str | None]) -> list[Any]:
    return [None if text is None else json.loads(text, parse_float=Decimal) for text in texts]


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view()


def _is_bytes(kind: pa.DataType) -> bool:
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return binary or kind == pa.binary_view()


def _is_nested(kind: pa.DataType) -> bool:
    return types.is_nested(kind) and not types.is_dictionary(kind)
