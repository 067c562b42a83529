"""Literals in the type of their column, and comparisons that Arrow evaluates exactly."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache, reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.rows.filter.tokens import Literal

COMPARE: dict[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_MAX_DIGITS = 50


class Unfit(ValueError):
    """A literal that is no value of its column; the text is added to the error."""


def operand(field: pc.Expression, kind: pa.DataType) -> tuple[pc.Expression, pa.DataType]:
    """Return a column in a type that Arrow compares: a dictionary's values, half floats as floats, views as text."""
    if types.is_dictionary(kind):
        return operand(field.cast(kind.value_type), kind.value_type)
    simple = pa.float32() if types.is_float16(kind) else plain(kind)
    return (field, kind) if simple == kind else (field.cast(simple), simple)


def literal(value: Literal, kind: pa.DataType) -> pa.Scalar:
    """Return the literal as a value that compares with a column of this type.

    A number that the type can't hold keeps a type of its own: it is larger or smaller than the column's values. Raises
    Unfit, or Arrow's own errors, for a literal that is no value of the type.
    """
    if types.is_floating(kind):
        return _float(value, kind)
    if isinstance(value, str) and types.is_decimal(kind):
        return _exact(_number(value), kind)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return _of_number(value, kind)
    if isinstance(value, str) and not (types.is_string(kind) or types.is_large_string(kind)):
        return pa.scalar(value).cast(kind)
    return pa.scalar(value, kind)


def compared(field: pc.Expression, kind: pa.DataType, sign: str, value: pa.Scalar) -> pc.Expression:
    """Return `field sign value`; NaN is above all numbers."""
    comparison = COMPARE[sign](field, value)
    return comparison | field.is_nan() if sign in (">", ">=") and types.is_floating(kind) else comparison


def among(field: pc.Expression, kind: pa.DataType, values: Sequence[pa.Scalar]) -> pc.Expression:
    """Return whether the field is one of these values; null where the field is null."""
    own = [value for value in values if value.type == kind]
    comparisons = [compared(field, kind, "=", value) for value in values if value.type != kind]
    if own:
        if types.is_floating(kind) and any(value.as_py() == 0 for value in own):  # their hashes differ
            own += [pa.scalar(0.0, kind), pa.scalar(-0.0, kind)]
        inside: pc.Expression = field.isin(pa.array(own, kind))
        comparisons.append(pc.if_else(field.is_valid(), inside, pa.scalar(None, pa.bool_())))
    return reduce(operator.or_, comparisons)


# --- what Arrow can choose rows of ---------------------------------------------------------


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type with text and bytes in place of views, of which Arrow can't choose rows."""
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(plain(kind.value_type)))
    return kind


@lru_cache(128)
def can_be_chosen(kind: pa.DataType) -> bool:
    """Return whether Arrow can choose rows of this type: it lacks kernels for some, and fails at the first row only."""
    try:
        pa.table({"": pa.nulls(1, plain(kind))}).filter(pa.array([True]))
    except pa.ArrowNotImplementedError:
        return False
    return True


# --- numbers -------------------------------------------------------------------------------


def _float(value: Literal, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, bool | bytes):
        raise Unfit
    number = float(value if isinstance(value, str) else Decimal(value))  # a whole number of 400 digits is infinite
    if math.isnan(number):
        raise Unfit("; NaN is above all numbers: > 'inf' finds it")
    fitting = pa.scalar(number, kind)
    return fitting if math.isinf(number) or not math.isinf(fitting.as_py()) else pa.scalar(number)


def _of_number(value: int | Decimal, kind: pa.DataType) -> pa.Scalar:
    if types.is_decimal(kind) or types.is_null(kind):
        return _exact(Decimal(value), kind)
    if not types.is_integer(kind):
        if isinstance(value, Decimal) or not types.is_temporal(kind):
            raise Unfit
        return pa.scalar(value, kind)
    try:
        return pa.scalar(value, kind) if isinstance(value, int) else _exact(value, kind)
    except (pa.ArrowException, OverflowError):
        return _exact(Decimal(value), kind)


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as wrong:
        raise Unfit from wrong


def _exact(value: Decimal, kind: pa.DataType) -> pa.Scalar:
    """Return the number in the column's type if it fits, else as an exact decimal: a float would be rounded.

    Numbers of more digits are rejected: Arrow rescales 1e-99999999 until it crashes.
    """
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_MAX_DIGITS or value.adjusted() > _MAX_DIGITS:
        raise Unfit(f"; at most {_MAX_DIGITS} digits may stand before and after the point")
    if types.is_decimal(kind):
        try:
            return pa.scalar(value, kind)
        except pa.ArrowException:
            pass  # more digits than the column has: never equal, but above or below
    exact = pa.scalar(value).type
    return pa.scalar(value, pa.decimal256(exact.precision, exact.scale))  # with room for the column's digits, too
