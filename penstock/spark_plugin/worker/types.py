"""Spark's types and Arrow's: what is stored of a frame, and what Spark is told of a dataset.

A table of our own: pyspark's converters are internal, differ between versions, and lose what is nested. Workers
import this module with pyarrow alone, so pyspark is imported at the driver, inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_ARROW: dict[str, pa.DataType] = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "StringType": pa.string(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"),
    "TimestampNTZType": pa.timestamp("us"),
    "TimeType": pa.time64("ns"),
    "DayTimeIntervalType": pa.duration("us"),
    "NullType": pa.null(),
}
"""Spark's types that one word of Arrow's says, both ways."""
_SPARK: dict[pa.DataType, str] = {kind: name for name, kind in _ARROW.items()}
_MARKERS = (b"variant", b"geometry", b"geography", b"srid")
"""By this metadata of a struct's field Spark knows its own types again; all other metadata is only said once."""
_SINCE = {"TimeType": (4, 1), "VariantType": (4, 0), "GeometryType": (4, 2), "GeographyType": (4, 2)}
"""The Spark from which on Arrow carries the type."""

_CURES = {
    "YearMonthIntervalType": "store its months, cast({} as int)",
    "CalendarIntervalType": "store it as text, cast({} as string), or its parts by extract()",
    "UserDefinedType": "store its plain fields (for a vector: pyspark.ml.functions.vector_to_array)",
}

_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("ns"),
    pa.time32("ms"): pa.time64("ns"),
    pa.time64("us"): pa.time64("ns"),
    pa.duration("s"): pa.duration("us"),
    pa.duration("ms"): pa.duration("us"),
    pa.duration("ns"): pa.duration("us"),
}
"""What others store and Spark refuses, as the next type of Spark's that holds every value of it."""


# --- out: what is stored -------------------------------------------------------------------


def storable(schema: pa.Schema) -> pa.Schema:
    """What is stored of the schema in which Spark hands batches to a task.

    Not a session's matter: its time zone, its large types, a column's comment. Names, order and nullability stay.
    """
    return pa.schema([_widened(field, field.name) for field in schema])


def stored(struct: StructType) -> pa.Schema:
    """The same from a frame's own schema, which a write without rows has alone. What can't be stored is refused."""
    _refuse_twins(struct.names, "")
    return pa.schema([_field(one.name, _arrow(one.dataType, one.name), one.nullable) for one in struct])


def _arrow(kind: DataType, path: str) -> pa.DataType:
    """Arrow's type for Spark's. By the names of the classes, as no version of Spark has them all."""
    it: Any = kind
    match "UserDefinedType" if hasattr(kind, "sqlType") else type(kind).__name__:
        case "DecimalType":
            return pa.decimal128(it.precision, it.scale)
        case "CharType" | "VarcharType":
            return pa.string()
        case "ArrayType":
            return pa.list_(_field("element", _arrow(it.elementType, f"{path}[]"), it.containsNull))
        case "MapType":
            key, value = _arrow(it.keyType, f"{path}.key"), _arrow(it.valueType, f"{path}.value")
            return _map(_field("key", key, nullable=False), _field("value", value, it.valueContainsNull), path)
        case "StructType":
            _refuse_twins(it.names, path)
            return pa.struct([_field(f.name, _arrow(f.dataType, f"{path}.{f.name}"), f.nullable) for f in it])
        case "VariantType":
            return _marked(("value", pa.binary()), ("metadata", pa.binary()), {b"variant": b"true"})
        case "GeometryType" | "GeographyType" as name:
            marker = {name.removesuffix("Type").lower().encode(): b"true", b"srid": str(it.srid).encode()}
            return _marked(("srid", pa.int32()), ("wkb", pa.binary()), marker)
        case name if name in _ARROW:
            return _ARROW[name]
        case name:
            cure = _CURES.get(name, "cast it to one that Spark hands out, or leave the column out").format(f"`{path}`")
            raise InvalidRequest(f"column {path} is {kind.simpleString()}, which Spark doesn't hand out: {cure}")


def _marked(first: tuple[str, pa.DataType], second: tuple[str, pa.DataType], marker: dict[bytes, bytes]) -> pa.DataType:
    return pa.struct([pa.field(*first, nullable=False), pa.field(*second, nullable=False, metadata=marker)])


# --- in: what Spark is told ----------------------------------------------------------------


def readable(schema: pa.Schema) -> tuple[StructType, pa.Schema]:
    """What Spark is told of a dataset, and the Arrow schema in which it takes batches of that. Exact nullability.

    Types that Spark never had become the next wider one; what none of its types can hold is refused by the column's
    name. No value changes, but that nanoseconds are rounded down to Spark's microseconds.
    """
    from pyspark.sql.types import StructField, StructType

    _refuse_twins(schema.names, "")
    arrow = pa.schema([_widened(field, field.name) for field in schema])
    struct = StructType([StructField(one.name, _spark(one.type, one.name), one.nullable) for one in arrow])
    return struct, arrow


def _widened(field: pa.Field, path: str) -> pa.Field:
    kind = field.type
    while isinstance(kind, pa.BaseExtensionType | pa.DictionaryType):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    kind = _rebuilt(kind, path) if pa.types.is_nested(kind) else _wider(kind, path)
    return _field(field.name, kind, field.nullable, field.metadata)


def _wider(kind: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        whole, scale = max(kind.precision - kind.scale, 0), max(kind.scale, 0)  # Spark has 0 <= scale <= precision
        if whole + scale <= 38:
            return pa.decimal128(whole + scale, scale)
    if kind not in _WIDER and kind not in _SPARK:
        raise _unreadable(kind, path)
    return _WIDER.get(kind, kind)


def _spark(kind: pa.DataType, path: str) -> DataType:
    """Spark's type for one that `_widened` gave."""
    from pyspark.sql import types as sql

    if pa.types.is_decimal(kind):
        return sql.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return sql.ArrayType(_spark(kind.value_type, f"{path}[]"), kind.value_field.nullable)
    if pa.types.is_map(kind):
        key, value = _spark(kind.key_type, f"{path}.key"), _spark(kind.item_type, f"{path}.value")
        return sql.MapType(key, value, kind.item_field.nullable)
    if pa.types.is_struct(kind):
        own = _own(kind)
        if own is not None:
            return own
        return sql.StructType([sql.StructField(f.name, _spark(f.type, f"{path}.{f.name}"), f.nullable) for f in kind])
    name = _SPARK[kind]
    if not _has(name):
        raise _unreadable(kind, path, f", or read it with Spark {'.'.join(map(str, _SINCE[name]))} or newer")
    found: DataType = getattr(sql, name)()
    return found


def _own(kind: pa.StructType) -> DataType | None:
    """The type that Spark has marked this struct to be. A Spark without that type sees the struct."""
    from pyspark.sql import types as sql

    marks = {key: value for field in kind for key, value in (field.metadata or {}).items()}
    if marks.get(b"variant") == b"true" and {"value", "metadata"} == set(kind.names) and _has("VariantType"):
        return sql.VariantType()
    for name in ("Geometry", "Geography"):
        if marks.get(name.lower().encode()) == b"true" and kind.names == ["srid", "wkb"] and _has(f"{name}Type"):
            srid = int(marks.get(b"srid", b"-1"))
            found: DataType = getattr(sql, f"{name}Type")("ANY" if srid == -1 else srid)
            return found
    return None


def _has(name: str) -> bool:
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return (int(major), int(minor)) >= _SINCE.get(name, (0, 0))


# --- both ----------------------------------------------------------------------------------


def _rebuilt(kind: pa.DataType, path: str) -> pa.DataType:
    """The nested type with its fields widened; each kind of list is Spark's list."""
    if pa.types.is_struct(kind):
        _refuse_twins([field.name for field in kind], path)
        return pa.struct([_widened(field, f"{path}.{field.name}") for field in kind])
    if pa.types.is_map(kind):
        return _map(_widened(kind.key_field, f"{path}.key"), _widened(kind.item_field, f"{path}.value"), path)
    if hasattr(kind, "value_field"):
        return pa.list_(_widened(kind.value_field, f"{path}[]").with_name("element"))
    raise _unreadable(kind, path)  # unions


def _map(key: pa.Field, value: pa.Field, path: str) -> pa.MapType:
    if pa.types.is_null(key.type):  # Spark's map() without a word of what it is for: Arrow has no key that is null
        raise InvalidRequest(f"column {path} is a map without a type of key: cast(`{path}` as map<string,string>)")
    return pa.map_(key.with_name("key"), value.with_name("value"))


def _field(name: str, kind: pa.DataType, nullable: bool, metadata: Mapping[bytes, bytes] | None = None) -> pa.Field:
    kept = {key: value for key, value in (metadata or {}).items() if key in _MARKERS}
    return pa.field(name, kind, nullable or kind == pa.null(), kept or None)  # Arrow knows no null that isn't nullable


def _refuse_twins(names: list[str], path: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise InvalidRequest(
            f"column {path} has the field {twice[0]!r} more than once, which Spark doesn't take: rename one of them"
            if path
            else f"the column {twice[0]!r} is there more than once: rename one of them"
        )


def _unreadable(kind: pa.DataType, path: str, or_else: str = "") -> InvalidRequest:
    return InvalidRequest(
        f"column {path} is {kind}, which Spark has no type for: read with columns= that leave it out, "
        f"or cast it when it is written{or_else}"
    )
