"""One array as another type: its buffers reinterpreted where the layout allows it, else cast.

Most differences between two schemas leave the buffers as they are: a session's time zone, a field that the optimizer
knows to have no nulls. Then the same buffers are put under the other type, at any nesting. Arrow's C data interface
would be shorter, but it takes an empty list's offsets to have four bytes, where Spark up to 4.1 sends none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import SchemaMismatch


def column_order(names: Sequence[str], target: Sequence[str], what: str) -> list[int]:
    """Return the place of each target name. By position where the names are equal, as a name may be there twice."""
    if names == target:
        return list(range(len(target)))
    missing = [name for name in target if name not in names]
    extra = [name for name in names if name not in target]
    if missing or extra or len(names) != len(target):
        parts = [*(f"lack {name}" for name in missing), *(f"have {name} too" for name in extra)]
        raise SchemaMismatch(
            f"{what} {' and '.join(parts) or 'have a name twice'}: expected {', '.join(target)}. "
            "Select these columns, or pass the schema that the rows have"
        )
    return [names.index(name) for name in target]


def same_layout(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the same buffers mean the same values in both: names within lists, nullability, zones may differ."""
    if one.equals(other):
        return True
    if one.id != other.id or one.num_fields != other.num_fields:
        return False
    if pa.types.is_timestamp(one):
        return one.unit == other.unit and (one.tz is None) == (other.tz is None)
    if pa.types.is_fixed_size_list(one) and one.list_size != other.list_size:
        return False
    if pa.types.is_struct(one) and [field.name for field in one] != [field.name for field in other]:
        return False
    fields = zip(child_fields(one), child_fields(other), strict=True)
    return bool(one.num_fields) and all(same_layout(mine.type, its.type) for mine, its in fields)


def child_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_struct(kind):
        return list(kind)
    return [kind.value_field] if hasattr(kind, "value_field") else []


# --- the same buffers ----------------------------------------------------------------------


def reinterpret(array: Any, kind: pa.DataType) -> pa.Array:
    """Return the array's buffers as a type of the same layout."""
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind):
        return _reinterpret_struct(array, kind)
    values = _values_type(kind)
    children = None if values is None else [reinterpret(array.values, values)]
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children)


def _reinterpret_struct(array: pa.StructArray, kind: pa.StructType) -> pa.Array:
    """A slice's children are sliced already, so its validity bits must begin at 0."""
    children = [reinterpret(array.field(at), field.type) for at, field in enumerate(kind)]
    validity = _validity(array) if array.offset else array.buffers()[0]
    return pa.Array.from_buffers(kind, len(array), [validity], array.null_count, children=children)


def _validity(array: pa.Array) -> pa.Buffer | None:
    """Return a bit for each row, from 0 on: whether it isn't null."""
    import pyarrow.compute as pc

    bits: pa.Buffer | None = pc.invert(array.is_null()).buffers()[1] if array.null_count else None
    return bits


def _values_type(kind: Any) -> pa.DataType | None:
    """Return the type of a list's values; those of a map are its entries."""
    if pa.types.is_map(kind):
        return pa.struct([kind.key_field, kind.item_field])
    return kind.value_type if hasattr(kind, "value_field") else None


# --- other buffers -------------------------------------------------------------------------


def cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return the values in buffers of a type's layout; `reinterpret` adds its names and nullability afterwards.

    Nested types are taken apart here: Arrow's own cast of a list view is no valid list, and it has none for a
    dictionary of lists.
    """
    source = array.type
    if same_layout(source, kind):
        return array
    if pa.types.is_null(source) or len(array) == 0:  # the offsets of an empty array may have no bytes at all
        return pa.nulls(len(array), kind)
    if isinstance(source, pa.BaseExtensionType):
        return cast(array.storage, kind, path)
    if pa.types.is_dictionary(source) and not pa.types.is_dictionary(kind):
        return cast(array.dictionary, kind, path).take(array.indices)
    if pa.types.is_struct(source) and pa.types.is_struct(kind):
        return _cast_struct(array, kind, path)
    if pa.types.is_map(source) and pa.types.is_map(kind):
        return reinterpret(_cast_list(as_list(array), pa.list_(_entries_type(kind)), path), kind)
    if hasattr(source, "value_field") and pa.types.is_list(kind):
        return _cast_list(array, kind, f"{path}[]")
    return _cast_leaf(array, kind, path)


def _cast_struct(array: pa.StructArray, kind: pa.StructType, path: str) -> pa.Array:
    names = [field.name for field in kind]
    order = column_order([field.name for field in array.type], names, f"the values of {path}")
    places = zip(order, kind, strict=True)
    children = [cast(array.field(at), field.type, f"{path}.{field.name}") for at, field in places]
    if not children:
        return array
    return pa.StructArray.from_arrays(children, names=names, mask=array.is_null() if array.null_count else None)


def _cast_list(array: Any, kind: pa.ListType, path: str) -> pa.Array:
    import pyarrow.compute as pc

    values = cast(array.flatten(), kind.value_type, path)
    lengths = pc.list_value_length(array).cast(pa.int64()).fill_null(0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, values, mask=array.is_null() if array.null_count else None)


def _cast_leaf(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    source = array.type
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(kind) and (source.tz is None) != (kind.tz is None):
        raise SchemaMismatch(
            f"column {path} is {source}, expected {kind}: a time with a zone and one without aren't the same; "
            "cast it in Spark, where the session's zone says what is meant"
        )
    try:
        if getattr(source, "unit", None) == "ns" and getattr(kind, "unit", None) == "us":
            return _rounded_down(array, kind)
        if source in (pa.large_string(), pa.large_binary()) and array.offset:
            array = _offsets_from_zero(array)
        return array.cast(kind)
    except pa.ArrowException as wrong:
        raise SchemaMismatch(f"column {path} is {source}, and can't be cast to {kind}: {str(wrong)[:200]}") from wrong


def _offsets_from_zero(array: pa.Array) -> pa.Array:
    """Return the strings of a slice with offsets from 0: the slice's own may exceed 32 bits."""
    import pyarrow.compute as pc

    _, offsets, text = array.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, offsets], offset=array.offset)
    buffers = [_validity(array), pc.subtract(ends, ends[0]).buffers()[1], text.slice(ends[0].as_py())]
    return pa.Array.from_buffers(array.type, len(array), buffers)


def _rounded_down(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return nanoseconds as microseconds. A cast rounds towards 1970: the end of 1969 would be in 1970."""
    import pyarrow.compute as pc

    exact = array.view(pa.int64())
    rounded = pc.divide(exact, 1_000)
    too_late = pc.greater(pc.multiply(rounded, 1_000), exact)
    return pc.subtract(rounded, too_late.cast(pa.int64())).view(kind)


def as_list(array: pa.MapArray) -> pa.Array:
    """Return a map's entries as a list on the same buffers, for which Arrow has more functions."""
    return reinterpret(array, pa.list_(_entries_type(array.type)))


def _entries_type(kind: pa.MapType) -> pa.StructType:
    """Return the type of a map's entries under Spark's names; other clients name them as they like."""
    return pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
