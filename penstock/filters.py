"""Filters: `fare > 10 and city in ('Oslo', 'Bergen')`, parsed here and evaluated where the rows are.

SQL's words and SQL's nulls: a comparison with null is neither true nor false, and only what is true is kept. NaN is
larger than any number, as Spark has it. A literal takes the type of its column: `day >= '2026-01-31'`.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidRequest

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
  | [xX]'(?P<hex>(?:[0-9a-fA-F]{2})*)'
  | '(?P<string>(?:[^']|'')*)'
  | (?P<quoted>`(?:[^`]|``)*`|"(?:[^"]|"")*")
  | (?P<word>[^\W\d]\w*)
  | (?P<sign><=|>=|<>|!=|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "not", "in", "is", "null", "between", "true", "false"}
_COMPARE: dict[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_MAX_TEXT, _MAX_DEPTH = 100_000, 100
Literal = int | Decimal | bool | str | bytes


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that fits a schema: what to evaluate, and the columns it looks at."""

    expression: pc.Expression
    columns: tuple[str, ...]


def parse(text: str, schema: pa.Schema) -> Filter:
    """The filter of this text over rows of this schema; what doesn't fit is refused by name."""
    parser = _Parser(text, schema)
    expression = parser.whole()
    try:
        schema.empty_table().filter(expression)
    except pa.ArrowException as unfit:
        raise InvalidRequest(f"filter {text[:200]!r} doesn't fit the columns: {str(unfit)[:200]}") from unfit
    return Filter(expression, tuple(parser.columns))


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text, self._schema = text, schema
        self._tokens = _tokens(text)
        self._at = self._depth = 0
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
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> pc.Expression:
        name = self._column()
        field, kind = pc.field(name), self._schema.field(name).type
        if self._takes("is"):
            no = self._takes("not")
            self._needs("null")
            return ~field.is_null() if no else field.is_null()
        no = self._takes("not")
        found: pc.Expression
        if self._takes("in"):
            found = self._in(field, kind)
        elif self._takes("between"):
            low = self._literal(kind)
            self._needs("and")
            found = _compared(field, kind, ">=", low) & _compared(field, kind, "<=", self._literal(kind))
        elif not no and self._kind() == "sign" and self._value() in _COMPARE:
            found = _compared(field, kind, str(self._next()), self._literal(kind))
        elif not no and pa.types.is_boolean(kind):
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
        one_type = values[0].type
        if pa.types.is_floating(one_type) or any(value.type != one_type for value in values):  # by hash 0.0 isn't -0.0
            return reduce(operator.or_, (_compared(field, kind, "=", value) for value in values))
        among: pc.Expression = field.isin(pa.array([value.as_py() for value in values], one_type))
        known: pc.Expression = pc.if_else(field.is_valid(), among, pa.scalar(None, pa.bool_()))
        return known

    def _column(self) -> str:
        kind, value = self._kind(), str(self._value())
        if kind not in ("word", "quoted"):
            raise self._wrong("a column")
        if value not in self._schema.names:
            near = difflib.get_close_matches(value, self._schema.names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self._schema.names[:20])}"
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
            return _scalar(value, kind)
        except (pa.ArrowException, ValueError, OverflowError) as unfit:
            hint = "; add its zone, such as Z or +02:00" if pa.types.is_timestamp(kind) and kind.tz else ""
            raise InvalidRequest(
                f"filter {self._text[:200]!r}: {str(value)[:80]!r} is no value of a {kind} column{hint}"
            ) from unfit

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


def _tokens(text: str) -> list[tuple[str, Literal]]:
    if len(text) > _MAX_TEXT:
        raise InvalidRequest(f"filter of {len(text):,} characters: at most {_MAX_TEXT:,} are taken")
    found: list[tuple[str, Literal]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise InvalidRequest(f"filter {text[:200]!r}: can't be read from {text[at : at + 20]!r} on")
        found.append(_token(match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def _token(kind: str, text: str) -> tuple[str, Literal]:
    if kind == "number":
        return kind, int(text) if re.fullmatch(r"[-+]?\d{1,4000}", text) else Decimal(text)
    if kind == "hex":
        return kind, bytes.fromhex(text)
    if kind == "string":
        return kind, text.replace("''", "'")
    if kind == "quoted":
        return kind, text[1:-1].replace(text[0] * 2, text[0])
    if kind == "word" and text.lower() in _WORDS:
        return "keyword", text.lower()
    return kind, text


def _scalar(value: Literal, kind: pa.DataType) -> pa.Scalar:
    """The literal as its column's type; a number that has no place there still is larger or smaller than what has."""
    if pa.types.is_dictionary(kind):
        return _scalar(value, kind.value_type)
    if isinstance(value, str) and not _is_text(kind):
        return pa.scalar(value).cast(kind)
    if isinstance(value, Decimal) and not pa.types.is_decimal(kind):
        return pa.scalar(float(value))
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError):
        if isinstance(value, Decimal):
            return pa.scalar(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise
        return pa.scalar(float(value) if pa.types.is_integer(kind) and abs(value) >= 2**63 else value)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _compared(field: pc.Expression, kind: pa.DataType, sign: str, value: pa.Scalar) -> pc.Expression:
    found: pc.Expression = _COMPARE[sign](field, value)
    return found | field.is_nan() if sign in (">", ">=") and pa.types.is_floating(kind) else found
