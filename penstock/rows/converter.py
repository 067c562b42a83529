"""Rows of text as batches of given types: where nothing is lost, else an error that names row, column and value.

Nothing is guessed about a column that a topic has: "0017" stays text where text is wanted, 12.10 is an exact decimal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.errors import SchemaMismatch
from penstock.rows.exact import Misfit, column_of
from penstock.rows.fitting import fit_batches
from penstock.rows.json_lines import Lines, infer_type, parse, read_fast
from penstock.rows.schemas import TOPIC, check_names
from penstock.text import cut, printable


class Converter:
    """Makes batches of one schema: the columns of `schema` in their order, then new ones.

    New columns are those of the first batch; with `grows` later batches may bring more. `name` says in errors whose
    schema it is.
    """

    def __init__(self, name: str, schema: pa.Schema, *, grows: bool = False) -> None:
        self.schema = schema
        self._name, self._grows, self._begun = name, grows, False

    def convert_json(self, lines: Lines) -> pa.RecordBatch:
        """Convert lines with an object each, whose keys may stand in any order."""
        batch = read_fast(lines, self.schema)
        if batch is None:
            rows = parse(lines)
            names = dict.fromkeys(chain.from_iterable(rows.values()))
            columns = {name: [row.get(name) for row in rows.values()] for name in names}
            if self._grows or not self._begun:
                fields = [each.with_type(_grown(each.type, columns.get(each.name, ()))) for each in self.schema]
                self.schema = pa.schema(fields, self.schema.metadata)
            batch = self._convert(columns, "line", [*rows])
        self._begun = True
        return batch

    def convert_batches(self, batches: Iterable[pa.RecordBatch], *, is_text: bool) -> Iterator[pa.RecordBatch]:
        """Convert a CSV file, whose known columns are text, or a file with types of its own."""
        rows = 0
        for batch in batches if is_text else chain.from_iterable(map(self._fit, batches)):
            check_names(batch.schema)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield self._convert(columns, "row", range(rows + 1, rows + batch.num_rows + 1))
            rows += batch.num_rows

    def _fit(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return a typed batch with its known columns cast to the types of the schema."""
        check_names(batch.schema)
        stored = TOPIC.fit(self.schema, batch.schema, self._name)
        known = pa.schema([field for field in stored if field.name in self.schema.names])
        grown = TOPIC.merge(self.schema, known, self._name)
        if self._begun and not grown.equals(self.schema):
            raise SchemaMismatch(f"{self._name}: a struct has a field that the beginning lacks")
        self.schema = grown
        return fit_batches([batch], stored)

    def _convert(self, columns: Mapping[str, Any], noun: str, numbers: Sequence[int]) -> pa.RecordBatch:
        """Convert columns; errors name a row by the noun and its number."""
        for name in columns:
            if name not in self.schema.names:
                self._add_column(name, columns, noun, numbers)
        self._begun, arrays = True, []
        for field in self.schema:
            try:
                array = column_of(columns.get(field.name, [None] * len(numbers)), field.type)
            except Misfit as misfit:
                where = f"{noun} {numbers[misfit.row]}: {field.name} of {self._name}"
                raise SchemaMismatch(f"{where} is {field.type}, got {_shown(misfit)}") from misfit
            if array.null_count and not field.nullable:
                where = f"{noun} {numbers[pc.index(array.is_null(), True).as_py()]}"
                raise SchemaMismatch(f"{where} has no value for {field.name!r}, which is never null in {self._name}")
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _add_column(self, name: str, columns: Mapping[str, Any], noun: str, numbers: Sequence[int]) -> None:
        """Add a new column, unless it has no value yet; refuse one that is a known one misspelt, or comes too late."""
        values, row = columns[name], 0
        if isinstance(values, pa.Array):
            kind = values.type
        else:
            kind = infer_type(values)
            row = next((row for row, value in enumerate(values) if value is not None), 0)
        if types.is_null(kind):
            return
        known = {known.casefold(): known for known in self.schema.names}
        absent = [folded for folded, original in known.items() if original not in columns]
        folded = name.casefold()
        similar = [folded] if folded in known else get_close_matches(folded[:100], absent, n=1)
        column = f"{noun} {numbers[row]} has a column {name[:80]!r}, which"
        if similar:
            raise SchemaMismatch(f"{column} {self._name} lacks: did you mean {known[similar[0]]!r}?")
        if self._begun and not self._grows:
            raise SchemaMismatch(f"{column} the beginning lacks")
        if is_untyped(kind):
            raise SchemaMismatch(f"{column} has no value that tells its type")
        self.schema = self.schema.append(pa.field(name, kind))


def _grown(kind: pa.DataType, values: Iterable[Any]) -> pa.DataType:
    """Return the type with the fields that objects within the values have besides, if these tell their types."""
    values = [value for value in values if value is not None]
    if types.is_list(kind) and all(isinstance(value, list) for value in values):
        return pa.list_(kind.value_field.with_type(_grown(kind.value_type, chain.from_iterable(values))))
    if not types.is_struct(kind) or not all(isinstance(value, dict) for value in values):
        return kind
    children: dict[str, list[Any]] = {}
    for name, child in chain.from_iterable(value.items() for value in values):
        children.setdefault(name, []).append(child)
    fields = [field.with_type(_grown(field.type, children.pop(field.name, ()))) for field in kind]
    added = [pa.field(name, infer_type(values)) for name, values in children.items()]
    return pa.struct([*fields, *(field for field in added if not is_untyped(field.type))])


def is_untyped(kind: pa.DataType) -> bool:
    """Whether no value has told the type, or one within it: of a column of nulls, of empty lists, of empty objects."""
    children = [kind.field(number).type for number in range(kind.num_fields)]
    return types.is_null(kind) or (types.is_struct(kind) and not children) or any(map(is_untyped, children))


def _shown(misfit: Misfit) -> str:
    value = misfit.value if isinstance(misfit.value, str | Decimal) else json.dumps(misfit.value, default=str)
    return f"'{cut(printable(str(value)), 80)}'" + (misfit.why and f" ({misfit.why})")
