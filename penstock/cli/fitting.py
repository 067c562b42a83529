"""Rows of text in a topic's own types: where nothing is lost, else an error that names row, column and value.

Nothing is guessed of a column that the topic has: "0017" stays text where text is wanted, 12.10 is an exact decimal.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Sequence
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
from penstock.rows.schemas import check_names


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
        rows = [_object(line) for line in lines]

        def told(name: str) -> tuple[pa.Field, str]:
            first = next(line.number for line, row in zip(lines, rows, strict=True) if name in row)
            kind = pa.infer_type([json.loads(line.text).get(name) for line in lines])  # the one of Python's values
            return pa.field(name, kind), f"line {first}"

        self._learn(dict.fromkeys(name for row in rows for name in row), told)
        return self._fitted(
            lambda field: column_of([row.get(field.name) for row in rows], field.type),
            where=lambda at: f"line {lines[at].number}",
            lacks=lambda at, name: name not in rows[at],
        )

    def batch(self, batch: pa.RecordBatch, before: int, *, is_text: bool) -> pa.RecordBatch:
        """Rows of CSV, whose columns are text but for the new ones, or rows that have the topic's types, in any order;
        so many rows came before them.
        """
        names = batch.schema.names
        check_names(batch.schema)
        self._learn(names, lambda name: (batch.schema.field(name), f"row {before + 1}"))

        def column(field: pa.Field) -> pa.Array:
            found = batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
            if found.type.equals(field.type):
                return found
            if is_text:
                return column_of_text(found, field.type)
            raise SchemaMismatch(
                f"{self._path} has another schema: {field.name} is {field.type}, got {found.type}. "
                "Cast the rows, or choose another topic (JSON and CSV are cast where nothing is lost)"
            )

        return self._fitted(column, lambda at: f"row {before + at + 1}", lambda _, name: name not in names)

    def _fitted(
        self, column: Callable[[pa.Field], pa.Array], where: Callable[[int], str], lacks: Callable[[int, str], bool]
    ) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            try:
                found = column(field)
            except Unfit as wrong:
                raise self._misfit(where(wrong.at), field, wrong) from wrong
            if found.null_count and not field.nullable:
                at = pc.index(found.is_null(), True).as_py()
                said = "lacks" if lacks(at, field.name) else "has null for"
                raise SchemaMismatch(
                    f"{where(at)} {said} the column {field.name!r}, which is never null in {self._path}"
                )
            columns.append(found)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _misfit(self, where: str, field: pa.Field, wrong: Unfit) -> SchemaMismatch:
        text = isinstance(wrong.value, str | Decimal)
        shown = tables.cut(tables.printable(str(wrong.value) if text else json.dumps(wrong.value, default=str)), 80)
        why = wrong.why and f" ({wrong.why})"
        return SchemaMismatch(f"{where}: {field.name} of {self._path} is {field.type}, got '{shown}'{why}")

    def _at_once(self, lines: Sequence[Line]) -> pa.RecordBatch | None:
        """The same by Arrow's own reader, 10 times as fast, where it is known to do the same: no cast, nothing odd."""
        if not all(_is_plain(field.type) for field in self.schema):
            return None
        wanted = pyarrow.json.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="error")
        text = b"\n".join(line.text for line in lines)
        read = pyarrow.json.ReadOptions(block_size=len(text) + 1, use_threads=False)
        try:
            table = pyarrow.json.read_json(io.BytesIO(text), read_options=read, parse_options=wanted)
            [batch] = table.combine_chunks().to_batches()
            batch.validate(full=True)  # the reader takes any bytes for text
        except (pa.ArrowException, ValueError):
            return None
        sound = all(_is_sound(field, column) for field, column in zip(self.schema, batch.columns, strict=True))
        if batch.num_rows != len(lines) or not sound:
            return None
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def _learn(self, names: Collection[str], told: Callable[[str], tuple[pa.Field, str]]) -> None:
        """New columns, and where they are; one that is null so far is no column yet."""
        known = set(self.schema.names)
        for name in [name for name in names if name not in known]:
            field, where = told(name)
            if not types.is_null(field.type):
                self._check_new(name, where, names)
                self.schema = self.schema.append(field.with_nullable(True))
        self._begun = True

    def _check_new(self, name: str, where: str, names: Collection[str]) -> None:
        known = {known.casefold(): known for known in self.schema.names}
        lacking = [folded for folded, known_as in known.items() if known_as not in names]
        folded = name.casefold()
        meant = [folded] if folded in known else get_close_matches(folded[:100], lacking, n=1)
        said = f"{where} has a column {name[:80]!r}, which"
        if meant:
            raise SchemaMismatch(f"{said} {self._path} lacks: did you mean {known[meant[0]]!r}?")
        if self._begun and not self._grows:
            raise SchemaMismatch(f"{said} the beginning lacks")


def _is_plain(kind: pa.DataType) -> bool:
    return kind == pa.string() or kind == pa.float64() or types.is_integer(kind) or types.is_boolean(kind)


def _is_sound(field: pa.Field, column: pa.Array) -> bool:
    finite = not types.is_floating(field.type) or pc.all(pc.is_finite(column), min_count=0).as_py()
    return bool(finite and (field.nullable or not column.null_count))


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
    for name, value in found.items() if "\\u" in text or not text.isascii() else ():
        try:
            json.dumps([name, value], ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as wrong:
            column, held = (tables.printable(str(said))[:80] for said in (name, value))
            raise InvalidRequest(f"line {line.number}: {column} isn't text in UTF-8, got '{held}'") from wrong
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
