"""Spark's filters as the server's filter text: those that mean exactly the same there."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.rows.filter.parse import parse_filter
from penstock.spark_plugin.spark_types import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SIGNS = {"EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<="}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
Render = Callable[[Any], "str | None"]


def pushable_columns(schema: StructType, dataset: pa.Schema) -> dict[str, str]:
    """Return Spark's type of each column whose values at the server are those that Spark reads, bit by bit."""
    return {
        field.name: field.dataType.simpleString()
        for field, arrow in zip(schema, to_arrow(schema), strict=True)
        if dataset.field(arrow.name).type.equals(arrow.type)
    }


class PushedFilters:
    """Those of Spark's filters that the server evaluates."""

    def __init__(self, dataset: pa.Schema, pushable: dict[str, str], users: str | None = None) -> None:
        self._dataset = dataset
        self._pushable = pushable
        """Column -> Spark's type, as `pushable_columns` returns them."""
        self._texts = [] if users is None else [users]
        """The filters, the user's own first."""

    def take(self, filters: Iterable[Any]) -> Iterable[Any]:
        """Take the filters that can be pushed; yield those that Spark must evaluate."""
        for each in filters:
            text = self._to_text(each)
            if text is None or not self._fits(text):
                yield each
            else:
                self._texts.append(text)

    def text(self, *more: str) -> str | None:
        """Return the filter to read with."""
        texts = [*self._texts, *more]
        return " and ".join(f"({text})" for text in texts) if len(texts) > 1 else next(iter(texts), None)

    def _fits(self, text: str) -> bool:
        """Whether the server takes it with all the others: characters and comparisons are limited."""
        try:
            parse_filter(self.text(text) or text, self._dataset).check(self._dataset, self._dataset.names)
        except InvalidRequest:
            return False
        return True

    def _to_text(self, filter: Any) -> str | None:
        """Return one filter's text. By its class's name, as Spark 4.0 has none of these classes."""
        name = type(filter).__name__
        if name == "Not":
            child = filter.child
            never_true = type(child).__name__ == "In" and None in child.value  # x not in (1, null)
            inner = None if never_true else self._to_text(child)
            return inner and f"not ({inner})"
        if len(filter.attribute) != 1 or filter.attribute[0] not in self._pushable:
            return None
        column, kind = f"`{filter.attribute[0].replace('`', '``')}`", self._pushable[filter.attribute[0]]
        if name in ("IsNull", "IsNotNull"):
            return f"{column} is {'not ' if name == 'IsNotNull' else ''}null"
        if name == "In":
            values = [_literal(value, kind) for value in filter.value if value is not None]
            return f"{column} in ({', '.join(map(str, values))})" if values and None not in values else None
        if name == "EqualNullSafe" and filter.value is None:
            return f"{column} is null"
        value = _literal(filter.value, kind)
        if value is None:
            return None
        if name == "EqualNullSafe":
            return f"{column} is not null and {column} = {value}"
        return f"{column} {_SIGNS[name]} {value}" if name in _SIGNS else None


def _literal(value: Any, kind: str) -> str | None:
    """Return the value as a literal of its column's type; None where it wouldn't be the same value."""
    expected, render = _LITERALS.get(kind.partition("(")[0], (None, str))
    return render(value) if type(value) is expected else None


def _float(value: float) -> str | None:
    return repr(value) if math.isfinite(value) else None


def _decimal(value: Decimal) -> str | None:
    """Spark rounds it to the 28 digits of Python's context: one with so many digits may be another number."""
    return format(value, "f") if value.is_finite() and len(value.as_tuple().digits) < 28 else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_LITERALS: dict[str, tuple[type, Render]] = {
    **dict.fromkeys(_WHOLE, (int, str)),
    "boolean": (bool, lambda value: str(value).lower()),
    "float": (float, _float),
    "double": (float, _float),
    "decimal": (Decimal, _decimal),
    "string": (str, _quoted),  # one with a collation has it in its name
    "binary": (bytes, lambda value: f"x'{value.hex()}'"),
    "date": (dt.date, lambda value: _quoted(value.isoformat())),
    "timestamp": (dt.datetime, lambda value: value.tzinfo and _quoted(value.astimezone(dt.UTC).isoformat(" "))),
    "timestamp_ntz": (dt.datetime, lambda value: None if value.tzinfo else _quoted(value.isoformat(" "))),
}
"""Spark's name of a type -> Python's type of its values, and a value's text."""
