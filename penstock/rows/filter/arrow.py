"""Arrow's expressions as filters: what DuckDB, polars and pyarrow push into a dataset, as the server's filter text.

A filter keeps at least the rows for which its expression is true; a condition that has no words here is left out. So
the expression itself is evaluated again over the rows that come.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.errors import InvalidRequest
from penstock.rows.filter.parse import parse_filter

_SIGNS = {
    "equal": "=", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_AND, _OR = ("and_kleene", "and"), ("or_kleene", "or")
_TOKEN = re.compile(r"(call|end|field_ref|nested_field_ref|literal|options): '(.*)'")
_MAX_DEPTH = 200
"""Levels of an expression that are read by recursion."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str | None
    """None of a field within a struct."""


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    arguments: tuple[_Node, ...]
    options: dict[str, pa.Scalar]


_Node: TypeAlias = "_Field | _Call | pa.Scalar[Any] | None"
"""None is a part that can't be read."""


@dataclass(frozen=True, slots=True)
class _Term:
    text: str
    is_exact: bool
    """Whether it is true, false and null for the same rows as the expression; else it is true for others, too."""


def to_filter(expression: pc.Expression, schema: pa.Schema) -> str | None:
    """Return a filter over these columns that is true where the expression is; None if that keeps all rows."""
    kept: list[str] = []
    for each in _conjuncts(_parse(expression, schema)):
        term = _term(each, schema)
        if term is not None and _fits(" and ".join([*kept, term.text]), schema):
            kept.append(term.text)
    return " and ".join(kept) or None


def columns_of(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression reads; all of them where it doesn't say."""
    names = set(_names(_parse(expression, schema)))
    return [name for name in schema.names if None in names or name in names]


def _fits(text: str, schema: pa.Schema) -> bool:
    """Whether the server takes it: characters, comparisons and types are limited."""
    try:
        parse_filter(text, schema).check(schema, schema.names)
    except InvalidRequest:
        return False
    return True


def _conjuncts(node: _Node) -> Iterator[_Node]:
    if isinstance(node, _Call) and node.function in _AND:
        for each in node.arguments:
            yield from _conjuncts(each)
    else:
        yield node


def _names(node: _Node) -> Iterator[str | None]:
    if node is None:
        yield None
    elif isinstance(node, _Field):
        yield node.name
    elif isinstance(node, _Call):
        for each in node.arguments:
            yield from _names(each)


# --- an expression's parts -----------------------------------------------------------------


def _parse(expression: pc.Expression, schema: pa.Schema) -> _Node:
    """Return an expression's parts, which it hides; None if they can't be read.

    It pickles as a record batch: the columns are its literals, and the pairs of the schema's metadata its structure, in
    which keys repeat. `Schema.metadata` has only the first of each key, so the pairs are read from the schema's text.
    """
    if any("\n" in name for name in schema.names):  # it would look like several pairs
        return None
    pickled: Any = expression.__reduce__()
    _, (buffer,) = pickled
    batch = pa.ipc.open_file(buffer).get_batch(0)
    text = batch.schema.to_string(truncate_metadata=False, show_schema_metadata=True)
    pairs = [_TOKEN.fullmatch(line) for line in text.partition("-- schema metadata --\n")[2].strip("\n").split("\n")]
    tokens = [(pair[1], pair[2]) for pair in reversed(pairs) if pair is not None]
    try:
        return _read(tokens, batch.columns, _MAX_DEPTH) if len(tokens) == len(pairs) else None
    except (IndexError, ValueError):  # of another Arrow, or too deep
        return None


def _read(tokens: list[tuple[str, str]], literals: list[pa.Array], depth: int) -> _Node:
    """Take the next part from the end of the tokens, which are in reverse."""
    if not depth:
        raise ValueError
    kind, value = tokens.pop()
    if kind == "field_ref":
        return _Field(value)
    if kind == "literal":
        return literals[int(value)][0]
    if kind == "nested_field_ref":
        for _ in range(int(value)):
            _read(tokens, literals, depth - 1)
        return _Field(None)
    if kind != "call":
        raise ValueError
    arguments: list[_Node] = []
    options: dict[str, pa.Scalar] = {}
    while tokens[-1][0] != "end":
        if tokens[-1][0] == "options":
            options = dict(literals[int(tokens.pop()[1])][0].items())
        else:
            arguments.append(_read(tokens, literals, depth - 1))
    tokens.pop()
    return _Call(value, tuple(arguments), options)


# --- their text ----------------------------------------------------------------------------


def _term(node: _Node, schema: pa.Schema) -> _Term | None:
    """Return a condition's text; None if it has none."""
    if isinstance(node, _Field):
        kind = _type_of(node, schema)
        return _Term(_quoted(node.name or "", "`"), True) if kind is not None and types.is_boolean(kind) else None
    if not isinstance(node, _Call):
        return None
    if node.function in (*_AND, *_OR):
        terms = [_term(each, schema) for each in node.arguments]
        known = [term for term in terms if term is not None]
        if not known or (node.function in _OR and len(known) < len(terms)):
            return None
        word = " and " if node.function in _AND else " or "
        is_exact = len(known) == len(terms) and all(term.is_exact for term in known)
        return _Term(f"({word.join(term.text for term in known)})", is_exact)
    if node.function == "invert":
        inner = _term(node.arguments[0], schema)
        return _Term(f"not ({inner.text})", True) if inner is not None and inner.is_exact else None
    return _condition(node, schema)


def _condition(node: _Call, schema: pa.Schema) -> _Term | None:
    """Return the text of one column's condition."""
    if not node.arguments:
        return None
    first, *others = node.arguments
    sign = _SIGNS.get(node.function)
    if sign and isinstance(first, pa.Scalar):
        first, others, sign = others[0], [first], _MIRRORED.get(sign, sign)
    if not isinstance(first, _Field) or (kind := _type_of(first, schema)) is None:
        return None
    name = _quoted(first.name or "", "`")
    if node.function == "is_valid":
        return _Term(f"{name} is not null", True)
    if node.function == "is_null" and not node.options["nan_is_null"].as_py():
        return _Term(f"{name} is null", True)
    if node.function == "is_in":
        values = [_literal(value, kind) for value in node.options["value_set"].values]
        texts = [text for text in values if text is not None]
        # Of a null Arrow says that it isn't among them, and a filter nothing
        return _Term(f"{name} in ({', '.join(texts)})", False) if texts and len(texts) == len(values) else None
    if sign and isinstance(others[0], pa.Scalar) and (text := _literal(others[0], kind)) is not None:
        above_all = sign in (">", ">=") and types.is_floating(kind)  # NaN is here, and not for Arrow
        return _Term(f"{name} {sign} {text}", not above_all)
    return None


def _type_of(field: _Field, schema: pa.Schema) -> pa.DataType | None:
    return schema.field(field.name).type if field.name in schema.names else None


def _literal(value: pa.Scalar, kind: pa.DataType) -> str | None:
    """Return a value as a literal that the server compares with a column just as Arrow does; None without one."""
    render = next((render for holds, render in _LITERALS if holds(kind)), None)
    return render(value, kind) if render is not None and value.is_valid else None


def _number(value: pa.Scalar, kind: pa.DataType) -> str | None:
    """Arrow compares whole numbers as they are, and floats with others in the wider type, where one may be rounded."""
    number = value.as_py()
    if types.is_integer(value.type):
        exact = not types.is_floating(kind) or abs(number) <= (1 << 24)
        return str(number) if exact and not types.is_float16(kind) else None
    same = value.type == kind and not types.is_float16(kind) and types.is_floating(kind)
    return repr(number) if same and math.isfinite(number) else None


def _decimal(value: pa.Scalar, kind: pa.DataType) -> str | None:
    return format(value.as_py(), "f") if types.is_decimal(value.type) else None


def _time(value: pa.Scalar, kind: pa.DataType) -> str | None:
    if value.type.id != kind.id or (types.is_timestamp(kind) and (value.type.tz is None) != (kind.tz is None)):
        return None
    try:
        return _quoted(value.cast(kind).cast(pa.string()).as_py(), "'")
    except pa.ArrowInvalid:  # it has a finer unit than the column, and digits there
        return None


def _text(value: pa.Scalar, kind: pa.DataType) -> str | None:
    return _quoted(value.as_py(), "'") if _is_text(value.type) else None


def _bytes(value: pa.Scalar, kind: pa.DataType) -> str | None:
    return f"x'{value.as_py().hex()}'" if _is_bytes(value.type) else None


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


_LITERALS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Scalar, pa.DataType], str | None]], ...] = (
    (types.is_boolean, lambda value, kind: str(value.as_py()).lower() if types.is_boolean(value.type) else None),
    (lambda kind: types.is_integer(kind) or types.is_floating(kind), _number),
    (types.is_decimal, _decimal),
    (lambda kind: types.is_date32(kind) or types.is_timestamp(kind), _time),
    (_is_text, _text),
    (_is_bytes, _bytes),
)
