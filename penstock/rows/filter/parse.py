"""Filters such as `fare > 10 and city in ('Oslo', 'Bergen')`: parsed to an Arrow expression.

SQL's words and SQL's nulls: a comparison with null is neither true nor false, and only rows for which the filter is
true are kept. NaN is larger than any number, as in Spark. A literal has its column's type: `day >= '2026-01-31'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.errors import InvalidRequest
from penstock.rows.filter.tokens import Literal, tokens
from penstock.rows.filter.values import COMPARE, Unfit, among, can_be_chosen, compared, literal, operand, plain
from penstock.text import suggest

_MAX_DEPTH, _MAX_TERMS = 50, 100
"""Arrow walks an expression by recursion, on stacks of 1 MB: 1,500 terms ended the process."""
_SHORT = 64 << 10
"""Bytes of a filter and its schema that are remembered: 16 of them make 1 MiB, however large others are."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that fits a schema."""

    text: str
    expression: pc.Expression
    columns: tuple[str, ...]
    """The columns that the expression reads."""

    def needed(self, schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
        """Return the columns that have to be read: the chosen ones (None for all), and the filter's."""
        names = None if columns is None else {*columns, *self.columns}
        return [name for name in schema.names if names is None or name in names]

    def check(self, schema: pa.Schema, columns: Sequence[str] | None) -> None:
        """Reject a filter that needs columns of whose type Arrow can't choose rows."""
        for name in self.needed(schema, columns):
            if not can_be_chosen(kind := schema.field(name).type):
                raise InvalidRequest(
                    f"filter: no rows can be chosen of column {name[:80]!r}, a {str(kind)[:80]}: "
                    "read other columns (columns=), or without a filter"
                )

    def kept(self, rows: pa.Table) -> pa.Table:
        """Return the rows for which the filter is true."""
        schema = rows.schema
        simple = pa.schema([field.with_type(plain(field.type)) for field in schema], schema.metadata)
        try:
            if simple.equals(schema):
                return rows.filter(self.expression)
            return rows.cast(simple).filter(self.expression).cast(schema)
        except pa.ArrowMemoryError:
            raise
        except pa.ArrowException as failed:
            raise InvalidRequest(f"filter {self.text[:200]!r} can't be evaluated: {str(failed)[:200]}") from failed


def parse_filter(text: str, schema: pa.Schema) -> Filter:
    """Parse a filter over rows of this schema; reject by name what does not fit."""
    if len(text) + schema.serialize().size > _SHORT:
        return _parse(text, schema)
    return _parse_short(text, schema)


def _parse(text: str, schema: pa.Schema) -> Filter:
    parser = _Parser(text, schema)
    expression = parser.parse()
    columns = tuple(parser.columns)
    nulls = pa.table([pa.nulls(1, plain(schema.field(name).type)) for name in columns], names=list(columns))
    try:
        nulls.filter(expression)  # one row: without any, Arrow does not find out that it lacks a kernel
    except pa.ArrowException as unfit:
        raise InvalidRequest(f"filter {text[:200]!r} doesn't fit the columns: {str(unfit)[:200]}") from unfit
    return Filter(text, expression, columns)


_parse_short = lru_cache(16)(_parse)  # a request for tickets and each do_get with one of them parse the same text


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._tokens = [*tokens(text), ("end", "")]
        self._at = self._depth = self._terms = 0
        self.columns: dict[str, None] = {}

    def parse(self) -> pc.Expression:
        expression = self._disjunction()
        if self._kind() != "end":
            raise self._expected("'and' or 'or'")
        return expression

    def _disjunction(self) -> pc.Expression:
        expression = self._conjunction()
        while self._take("or"):
            expression |= self._conjunction()
        return expression

    def _conjunction(self) -> pc.Expression:
        expression = self._term()
        while self._take("and"):
            expression &= self._term()
        return expression

    def _term(self) -> pc.Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InvalidRequest(f"filter: more than {_MAX_DEPTH} levels of brackets and not")
        if self._take("not"):
            expression = ~self._term()
        elif self._take("("):
            expression = self._disjunction()
            self._require(")")
        else:
            self._count(1)
            expression = self._comparison()
        self._depth -= 1
        return expression

    def _comparison(self) -> pc.Expression:
        name = self._column()
        field = pc.field(name)
        if self._take("is"):
            negated = self._take("not")
            self._require("null")
            return ~field.is_null() if negated else field.is_null()
        field, kind = operand(field, self._types[name])
        negated = self._take("not")
        expression: pc.Expression
        if self._take("in"):
            expression = self._in(field, kind)
        elif self._take("between"):
            low = self._literal(kind)
            self._require("and")
            expression = compared(field, kind, ">=", low) & compared(field, kind, "<=", self._literal(kind))
        elif not negated and self._kind() == "sign" and self._value() in COMPARE:
            expression = compared(field, kind, str(self._next()), self._literal(kind))
        elif not negated and types.is_boolean(kind):
            expression = field
        else:
            raise self._expected("=, !=, <, <=, >, >=, in, between or is null")
        return ~expression if negated else expression

    def _in(self, field: pc.Expression, kind: pa.DataType) -> pc.Expression:
        self._require("(")
        values = [self._literal(kind)]
        while self._take(","):
            values.append(self._literal(kind))
        self._require(")")
        self._count(sum(value.type != kind for value in values))  # the others are looked up together
        return among(field, kind, values)

    def _column(self) -> str:
        kind, value = self._kind(), str(self._value())
        if kind not in ("word", "quoted"):
            raise self._expected("a column")
        if value not in self._types:
            hint = suggest(value, list(self._types))
            raise InvalidRequest(f"filter {self._text[:200]!r}: no column {value[:80]!r}; {hint}")
        self._at += 1
        self.columns[value] = None
        return value

    def _literal(self, kind: pa.DataType) -> pa.Scalar:
        if self._kind() == "word" and str(self._value()).lower() in ("date", "timestamp"):
            self._at += 1  # SQL's typed literal; the column has a type already
        if self._kind() == "keyword" and self._value() in ("true", "false"):
            value: Literal = self._next() == "true"
        elif self._kind() in ("number", "string", "hex"):
            value = self._next()
        elif self._take("null"):
            raise InvalidRequest(f"filter {self._text[:200]!r}: nothing equals null; say `is null` or `is not null`")
        else:
            raise self._expected("a number, a 'string', x'00ff', true or false")
        try:
            return literal(value, kind)
        except (pa.ArrowException, ValueError, OverflowError) as unfit:
            hint = str(unfit) if isinstance(unfit, Unfit) else ""
            if types.is_timestamp(kind) and kind.tz:
                hint = "; add its zone, such as Z or +02:00"
            raise InvalidRequest(
                f"filter {self._text[:200]!r}: {str(value)[:80]!r} is no value of a {kind} column{hint}"
            ) from unfit

    def _count(self, terms: int) -> None:
        self._terms += terms
        if self._terms > _MAX_TERMS:
            raise InvalidRequest(
                f"filter: more than {_MAX_TERMS} comparisons; `in (…)` takes many values of its column's type as one"
            )

    # --- tokens -------------------------------------------------------------------------------

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _value(self) -> Literal:
        return self._tokens[self._at][1]

    def _next(self) -> Literal:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _take(self, word: str) -> bool:
        """Go past a word if it is the next one."""
        taken = self._kind() in ("keyword", "sign") and self._value() == word
        self._at += taken
        return taken

    def _require(self, word: str) -> None:
        if not self._take(word):
            raise self._expected(repr(word))

    def _expected(self, what: str) -> InvalidRequest:
        token = "the end" if self._kind() == "end" else repr(str(self._value())[:40])
        return InvalidRequest(f"filter {self._text[:200]!r}: expected {what}, found {token}")
