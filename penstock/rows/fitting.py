"""Batches in another schema: as they are, their buffers reinterpreted, or cast; never a null where it allows none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.rows.casting import as_list, cast, child_fields, column_order, reinterpret, same_layout
from penstock.rows.slices import size_of

_MAX_BYTES = 2**31 - 1
"""Bytes that a string or binary column can have; the large types can have more."""


def fit_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, reading: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the batches in this schema, columns matched by name, with the same values and, where possible, buffers.

    A batch is cut only where large types have more than 2 GiB. A null where the schema allows none, a column that is
    missing or too many, and a value that the schema's type can't hold, raise with the column's name. `reading` as in
    `cast`: a reader may round, and leave out fields of structs.
    """
    fit: Fit | None = None
    for batch in batches:
        if fit is None or not fit.source.equals(batch.schema, check_metadata=True):
            fit = Fit.of(batch.schema, schema, reading=reading)
        yield from fit.pieces(batch)


@dataclass(frozen=True, slots=True)
class Fit:
    """How batches of one schema become batches of another; made once for a stream."""

    source: pa.Schema
    target: pa.Schema
    order: list[int]
    """The place of each target column in the source; empty where batches can stay as they are."""
    casts: frozenset[int]
    """The target columns that need other buffers."""
    strict: list[int]
    """The target columns that may hold no nulls, or have a field within that may not."""
    reading: bool

    @classmethod
    def of(cls, source: pa.Schema, target: pa.Schema, *, reading: bool = False) -> Fit:
        strict = [at for at, field in enumerate(target) if _forbids_nulls(field)]
        if source.equals(target, check_metadata=True):
            return cls(source, target, [], frozenset(), strict, reading)
        order = column_order(source.names, target.names, "the rows")
        types = [(source.field(place).type, target.field(at).type) for at, place in enumerate(order)]
        casts = {at for at, (one, other) in enumerate(types) if not same_layout(one, other)}
        return cls(source, target, order, frozenset(casts), strict, reading)

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in the target's schema, cut where it is too large for it."""
        if not self.order:
            self._check_nulls(batch)
            yield batch
        elif self.casts and size_of(batch) > _MAX_BYTES and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.pieces(batch.slice(0, half))
            yield from self.pieces(batch.slice(half))
        else:
            columns = [self._column(batch.column(place), at) for at, place in enumerate(self.order)]
            piece = pa.RecordBatch.from_arrays(columns, schema=self.target)
            self._check_nulls(piece)
            yield piece

    def _column(self, array: pa.Array, at: int) -> pa.Array:
        field = self.target.field(at)
        if at in self.casts:
            array = cast(array, field.type, field.name, reading=self.reading)
        return reinterpret(array, field.type)

    def _check_nulls(self, piece: pa.RecordBatch) -> None:
        for at in self.strict:
            _check_nulls(piece.column(at), self.target.field(at))


# --- nulls ---------------------------------------------------------------------------------


def _forbids_nulls(field: pa.Field) -> bool:
    """Whether the field, or one within it, may hold no nulls. Of a map's keys Arrow checks that itself."""
    fields = child_fields(field.type)
    if pa.types.is_map(field.type):
        fields[0] = fields[0].with_nullable(True)
    return not field.nullable or any(map(_forbids_nulls, fields))


def _check_nulls(column: pa.Array, field: pa.Field) -> None:
    # Values beneath a null parent may be anything; leaving them out costs more, and mostly there are no nulls anyway
    if _null_path(column, field, field.name, exact=False) and (
        path := _null_path(column, field, field.name, exact=True)
    ):
        raise InvalidRequest(
            f"column {path} has a null where its schema allows none: fill it, or make the column nullable"
        )


def _null_path(array: Any, field: pa.Field, path: str, *, exact: bool, null_parents: int = 0) -> str | None:
    """Return the path of the first field that has nulls and may hold none, beneath so many null parents."""
    if not field.nullable and array.null_count > null_parents:
        return path
    kind, step = field.type, "[]"
    if pa.types.is_map(kind):
        array, step = as_list(array), ""
        kind = array.type
    strict = [_forbids_nulls(child) for child in child_fields(kind)]
    if not any(strict) or len(array) == 0:  # the offsets of an empty array may have no bytes at all
        return None
    is_struct = pa.types.is_struct(kind)
    null_parents = array.null_count if exact and is_struct else 0
    for at, (child, values) in enumerate(zip(child_fields(kind), _children(array, exact=exact), strict=True)):
        where = f"{path}.{child.name}" if is_struct else path + step
        if strict[at] and (null := _null_path(values, child, where, exact=exact, null_parents=null_parents)):
            return null
    return None


def _children(array: Any, *, exact: bool) -> list[pa.Array]:
    """Return a struct's or list's values; `exact` are those beneath a valid parent (in structs: or null)."""
    if pa.types.is_struct(array.type):
        return list(array.flatten()) if exact else [array.field(at) for at in range(array.type.num_fields)]
    return [array.flatten() if exact else array.values]
