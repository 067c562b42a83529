"""Spark's types, as the server tells them, in Arrow's and in the text of Spark's SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.spark.errors import Unsupported

_FLAT: dict[str, tuple[pa.DataType, str]] = {
    "null": (pa.null(), "void"), "boolean": (pa.bool_(), "boolean"), "byte": (pa.int8(), "tinyint"),
    "short": (pa.int16(), "smallint"), "integer": (pa.int32(), "int"), "long": (pa.int64(), "bigint"),
    "float": (pa.float32(), "float"), "double": (pa.float64(), "double"), "string": (pa.string(), "string"),
    "char": (pa.string(), "char({})"), "var_char": (pa.string(), "varchar({})"), "binary": (pa.binary(), "binary"),
    "date": (pa.date32(), "date"), "timestamp": (pa.timestamp("us", "UTC"), "timestamp"),
    "timestamp_ntz": (pa.timestamp("us"), "timestamp_ntz"), "time": (pa.time64("ns"), "time"),
    "day_time_interval": (pa.duration("us"), "interval day to second"),
    "calendar_interval": (pa.month_day_nano_interval(), "interval"),
    "variant": (
        pa.struct([pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)]),
        "variant",
    ),
}  # fmt: skip


def to_arrow(kind: Any, path: str = "") -> pa.DataType:
    """Return Arrow's type of a DataType message."""
    name = kind.WhichOneof("kind")
    spark = getattr(kind, name)
    match name:
        case "decimal":
            return pa.decimal128(spark.precision, spark.scale)
        case "array":
            element = to_arrow(spark.element_type, f"{path}[]")
            return pa.list_(pa.field("element", element, nullable=spark.contains_null))
        case "map":
            key, value = to_arrow(spark.key_type, f"{path}.key"), to_arrow(spark.value_type, f"{path}.value")
            return pa.map_(key, pa.field("value", value, nullable=spark.value_contains_null))
        case "struct":
            return pa.struct(list(to_schema(kind, path)))
        case "udt":
            return to_arrow(spark.sql_type, path)
        case _ if name in _FLAT:
            return _FLAT[name][0]
    raise Unsupported(f"column {path} is of Spark's type {name}, which Arrow has no name for here: cast it to string")


def to_schema(kind: Any, path: str = "") -> pa.Schema:
    """Return the columns of a struct, such as a frame's rows.

    Timestamps are in UTC here, in results in the session's zone.
    """
    return pa.schema(
        [
            pa.field(each.name, to_arrow(each.data_type, f"{path}.{each.name}".lstrip(".")), each.nullable)
            for each in kind.struct.fields
        ]
    )


def to_ddl(kind: Any, *, with_nulls: bool = False) -> str:
    """Return a type as Spark's SQL writes it; with nulls, fields of structs are NOT NULL where they are."""
    name = kind.WhichOneof("kind")
    spark = getattr(kind, name)
    match name:
        case "decimal":
            return f"decimal({spark.precision},{spark.scale})"
        case "array":
            return f"array<{to_ddl(spark.element_type, with_nulls=with_nulls)}>"
        case "map":
            key, value = (to_ddl(each, with_nulls=with_nulls) for each in (spark.key_type, spark.value_type))
            return f"map<{key},{value}>"
        case "struct":
            return f"struct<{','.join(_column(each, ':', with_nulls=with_nulls) for each in spark.fields)}>"
        case "udt":
            return to_ddl(spark.sql_type, with_nulls=with_nulls)
        case "char" | "var_char":
            return _FLAT[name][1].format(spark.length)
        case "year_month_interval":
            return "interval year to month"
    return _FLAT[name][1] if name in _FLAT else name


def to_columns(kind: Any) -> str:
    """Return the columns of a struct as `.schema(…)` and CREATE TABLE take them."""
    return ", ".join(_column(each, " ", with_nulls=True) for each in kind.struct.fields)


def _column(field: Any, between: str, *, with_nulls: bool) -> str:
    name = field.name if field.name.isidentifier() and field.name.isascii() else f"`{field.name.replace('`', '``')}`"
    not_null = " NOT NULL" if with_nulls and not field.nullable else ""
    return f"{name}{between}{to_ddl(field.data_type, with_nulls=with_nulls)}{not_null}"


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is one of numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
