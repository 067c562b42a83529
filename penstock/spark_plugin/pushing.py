"""Spark's filters as the server's filter text: those that come out exactly so."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.rows.filter.parse import parse_filter

_SIGNS = {"EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<="}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
Render = Callable[[Any], "str | None"]


class Pushed:
    """What of Spark's filters the server takes over rows of this schema."""

    def __init__(self, schema: pa.Schema, kinds: dict[str, str], own: str | None = None) -> None:
        self._schema = schema
        """The dataset's, as the server has it."""
        self._kinds = kinds
        """Column -> Spark's name of its type, where the server's values are Spark's, bit by bit."""
        self._own = own
        """The user's filter, beside which they stand."""
        self._texts: list[str] = []

    def take(self, wanted: Iterable[Any]) -> Iterable[Any]:
        """Take the filters that can be; those that Spark must evaluate come back."""
        for one in wanted:
            text = self._rendered(one)
            if text is None or not self._fits(text):
                yield one
            else:
                self._texts.append(text)

    def text(self, *more: str) -> str | None:
        """The filter to read with, the user's own among them."""
        texts = [*([self._own] if self._own is not None else []), *self._texts, *more]
        return " and ".join(f"({text})" for text in texts) if len(texts) > 1 else next(iter(texts), None)

    def _fits(self, text: str) -> bool:
        """Whether the server takes it with all the others: they have a most of characters and comparisons."""
        try:
            parse_filter(self.text(text) or text, self._schema).check(self._schema, self._schema.names)
        except InvalidRequest:
            return False
        return True

    def _rendered(self, one: Any) -> str | None:
        """One filter, by its class's name, as Spark 4.0 has none of these classes."""
        name = type(one).__name__
        if name == "Not":
            inner = None if _has_null(one.child) else self._rendered(one.child)
            return inner and f"not ({inner})"
        if len(one.attribute) != 1 or one.attribute[0] not in self._kinds:
            return None
        column, kind = f"`{one.attribute[0].replace('`', '``')}`", self._kinds[one.attribute[0]]
        if name in ("IsNull", "IsNotNull"):
            return f"{column} is {'not ' if name == 'IsNotNull' else ''}null"
        if name == "EqualNullSafe":
            return _null_safe(column, kind, one.value)
        if name == "In":
            values = [_literal(value, kind) for value in one.value if value is not None]
            return f"{column} in ({', '.join(map(str, values))})" if values and None not in values else None
        value = _literal(one.value, kind)
        return f"{column} {_SIGNS[name]} {value}" if name in _SIGNS and value is not None else None


def _null_safe(column: str, kind: str, value: Any) -> str | None:
    if value is None:
        return f"{column} is null"
    text = _literal(value, kind)
    return text and f"{column} is not null and {column} = {text}"


def _has_null(one: Any) -> bool:
    """`x not in (1, null)` is never true."""
    return type(one).__name__ == "In" and None in one.value


def _literal(value: Any, kind: str) -> str | None:
    """The value as a literal of its column's type; None where it wouldn't be the same value."""
    expected, render = _LITERALS.get(kind.partition("(")[0], (None, None))
    if expected is None or render is None or type(value) is not expected:
        return None
    return render(value)


def _float(value: float) -> str | None:
    return repr(value) if math.isfinite(value) else None


def _decimal(value: Decimal) -> str | None:
    """Spark hands it out rounded to the 28 digits of Python's context: with so many it may be another number."""
    return format(value, "f") if value.is_finite() and len(value.as_tuple().digits) < 28 else None


def _instant(value: dt.datetime) -> str | None:
    return None if value.tzinfo is None else repr_of(value.astimezone(dt.UTC).isoformat(" "))


def _wall_clock(value: dt.datetime) -> str | None:
    return repr_of(value.isoformat(" ")) if value.tzinfo is None else None


def repr_of(text: str) -> str:
    """A string as a literal."""
    return "'" + text.replace("'", "''") + "'"


_LITERALS: dict[str, tuple[type, Render]] = {
    **dict.fromkeys(_WHOLE, (int, str)),
    "boolean": (bool, lambda value: str(value).lower()),
    "float": (float, _float),
    "double": (float, _float),
    "decimal": (Decimal, _decimal),
    "string": (str, repr_of),  # one with a collation has it in its name
    "binary": (bytes, lambda value: f"x'{value.hex()}'"),
    "date": (dt.date, lambda value: repr_of(value.isoformat())),
    "timestamp": (dt.datetime, _instant),
    "timestamp_ntz": (dt.datetime, _wall_clock),
}
"""Spark's name of a type -> Python's type of a value that Spark hands out, and its text."""
