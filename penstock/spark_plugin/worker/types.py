"""The Arrow types that are stored of a frame, and read into one. At the driver `spark_types` adds Spark's names."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.errors import InvalidRequest

SPARK_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "BooleanType", pa.int8(): "ByteType", pa.int16(): "ShortType", pa.int32(): "IntegerType",
    pa.int64(): "LongType", pa.float32(): "FloatType", pa.float64(): "DoubleType", pa.string(): "StringType",
    pa.binary(): "BinaryType", pa.date32(): "DateType", pa.timestamp("us", "UTC"): "TimestampType",
    pa.timestamp("us"): "TimestampNTZType", pa.time64("ns"): "TimeType", pa.duration("us"): "DayTimeIntervalType",
    pa.null(): "NullType",
}  # fmt: skip
"""The Arrow types that are one of Spark's."""
_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
    **dict.fromkeys((pa.time32("s"), pa.time32("ms"), pa.time64("us")), pa.time64("ns")),
    **dict.fromkeys((pa.duration("s"), pa.duration("ms"), pa.duration("ns")), pa.duration("us")),
}  # fmt: skip
"""Types that other clients store and Spark rejects -> the next type of Spark's that holds every value of them."""
_MARKERS = (b"variant", b"geometry", b"geography", b"srid")
"""Spark recognizes some of its types by this metadata of a struct's field; all other metadata is dropped."""


def widen_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in types that Spark has: the one that is stored of Spark's batches, and that Spark reads.

    The same for all sessions: their time zone, their large types and a column's comment are dropped. Names, order and
    nullability stay. No value changes, but that nanoseconds are rounded down to Spark's microseconds; a type that none
    of Spark's can hold is rejected by the column's name.
    """
    return pa.schema([_widen_field(field, field.name) for field in schema])


def _widen_field(field: pa.Field, path: str) -> pa.Field:
    kind = field.type
    while isinstance(kind, pa.BaseExtensionType | pa.DictionaryType):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    kind = _widen_nested(kind, path) if pa.types.is_nested(kind) else _widen(kind, path)
    return make_field(field.name, kind, field.nullable, field.metadata)


def _widen(kind: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        whole, scale = max(kind.precision - kind.scale, 0), max(kind.scale, 0)  # Spark has 0 <= scale <= precision
        if whole + scale <= 38:
            return pa.decimal128(whole + scale, scale)
    if kind not in _WIDER and kind not in SPARK_NAMES:
        raise unreadable(kind, path)
    return _WIDER.get(kind, kind)


def _widen_nested(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the nested type with its fields widened; every kind of list becomes Spark's list."""
    if pa.types.is_struct(kind):
        check_names_differ([field.name for field in kind], path)
        return pa.struct([_widen_field(field, f"{path}.{field.name}") for field in kind])
    if pa.types.is_map(kind):
        return make_map(
            _widen_field(kind.key_field, f"{path}.key"), _widen_field(kind.item_field, f"{path}.value"), path
        )
    if hasattr(kind, "value_field"):
        return pa.list_(_widen_field(kind.value_field, f"{path}[]").with_name("element"))
    raise unreadable(kind, path)  # unions


def make_map(key: pa.Field, value: pa.Field, path: str) -> pa.MapType:
    """Return a map type. Arrow has no keys that are null, which Spark's `map()` without a cast has."""
    if pa.types.is_null(key.type):
        raise InvalidRequest(f"column {path} is a map without a type of key: cast(`{path}` as map<string,string>)")
    return pa.map_(key.with_name("key"), value.with_name("value"))


def make_field(name: str, kind: pa.DataType, nullable: bool, metadata: Mapping[bytes, bytes] | None = None) -> pa.Field:
    """Return a field with the metadata that Spark needs. Arrow's null type is always nullable."""
    markers = {key: value for key, value in (metadata or {}).items() if key in _MARKERS}
    return pa.field(name, kind, nullable or kind == pa.null(), markers or None)


def check_names_differ(names: list[str], path: str) -> None:
    """Reject a name that columns, or the fields of the struct at `path`, have more than once."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise InvalidRequest(
            f"column {path} has the field {twice[0]!r} more than once, which Spark rejects: rename one of them"
            if path
            else f"there is more than one column {twice[0]!r}: rename one of them"
        )


def unreadable(kind: pa.DataType, path: str, or_else: str = "") -> InvalidRequest:
    """Return the error for a column of a type that Spark doesn't have."""
    return InvalidRequest(
        f"column {path} is {kind}, which Spark has no type for: read with columns= that leave it out, "
        f"or cast it when it is written{or_else}"
    )
