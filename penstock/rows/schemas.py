"""Schemas: as they cross the wire, and how the schema of a dataset or a topic grows."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows.casting import same_layout
from penstock.wire.actions import SchemaJson


def to_json(schema: pa.Schema) -> SchemaJson:
    """Return a list of {name, type, nullable} with Arrow's names of types, for people."""
    return tuple({"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema)


def encode(schema: pa.Schema) -> str:
    """Return the schema's IPC message in base64: exact for every type."""
    return base64.b64encode(schema.serialize()).decode()


def decode(text: str) -> pa.Schema:
    """Return the schema of such a text; the text is untrusted."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as malformed:
        raise InvalidRequest(
            f"schema {text[:40]!r}: expected an Arrow schema's IPC message in base64 ({str(malformed)[:120]})"
        ) from malformed


def check_names(schema: pa.Schema) -> None:
    """Reject a schema in which two columns have one name, as columns are chosen by name, or one that has no text."""
    try:
        names = schema.names
    except UnicodeDecodeError as malformed:
        raise InvalidRequest("a column has a name that is not UTF-8: rename it") from malformed
    if len(set(names)) < len(names):
        twice = min(name for name, count in Counter(names).items() if count > 1)
        raise InvalidRequest(f"the column {twice!r} is there more than once: rename one of them")


def has_dictionary(kind: pa.DataType) -> bool:
    """Return whether a type is a dictionary, or has one within."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_dictionary(kind.storage_type)
    return pa.types.is_dictionary(kind) or any(has_dictionary(kind.field(at).type) for at in range(kind.num_fields))


# --- how schemas grow ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growth:
    """How the schema of a dataset or a topic grows by the rows that are put to it.

    Columns keep their names, types, order, and whether they may be null. Nullable columns, and nullable fields within
    structs, may be added at the end; one of type null, which has no value, takes the first type that comes. Anything
    else is rejected with the difference.
    """

    may_lack: bool
    """Whether rows may lack nullable columns, as producers learn of a new column one after another."""
    remedy: str

    def fit(self, own: pa.Schema | None, new: pa.Schema, path: str) -> pa.Schema:
        """Return the schema in which rows of schema `new` are stored: in the types of `own`, if they mean the same.

        Nothing is stored as a view, since Arrow lacks too much for them.
        """
        if own is None:
            return pa.schema(map(_without_views, new), metadata=new.metadata)
        if own.equals(new):
            return own
        fields = self._combined(own, new, path, _fitted)
        return pa.schema([field for field in fields if new.get_field_index(field.name) >= 0], metadata=own.metadata)

    def merge(self, own: pa.Schema, new: pa.Schema, path: str, *, widens: bool = False) -> pa.Schema:
        """Return the schema after stored rows of schema `new` are added. With `widens` columns may become nullable."""
        if own.equals(new):
            return own
        fields = self._combined(own, new, path, _widened if widens else _merged)
        return pa.schema(fields, metadata=own.metadata)

    def _combined(
        self, own: pa.Schema, new: pa.Schema, path: str, combine: Callable[[pa.Field, pa.Field], pa.Field | None]
    ) -> list[pa.Field]:
        fields, differences = [], []
        for field in own:
            other = new.field(field.name) if new.get_field_index(field.name) >= 0 else None
            if other is None and not (self.may_lack and field.nullable):
                differences.append(f"lacks {field.name} {field.type}")
            combined = field if other is None else combine(field, other)
            if combined is None:
                differences.append(f"{field.name} is {_described(field, other)}, got {_described(other, field)}")
            fields.append(combined or field)
        if differences:
            raise SchemaMismatch(
                f"{path} has another schema: {'; '.join(differences)}. Cast the rows, or {self.remedy}"
            )
        return fields + [_added(field) for field in new if own.get_field_index(field.name) < 0]


DATASET = Growth(may_lack=False, remedy="replace it with mode 'overwrite'")
TOPIC = Growth(may_lack=True, remedy="choose another topic")


def _fitted(own: pa.Field, new: pa.Field) -> pa.Field | None:
    """Return the field in which values of `new` are stored beside those of `own`; None if they mean something else."""
    kind, sent = own.type, new.type
    if isinstance(sent, pa.BaseExtensionType) and not kind.equals(sent):
        return _fitted(own, new.with_type(sent.storage_type))
    if same_layout(sent, kind) or pa.types.is_null(sent) or _mean_the_same(kind, sent):
        return own
    return _added(new) if pa.types.is_null(kind) else _combined_nested(own, new, _fitted)


def _merged(own: pa.Field, new: pa.Field) -> pa.Field | None:
    """Return the field of both, whose values are stored already; None if it would have to become another one."""
    return None if new.nullable and not own.nullable else _widened(own, new)


def _widened(own: pa.Field, new: pa.Field) -> pa.Field | None:
    own = own.with_nullable(own.nullable or new.nullable)
    if own.type.equals(new.type) or pa.types.is_null(new.type):
        return own
    if pa.types.is_null(own.type):
        return _added(new)
    return _combined_nested(own, new, _merged) if own.type.id == new.type.id else None


def _combined_nested(
    own: pa.Field, new: pa.Field, combine: Callable[[pa.Field, pa.Field], pa.Field | None]
) -> pa.Field | None:
    """Combine the fields within structs, lists and maps."""
    kind, sent = own.type, new.type
    if pa.types.is_struct(kind) and pa.types.is_struct(sent):
        others = {field.name: field for field in sent}
        fields = [combine(field, others[field.name]) if field.name in others else field for field in kind]
        lacks = any(field.name not in others and not field.nullable for field in kind)
        repeats = len(others) < len(sent) or len({field.name for field in kind}) < len(kind)
        if lacks or repeats or any(field is None for field in fields):
            return None
        added = [_added(field) for field in sent if kind.get_field_index(field.name) < 0]
        return own.with_type(pa.struct([*fields, *added]))
    if pa.types.is_map(kind) and pa.types.is_map(sent):
        key, item = combine(kind.key_field, sent.key_field), combine(kind.item_field, sent.item_field)
        return None if key is None or item is None else own.with_type(pa.map_(key, item, kind.keys_sorted))
    make = pa.list_ if pa.types.is_list(kind) else pa.large_list if pa.types.is_large_list(kind) else None
    if make is None or not hasattr(sent, "value_field"):
        return None
    value = combine(kind.value_field, sent.value_field)
    return None if value is None else own.with_type(make(value))


_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    (pa.types.is_integer, pa.types.is_floating),
    (pa.types.is_integer, pa.types.is_decimal),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_duration,),
)
"""Types whose values mean the same: `cast` then sees whether each value fits."""


def _mean_the_same(kind: pa.DataType, sent: pa.DataType) -> bool:
    one, other = (each.value_type if pa.types.is_dictionary(each) else each for each in (kind, sent))
    return one.equals(other) or any(
        any(test(one) for test in family) and any(test(other) for test in family) for family in _FAMILIES
    )


def _added(field: pa.Field) -> pa.Field:
    """Return a field as it is added to rows that lack it."""
    return _without_views(field).with_nullable(True)


def _without_views(field: pa.Field) -> pa.Field:
    """Return the field in types that Arrow can cast, filter and sort."""
    kind = field.type
    if pa.types.is_string_view(kind):
        return field.with_type(pa.string())
    if pa.types.is_binary_view(kind):
        return field.with_type(pa.binary())
    if pa.types.is_dictionary(kind):
        values = _without_views(pa.field("", kind.value_type)).type
        return field.with_type(pa.dictionary(kind.index_type, values, kind.ordered))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(map(_without_views, kind)))
    if pa.types.is_map(kind):
        return field.with_type(
            pa.map_(_without_views(kind.key_field), _without_views(kind.item_field), kind.keys_sorted)
        )
    for is_kind, make in _LISTS:
        if is_kind(kind):
            return field.with_type(make(_without_views(kind.value_field)))
    return field


_LISTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Field], pa.DataType]], ...] = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_list_view, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_large_list_view, pa.large_list),
)


def _described(field: pa.Field, other: pa.Field) -> str:
    """Return a field's type, and whether it may be null where that is the difference."""
    return f"{field.type}{'' if field.nullable else ' not null'}" if field.type == other.type else str(field.type)
