"""Schemas: as JSON on the wire, and what may be added to a dataset that has one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.wire.actions import SchemaJson
from penstock.wire.paths import is_topic

MAX_DEPTH = 63
"""Types within types: with one more, Arrow's IPC neither writes nor reads a batch."""


def to_json(schema: pa.Schema) -> SchemaJson:
    """A list of {name, type, nullable} with Arrow's type strings."""
    return tuple({"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema)


def from_json(columns: Sequence[dict[str, Any]]) -> pa.Schema:
    """The schema of such a list; a type that isn't known is refused by name."""
    return pa.schema([_field(column) for column in columns])


def check_names(schema: pa.Schema) -> None:
    """Columns are asked for by name, so a name stands for one column."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1}) if _has_twins(schema) else []
    if twice:
        raise InvalidRequest(f"the column {twice[0]!r} is there more than once: rename one of them")


def merge(held: pa.Schema, new: pa.Schema, path: str) -> pa.Schema:
    """The schema of a dataset after rows of schema `new` are added to it.

    Columns keep their names, types and order; nullable columns may be added at the end, and
    a column that was never null may become nullable. Anything else is refused with the difference.
    """
    if held.equals(new):
        return held
    differences = _differences(held, new)
    if differences:
        cure = "choose another topic" if is_topic(path) else "replace it with mode 'overwrite'"
        raise SchemaMismatch(f"{path} has another schema: {'; '.join(differences)}. Cast the rows, or {cure}")
    both = [field.with_nullable(field.nullable or other.nullable) for field, other in zip(held, new, strict=False)]
    return pa.schema([*both, *list(new)[len(held) :]], metadata=held.metadata)


def grow(held: pa.Schema, new: pa.Schema, path: str) -> pa.Schema:
    """The schema of a topic after rows of schema `new` are appended: as `merge`, and nullable columns may be missing,
    as producers learn of a new column one after another. They read as null.
    """
    if held.equals(new):
        return held
    missing = {field.name for field in held if field.nullable and new.get_field_index(field.name) < 0}
    if not missing:
        return merge(held, new, path)
    common = pa.schema([field for field in held if field.name not in missing], metadata=held.metadata)
    merged = merge(common, new, path)
    both = [field if field.name in missing else merged.field(field.name) for field in held]
    return pa.schema([*both, *list(merged)[len(common) :]], metadata=held.metadata)


def _differences(held: pa.Schema, new: pa.Schema) -> list[str]:
    gone = [f"lacks {field.name} {field.type}" for field in held if new.get_field_index(field.name) < 0]
    retyped = [
        f"{field.name} is {field.type}, got {new.field(field.name).type}"
        for field in held
        if new.get_field_index(field.name) >= 0 and not new.field(field.name).type.equals(field.type)
    ]
    added = [field for field in new if held.get_field_index(field.name) < 0]
    required = [
        f"adds {field.name} {field.type} not null (an added column must be nullable)"
        for field in added
        if not field.nullable
    ]
    if gone or retyped or required:
        return gone + retyped + required
    if new.names[: len(held)] != held.names:
        return [f"its columns stand in the order {', '.join(held.names)}, got {', '.join(new.names)}"]
    return []


def _has_twins(schema: pa.Schema) -> bool:
    return len(set(schema.names)) < len(schema.names)


# --- type strings --------------------------------------------------------------------------

_SIMPLE: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view(),
        pa.binary(), pa.large_binary(), pa.binary_view(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"),
        pa.time64("us"), pa.time64("ns"), pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns"),
        pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"), pa.month_day_nano_interval(),
    )
}  # fmt: skip
_DECIMALS = {
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}
_LISTS = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}


def _field(column: dict[str, Any]) -> pa.Field:
    name, kind, nullable = column.get("name"), column.get("type"), column.get("nullable", True)
    if not (isinstance(name, str) and isinstance(kind, str) and isinstance(nullable, bool)) or set(column) - {
        "name",
        "type",
        "nullable",
    }:
        raise InvalidRequest(f"a column of a schema is {{name, type, nullable}}, got {str(column)[:120]}")
    try:
        return pa.field(name, parse_type(kind), nullable)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as wrong:  # its pieces don't fit each other
        raise InvalidRequest(f"column {name[:80]!r} can't be {kind[:120]!r}: {str(wrong)[:120]}") from wrong


def parse_type(text: str, depth: int = 0) -> pa.DataType:
    """The type that str() of it gave: int64, decimal128(10, 2), list<item: string>, …"""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"a type is nested more than {MAX_DEPTH} deep")
    if text in _SIMPLE:
        return _SIMPLE[text]
    if found := re.fullmatch(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]", text):
        return pa.timestamp(found[1], tz=found[2])
    if found := re.fullmatch(r"(decimal\d+)\((\d{1,9}), (-?\d{1,9})\)", text):
        return _decimal(found[1], int(found[2]), int(found[3]), text)
    if found := re.fullmatch(r"fixed_size_binary\[(\d{1,9})\]", text):
        return pa.binary(int(found[1]))
    if found := re.fullmatch(r"(\w+)<(.*)>(?:\[(\d{1,9})\])?", text, re.DOTALL):
        return _nested(found[1], found[2], found[3], depth + 1, text)
    raise _unknown(text)


def _decimal(name: str, precision: int, scale: int, text: str) -> pa.DataType:
    try:
        return _DECIMALS[name](precision, scale)
    except (KeyError, ValueError, OverflowError) as wrong:
        raise _unknown(text) from wrong


def _nested(outer: str, inner: str, size: str | None, depth: int, text: str) -> pa.DataType:
    if outer == "struct":
        return pa.struct([_named(piece, depth) for piece in _pieces(inner)])
    if outer in _LISTS and size is None:
        return _LISTS[outer](_named(inner, depth))
    if outer == "fixed_size_list" and size is not None:
        return pa.list_(_named(inner, depth), int(size))
    if outer == "map" and (two := _pieces(inner))[2:] in ([], ["keys_sorted"]) and len(two) >= 2:
        return pa.map_(parse_type(two[0], depth), _map_value(two[1], depth), keys_sorted=len(two) == 3)
    if outer == "dictionary" and (found := re.fullmatch(r"values=(.*), indices=(u?int\d+), ordered=([01])", inner)):
        return pa.dictionary(parse_type(found[2], depth), parse_type(found[1], depth), found[3] == "1")
    raise _unknown(text)


def _map_value(text: str, depth: int) -> pa.Field:
    """A map's value as Arrow prints it: `int64`, or `int64 ('name')` where the field has a name of its own."""
    found = re.fullmatch(r"(.*) \('(.*)'\)", text, re.DOTALL) if text.endswith("')") else None  # else quadratic
    return pa.field(found[2], parse_type(found[1], depth)) if found else pa.field("value", parse_type(text, depth))


def _named(text: str, depth: int) -> pa.Field:
    name, colon, kind = text.partition(": ")
    if not colon:
        raise _unknown(text)
    nullable = not kind.endswith(" not null")
    return pa.field(name, parse_type(kind.removesuffix(" not null"), depth), nullable)


def _pieces(text: str) -> list[str]:
    """The text cut at the commas that stand outside of all brackets."""
    pieces, level, start = [], 0, 0
    for at, sign in enumerate(text):
        level += (sign in "<([") - (sign in ">)]")
        if sign == "," and level == 0:
            pieces.append(text[start:at].strip())
            start = at + 1
    return [*pieces, text[start:].strip()] if text.strip() else []


def _unknown(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"unknown type {text[:120]!r}: expected Arrow's name of one: int64, timestamp[us, tz=UTC], list<item: int8>, …"
    )
