"""Filters: `fare > 10 and city in ('Oslo', 'Bergen')`, parsed here and evaluated where the rows are.

SQL's words and SQL's nulls: a comparison with null is neither true nor false, and only what is true is kept. NaN is
larger than any number, as Spark has it. A literal takes the type of its column: `day >= '2026-01-31'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.errors import InvalidRequest
from penstock.rows.filter.tokens import Literal, tokens
from penstock.rows.filter.values import COMPARE, Unfit, among, can_be_chosen, compared, literal, operand, plain
from penstock.text import suggest

_MAX_DEPTH, _MAX_TERMS = 50, 100
"""Arrow walks an expression by recursion, on stacks of 1 MB: 1,500 terms ended the process."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that fits a schema: what to evaluate, and the columns it looks at."""

    text: str
    expression: pc.Expression
    columns: tuple[str, ...]

    def needed(self, schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
        """The columns that are read: those wanted (None for all), and those that it looks at."""
        wanted = None if columns is None else {*columns, *self.columns}
        return [name for name in schema.names if wanted is None or name in wanted]

    def check(self, schema: pa.Schema, columns: Sequence[str] | None) -> None:
        """Refuse a filter over columns, sent or looked at, of which Arrow can't choose rows."""
        for name in self.needed(schema, columns):
            if not can_be_chosen(kind := schema.field(name).type):
                raise InvalidRequest(
                    f"filter: no rows can be chosen of column {name[:80]!r}, a {str(kind)[:80]}: "
                    "leave it out (columns), or read without a filter"
                )

    def kept(self, rows: pa.Table) -> pa.Table:
        """The rows for which it is true."""
        schema = rows.schema
        simple = pa.schema([field.with_type(plain(field.type)) for field in schema], schema.metadata)
        try:
            if simple.equals(schema):
                return rows.filter(self.expression)
            return rows.cast(simple).filter(self.expression).cast(schema)
        except pa.ArrowMemoryError:
            raise
        except pa.ArrowException as broken:
            raise InvalidRequest(f"filter {self.text[:200]!r} can't be evaluated: {str(broken)[:200]}") from broken


def parse_filter(text: str, schema: pa.Schema) -> Filter:
    """The filter of this text over rows of this schema; what doesn't fit is refused by name."""
    parser = _Parser(text, schema)
    expression = parser.whole()
    columns = tuple(parser.columns)
    some = pa.table([pa.nulls(1, plain(schema.field(name).type)) for name in columns], names=list(columns))
    try:
        some.filter(expression)  # a row of nulls: without any, Arrow doesn't look for what it hasn't
    except pa.ArrowException as unfit:
        raise InvalidRequest(f"filter {text[:200]!r} doesn't fit the columns: {str(unfit)[:200]}") from unfit
    return Filter(text, expression, columns)


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._kinds = dict(zip(schema.names, schema.types, strict=True))
        self._tokens = tokens(text)
        self._at = self._depth = self._terms = 0
        self.columns: dict[str, None] = {}

    def whole(self) -> pc.Expression:
        found = self._any_of()
        if self._at < len(self._tokens):
            raise self._wrong("'and' or 'or'")
        return found

    def _any_of(self) -> pc.Expression:
        found = self._all_of()
        while self._takes("or"):
            found |= self._all_of()
        return found

    def _all_of(self) -> pc.Expression:
        found = self._one()
        while self._takes("and"):
            found &= self._one()
        return found

    def _one(self) -> pc.Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InvalidRequest(f"filter: more than {_MAX_DEPTH} levels of brackets and not")
        if self._takes("not"):
            found = ~self._one()
        elif self._takes("("):
            found = self._any_of()
            self._needs(")")
        else:
            self._counts(1)
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> pc.Expression:
        name = self._column()
        field = pc.field(name)
        if self._takes("is"):
            no = self._takes("not")
            self._needs("null")
            return ~field.is_null() if no else field.is_null()
        field, kind = operand(field, self._kinds[name])
        no = self._takes("not")
        found: pc.Expression
        if self._takes("in"):
            found = self._in(field, kind)
        elif self._takes("between"):
            low = self._literal(kind)
            self._needs("and")
            found = compared(field, kind, ">=", low) & compared(field, kind, "<=", self._literal(kind))
        elif not no and self._kind() == "sign" and self._value() in COMPARE:
            found = compared(field, kind, str(self._next()), self._literal(kind))
        elif not no and types.is_boolean(kind):
            found = field
        else:
            raise self._wrong("=, !=, <, <=, >, >=, in, between or is null")
        return ~found if no else found

    def _in(self, field: pc.Expression, kind: pa.DataType) -> pc.Expression:
        self._needs("(")
        values = [self._literal(kind)]
        while self._takes(","):
            values.append(self._literal(kind))
        self._needs(")")
        self._counts(sum(value.type != kind for value in values))  # the others are looked up together
        return among(field, kind, values)

    def _column(self) -> str:
        kind, value = self._kind(), str(self._value())
        if kind not in ("word", "quoted"):
            raise self._wrong("a column")
        if value not in self._kinds:
            hint = suggest(value, list(self._kinds))
            raise InvalidRequest(f"filter {self._text[:200]!r}: no column {value[:80]!r}; {hint}")
        self._at += 1
        self.columns[value] = None
        return value

    def _literal(self, kind: pa.DataType) -> pa.Scalar:
        if self._kind() == "word" and str(self._value()).lower() in ("date", "timestamp"):
            self._at += 1  # SQL's typed literal; the column's type says it already
        if self._kind() == "keyword" and self._value() in ("true", "false"):
            value: Literal = self._next() == "true"
        elif self._kind() in ("number", "string", "hex"):
            value = self._next()
        elif self._takes("null"):
            raise InvalidRequest(f"filter {self._text[:200]!r}: nothing equals null; say `is null` or `is not null`")
        else:
            raise self._wrong("a number, a 'string', x'00ff', true or false")
        try:
            return literal(value, kind)
        except (pa.ArrowException, ValueError, OverflowError) as unfit:
            hint = str(unfit) if isinstance(unfit, Unfit) else ""
            if types.is_timestamp(kind) and kind.tz:
                hint = "; add its zone, such as Z or +02:00"
            raise InvalidRequest(
                f"filter {self._text[:200]!r}: {str(value)[:80]!r} is no value of a {kind} column{hint}"
            ) from unfit

    def _counts(self, terms: int) -> None:
        self._terms += terms
        if self._terms > _MAX_TERMS:
            raise InvalidRequest(
                f"filter: more than {_MAX_TERMS} comparisons; `in (…)` takes many values of its column's type as one"
            )

    # --- tokens -------------------------------------------------------------------------------

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else "end"

    def _value(self) -> Literal:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self) -> Literal:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _takes(self, word: str) -> bool:
        taken = self._kind() in ("keyword", "sign") and self._value() == word
        self._at += taken
        return taken

    def _needs(self, word: str) -> None:
        if not self._takes(word):
            raise self._wrong(repr(word))

    def _wrong(self, expected: str) -> InvalidRequest:
        found = repr(str(self._value())[:40]) if self._at < len(self._tokens) else "the end"
        return InvalidRequest(f"filter {self._text[:200]!r}: expected {expected}, found {found}")
