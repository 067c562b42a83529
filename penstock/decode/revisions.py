"""Avro and protobuf payloads become columns, each by the revision of the schema that its message names.

At the server alone: the revisions are in its ledger, and the libraries are an extra of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.decode.decoding import ERROR, METADATA, MODES, REST, SCHEMA_FORMATS, Decoding, check_fields
from penstock.errors import InvalidRequest
from penstock.rows import schemas
from penstock.rows.attributes import ATTRIBUTES, json_of, revisions_of
from penstock.text import cut, printable, suggest
from penstock.wire.read import PayloadSchema

_ATTRIBUTES = "attributes"
_ERROR = 200
"""Characters of a row's error."""
_REMEMBERED = 64
"""Schemas that are remembered as they are read: to compile one takes up to half a second."""
_NO_SCHEMA = "its message names no schema: pass writer_schema=FILE, the schema with which it was written"


@dataclass(frozen=True, slots=True)
class Revision:
    """What is known of a revision of a schema."""

    name: str
    """projects/p/schemas/s@revision"""
    format: str | None
    """avro or protobuf."""
    definition: str | None
    error: str | None = None
    """Why it has no definition, for good."""


class WriterSchema(Protocol):
    """A schema with which payloads were written."""

    schema: pa.Schema
    """Its columns, in the types that are nearest to its own."""
    unreadable: dict[str, str]
    """Columns that have no type in Arrow, with the reason."""

    def read(
        self, payloads: pa.Array, names: Collection[str], *, as_json: bool = False
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Return these columns of payloads, none of which is null, and each row's error."""
        ...

    def write(self, rows: Iterable[Mapping[str, Any]], *, as_json: bool = False) -> list[bytes]:
        """Return the payloads of rows in the types of `schema`."""
        ...

    def may_lack(self, name: str) -> bool:
        """Whether a row that lacks a column can be written."""
        ...


@lru_cache(maxsize=_REMEMBERED)
def writer_schema(format: str, definition: str) -> WriterSchema:
    """Return the schema that a definition describes: Avro's JSON, or a .proto file's text."""
    try:
        if format == "avro":
            from penstock.decode.avro import AvroSchema

            return AvroSchema(definition)
        from penstock.decode.protobuf import ProtobufSchema

        return ProtobufSchema(definition)
    except ImportError as missing:
        raise InvalidRequest(
            f"the server lacks {missing.name}, which {format} needs: pip install 'penstock-flight[serve,decode]' there"
        ) from missing


# --- decoding ---------------------------------------------------------------------------------


class SchemaDecoder:
    """Decodes payloads into the columns of a schema, whichever revision they were written with."""

    def __init__(
        self, schema: pa.Schema, format: str, writer: WriterSchema | None, find: Callable[[str], Revision]
    ) -> None:
        self.schema = schema
        self._format, self._writer, self._find = format, writer, find

    def decode(self, payloads: pa.Array, attributes: pa.Array | None) -> tuple[list[pa.Array], pa.Array]:
        """Return the columns of binary payloads, and for each row the reason why it wasn't decoded, or null."""
        count = len(payloads)
        pieces: list[tuple[npt.NDArray[np.int64], list[pa.Array], list[str | None]]] = []
        for label, as_json, rows in self._groups(payloads, attributes):
            some = payloads if len(rows) == count else payloads.take(pa.array(rows))
            pieces.append((rows, *self._decode(label, some, as_json=as_json)))
        if len(pieces) == 1 and len(pieces[0][0]) == count:
            _, columns, errors = pieces[0]
            return columns, pa.array(errors, pa.string())
        order = np.full(count, -1, np.int64)
        rows = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _, _ in pieces)])
        order[rows] = np.arange(len(rows))
        places = pa.array(order, mask=order < 0)  # a null payload is all null
        columns = [
            pa.concat_arrays([pa.nulls(0, field.type), *(columns[at] for _, columns, _ in pieces)]).take(places)
            for at, field in enumerate(self.schema)
        ]
        texts = [error for _, _, errors in pieces for error in errors]
        return columns, pa.array(texts, pa.string()).take(places)

    def _groups(
        self, payloads: pa.Array, attributes: pa.Array | None
    ) -> Iterable[tuple[str | None, bool, npt.NDArray[np.int64]]]:
        """Yield the rows of each revision and encoding that have a payload."""
        there = np.asarray(payloads.is_valid())
        if attributes is None:
            yield None, False, np.flatnonzero(there)
            return
        as_json = np.asarray(json_of(attributes))
        names = pa.nulls(len(payloads), pa.string()) if self._writer is not None else revisions_of(attributes)
        labels = pc.dictionary_encode(names, null_encoding="encode")
        for number, name in enumerate(labels.dictionary.to_pylist()):
            own = there & (np.asarray(labels.indices) == number)
            for encoded in (False, True):
                if len(rows := np.flatnonzero(own & (as_json == encoded))):
                    yield name, encoded, rows

    def _decode(
        self, name: str | None, payloads: pa.Array, *, as_json: bool
    ) -> tuple[list[pa.Array], list[str | None]]:
        try:
            writer = self._writer or self._writer_of(name)
        except _Unusable as why:
            return [pa.nulls(len(payloads), kind) for kind in self.schema.types], [str(why)] * len(payloads)
        names = {name for name in self.schema.names if name in writer.schema.names and name not in writer.unreadable}
        columns, errors = writer.read(payloads, names, as_json=as_json)
        if any(errors):  # anything may be there
            failed = np.array([error is not None for error in errors], np.bool_)
            places = pa.array(np.arange(len(failed)), mask=failed)
            columns = {name: array.take(places) for name, array in columns.items()}
        arrays = []
        for field in self.schema:
            misfits = _Misfits(errors, f"{field.name}: ")
            if field.name in names:
                arrays.append(_conform(columns[field.name], field.type, misfits.note))
            else:
                if field.name in writer.unreadable:
                    misfits.note(np.ones(len(payloads), np.bool_), writer.unreadable[field.name])
                arrays.append(pa.nulls(len(payloads), field.type))
        if any(errors):
            errors = [None if error is None else cut(printable(error), _ERROR) for error in errors]
        return arrays, errors

    def _writer_of(self, name: str | None) -> WriterSchema:
        """Return the schema of a revision; _Unusable if there will never be one."""
        if name is None:
            raise _Unusable(_NO_SCHEMA)
        revision = self._find(name)
        if revision.format is None or revision.definition is None:
            raise _Unusable(f"its schema {name} is missing: {revision.error}")
        if revision.format != self._format:
            raise _Unusable(f"its schema {name} is {revision.format}: pass decode={revision.format!r}")
        try:
            return writer_schema(revision.format, revision.definition)
        except InvalidRequest as unusable:
            if isinstance(unusable.__cause__, ImportError):
                raise
            raise _Unusable(f"its schema {name}: {unusable}") from unusable


class _Unusable(Exception):
    """Why rows of a revision can't be decoded."""


class _Misfits:
    """Notes why values of a column aren't of its type."""

    def __init__(self, errors: list[str | None], prefix: str) -> None:
        self._errors, self._prefix = errors, prefix

    def note(self, wrong: npt.NDArray[np.bool_], why: str) -> None:
        """Note the reason at rows that have no other."""
        for row in np.flatnonzero(wrong).tolist():
            if self._errors[row] is None:
                self._errors[row] = f"{self._prefix}{why}"


# --- types ------------------------------------------------------------------------------------

_Note = Callable[[npt.NDArray[np.bool_], str], None]
"""Takes the values of an array that aren't of its type, and why."""


def _conform(array: Any, kind: Any, note: _Note) -> pa.Array:
    """Return an array in a reader's type: fields by name, those that are missing null, values as they are or not at
    all.
    """
    source = array.type
    if source == kind:
        return array
    nulls = array.is_null() if array.null_count else None
    if types.is_struct(source) and types.is_struct(kind):
        values = dict(zip((field.name for field in source), array.flatten(), strict=True))
        children = [
            _conform(values[field.name], field.type, _within(note, field.name))
            if field.name in values
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if types.is_map(source) and types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        lists = _conform(array.cast(_entries_of(source)), pa.list_(entry), note)
        keys, items = lists.values.flatten()
        return pa.MapArray.from_arrays(lists.offsets, keys, items, type=kind, mask=nulls)
    if types.is_list(source) and types.is_list(kind):
        counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
        parents = np.repeat(np.arange(len(array)), counts)

        def note_parents(wrong: npt.NDArray[np.bool_], why: str) -> None:
            of_rows = np.zeros(len(array), np.bool_)
            of_rows[parents[wrong]] = True
            note(of_rows, why)

        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        elements = _conform(array.flatten(), kind.value_type, _within(note_parents, "[]"))
        return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=nulls)
    return _conform_values(array, kind, note)


def _within(note: _Note, name: str) -> _Note:
    return lambda wrong, why: note(wrong, f"{name}: {why}")


def _entries_of(kind: Any) -> pa.DataType:
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


def _conform_values(array: pa.Array, kind: Any, note: _Note) -> pa.Array:
    if not is_castable(array.type, kind):
        note(np.asarray(array.is_valid()), f"it was written as {array.type}, the schema has {kind}")
        return pa.nulls(len(array), kind)
    if types.is_decimal(kind) and types.is_integer(array.type):  # whose digits Arrow counts by their type
        array = array.cast(pa.decimal256(76, kind.scale))
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        values = [_cast(value, kind) for value in array]
        converted = pa.array([None if value is None else value.as_py() for value in values], kind)
        note(np.asarray(array.is_valid()) & ~np.asarray(converted.is_valid()), f"a value is no {kind}")
        return converted


def _cast(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        return None


def is_castable(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of one type may be values of the other: no time becomes a number, no number text."""
    if types.is_null(source) or source == kind:
        return True
    if types.is_integer(source):
        return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if types.is_decimal(source):
        return types.is_decimal(kind) or types.is_integer(kind)
    if types.is_floating(source):
        return types.is_float64(kind)
    return {source, kind} == {pa.string(), pa.binary()}


# --- what a consumer or a reader asks for -----------------------------------------------------


@dataclass(frozen=True)
class SchemaDecoding(Decoding):
    """How payloads of a format with schemas are decoded."""

    available: tuple[str, ...] = ()
    """The topic's columns."""
    writer: WriterSchema | None = None
    """The schema of all of them, where a reader has named it; else each message names its own."""
    find: Callable[[str], Revision] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The topic's columns to read."""
        own = super().columns
        if self.writer is None or _ATTRIBUTES in self.available:
            own = tuple(dict.fromkeys((*own, _ATTRIBUTES)))
        return own

    @cached_property
    def schema_decoder(self) -> SchemaDecoder:
        """The decoder of the columns that come from payloads."""
        fields = [each for each in self.schema if each.name not in METADATA and each.name != ERROR]
        assert self.find is not None
        return SchemaDecoder(pa.schema(fields), self.format, self.writer, self.find)

    def decode(self, batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], pa.Array]:
        """Return the columns of a batch's payloads, and for each row why it doesn't decode."""
        attributes = batch.column(_ATTRIBUTES) if _ATTRIBUTES in batch.schema.names else None
        columns, errors = self.schema_decoder.decode(batch.column(self.payload), attributes)
        return dict(zip(self.schema_decoder.schema.names, columns, strict=True)), errors


def schema_decoding(
    path: str, columns: pa.Schema, said: PayloadSchema, find: Callable[[str], Revision], newest: Revision | None
) -> SchemaDecoding:
    """Return how a reader decodes, of what it says, which is untrusted. Without a schema the columns are those of the
    schema that it names, or of the newest revision.
    """
    if said.format not in SCHEMA_FORMATS:
        raise InvalidRequest(f"decode={said.format[:80]!r}: {suggest(said.format, SCHEMA_FORMATS)}")
    if said.mode not in MODES:
        raise InvalidRequest(f"mode={said.mode[:80]!r}: {suggest(said.mode, MODES)}")
    writer = None if said.writer is None else writer_schema(said.format, said.writer)
    available = tuple(columns.names)
    if _ATTRIBUTES in available and columns.field(_ATTRIBUTES).type != ATTRIBUTES:
        available = tuple(name for name in available if name != _ATTRIBUTES)  # a column of that name, and no more
    if writer is None and _ATTRIBUTES not in available:
        raise InvalidRequest(
            f"{path} has no column {_ATTRIBUTES!r}, in which messages name their schema: pass writer_schema=FILE, the "
            "schema with which all of them were written"
        )
    if said.schema is not None:
        schema = schemas.decode(said.schema)
    else:
        schema = _schema_of(path, said, writer or _newest(path, said.format, newest))
    check_fields(schema)
    if REST in schema.names:
        raise InvalidRequest(f"the schema's column {REST}: only JSON has fields that no schema names")
    return SchemaDecoding(path, said.format, schema, said.mode, said.payload, None, available, writer, find)


def _newest(path: str, format: str, revision: Revision | None) -> WriterSchema:
    if revision is None or revision.format is None or revision.definition is None:
        raise InvalidRequest(
            f"{path}: no revision of a schema is known yet: pass schema='id long, …', the columns to read, or "
            "writer_schema=FILE"
        )
    if revision.format != format:
        raise InvalidRequest(f"{path}: its schema {revision.name} is {revision.format}: decode={revision.format!r}")
    return writer_schema(format, revision.definition)


def _schema_of(path: str, said: PayloadSchema, writer: WriterSchema) -> pa.Schema:
    """Return the columns of a writer's schema, and `_error` in the mode that fills it."""
    own = (*METADATA, ERROR, REST)
    fields = [field for field in writer.schema if field.name not in own and field.name not in writer.unreadable]
    if not fields:
        raise InvalidRequest(f"{path}: its schema has no column that can be read: pass schema='id long, …'")
    return pa.schema(fields if said.mode != MODES[0] else [*fields, pa.field(ERROR, pa.string())])
