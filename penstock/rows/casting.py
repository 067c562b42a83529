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
    mine, others = child_fields(one), child_fields(other)  # none of a union or of runs, which have to be equal
    return bool(mine) and all(same_layout(each.type, its.type) for each, its in zip(mine, others, strict=True))


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


def cast(array: pa.Array, kind: pa.DataType, path: str, *, reading: bool = False) -> pa.Array:
    """Return the values in buffers of a type's layout; `reinterpret` adds its names and nullability afterwards.

    Nothing is lost, else SchemaMismatch names the column. When `reading`, nanoseconds are rounded down to microseconds;
    fields of structs that the type doesn't have are left out, and so are values of a column that had none when the
    reader was planned. Nested types are taken apart here: Arrow's own cast
    of a list view is no valid list, and it has none for a dictionary of lists.
    """
    source = array.type
    if same_layout(source, kind):
        return array
    if pa.types.is_null(source) or len(array) == 0:  # the offsets of an empty array may have no bytes at all
        return pa.nulls(len(array), kind)
    if reading and pa.types.is_null(kind):
        return pa.nulls(len(array))
    if isinstance(source, pa.BaseExtensionType):
        return cast(array.storage, kind, path, reading=reading)
    if pa.types.is_dictionary(source):
        kept = kind.value_type if pa.types.is_dictionary(kind) else kind
        values = cast(array.dictionary, kept, path, reading=reading).take(array.indices)
        return _encode(values, kind, path) if pa.types.is_dictionary(kind) else values
    if pa.types.is_dictionary(kind):
        return _encode(cast(array, kind.value_type, path, reading=reading), kind, path)
    if pa.types.is_struct(source) and pa.types.is_struct(kind):
        return _cast_struct(array, kind, path, reading=reading)
    if pa.types.is_map(source) and pa.types.is_map(kind):
        entries = _cast_list(as_list(array), pa.list_(_entries_type(kind)), path, reading=reading)
        return reinterpret(entries, kind)
    if hasattr(source, "value_field") and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _cast_list(array, kind, f"{path}[]", reading=reading)
    return _cast_leaf(array, kind, path, reading=reading)


def _cast_struct(array: pa.StructArray, kind: pa.StructType, path: str, *, reading: bool) -> pa.Array:
    """Match fields by name; one that is missing is null, if it may be."""
    sent, names = [field.name for field in array.type], [field.name for field in kind]
    expected = [field.name for field in kind if field.name in sent or not field.nullable]
    known = [name for name in sent if name in names] if reading else sent
    column_order(known, expected, f"the values of {path}")
    places = range(len(kind)) if sent == names else [sent.index(name) if name in sent else -1 for name in names]
    children = [
        pa.nulls(len(array), field.type) if at < 0
        else cast(array.field(at), field.type, f"{path}.{field.name}", reading=reading)
        for at, field in zip(places, kind, strict=True)
    ]  # fmt: skip
    if not children:
        return array
    return pa.StructArray.from_arrays(children, names=names, mask=array.is_null() if array.null_count else None)


def _cast_list(array: Any, kind: pa.ListType | pa.LargeListType, path: str, *, reading: bool) -> pa.Array:
    import pyarrow.compute as pc

    make, width = (pa.ListArray, pa.int32()) if pa.types.is_list(kind) else (pa.LargeListArray, pa.int64())
    values = cast(array.flatten(), kind.value_type, path, reading=reading)
    lengths = pc.list_value_length(array).cast(pa.int64()).fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], width), pc.cumulative_sum(lengths).cast(width)])
    return make.from_arrays(offsets, values, mask=array.is_null() if array.null_count else None)


def _encode(array: pa.Array, kind: pa.DictionaryType, path: str) -> pa.Array:
    try:
        return array.dictionary_encode().cast(kind)
    except pa.ArrowException as wrong:
        raise _misfit(array.type, kind, path, str(wrong)) from wrong


def _cast_leaf(array: pa.Array, kind: pa.DataType, path: str, *, reading: bool) -> pa.Array:
    source = array.type
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(kind) and (source.tz is None) != (kind.tz is None):
        raise SchemaMismatch(
            f"column {path} is {source}, expected {kind}: a time with a zone and one without aren't the same; "
            "cast it in Spark, where the session's zone says what is meant"
        )
    try:
        if reading and getattr(source, "unit", None) == "ns" and getattr(kind, "unit", None) == "us":
            return _rounded_down(array, kind)
        if source in (pa.large_string(), pa.large_binary()) and array.offset:
            array = _offsets_from_zero(array)
        if pa.types.is_string_view(source) or pa.types.is_binary_view(source):
            array = _without_hidden_views(array)
        if pa.types.is_integer(source) and pa.types.is_decimal(kind):  # which Arrow else needs to hold any integer
            array = array.cast(pa.decimal256(76, kind.scale))
        cast = array.cast(kind)
        if not reading and _loses(array, cast):
            raise _misfit(source, kind, path, "some values would be rounded")
        return cast
    except pa.ArrowException as wrong:
        raise _misfit(source, kind, path, str(wrong)) from wrong


def _misfit(source: pa.DataType, kind: pa.DataType, path: str, reason: str) -> SchemaMismatch:
    return SchemaMismatch(f"column {path} is {source}, and can't be cast to {kind}: {reason[:200]}")


def _loses(array: pa.Array, cast: pa.Array) -> bool:
    """Return whether a cast has rounded values, where Arrow doesn't refuse to: of floats, and of dates in ms."""
    import pyarrow.compute as pc

    if pa.types.is_floating(array.type) and pa.types.is_floating(cast.type):
        sent, kept = array.cast(pa.float64()), cast.cast(pa.float64())
        return bool(pc.any(pc.and_(pc.not_equal(sent, kept), pc.equal(sent, sent))).as_py())  # NaN stays NaN
    if pa.types.is_date64(array.type):
        return bool(pc.any(pc.not_equal(array, cast.cast(array.type))).as_py())
    return False


def _offsets_from_zero(array: pa.Array) -> pa.Array:
    """Return the strings of a slice with offsets from 0: the slice's own may exceed 32 bits."""
    import pyarrow.compute as pc

    _, offsets, text = array.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, offsets], offset=array.offset)
    buffers = [_validity(array), pc.subtract(ends, ends[0]).buffers()[1], text.slice(ends[0].as_py())]
    return pa.Array.from_buffers(array.type, len(array), buffers)


def _without_hidden_views(array: pa.Array) -> pa.Array:
    """Return the views without those beneath nulls: Arrow doesn't validate them, and its cast follows them anywhere."""
    if not array.null_count:
        return array
    _, views, *text = array.buffers()
    raw = pa.Array.from_buffers(pa.binary(16), len(array), [_validity(array), views.slice(array.offset * 16)])
    empty = raw.fill_null(bytes(16)).buffers()[1]
    return pa.Array.from_buffers(array.type, len(array), [_validity(array), empty, *text])


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
