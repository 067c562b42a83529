"""Spark's types and Arrow's, at the driver: the schema that is stored of a frame, and Spark's schema of a dataset.

A table of our own: pyspark's converters are internal, differ between versions, and lose what is nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows.casting import child_fields, same_layout
from penstock.spark_plugin.worker import types
from penstock.text import suggest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_ARROW_TYPES: dict[str, pa.DataType] = {name: kind for kind, name in types.SPARK_NAMES.items()}
_SINCE = {"TimeType": (4, 1), "VariantType": (4, 0), "GeometryType": (4, 2), "GeographyType": (4, 2)}
"""The Spark from which on Arrow carries the type."""
_CURES = {
    "YearMonthIntervalType": "store its months, cast({} as int)",
    "CalendarIntervalType": "store it as text, cast({} as string), or its parts by extract()",
    "UserDefinedType": "store its plain fields (for a vector: pyspark.ml.functions.vector_to_array)",
}


def to_arrow(struct: StructType) -> pa.Schema:
    """Return the schema that is stored of a frame; a column that can't be stored is rejected with its cure."""
    types.check_names_differ(struct.names, "")
    return pa.schema([types.make_field(each.name, _arrow(each.dataType, each.name), each.nullable) for each in struct])


def _arrow(kind: DataType, path: str) -> pa.DataType:
    """Return Arrow's type for Spark's. By the names of the classes, as no version of Spark has them all."""
    spark: Any = kind
    match "UserDefinedType" if hasattr(kind, "sqlType") else type(kind).__name__:
        case "DecimalType":
            return pa.decimal128(spark.precision, spark.scale)
        case "CharType" | "VarcharType":
            return pa.string()
        case "ArrayType":
            return pa.list_(types.make_field("element", _arrow(spark.elementType, f"{path}[]"), spark.containsNull))
        case "MapType":
            key, value = _arrow(spark.keyType, f"{path}.key"), _arrow(spark.valueType, f"{path}.value")
            item = types.make_field("value", value, spark.valueContainsNull)
            return types.make_map(types.make_field("key", key, nullable=False), item, path)
        case "StructType":
            types.check_names_differ(spark.names, path)
            return pa.struct(
                [
                    types.make_field(each.name, _arrow(each.dataType, f"{path}.{each.name}"), each.nullable)
                    for each in spark
                ]
            )
        case "VariantType":
            return _marked(("value", pa.binary()), ("metadata", pa.binary()), {b"variant": b"true"})
        case "GeometryType" | "GeographyType" as name:
            marker = {name.removesuffix("Type").lower().encode(): b"true", b"srid": str(spark.srid).encode()}
            return _marked(("srid", pa.int32()), ("wkb", pa.binary()), marker)
        case name if name in _ARROW_TYPES:
            return _ARROW_TYPES[name]
        case name:
            cure = _CURES.get(name, "cast it to a type that Spark hands to Python, or leave it out").format(f"`{path}`")
            raise InvalidRequest(f"column {path} is {kind.simpleString()}, which Spark doesn't hand to Python: {cure}")


def _marked(first: tuple[str, pa.DataType], second: tuple[str, pa.DataType], marker: dict[bytes, bytes]) -> pa.DataType:
    return pa.struct([pa.field(*first, nullable=False), pa.field(*second, nullable=False, metadata=marker)])


def to_spark(schema: pa.Schema) -> tuple[StructType, pa.Schema]:
    """Return a dataset's schema as Spark's, with exact nullability, and Arrow's for the batches that Spark takes."""
    from pyspark.sql.types import StructField, StructType

    types.check_names_differ(schema.names, "")
    arrow = types.widen_schema(schema)
    return StructType([StructField(each.name, _spark(each.type, each.name), each.nullable) for each in arrow]), arrow


def _spark(kind: pa.DataType, path: str) -> DataType:
    """Return Spark's type for a widened one."""
    from pyspark.sql import types as sql

    if pa.types.is_decimal(kind):
        return sql.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return sql.ArrayType(_spark(kind.value_type, f"{path}[]"), kind.value_field.nullable)
    if pa.types.is_map(kind):
        key, value = _spark(kind.key_type, f"{path}.key"), _spark(kind.item_type, f"{path}.value")
        return sql.MapType(key, value, kind.item_field.nullable)
    if pa.types.is_struct(kind):
        fields = [sql.StructField(f.name, _spark(f.type, f"{path}.{f.name}"), f.nullable) for f in kind]
        return _marked_type(kind) or sql.StructType(fields)
    name = types.SPARK_NAMES[kind]
    if not _has(name):
        raise types.unreadable(kind, path, f", or read it with Spark {'.'.join(map(str, _SINCE[name]))} or newer")
    spark: DataType = getattr(sql, name)()
    return spark


def _marked_type(kind: pa.StructType) -> DataType | None:
    """Return the type that Spark has marked this struct to be. A Spark without that type reads the struct."""
    from pyspark.sql import types as sql

    marks = {key: value for field in kind for key, value in (field.metadata or {}).items()}
    if marks.get(b"variant") == b"true" and {"value", "metadata"} == set(kind.names) and _has("VariantType"):
        return sql.VariantType()
    for name in ("Geometry", "Geography"):
        if marks.get(name.lower().encode()) == b"true" and kind.names == ["srid", "wkb"] and _has(f"{name}Type"):
            srid = int(marks.get(b"srid", b"-1"))
            spark: DataType = getattr(sql, f"{name}Type")("ANY" if srid == -1 else srid)
            return spark
    return None


def _has(name: str) -> bool:
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return (int(major), int(minor)) >= _SINCE.get(name, (0, 0))


# --- a schema that the user names ----------------------------------------------------------


def check_schema_matches(path: str, requested: StructType, dataset: pa.Schema) -> None:
    """Reject, with the difference, a schema that isn't some of the dataset's columns in their own types."""
    differences = list(_differences(requested, dataset))
    if differences:
        raise SchemaMismatch(
            f"{path} has another schema than the requested one: {'; '.join(differences)}. "
            "Load it without a schema, or name columns as they are, and cast after reading"
        )


def _differences(requested: StructType, dataset: pa.Schema) -> Iterator[str]:
    for spark, arrow in zip(requested, to_arrow(requested), strict=True):
        if spark.name not in dataset.names:
            yield f"no column {spark.name!r}, {suggest(spark.name, dataset.names, 'it has')}"
            continue
        struct, read = to_spark(pa.schema([dataset.field(spark.name)]))
        if not _can_be_read(read.field(0).type, arrow.type):
            yield f"{spark.name} is {struct[0].dataType.simpleString()}, requested as {spark.dataType.simpleString()}"
        elif not _nulls_fit(read.field(0), arrow):
            yield f"{spark.name} may hold nulls, requested as not null"


def _can_be_read(stored: pa.DataType, requested: pa.DataType) -> bool:
    """Whether the types are the same, but for fields of structs that were added since the request was made."""
    if same_layout(stored, requested):
        return True
    if stored.id != requested.id or not child_fields(requested):
        return False
    if pa.types.is_struct(requested) and any(stored.get_field_index(field.name) < 0 for field in requested):
        return False
    return all(_can_be_read(one.type, other.type) for one, other in _child_pairs(stored, requested))


def _child_pairs(stored: pa.DataType, requested: pa.DataType) -> Iterator[tuple[pa.Field, pa.Field]]:
    """Yield the fields of a requested type with the stored ones, those of structs by name."""
    if pa.types.is_struct(requested):
        return ((stored.field(field.name), field) for field in requested)
    return zip(child_fields(stored), child_fields(requested), strict=True)


def _nulls_fit(stored: pa.Field, requested: pa.Field) -> bool:
    """Whether no nulls are stored where none are requested, at any depth."""
    children = _child_pairs(stored.type, requested.type)
    return (requested.nullable or not stored.nullable) and all(_nulls_fit(one, other) for one, other in children)
