"""Schemas: as they cross the wire, and how the schema of a dataset or a topic grows."""

from __future__ import annotations

import base64
import binascii
from collections import Counter

import pyarrow as pa

from penstock.errors import InvalidRequest, SchemaMismatch
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


def merge(own: pa.Schema, new: pa.Schema, path: str) -> pa.Schema:
    """Return the schema of a dataset after rows of schema `new` are added to it.

    Columns keep their names, types and order; nullable columns may be added at the end, and
    a column that was never null may become nullable. Anything else is rejected with the difference.
    """
    return _merged(own, new, path, "replace it with mode 'overwrite'")


def grow(own: pa.Schema, new: pa.Schema, path: str) -> pa.Schema:
    """Return the schema of a topic after rows of schema `new` are appended.

    As `merge`, and nullable columns may be missing, as producers learn of a new column one after another. They read
    as null.
    """
    if own.equals(new):
        return own
    missing = {field.name for field in own if field.nullable and new.get_field_index(field.name) < 0}
    common = pa.schema([field for field in own if field.name not in missing], metadata=own.metadata)
    merged = _merged(common, new, path, "choose another topic")
    fields = [field if field.name in missing else merged.field(field.name) for field in own]
    return pa.schema([*fields, *list(merged)[len(common) :]], metadata=own.metadata)


def _merged(own: pa.Schema, new: pa.Schema, path: str, remedy: str) -> pa.Schema:
    if own.equals(new):
        return own
    differences = _differences(own, new)
    if differences:
        raise SchemaMismatch(f"{path} has another schema: {'; '.join(differences)}. Cast the rows, or {remedy}")
    fields = [field.with_nullable(field.nullable or other.nullable) for field, other in zip(own, new, strict=False)]
    return pa.schema([*fields, *list(new)[len(own) :]], metadata=own.metadata)


def _differences(own: pa.Schema, new: pa.Schema) -> list[str]:
    lacking = [f"lacks {field.name} {field.type}" for field in own if new.get_field_index(field.name) < 0]
    retyped = [
        f"{field.name} is {field.type}, got {new.field(field.name).type}"
        for field in own
        if new.get_field_index(field.name) >= 0 and not new.field(field.name).type.equals(field.type)
    ]
    required = [
        f"adds {field.name} {field.type} not null (an added column must be nullable)"
        for field in new
        if own.get_field_index(field.name) < 0 and not field.nullable
    ]
    if lacking or retyped or required:
        return lacking + retyped + required
    if new.names[: len(own)] != own.names:
        return [f"its columns have the order {', '.join(own.names)}, got {', '.join(new.names)}"]
    return []
