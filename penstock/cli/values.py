"""Values of text and JSON as columns of a given type, exactly, or not at all."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

_TEXT = (pa.string(), pa.large_string(), pa.string_view())
_BROKEN = (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError)


class Unfit(Exception):
    """The value at this place isn't one of the type."""

    def __init__(self, at: int, value: object, why: str) -> None:
        super().__init__(why)
        self.at, self.value, self.why = at, value, why


class _Why(ValueError):
    """Words that help more than Arrow's."""


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """What json.loads(…, parse_float=Decimal) gave, as a column."""
    return _located(lambda some: _column(some, kind), values, kind)


def column_of_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """What a file of text says, as a column; what is nested is JSON."""
    if _is_nested(kind):
        return column_of(_located(_loaded, texts.to_pylist(), kind), kind)
    return _located(lambda some: _cast(some, kind), texts, kind)


def first_wrong(
    make: Callable[[Any], Any], values: Any, wrong: type[Exception] | tuple[type[Exception], ...]
) -> tuple[int, Exception | None]:
    """The first of the values that `make` makes nothing of, and what it says of it; all of them if it takes each."""
    good, bad, error = 0, len(values), None
    while good < bad:
        middle = (good + bad) // 2
        try:
            make(values[good : middle + 1])
            good = middle + 1
        except wrong as said:
            bad, error = middle, said
    return good, error


def _loaded(texts: Sequence[str | None]) -> list[Any]:
    return [None if text is None else json.loads(text, parse_float=Decimal) for text in texts]


def _located(make: Callable[[Any], Any], values: Any, kind: pa.DataType) -> Any:
    """What `make` makes of all of them; else which it makes nothing of."""
    try:
        return make(values)
    except _BROKEN as wrong:
        at, first = first_wrong(make, values, _BROKEN)
        at = min(at, len(values) - 1)  # each will do, but a dictionary has no room for all
        value = values[at]
        value = value.as_py() if isinstance(value, pa.Scalar) else value
        raise Unfit(at, value, _why(first or wrong, kind)) from wrong


def _why(wrong: Exception, kind: pa.DataType) -> str:
    said = str(wrong)
    if "expected a zone offset" in said:
        return "a time with its zone is needed, such as 2026-11-18T20:00:00Z"
    if "expected no zone offset" in said:
        return "a time without a zone is needed, such as 2026-11-18T20:00:00"
    if isinstance(wrong, pa.ArrowNotImplementedError):
        return f"text can't become {kind}: put an Arrow or Parquet file"
    return said if isinstance(wrong, _Why) else ""


# --- what isn't nested: by its text ---------------------------------------------------------


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if _is_nested(kind):
        return pa.array(_nested(values, kind), kind)
    told = kind.value_type if types.is_dictionary(kind) else kind
    return _cast(pa.array([_text(value, told) for value in values], pa.string()), kind)


def _text(value: Any, kind: pa.DataType) -> str | None:
    """A value of JSON as the text that `_cast` takes, if it can mean this type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) and (types.is_boolean(kind) or kind in _TEXT):
        return "true" if value else "false"
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or types.is_boolean(kind) or _is_bytes(kind):
        raise TypeError(value)
    if types.is_temporal(kind):
        raise _Why("a number tells no time without its unit: write it as text, 2026-11-18T20:00:00Z")
    if types.is_integer(kind):
        if value != int(value):
            raise _Why("it has a fraction")
        return str(int(value))
    return str(value)


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Text as the type. Arrow's cast refuses what would lose digits; what it can't do, or does badly, is done here."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)  # of whatever type
    if types.is_dictionary(kind):
        return _cast(texts, kind.value_type).dictionary_encode().cast(kind)
    if kind in _TEXT:
        return texts.cast(kind)
    if _is_bytes(kind):
        return pa.array([None if text is None else _bytes(text) for text in texts.to_pylist()], kind)
    texts = pc.utf8_trim_whitespace(texts)
    if types.is_time(kind):
        day = pc.binary_join_element_wise("1970-01-01T", texts, "")
        return day.cast(pa.timestamp(kind.unit)).cast(kind)
    if types.is_floating(kind):
        column = texts.cast(pa.float64()).cast(kind)
        said_so = pc.match_substring(pc.utf8_lower(texts), "inf")
        if pc.any(pc.and_not(pc.is_inf(column.cast(pa.float64())), said_so)).as_py():  # 1e400 isn't infinite
            raise _Why("too large")
        return column
    return texts.cast(kind)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as wrong:
        raise _Why("bytes are written in base64") from wrong


# --- what is nested: as what pa.array takes for the type --------------------------------------


def _nested(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    there = [value for value in values if value is not None]
    found = _structs(there, kind) if types.is_struct(kind) else _lists(there, kind)
    return [None if value is None else next(found) for value in values]


def _structs(rows: Sequence[Any], kind: pa.DataType) -> Iterator[dict[str, Any]]:
    columns = {field.name: _held([row.get(field.name) for row in rows], field) for field in kind}
    unknown = set().union(*(row.keys() for row in rows)) - columns.keys()
    if unknown:
        raise _Why(f"it has no field {min(unknown)[:80]!r}")
    return ({name: column[at] for name, column in columns.items()} for at in range(len(rows)))


def _lists(lists: Sequence[Any], kind: pa.DataType) -> Iterator[list[Any]]:
    if types.is_map(kind):
        lists = [[*value.items()] if isinstance(value, dict) else value for value in lists]
    if not all(isinstance(value, list) for value in lists):
        raise TypeError(lists)
    flat = [held for value in lists for held in value]
    if types.is_map(kind):
        keys, items = [key for key, _ in flat], [item for _, item in flat]
        flat = [*zip(_held(keys, kind.key_field), _held(items, kind.item_field), strict=True)]
    else:
        flat = _held(flat, kind.value_field)
    rest = iter(flat)
    return ([*islice(rest, len(value))] for value in lists)


def _held(values: list[Any], field: pa.Field) -> list[Any]:
    if not field.nullable and None in values:
        raise _Why(f"{field.name} is never null")
    if _is_nested(field.type):
        return _nested(values, field.type)
    column = _column(values, field.type)
    exact = types.is_temporal(field.type)  # a time as its number
    return [scalar.value for scalar in column] if exact else column.to_pylist()


def _is_nested(kind: pa.DataType) -> bool:
    return types.is_nested(kind) and not types.is_dictionary(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or types.is_fixed_size_binary(kind)
