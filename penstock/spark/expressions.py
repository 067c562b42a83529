"""Columns: names, values, functions and operators, as expressions that Spark resolves.

col("amount") > 100          fn.sum("amount").alias("s")          fn.when(col("a").is_null(), 0).otherwise(col("a"))
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NoReturn, TypeAlias

from penstock.spark.errors import InvalidPlan
from penstock.spark.plans import Node, format_expression, node
from penstock.text import suggest

Value: TypeAlias = Any
"""A column, or what becomes a literal."""

_INT, _LONG = 1 << 31, 1 << 63
_EPOCH, _DAY = dt.datetime(1970, 1, 1), dt.date(1970, 1, 1)  # noqa: DTZ001  # what has no zone has none
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_FINER = ("[ns]", "[ps]", "[fs]", "[as]")
_NO_TRUTH = (
    "a column has no truth value before Spark computes it: write & for and, | for or, ~ for not, "
    "fn.when(…).otherwise(…) for if, between(a, b) for a <= x <= b, and put comparisons in parentheses"
)


class Column:
    """An expression. What it is called with is a literal, unless it is a column."""

    __slots__ = ("expression",)

    expression: Node

    def __init__(self, expression: Node) -> None:
        object.__setattr__(self, "expression", expression)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a column is frozen: with_field({name!r}, …) returns one with that field")

    def __repr__(self) -> str:
        return f"Column<{format_expression(self.expression)!r}>"

    __hash__ = None  # type: ignore[assignment]  # == is an expression

    # comparison, logic, arithmetic

    def __eq__(self, other: Value) -> Column:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: Value) -> Column:  # type: ignore[override]
        return ~self._compared("==", other)

    def __lt__(self, other: Value) -> Column:
        return self._compared("<", other)

    def __le__(self, other: Value) -> Column:
        return self._compared("<=", other)

    def __gt__(self, other: Value) -> Column:
        return self._compared(">", other)

    def __ge__(self, other: Value) -> Column:
        return self._compared(">=", other)

    def __and__(self, other: Value) -> Column:
        return call("and", self, other)

    def __or__(self, other: Value) -> Column:
        return call("or", self, other)

    def __rand__(self, other: Value) -> Column:
        return call("and", lit(other), self)

    def __ror__(self, other: Value) -> Column:
        return call("or", lit(other), self)

    def __invert__(self) -> Column:
        return call("not", self)

    def __add__(self, other: Value) -> Column:
        return call("+", self, other)

    def __sub__(self, other: Value) -> Column:
        return call("-", self, other)

    def __mul__(self, other: Value) -> Column:
        return call("*", self, other)

    def __truediv__(self, other: Value) -> Column:
        return call("/", self, other)

    def __mod__(self, other: Value) -> Column:
        return call("%", self, other)

    def __pow__(self, other: Value) -> Column:
        return call("power", self, other)

    def __radd__(self, other: Value) -> Column:
        return call("+", lit(other), self)

    def __rsub__(self, other: Value) -> Column:
        return call("-", lit(other), self)

    def __rmul__(self, other: Value) -> Column:
        return call("*", lit(other), self)

    def __rtruediv__(self, other: Value) -> Column:
        return call("/", lit(other), self)

    def __rmod__(self, other: Value) -> Column:
        return call("%", lit(other), self)

    def __rpow__(self, other: Value) -> Column:
        return call("power", lit(other), self)

    def __neg__(self) -> Column:
        return call("negative", self)

    # what Python would do with an object, and a column can't

    def __bool__(self) -> NoReturn:
        raise InvalidPlan(_NO_TRUTH)

    def __contains__(self, item: object) -> NoReturn:
        raise InvalidPlan(
            "`in` asks a column for its truth: write isin(…) for one of some values, contains(…) for text"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("a column has no values before Spark computes it: frame.select(column).collect() has them")

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise InvalidPlan(f"{self!r} is a field, which isn't called{_method_meant(self.expression)}")

    # predicates

    def eq_null_safe(self, other: Value) -> Column:
        """Return whether both are equal, or both null."""
        return call("<=>", self, other)

    def is_null(self) -> Column:
        """Return whether it is null."""
        return call("isNull", self)

    def is_not_null(self) -> Column:
        """Return whether it isn't null."""
        return call("isNotNull", self)

    def is_nan(self) -> Column:
        """Return whether it is no number."""
        return call("isNaN", self)

    def isin(self, *values: Value) -> Column:
        """Return whether it is one of the values."""
        if len(values) == 1 and isinstance(values[0], list | set | frozenset | tuple):
            values = tuple(values[0])
        return call("in", self, *values)

    def between(self, lower: Value, upper: Value) -> Column:
        """Return whether it lies between two values, or is one of them."""
        return call("and", self >= lower, self <= upper)

    def like(self, other: Value) -> Column:
        """Return whether it is like an SQL pattern."""
        return call("like", self, other)

    def ilike(self, other: Value) -> Column:
        """Return whether it is like an SQL pattern, in any case."""
        return call("ilike", self, other)

    def rlike(self, other: Value) -> Column:
        """Return whether a regular expression matches in it."""
        return call("rlike", self, other)

    def contains(self, other: Value) -> Column:
        """Return whether it contains a text."""
        return call("contains", self, other)

    def starts_with(self, other: Value) -> Column:
        """Return whether it starts with a text."""
        return call("startsWith", self, other)

    def ends_with(self, other: Value) -> Column:
        """Return whether it ends with a text."""
        return call("endsWith", self, other)

    # bits and pieces

    def bitwise_and(self, other: Value) -> Column:
        """Return the bits that both have."""
        return call("&", self, other)

    def bitwise_or(self, other: Value) -> Column:
        """Return the bits that one of them has."""
        return call("|", self, other)

    def bitwise_xor(self, other: Value) -> Column:
        """Return the bits that exactly one of them has."""
        return call("^", self, other)

    def substr(self, start: Value, length: Value) -> Column:
        """Return a part of the text; the first character is 1."""
        return call("substr", self, start, length)

    def __getitem__(self, key: Value) -> Column:
        if isinstance(key, slice):
            if key.step is not None:
                raise InvalidPlan("a column's slice [start:length] has no step")
            return self.substr(key.start, key.stop)
        return Column(node("unresolved_extract_value", child=self.expression, extraction=literal(key)))

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):  # what Python and notebooks look for
            raise AttributeError(name)
        return self[name]

    def get_item(self, key: Value) -> Column:
        """Return an element of an array or a map."""
        return self[key]

    def get_field(self, name: str) -> Column:
        """Return a struct's field."""
        return self[name]

    def with_field(self, name: str, value: Value) -> Column:
        """Return the struct with a field added, or replaced."""
        fields = {"struct_expression": self.expression, "field_name": name, "value_expression": literal(value)}
        return Column(Node("update_fields", fields))

    def drop_fields(self, *names: str) -> Column:
        """Return the struct without these fields."""
        expression = self.expression
        for name in names:
            expression = node("update_fields", struct_expression=expression, field_name=name)
        return Column(expression)

    def when(self, condition: Column, value: Value) -> Column:
        """Add a case to `fn.when(…)`: the first condition that is true decides."""
        return Column(self._cases("when", condition_of(condition), literal(value)))

    def otherwise(self, value: Value) -> Column:
        """End `fn.when(…)`: what holds where no condition does."""
        return Column(self._cases("otherwise", literal(value)))

    # names, types, order

    def alias(self, *names: str) -> Column:
        """Name the column; a function that makes several takes as many names."""
        return Column(node("alias", expr=self.expression, name=names))

    def cast(self, type: str) -> Column:
        """Convert to a type of Spark's SQL: "long", "decimal(10,2)", "array<string>"."""
        return Column(node("cast", expr=self.expression, type_str=_type_name(type)))

    def try_cast(self, type: str) -> Column:
        """Convert to a type, or to null what has no value of it."""
        return Column(node("cast", expr=self.expression, type_str=_type_name(type), eval_mode=3))

    def asc(self) -> Column:
        """Sort by it, nulls first."""
        return self._sorted(1, 1)

    def desc(self) -> Column:
        """Sort by it, the greatest first, nulls last."""
        return self._sorted(2, 2)

    def asc_nulls_first(self) -> Column:
        """Sort by it, nulls first."""
        return self._sorted(1, 1)

    def asc_nulls_last(self) -> Column:
        """Sort by it, nulls last."""
        return self._sorted(1, 2)

    def desc_nulls_first(self) -> Column:
        """Sort by it, the greatest first but for nulls."""
        return self._sorted(2, 1)

    def desc_nulls_last(self) -> Column:
        """Sort by it, the greatest first, nulls last."""
        return self._sorted(2, 2)

    # pyspark's names
    eqNullSafe, isNull, isNotNull, isNaN = eq_null_safe, is_null, is_not_null, is_nan
    startswith, endswith, astype, name = starts_with, ends_with, cast, alias
    bitwiseAND, bitwiseOR, bitwiseXOR = bitwise_and, bitwise_or, bitwise_xor
    getItem, getField, withField, dropFields = get_item, get_field, with_field, drop_fields

    def _compared(self, operator: str, other: Value) -> Column:
        if other is None:
            raise InvalidPlan(f"{operator} None is null in every row: write is_null() or is_not_null(), or lit(None)")
        return call(operator, self, other)

    def _sorted(self, direction: int, nulls: int) -> Column:
        if self.expression.kind == "sort_order":
            raise InvalidPlan(f"{self!r} is sorted already: one of asc() and desc() is enough")
        return Column(node("sort_order", child=self.expression, direction=direction, null_ordering=nulls))

    def _cases(self, what: str, *more: Node) -> Node:
        """Return a CASE with more arguments; an odd number of them ends with what holds otherwise."""
        fields = self.expression.fields
        if fields.get("function_name") != "when" or len(fields["arguments"]) % 2:
            raise InvalidPlan(
                f"{what}() goes on where fn.when(condition, value) or its .when(…) ended; here is {self!r}"
            )
        return node("unresolved_function", function_name="when", arguments=(*fields["arguments"], *more))


_METHODS = [name for name in vars(Column) if not name.startswith("_") and name != "expression"]


def _method_meant(expression: Node) -> str:
    """Return the hint for a method that a column doesn't have."""
    if expression.kind != "unresolved_extract_value":
        return ""
    ((_, name),) = expression.fields["extraction"].fields.items()
    if name == "over":
        return ": windows are SQL's, expr('sum(a) over (partition by b order by c)')"
    return f": there is no method {name}, {suggest(str(name), _METHODS)}"


# --- what columns are made of ----------------------------------------------------------------


def col(name: str) -> Column:
    """Return the column of a name: "amount", "t.amount", "address.city", "*", "t.*"; odd names in `backticks`."""
    if not isinstance(name, str):
        raise InvalidPlan(f"col({name!r}): expected a column's name; lit(…) is for values, expr(…) for SQL")
    return Column(attribute(name))


def attribute(name: str, plan_id: Any = None) -> Node:
    """Return a name, or a star, of the whole input or of one frame."""
    if name == "*" or name.endswith(".*"):
        target = None if name == "*" else name
        return node("unresolved_star", unparsed_target=target, plan_id=plan_id)
    return node("unresolved_attribute", unparsed_identifier=name, plan_id=plan_id)


def lit(value: Value) -> Column:
    """Return a value as a column; a column as it is."""
    return value if isinstance(value, Column) else Column(literal(value))


def expr(text: str) -> Column:
    """Return an expression of Spark's SQL: "amount * 2 AS double"."""
    return Column(node("expression_string", expression=text))


def column_of(value: Value) -> Node:
    """Return what a function or a select takes: strings are names."""
    return attribute(value) if isinstance(value, str) else literal(value)


def condition_of(value: Value) -> Node:
    """Return what a filter takes: a column, or SQL as a string."""
    if isinstance(value, str):
        return expr(value).expression
    if not isinstance(value, Column):
        hint = "; a comparison within `and`, `or` or `not` was decided by Python" if isinstance(value, bool) else ""
        raise InvalidPlan(f"expected a condition, col('a') > 1 or 'a > 1', got {value!r}{hint}")
    return value.expression


def call(name: str, *arguments: Value, distinct: bool | None = None) -> Column:
    """Return a function of Spark's; what isn't a column is a literal."""
    return Column(
        node("unresolved_function", function_name=name, arguments=tuple(map(literal, arguments)), is_distinct=distinct)
    )


def literal(value: Value) -> Node:  # noqa: C901, PLR0912  # a case for each type
    """Return a value as an expression, in the smallest of Spark's types that holds it."""
    if type(value).__module__ in ("numpy", "pyarrow.lib"):
        value = _plain(value)
    match value:
        case Column():
            return value.expression
        case Enum():
            return literal(value.value)
        case None:
            return node("literal", null=node("", null=node("")))
        case bool():
            return node("literal", boolean=value)
        case int():
            return node("literal", **{_integer_type(value): int(value)})
        case float():
            return node("literal", double=value)
        case str():
            return node("literal", string=value)
        case bytes() | bytearray() | memoryview():
            return node("literal", binary=bytes(value))
        case decimal.Decimal():
            return node("literal", decimal=_decimal(value))
        case dt.datetime() if value.tzinfo is None:
            return node("literal", timestamp_ntz=(value - _EPOCH) // _MICROSECOND)
        case dt.datetime():
            return node("literal", timestamp=(value - _EPOCH_UTC) // _MICROSECOND)
        case dt.date():
            return node("literal", date=(value - _DAY).days)
        case dt.time() if value.tzinfo is not None:
            raise InvalidPlan(f"{value!r} has a zone, which Spark's times don't: leave it out by replace(tzinfo=None)")
        case dt.time():
            since = dt.datetime.combine(_DAY, value.replace(tzinfo=None)) - _EPOCH
            return node("literal", time=node("", nano=since // _MICROSECOND * 1000, precision=6))
        case dt.timedelta():
            return node("literal", day_time_interval=value // _MICROSECOND)
        case list() | tuple():
            return call("array", *value).expression
        case Mapping():
            return call("map", *(each for item in value.items() for each in item)).expression
    raise InvalidPlan(
        f"{type(value).__qualname__} is no value of Spark's: expected a column, None, bool, int, float, Decimal, str, "
        "bytes, date, time, datetime, timedelta, list or dict"
    )


def _plain(value: Any) -> Any:
    """Return a value of numpy's or pyarrow's as Python's. Times become microseconds, as Python and Spark have them."""
    if hasattr(value, "as_py"):
        return value.as_py()
    if getattr(value, "ndim", 0):
        return list(value)
    times = {"M": "datetime64[us]", "m": "timedelta64[us]"}.get(value.dtype.kind) if hasattr(value, "dtype") else None
    plain = value.astype(times).tolist() if times and value.dtype.name.endswith(_FINER) else value.tolist()
    if times and isinstance(plain, int):  # numpy's own way out
        raise InvalidPlan(f"{value!r} is no time of Python's, nor of Spark's: astype({times!r}) may make it one")
    return plain


def _integer_type(value: int) -> str:
    if -_INT <= value < _INT:
        return "integer"
    if -_LONG <= value < _LONG:
        return "long"
    raise InvalidPlan(f"{value} has more than 64 bits: pass Decimal({value})")


def _decimal(value: decimal.Decimal) -> Node:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidPlan(f"{value} is no decimal of Spark's: pass float('{value}'), a double")
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    if precision > 38:
        raise InvalidPlan(f"{value} has {precision} digits, a decimal of Spark's has at most 38")
    return node("", value=format(value, "f"), precision=precision, scale=scale)


def _type_name(name: object) -> str:
    if isinstance(name, str):
        return name
    if hasattr(name, "simpleString"):  # pyspark's types
        return str(name.simpleString())
    raise InvalidPlan(f"cast({name!r}): expected a type of Spark's SQL as text, 'long' or 'decimal(10,2)'")


def flat(values: Iterable[Any]) -> list[Any]:
    """Return what a variadic method was called with: one list is taken for its elements."""
    listed = list(values)
    return list(listed[0]) if len(listed) == 1 and isinstance(listed[0], list | tuple) else listed
