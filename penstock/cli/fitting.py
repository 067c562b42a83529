"""Rows of text in a topic's own types: where nothing is lost, else an error that names row, column and value.

Nothing is guessed of a column that the topic has: "0017" stays text where text is wanted, 12.10 is an exact decimal.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as types

from penstock.cli import tables
from penstock.cli.values import Unfit, column_of, column_of_text
from penstock.errors import InvalidRequest, SchemaMismatch


class Line(NamedTuple):
    """A line of text that is a row, and its number for people."""

    number: int
    text: bytes


class Fitter:
    """Makes batches of one schema of what is read: the topic's columns in its order, then those that are new.

    Which columns are new is seen in the first batch; with `grows` later ones may bring more.
    """

    def __init__(self, path: str, schema: pa.Schema, *, grows: bool = False) -> None:
        self.schema = schema
        self._path, self._grows, self._begun = path, grows, False

    def json(self, lines: Sequence[Line]) -> pa.RecordBatch:
        """Lines of JSON, an object each; keys may stand in any order."""
        found = self._at_once(lines)
        if found is not None:
            self._begun = True
            return found
        objects = [_object(line) for line in lines]
        self._learn({name: None for row in objects for name in row}, lines, objects)
        columns = []
        for field in self.schema:
            values = [row.get(field.name) for row in objects]
            try:
                column = column_of(values, field.type)
            except Unfit as wrong:
                raise self._misfit(f"line {lines[wrong.at].number}", field, wrong.value, wrong.why) from wrong
            columns.append(column)
            if not field.nullable and column.null_count:
                at = values.index(None)
                said = "lacks" if field.name not in objects[at] else "has null for"
                raise self._needed(f"line {lines[at].number}", said, field)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def csv(self, batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
        """Rows of CSV whose columns are text, those that are new excepted; so many rows came before them."""
        self._learn_typed(batch, f"row {before + 1}")
        columns = []
        for field in self.schema:
            index = batch.schema.get_field_index(field.name)
            column: Any = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
            try:
                column = column if column.type.equals(field.type) else column_of_text(column, field.type)
            except Unfit as wrong:
                raise self._misfit(f"row {before + wrong.at + 1}", field, wrong.value, wrong.why) from wrong
            columns.append(self._full(column, field, f"row {before + 1}" if index < 0 else None, before))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def typed(self, batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
        """Rows that have types: they must be the topic's, in any order."""
        self._learn_typed(batch, f"row {before + 1}")
        columns = []
        for field in self.schema:
            index = batch.schema.get_field_index(field.name)
            column: Any = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
            if not column.type.equals(field.type):
                raise SchemaMismatch(
                    f"{self._path} has another schema: {field.name} is {field.type}, got {column.type}. "
                    "Cast the rows, or choose another topic (JSON and CSV are cast where nothing is lost)"
                )
            columns.append(self._full(column, field, f"row {before + 1}" if index < 0 else None, before))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    # --- within ------------------------------------------------------------------------------

    def _at_once(self, lines: Sequence[Line]) -> pa.RecordBatch | None:
        """The same by Arrow's own reader, 10 times as fast, where it is known to do the same: no cast, nothing odd."""
        if not all(_is_plain(field.type) for field in self.schema):
            return None
        wanted = pyarrow.json.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="error")
        text = b"\n".join(line.text for line in lines)
        try:
            read = pyarrow.json.ReadOptions(block_size=len(text) + 1, use_threads=False)
            table = pyarrow.json.read_json(io.BytesIO(text), read_options=read, parse_options=wanted)
        except (pa.ArrowException, ValueError):
            return None
        if table.num_rows != len(lines):
            return None
        for field, column in zip(self.schema, table.columns, strict=True):
            odd = types.is_floating(field.type) and not pc.all(pc.is_finite(column), min_count=0).as_py()
            if odd or (column.null_count and not field.nullable):
                return None
        [batch] = table.combine_chunks().to_batches()
        try:
            batch.validate(full=True)  # the reader takes any bytes for text
        except pa.ArrowInvalid:
            return None
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def _learn(self, names: dict[str, None], lines: Sequence[Line], objects: Sequence[dict[str, Any]]) -> None:
        """New columns, with the types that Python's values have; one that is null so far is no column yet."""
        known = set(self.schema.names)
        for name in [name for name in names if name not in known]:
            values = [json.loads(line.text).get(name) for line in lines]
            kind = pa.infer_type(values)
            if not types.is_null(kind):
                at = next(at for at, row in enumerate(objects) if name in row)
                self._add(pa.field(name, kind), f"line {lines[at].number}", names)
        self._begun = True

    def _learn_typed(self, batch: pa.RecordBatch, where: str) -> None:
        known = set(self.schema.names)
        for field in [field for field in batch.schema if field.name not in known]:
            if not types.is_null(field.type):
                self._add(field.with_nullable(True), where, dict.fromkeys(batch.schema.names))
        self._begun = True

    def _add(self, field: pa.Field, where: str, there: dict[str, None]) -> None:
        folded, name = {name.casefold(): name for name in self.schema.names}, field.name.casefold()
        lacking = [each for each, known in folded.items() if known not in there]
        meant = [name] if name in folded else get_close_matches(name[:100], lacking, n=1)
        if meant:
            said = f"{where} has a column {field.name[:80]!r}, which {self._path} lacks"
            raise SchemaMismatch(f"{said}: did you mean {folded[meant[0]]!r}?")
        if self._begun and not self._grows:
            raise SchemaMismatch(f"{where} has a column {field.name[:80]!r}, which the beginning lacks")
        self.schema = self.schema.append(field)

    def _full(self, column: Any, field: pa.Field, absent: str | None, before: int) -> Any:
        if not field.nullable and column.null_count:
            if absent:
                raise self._needed(absent, "lacks", field)
            at = pc.index(column.is_null(), True).as_py()
            raise self._needed(f"row {before + at + 1}", "has null for", field)
        return column

    def _misfit(self, where: str, field: pa.Field, value: object, why: str) -> SchemaMismatch:
        said = str(value) if isinstance(value, str | Decimal) else json.dumps(value, default=str)
        shown = tables.cut(tables.printable(said), 80)
        return SchemaMismatch(
            f"{where}: {field.name} of {self._path} is {field.type}, got '{shown}'{why and f' ({why})'}"
        )

    def _needed(self, where: str, said: str, field: pa.Field) -> SchemaMismatch:
        return SchemaMismatch(f"{where} {said} the column {field.name!r}, which is never null in {self._path}")


def _is_plain(kind: pa.DataType) -> bool:
    return kind == pa.string() or kind == pa.float64() or types.is_integer(kind) or types.is_boolean(kind)


def _object(line: Line) -> dict[str, Any]:
    text = line.text.decode("utf-8-sig", "surrogateescape")  # what isn't UTF-8 is told with its column
    try:
        found = json.loads(text, parse_float=Decimal, parse_constant=_no_number, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as broken:
        raise InvalidRequest(f"line {line.number} isn't JSON: {str(broken)[:120]}") from broken
    if isinstance(found, list) and line.number == 1:
        raise InvalidRequest("it is one JSON array: expected an object per line (jq -c '.[]' makes them)")
    if not isinstance(found, dict):
        raise InvalidRequest(f"line {line.number} is JSON, but no object: {tables.cut(repr(found), 40)}")
    if "\\u" in text or not text.isascii():
        _check_text(line, found)
    return found


def _check_text(line: Line, row: dict[str, Any]) -> None:
    for name, value in row.items():
        try:
            json.dumps([name, value], ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as wrong:
            column, held = (tables.printable(str(said))[:80] for said in (name, value))
            raise InvalidRequest(f"line {line.number}: {column} isn't text in UTF-8, got '{held}'") from wrong


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
