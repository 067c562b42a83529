"""Batches in the schema that is wanted: as they are, in another dress, or cast; and never a null where none may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.spark_plugin.worker.casting import alike, as_list, cast, dressed, fields_of, order_of

_MOST = 2**31 - 1
"""Bytes that a string or binary column can have; the large types have more."""


def fitted(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in this schema, their columns matched by name, with the same values and, where it can be, buffers.

    A batch is cut only where large types have more than 2 GiB. A null where the schema has none, a column that is
    missing or too many, and a value that the wanted type can't hold, raise with the column's name.
    """
    strict = [(at, field) for at, field in enumerate(schema) if _is_strict(field)]
    plan: _Plan | None = None
    for batch in batches:
        if plan is None or not plan.held.equals(batch.schema, check_metadata=True):
            plan = _Plan.of(batch.schema, schema)
        for piece in plan.pieces(batch):
            for at, field in strict:
                _refuse_nulls(piece.column(at), field)
            yield piece


@dataclass(frozen=True, slots=True)
class _Plan:
    """How batches of one schema become batches of another; made once for a stream."""

    held: pa.Schema
    wanted: pa.Schema
    order: list[int]
    """Where each wanted column is; none where batches can stay as they are."""
    casts: frozenset[int]
    """The wanted columns that need other buffers."""

    @classmethod
    def of(cls, held: pa.Schema, wanted: pa.Schema) -> _Plan:
        if held.equals(wanted, check_metadata=True):
            return cls(held, wanted, [], frozenset())
        order = order_of(held.names, wanted.names, "the rows")
        casts = {at for at, number in enumerate(order) if not alike(held.field(number).type, wanted.field(at).type)}
        return cls(held, wanted, order, frozenset(casts))

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not self.order:
            yield batch
        elif self.casts and batch.nbytes > _MOST and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.pieces(batch.slice(0, half))
            yield from self.pieces(batch.slice(half))
        else:
            columns = [self._column(batch.column(number), at) for at, number in enumerate(self.order)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.wanted)

    def _column(self, array: pa.Array, at: int) -> pa.Array:
        field = self.wanted.field(at)
        return dressed(cast(array, field.type, field.name) if at in self.casts else array, field.type)


# --- nulls ---------------------------------------------------------------------------------


def _is_strict(field: pa.Field) -> bool:
    """Whether there is a place without nulls in it. That a map's key is none, Arrow sees to itself."""
    fields = fields_of(field.type)
    if pa.types.is_map(field.type):
        fields[0] = fields[0].with_nullable(True)
    return not field.nullable or any(map(_is_strict, fields))


def _refuse_nulls(column: pa.Array, field: pa.Field) -> None:
    # What lies beneath a null parent may be anything; to leave it out costs more, and mostly nothing is found anyway
    if _gap(column, field, field.name, exact=False) and (path := _gap(column, field, field.name, exact=True)):
        raise InvalidRequest(
            f"column {path} has a null where its schema says that there is none: fill it, or make the column nullable"
        )


def _gap(array: Any, field: pa.Field, path: str, *, exact: bool, beneath: int = 0) -> str | None:
    """The path of the first field that has nulls and shouldn't; `beneath` so many parents that are null."""
    if not field.nullable and array.null_count > beneath:
        return path
    kind, step = field.type, "[]"
    if pa.types.is_map(kind):
        array, step = as_list(array), ""
        kind = array.type
    strict = [_is_strict(child) for child in fields_of(kind)]
    if not any(strict) or len(array) == 0:  # whose offsets may have no bytes at all
        return None
    is_struct = pa.types.is_struct(kind)
    beneath = array.null_count if exact and is_struct else 0
    for at, (child, values) in enumerate(zip(fields_of(kind), _children(array, exact=exact), strict=True)):
        where = f"{path}.{child.name}" if is_struct else path + step
        if strict[at] and (found := _gap(values, child, where, exact=exact, beneath=beneath)):
            return found
    return None


def _children(array: Any, *, exact: bool) -> list[pa.Array]:
    """A struct's or list's values; `exact` are those beneath a valid parent (in structs: or null)."""
    if pa.types.is_struct(array.type):
        return list(array.flatten()) if exact else [array.field(at) for at in range(array.type.num_fields)]
    return [array.flatten() if exact else array.values]
