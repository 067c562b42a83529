"""The schema that a reader is asked for, against the dataset's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import SchemaMismatch
from penstock.spark_plugin.worker import types
from penstock.spark_plugin.worker.casting import alike, fields_of
from penstock.text import suggest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def check(path: str, wanted: StructType, held: pa.Schema) -> None:
    """Refuse, with the difference, what isn't some of the dataset's columns in their own types."""
    differences = list(_differences(wanted, held))
    if differences:
        raise SchemaMismatch(
            f"{path} hasn't the schema that was asked for: {'; '.join(differences)}. "
            "Load it without a schema, or name columns as they are, and cast after reading"
        )


def same_values(wanted: StructType, held: pa.Schema) -> dict[str, str]:
    """Spark's type of each column whose values at the server are those that Spark reads, bit by bit."""
    arrow = types.stored(wanted)
    return {
        field.name: field.dataType.simpleString()
        for field, one in zip(wanted, arrow, strict=True)
        if held.field(one.name).type.equals(one.type)
    }


def _differences(wanted: StructType, held: pa.Schema) -> Iterator[str]:
    for field, arrow in zip(wanted, types.stored(wanted), strict=True):
        if field.name not in held.names:
            yield f"no column {field.name!r}, {suggest(field.name, held.names, 'it has')}"
            continue
        own, as_read = types.readable(pa.schema([held.field(field.name)]))
        if not alike(as_read.field(0).type, arrow.type):
            yield f"{field.name} is {own[0].dataType.simpleString()}, asked for {field.dataType.simpleString()}"
        elif not _holds(as_read.field(0), arrow):
            yield f"{field.name} may hold nulls, asked for not null"


def _holds(held: pa.Field, wanted: pa.Field) -> bool:
    """Whether a place that is wanted without nulls has none, at any depth."""
    children = zip(fields_of(held.type), fields_of(wanted.type), strict=True)
    return (wanted.nullable or not held.nullable) and all(_holds(mine, its) for mine, its in children)
