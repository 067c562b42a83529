"""A schema as Spark writes it: `id long, total decimal(10,2), customer struct<name: string, city: string>`."""

from __future__ import annotations

import re

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.text import suggest

_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "char": pa.string(), "varchar": pa.string(),
    "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"), "time": pa.time64("ns"),
}  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_WITH_LENGTH = ("char", "varchar", "time")
_DEEPEST = 100
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([A-Za-z0-9_]+)|([<>(),:]))\s*")


def parse_ddl(text: str) -> pa.Schema:
    """Return the schema that Spark's `.schema(text)` has, in Arrow's types."""
    parser = _Parser(text)
    schema = pa.schema(parser.fields(end=""))
    parser.check_end()
    if not schema.names:
        raise InvalidRequest("the schema is empty: expected columns such as 'id long, name string'")
    return schema


class _Parser:
    """A pass over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def fields(self, *, end: str) -> list[pa.Field]:
        """Return the columns of a table, or the fields of a struct, up to the token that ends them."""
        fields: list[pa.Field] = []
        while self._peek() != end:
            if fields:
                self._expect(",")
            name = self._name()
            if self._peek() == ":":
                self._next()
            kind = self._type()
            fields.append(pa.field(name, kind, nullable=not self._not_null()))
            if self._word() == "comment":
                self._next()
                self._next()
        return fields

    def check_end(self) -> None:
        """Reject what follows the last column."""
        if self._at < len(self._text.rstrip()):
            raise self._error("expected a comma, or nothing more")

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InvalidRequest(f"the schema is nested deeper than {_DEEPEST} levels")
        word = self._next().lower()
        kind = self._nested(word) if word in _NESTED else self._flat(word)
        self._depth -= 1
        return kind

    def _nested(self, word: str) -> pa.DataType:
        self._expect("<")
        if word == "struct":
            kind: pa.DataType = pa.struct(self.fields(end=">"))
        elif word == "array":
            kind = pa.list_(pa.field("element", self._type()))
        else:
            key = self._type()
            self._expect(",")
            kind = pa.map_(key, self._type())
        self._expect(">")
        return kind

    def _flat(self, word: str) -> pa.DataType:
        if word in _DECIMALS:
            numbers = self._numbers()
            precision, scale = ((*numbers, 0) if len(numbers) == 1 else numbers or (10, 0))[:2]
            if len(numbers) > 2 or not 0 <= scale <= precision <= 38 or precision == 0:
                raise self._error(f"{word}{numbers}: expected a precision of 1 to 38, and a scale of at most that")
            return pa.decimal128(precision, scale)
        if word not in _TYPES:
            known = [*_TYPES, *_DECIMALS, *_NESTED]
            raise self._error(f"there is no type {word[:40]!r}; {suggest(word, known)}")
        if word in _WITH_LENGTH:
            self._numbers()
        return _TYPES[word]

    def _numbers(self) -> tuple[int, ...]:
        """Return the numbers in parentheses behind a type."""
        if self._peek() != "(":
            return ()
        self._next()
        numbers = []
        while True:
            number = self._next()
            if not number.isdecimal() or len(number) > 9:
                raise self._error(f"expected a number, got {number[:40]!r}")
            numbers.append(int(number))
            if self._peek() != ",":
                break
            self._next()
        self._expect(")")
        return tuple(numbers)

    def _not_null(self) -> bool:
        if self._word() != "not":
            return False
        self._next()
        if self._word() != "null":
            raise self._error("expected NULL behind NOT")
        self._next()
        return True

    def _name(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None or not (token[1] or token[3]):
            raise self._error("expected a column's name")
        self._at = token.end()
        return token[1].replace("``", "`") if token[1] else str(token[3])

    def _word(self) -> str:
        return self._peek().lower()

    def _peek(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        return "" if token is None else token[0].strip()

    def _next(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise self._error("it ends too early" if self._at >= len(self._text) else "this is no name and no type")
        self._at = token.end()
        return token[0].strip()

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._error(f"expected {token!r}")
        self._next()

    def _error(self, why: str) -> InvalidRequest:
        rest = self._text[self._at :].strip()
        where = f"at {rest[:40]!r}" if rest else "at its end"
        return InvalidRequest(f"the schema {self._text[:80]!r} {where}: {why}")
