"""How the rows of a topic are read: which columns are its messages' own, and which are decoded of each payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.decode.ddl import parse_ddl
from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows import schemas
from penstock.rows.casting import same_layout
from penstock.rows.fitting import fit_batches
from penstock.text import suggest
from penstock.wire.read import PayloadSchema

SCHEMA_FORMATS = ("avro", "protobuf")
"""Formats whose payloads are written with a schema: the server decodes them."""
FORMATS = ("json", *SCHEMA_FORMATS)
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
"""What becomes of a payload that doesn't decode, in the words of Spark's readers: nulls, no row, or an error."""
ERROR = "_error"
"""The column with the reason why a payload wasn't decoded, or not all of it."""
REST = "_rest"
"""The column with the fields of a payload that the schema lacks, as a map of JSON."""
METADATA = frozenset(
    ("message_id", "publish_time", "ordering_key", "attributes", "delivery_attempt", "_shard", "_offset", "_time")
)
"""Columns that are filled from the message, and never from its payload."""
_PLACE = ("_shard", "_offset")
"""Columns that say which row it is; FAILFAST reads them always."""
PAYLOAD = "data"
_PAYLOADS = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view())
_ROWS = 8_192
"""Rows that are decoded at once."""


class Decoder(Protocol):
    """Decodes payloads of one format."""

    schema: pa.Schema
    """The columns that it returns."""

    def decode(self, payloads: pa.Array) -> tuple[list[pa.Array], pa.Array]:
        """Return the columns of binary payloads, and for each row the reason why it wasn't decoded, or null."""


@dataclass(frozen=True)
class Decoding:
    """What a reader has asked for; it travels to Spark's tasks."""

    path: str
    format: str
    schema: pa.Schema
    """The columns of a decoded row, in their order."""
    mode: str = MODES[0]
    payload: str = PAYLOAD
    """The topic's column that has the payloads."""
    source: pa.Schema | None = None
    """The topic's columns that are read."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The topic's columns to read."""
        named = _PLACE if self.mode == "FAILFAST" else ()
        return tuple(dict.fromkeys((self.payload, *(name for name in self.schema.names if name in METADATA), *named)))

    @cached_property
    def decoder(self) -> Decoder:
        """The decoder of the columns that come from payloads."""
        from penstock.decode.json import JsonDecoder

        fields = [each for each in self.schema if each.name not in METADATA and each.name not in (ERROR, REST)]
        return JsonDecoder(pa.schema(fields), REST if REST in self.schema.names else None)

    def to_wire(self) -> PayloadSchema:
        """Return this as a consumer tells it to the server."""
        return PayloadSchema(self.format, schemas.encode(self.schema), self.mode, self.payload)

    def errors_of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return for each row of a topic's batch why it doesn't decode, null where it does."""
        batch = self._as_binary(batch)
        errors = [self.decode(batch.slice(at, _ROWS))[1] for at in range(0, batch.num_rows, _ROWS)]
        return pa.concat_arrays([pa.nulls(0, pa.string()), *errors])

    def decode(self, batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], pa.Array]:
        """Return the columns of a batch's payloads, and for each row why it doesn't decode."""
        columns, errors = self.decoder.decode(batch.column(self.payload))
        return dict(zip(self.decoder.schema.names, columns, strict=True)), errors

    def reading(self, source: pa.Schema) -> Decoding:
        """Return the same for rows whose columns have these types."""
        for name in self.columns:
            if name not in source.names:
                raise InvalidRequest(f"{self.path} has no column {name!r}: it has {', '.join(source.names)[:200]}")
        kind = source.field(self.payload).type
        if kind not in _PAYLOADS:
            raise InvalidRequest(f"{self.path}: decode reads column {self.payload!r}, which is {kind}: expected binary")
        fields = [source.field(name) for name in self.columns]
        for field in fields[1:]:
            wanted = self.schema.field(field.name).type if field.name in self.schema.names else field.type
            if not same_layout(field.type, wanted):
                raise SchemaMismatch(
                    f"{self.path}: the message's {field.name} is {field.type}, the schema has {wanted}: name it so"
                )
        return replace(self, source=pa.schema([fields[0].with_type(pa.binary()), *fields[1:]]))

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows of a topic's batches."""
        for batch in fit_batches(map(self._as_binary, batches), self.source, reading=True):
            for start in range(0, batch.num_rows, _ROWS):
                yield self._decode(batch.slice(start, _ROWS))

    def _as_binary(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(self.payload)
        return batch.set_column(at, self.payload, batch.column(at).cast(pa.binary()))

    def _decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, errors = self.decode(batch)
        if self.mode == "FAILFAST" and errors.null_count < len(errors):
            row = pc.index(errors.is_valid(), True).as_py()
            raise InvalidRequest(
                f"{self.path}: a payload doesn't decode: {errors[row]}. It is the row with {_where(batch, row)}"
            )
        decoded = columns | {ERROR: errors}
        arrays = [batch.column(name) if name in METADATA else decoded[name] for name in self.schema.names]
        [rows] = fit_batches([pa.RecordBatch.from_arrays(arrays, self.schema.names)], self.schema, reading=True)
        if self.mode == "DROPMALFORMED" and errors.null_count < len(errors):
            rows = rows.filter(errors.is_null())
        return rows


def _where(batch: pa.RecordBatch, row: int) -> str:
    names = [name for name in (*_PLACE, "message_id") if name in batch.schema.names]
    return ", ".join(f"{name}={batch.column(name)[row]}" for name in names)


def plan(
    path: str, columns: Sequence[str], format: str, schema: object, mode: str | None = None, *, with_error: bool = False
) -> Decoding:
    """Return how JSON payloads of a topic with these columns are decoded into a schema: text, as Spark's `.schema(…)`
    takes it, or Arrow's. `with_error` adds the column `_error`, in the mode that fills it.
    """
    mode, arrow = _checked(format, schema, mode, with_error=with_error)
    if arrow is None:
        raise InvalidRequest(
            f"schema=None: decode={format!r} needs one, such as 'id long, total decimal(10,2)', or Arrow's"
        )
    decoding = Decoding(path, format, arrow, mode, payload_of(path, columns))
    decoding.decoder  # noqa: B018  # rejects types that the format has no values for
    return decoding


def plan_at_server(
    path: str,
    columns: Sequence[str],
    format: str,
    schema: object,
    mode: str | None = None,
    *,
    writer: str | None = None,
    with_error: bool = False,
) -> PayloadSchema:
    """Return how the server is to decode payloads of a format with schemas; `writer` is the one of all of them. Without
    a schema it has the columns of the newest one.
    """
    mode, arrow = _checked(format, schema, mode, with_error=with_error)
    encoded = None if arrow is None else schemas.encode(arrow)
    return PayloadSchema(format, encoded, mode, payload_of(path, columns), writer)


def _checked(format: str, schema: object, mode: str | None, *, with_error: bool) -> tuple[str, pa.Schema | None]:
    """Return a mode and a schema as they are meant."""
    if format not in FORMATS:
        raise InvalidRequest(f"decode={format[:80]!r}: {suggest(format, FORMATS)}")
    mode = (mode or MODES[0]).upper()
    if mode not in MODES:
        raise InvalidRequest(f"mode={mode[:80]!r}: {suggest(mode, MODES)}")
    if schema is None:
        return mode, None
    arrow = parse_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(arrow, pa.Schema):
        raise InvalidRequest(f"schema={schema!r:.80}: expected text such as 'id long, total decimal(10,2)', or Arrow's")
    check_fields(arrow)
    if with_error and mode == MODES[0] and ERROR not in arrow.names:
        arrow = arrow.append(pa.field(ERROR, pa.string()))
    return mode, arrow


def of_wire(path: str, said: PayloadSchema) -> Decoding:
    """Return how a consumer decodes, of what it has told the server, which is untrusted."""
    schema = None if said.schema is None else schemas.decode(said.schema)
    return plan(path, [said.payload], said.format, schema, said.mode)


def check_fields(schema: pa.Schema) -> None:
    """Reject a schema that no payload can have."""
    own = {ERROR: pa.string(), REST: pa.map_(pa.string(), pa.string())}
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise InvalidRequest(f"the schema has column {field.name!r} more than once")
        if field.name in own and not field.type.equals(own[field.name]):
            raise InvalidRequest(f"the schema's column {field.name} is {field.type}: it is always {own[field.name]}")
        if field.name not in METADATA and not _nullable(field):
            raise InvalidRequest(
                f"the schema's column {field.name} has NOT NULL: a payload may lack it, or not decode, and is null then"
            )


def _nullable(field: pa.Field) -> bool:
    kind: Any = field.type
    if types.is_struct(kind):
        children = list(kind)
    elif types.is_map(kind):
        children = [kind.item_field]
    else:
        children = [kind.value_field] if types.is_list(kind) else []
    return field.nullable and all(map(_nullable, children))


def payload_of(path: str, columns: Sequence[str]) -> str:
    """Return the column that has the payloads: `data`, or the only one."""
    if PAYLOAD in columns:
        return PAYLOAD
    if len(columns) == 1:
        return columns[0]
    raise InvalidRequest(
        f"{path}: decode reads column {PAYLOAD!r}, which it lacks: it has {', '.join(columns)[:200]}. Call the column "
        f"with the payloads {PAYLOAD!r}"
    )
