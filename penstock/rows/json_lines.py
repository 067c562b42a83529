"""Lines of JSON, an object each: parsed exactly, or by Arrow's reader, 20 times as fast, where that is the same."""

from __future__ import annotations

import io
import json
import re
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as types

from penstock.errors import InvalidRequest
from penstock.rows.exact import Misfit, column_of
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
    """Return the schema that Arrow's reader infers."""
    try:
        schema = _read(lines.text, None).schema
        if not schema.names:  # which must be UTF-8
            raise InvalidRequest("its lines have no columns")
    except (pa.ArrowException, UnicodeDecodeError) as error:
        parse(lines)  # which names the line that is no object
        raise InvalidRequest(f"these lines are no table: {str(error).splitlines()[0]}") from error
    return schema


def read_fast(lines: Lines, schema: pa.Schema, *, inferred: bool = False) -> pa.RecordBatch | None:
    """Return the rows as Arrow's reader has them; None if it can't read them, or might differ from the exact way.

    The exact way is `parse` and `column_of`. Types that were `inferred` are left to the reader. Of others it reads what
    it neither casts nor rounds; times, bytes and the words of a dictionary it reads as text.
    """
    kinds = [field.type if inferred else _read_as(field.type) for field in schema]
    if None in kinds:
        return None
    try:
        fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
        table = _read(lines.text, pa.schema(fields))
        [batch] = table.combine_chunks().to_batches()
        batch.validate(full=True)  # the reader takes any bytes for text
        columns = [column_of(column, field.type) for field, column in zip(schema, batch.columns, strict=True)]
    except (pa.ArrowException, ValueError, Misfit):
        return None
    # To the reader two objects on a line are two rows, and NaN is a number
    same = inferred or (batch.num_rows == _count(lines.text) and all(map(_is_finite, columns)))
    return pa.RecordBatch.from_arrays(columns, schema=schema) if same else None


def _read_as(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which the reader is exact; None if there is none."""
    if _is_exact(kind):
        return kind
    is_flat = types.is_dictionary(kind) or not (types.is_nested(kind) or types.is_floating(kind))
    return pa.string() if is_flat else None


def _is_exact(kind: pa.DataType) -> bool:
    if types.is_list(kind):
        return _is_exact(kind.value_type)
    if types.is_struct(kind):
        return all(_is_exact(field.type) for field in kind)
    number = types.is_integer(kind) or types.is_decimal(kind) or kind == pa.float64()
    return bool(number or types.is_boolean(kind) or kind == pa.string())


def _is_finite(column: pa.Array) -> bool:
    if types.is_list(column.type):
        return _is_finite(column.flatten())
    if types.is_struct(column.type):
        return all(map(_is_finite, column.flatten()))
    return not types.is_floating(column.type) or bool(pc.all(pc.is_finite(column), min_count=0).as_py())


def _count(text: bytes) -> int:
    """Return how many lines aren't blank."""
    return len(re.findall(rb"^.*\S", text, re.MULTILINE))


def _read(text: bytes, schema: pa.Schema | None) -> pa.Table:
    exact = pyarrow.json.ParseOptions(schema, unexpected_field_behavior="error")
    return pyarrow.json.read_json(
        io.BytesIO(text),
        read_options=pyarrow.json.ReadOptions(block_size=len(text) + 1, use_threads=False),
        parse_options=None if schema is None else exact,
    )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key is there twice")
    return row


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


_decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
"""One for all lines: json.loads with these arguments makes one for each, which takes as long as the line."""
