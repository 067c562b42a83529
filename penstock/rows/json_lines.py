"""Lines of JSON, an object each: parsed exactly, or by Arrow's reader, 20 times as fast, where that is the same."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.json
import pyarrow.types as types

from penstock.errors import InvalidRequest
from penstock.rows.exact import Misfit, column_of, time_type
from penstock.text import cut, printable


class Lines(NamedTuple):
    """Lines, and the number of the first one."""

    text: bytes
    number: int = 1


def parse(lines: Lines) -> dict[int, dict[str, Any]]:
    """Return the objects by the numbers of their lines, with decimals for numbers that have a fraction."""
    texts = enumerate(lines.text.split(b"\n"), lines.number)
    return {number: _parse(text, number) for number, text in texts if text and not text.isspace()}


def _parse(line: bytes, number: int) -> dict[str, Any]:
    text = line.decode("utf-8-sig", "surrogateescape")  # an error names the column of what isn't UTF-8
    if number == 1 and text.lstrip().startswith("["):
        raise InvalidRequest("it is one JSON array: expected an object per line (jq -c '.[]' makes them)")
    try:
        row = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"line {number} isn't JSON: {str(error)[:120]}") from error
    if not isinstance(row, dict):
        raise InvalidRequest(f"line {number} is JSON, but no object: {cut(repr(row), 40)}")
    for name, value in row.items() if "\\u" in text or not text.isascii() else ():
        try:
            json.dumps([name, value], ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            column, shown = (printable(str(part))[:80] for part in (name, value))
            raise InvalidRequest(f"line {number}: {column} isn't text in UTF-8, got '{shown}'") from error
    return row


def infer_schema(lines: Lines) -> pa.Schema:
    """Return the schema that Arrow's reader infers, but for times, whose zone it drops: see `time_type`."""
    try:
        schema = _read(lines.text, None).schema
        if not schema.names:  # which must be UTF-8
            raise InvalidRequest("its lines have no columns")
        texts = pa.schema([field.with_type(_times_as_text(field.type)) for field in schema])
        [batch] = _read(lines.text, texts).to_batches()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        parse(lines)  # which names the line that is no object
        raise InvalidRequest(f"these lines are no table: {str(error).splitlines()[0]}") from error
    return pa.schema([(name, _with_times(column)) for name, column in zip(schema.names, batch.columns, strict=True)])


def infer_type(values: Sequence[Any]) -> pa.DataType:
    """Return the type of new values, with floats for their decimals."""
    return _with_times(pa.array(json.loads(json.dumps(values, default=float))))


def read_fast(lines: Lines, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the rows as Arrow's reader has them; None if it can't read them, or might differ from the exact way.

    The exact way is `parse` and `column_of`. The reader reads what it neither casts nor rounds; times, bytes and the
    words of a dictionary it reads as text.
    """
    kinds = [_read_as(field.type) for field in schema]
    if None in kinds:
        return None
    try:
        fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
        [batch] = _read(lines.text, pa.schema(fields)).to_batches()
        batch.validate(full=True)  # the reader takes any bytes for text
        columns = [
            column.cast(kind) if types.is_nested(column.type) else column_of(column, kind)
            for kind, column in zip(schema.types, batch.columns, strict=True)
        ]
    except (pa.ArrowException, ValueError, Misfit):
        return None
    if batch.num_rows != len(re.findall(rb"^.*\S", lines.text, re.MULTILINE)):  # two objects on a line are two rows
        return None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_as(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which the reader is exact; None if there is none."""
    if _is_exact(text := _times_as_text(kind)):
        return text
    is_flat = types.is_dictionary(kind) or not (types.is_nested(kind) or types.is_floating(kind))
    return pa.string() if is_flat else None


def _is_exact(kind: pa.DataType) -> bool:
    if types.is_list(kind):
        return _is_exact(kind.value_type)
    if types.is_struct(kind):
        return all(_is_exact(field.type) for field in kind)
    number = types.is_integer(kind) or types.is_decimal(kind) or kind == pa.float64()
    return bool(number or types.is_boolean(kind) or kind == pa.string())


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    """Return the type with text for times, at any depth."""
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_text(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_times_as_text(field.type)) for field in kind])
    return pa.string() if types.is_timestamp(kind) else kind


def _with_times(column: pa.Array) -> pa.DataType:
    """Return the column's type, with times for text that is all times, at any depth."""
    if types.is_list(column.type):
        return pa.list_(column.type.value_field.with_type(_with_times(column.flatten())))
    if types.is_struct(column.type):
        children = zip(column.type, column.flatten(), strict=True)
        return pa.struct([field.with_type(_with_times(child)) for field, child in children])
    return time_type(column)


def _read(text: bytes, schema: pa.Schema | None) -> pa.Table:
    exact = pyarrow.json.ParseOptions(schema, unexpected_field_behavior="error")
    table = pyarrow.json.read_json(
        io.BytesIO(text),
        read_options=pyarrow.json.ReadOptions(block_size=len(text) + 1, use_threads=False),
        parse_options=None if schema is None else exact,
    )
    return table.combine_chunks()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key is there twice")
    return row


_decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=Decimal, object_pairs_hook=_unique_keys)
"""One for all lines: json.loads with these arguments makes one for each, which takes as long as the line."""
