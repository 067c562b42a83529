"""Rows become payloads by the schema of the topic that they are published to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from penstock.decode.revisions import writer_schema
from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows import schemas
from penstock.rows.fitting import fit_batches
from penstock.text import cut, suggest
from penstock.wire.publish import TopicSchema

_KEPT = ("attributes", "ordering_key")
"""Columns that are the message's own."""
_ROWS = 1_000
"""Rows that are Python's objects at a time."""
_GROWTH = replace(schemas.TOPIC, remedy="commit a revision of the schema")


class SchemaEncoding:
    """Makes payloads of all columns of a row but attributes and ordering_key."""

    def __init__(self, path: str, schema: TopicSchema) -> None:
        self._path, self._schema = path, schema
        self._writer = writer_schema(schema.format, schema.definition)

    def check(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns in the types of the topic's schema; reject those that it has no values for."""
        own, where = self._writer.schema, f"{self._path}, by the schema {self._schema.name}"
        fields = [field for field in rows if field.name not in _KEPT]
        for field in fields:
            if field.name not in own.names:
                raise SchemaMismatch(f"{where}, has no field {field.name!r}; {suggest(field.name, own.names)}")
            if field.name in self._writer.unreadable:
                why = self._writer.unreadable[field.name]
                raise SchemaMismatch(f"{where}: the field {field.name!r} can't be written from a column: {why}")
        for name in own.names:
            if name not in rows.names and not self._writer.may_lack(name):
                raise SchemaMismatch(f"{where}, has the field {name!r}, which the rows lack, and which is never null")
        target = pa.schema([own.field(field.name) for field in fields])
        _GROWTH.fit(target, pa.schema(fields).remove_metadata(), where)
        return target

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows with their payloads as `data`."""
        first = 0
        for batch in rows:
            target = self.check(batch.schema)
            kept = [name for name in batch.schema.names if name in _KEPT]
            at = 0
            for fitted in fit_batches([batch.select(target.names)], target):
                payloads = [
                    payload
                    for start in range(0, fitted.num_rows, _ROWS)
                    for payload in self._write(fitted.slice(start, _ROWS), first + start)
                ]
                columns = [batch.column(name).slice(at, fitted.num_rows) for name in kept]
                at, first = at + fitted.num_rows, first + fitted.num_rows
                yield pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary()), *columns], ["data", *kept])

    def _write(self, rows: pa.RecordBatch, first: int) -> list[bytes]:
        as_json = bool(self._schema.json)
        try:
            return self._writer.write(rows.to_pylist(), as_json=as_json)
        except Exception:  # fastavro's are of many kinds; row by row they tell which
            for number, row in enumerate(rows.to_pylist(), first):
                try:
                    self._writer.write([row], as_json=as_json)
                except Exception as error:
                    raise InvalidRequest(
                        f"{self._path}: row {number:,} of this put is no {self._schema.name}: {cut(str(error), 200)}"
                    ) from error
            raise
