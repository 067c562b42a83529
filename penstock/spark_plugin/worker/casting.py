"""One array under another type: in another dress where the buffers can stay, else cast.

Most differences between two schemas are only a dress: a session's time zone, a field that the optimizer knows to have
no nulls. The same buffers are put under the wanted type, at any nesting. Not through Arrow's C data interface, which
would be shorter: it takes an empty list's offsets to have four bytes, where Spark up to 4.1 sends none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import SchemaMismatch


def order_of(held: Sequence[str], wanted: Sequence[str], what: str) -> list[int]:
    """Where each wanted name is. By position where the names are the same, as a name may be there twice."""
    if held == wanted:
        return list(range(len(wanted)))
    lacks = [name for name in wanted if name not in held]
    more = [name for name in held if name not in wanted]
    if lacks or more or len(held) != len(wanted):
        parts = [*(f"lack {name}" for name in lacks), *(f"have {name} too" for name in more)]
        raise SchemaMismatch(
            f"{what} {' and '.join(parts) or 'have a name twice'}: expected {', '.join(wanted)}. "
            "Select these columns, or name the schema that the rows have"
        )
    return [held.index(name) for name in wanted]


def alike(one: pa.DataType, other: pa.DataType) -> bool:
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
    fields = zip(fields_of(one), fields_of(other), strict=True)
    return bool(one.num_fields) and all(alike(mine.type, its.type) for mine, its in fields)


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    """The fields whose arrays `_children` gives."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_struct(kind):
        return list(kind)
    return [kind.value_field] if hasattr(kind, "value_field") else []


# --- dress ---------------------------------------------------------------------------------


def dressed(array: Any, kind: pa.DataType) -> pa.Array:
    """The array under a type that is alike, on the same buffers."""
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind):
        return _dressed_struct(array, kind)
    values = _values_of(kind)
    children = None if values is None else [dressed(array.values, values)]
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children)


def _dressed_struct(array: pa.StructArray, kind: pa.StructType) -> pa.Array:
    """A slice's children are sliced already, so its bits begin at 0."""
    children = [dressed(array.field(at), field.type) for at, field in enumerate(kind)]
    valid = _bits(array) if array.offset else array.buffers()[0]
    return pa.Array.from_buffers(kind, len(array), [valid], array.null_count, children=children)


def _bits(array: pa.Array) -> pa.Buffer | None:
    """Which rows aren't null, counted from 0."""
    import pyarrow.compute as pc

    found: pa.Buffer | None = pc.invert(array.is_null()).buffers()[1] if array.null_count else None
    return found


def _values_of(kind: Any) -> pa.DataType | None:
    """What `values` of a list are; those of a map are its entries."""
    if pa.types.is_map(kind):
        return pa.struct([kind.key_field, kind.item_field])
    return kind.value_type if hasattr(kind, "value_field") else None


# --- casts ---------------------------------------------------------------------------------


def cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """The values in buffers that `kind` has; its names and nullability are put on at the end, to all at once.

    Nested ones are taken apart here: Arrow's own cast of a list view is no valid list, and it has none for a
    dictionary of lists.
    """
    held = array.type
    if alike(held, kind):
        return array
    if pa.types.is_null(held) or len(array) == 0:  # whose offsets may have no bytes at all
        return pa.nulls(len(array), kind)
    if isinstance(held, pa.BaseExtensionType):
        return cast(array.storage, kind, path)
    if pa.types.is_dictionary(held) and not pa.types.is_dictionary(kind):
        return cast(array.dictionary, kind, path).take(array.indices)
    if pa.types.is_struct(held) and pa.types.is_struct(kind):
        return _cast_struct(array, kind, path)
    if pa.types.is_map(held) and pa.types.is_map(kind):
        return dressed(_cast_list(as_list(array), pa.list_(_entries_of(kind)), path), kind)
    if hasattr(held, "value_field") and pa.types.is_list(kind):
        return _cast_list(array, kind, f"{path}[]")
    return _cast_leaf(array, kind, path)


def _cast_struct(array: pa.StructArray, kind: pa.StructType, path: str) -> pa.Array:
    names = [field.name for field in kind]
    order = order_of([field.name for field in array.type], names, f"the values of {path}")
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
    held = array.type
    if pa.types.is_timestamp(held) and pa.types.is_timestamp(kind) and (held.tz is None) != (kind.tz is None):
        raise SchemaMismatch(
            f"column {path} is {held}, wanted {kind}: a time with a zone and one without aren't the same; "
            "cast it in Spark, where the session's zone says what is meant"
        )
    try:
        if getattr(held, "unit", None) == "ns" and getattr(kind, "unit", None) == "us":
            return _rounded_down(array, kind)
        if held in (pa.large_string(), pa.large_binary()) and array.offset:
            array = _from_zero(array)
        return array.cast(kind)
    except pa.ArrowException as wrong:
        raise SchemaMismatch(f"column {path} is {held}, and can't be made {kind}: {str(wrong)[:200]}") from wrong


def _from_zero(array: pa.Array) -> pa.Array:
    """The same strings, their offsets counted from 0: those of a slice may be beyond 32 bits."""
    import pyarrow.compute as pc

    _, offsets, text = array.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, offsets], offset=array.offset)
    buffers = [_bits(array), pc.subtract(ends, ends[0]).buffers()[1], text.slice(ends[0].as_py())]
    return pa.Array.from_buffers(array.type, len(array), buffers)


def _rounded_down(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Nanoseconds as microseconds. A cast cuts towards 1970, which would move the last of 1969 into the next day."""
    import pyarrow.compute as pc

    exact = array.view(pa.int64())
    cut = pc.divide(exact, 1_000)
    late = pc.greater(pc.multiply(cut, 1_000), exact)
    return pc.subtract(cut, late.cast(pa.int64())).view(kind)


def as_list(array: pa.MapArray) -> pa.Array:
    """A map's entries: the same buffers, and all that lists can."""
    return dressed(array, pa.list_(_entries_of(array.type)))


def _entries_of(kind: pa.MapType) -> pa.StructType:
    """A map's entries under Spark's names, which others may have called as they like."""
    return pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
