"""Spark's types and values of them, any number by Hypothesis; and the exact comparison of values."""

from __future__ import annotations

import datetime as dt
import inspect
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as sql

NAMES = ["a", "b", "c d", "é", "x.y", "Z"]
"""Distinct also where case doesn't count, as it doesn't in Spark."""

_UTC = dt.UTC
_DAYS = st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30)) | st.sampled_from(
    [dt.date(1500, 1, 1), dt.date(1969, 12, 31)]
)
_CLOCKS = st.times() | st.sampled_from([dt.time(0), dt.time(23, 59, 59, 999_999)])
_MOMENTS = st.builds(dt.datetime.combine, _DAYS, _CLOCKS) | st.sampled_from(
    [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
        dt.datetime(2024, 3, 31, 1, 0),  # noqa: DTZ001
        dt.datetime(2024, 3, 31, 2, 30),  # noqa: DTZ001  an hour that Berlin hasn't
        dt.datetime(2024, 10, 27, 0, 30),  # noqa: DTZ001  an hour that it has twice
        dt.datetime(2024, 10, 27, 1, 30),  # noqa: DTZ001
        dt.datetime(2024, 3, 10, 10, 0),  # noqa: DTZ001  Los Angeles, both
        dt.datetime(2024, 11, 3, 9, 30),  # noqa: DTZ001
    ]
)
_SPANS = st.timedeltas(dt.timedelta(days=-100_000_000), dt.timedelta(days=100_000_000))


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BooleanType": st.booleans(),
    "ByteType": _whole(8),
    "ShortType": _whole(16),
    "IntegerType": _whole(32),
    "LongType": _whole(64),
    "FloatType": st.floats(width=32) | st.sampled_from([-0.0, math.nan, math.inf]),
    "DoubleType": st.floats() | st.sampled_from([-0.0, math.nan, -math.inf]),
    "StringType": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    "BinaryType": st.binary(max_size=12),
    "DateType": _DAYS,
    "TimestampType": _MOMENTS.map(lambda moment: moment.replace(tzinfo=_UTC)),
    "TimestampNTZType": _MOMENTS,
    "DayTimeIntervalType": _SPANS,
    "TimeType": _CLOCKS,
    "NullType": st.none(),
}


def plain(*, time: bool) -> list[sql.DataType]:
    """Return the types that are not nested."""
    names = [name for name in _VALUES if name != "TimeType" or (time and hasattr(sql, "TimeType"))]
    return [getattr(sql, name)() for name in names]


def types(depth: int = 3, *, time: bool = True) -> st.SearchStrategy[sql.DataType]:
    """Draw any type that Spark sends and takes back unchanged, nested up to `depth` levels deep."""
    numbers = st.integers(1, 38).flatmap(lambda p: st.builds(sql.DecimalType, st.just(p), st.integers(0, p)))
    flat = st.sampled_from(plain(time=time)) | numbers
    if depth <= 1:
        return flat
    inner = types(depth - 1, time=time)
    keys = st.sampled_from([kind for kind in plain(time=time) if type(kind).__name__ in _KEYS])
    return flat | st.one_of(
        st.builds(_array, inner, st.booleans()),
        st.builds(_map, keys, inner, st.booleans()),
        structs(inner, most=3),
    )


_KEYS = {"ByteType", "LongType", "StringType", "DateType", "BooleanType"}
"""Whose values are keys of a dict in Python too, and the same ones."""


def structs(inner: st.SearchStrategy[sql.DataType], *, most: int) -> st.SearchStrategy[sql.StructType]:
    """Draw a struct of such types, each with a name of its own."""
    kinds = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=most)
    names = [*NAMES, *(f"c{number}" for number in range(len(NAMES), most))]
    return kinds.map(
        lambda fields: sql.StructType([_field(name, *each) for name, each in zip(names, fields, strict=False)])
    )


def _field(name: str, kind: sql.DataType, nullable: bool) -> sql.StructField:
    return sql.StructField(name, kind, nullable or isinstance(kind, sql.NullType))


def _array(kind: sql.DataType, nullable: bool) -> sql.ArrayType:
    return sql.ArrayType(kind, nullable or isinstance(kind, sql.NullType))


def _map(key: sql.DataType, kind: sql.DataType, nullable: bool) -> sql.MapType:
    return sql.MapType(key, kind, nullable or isinstance(kind, sql.NullType))


def values(kind: Any, *, nullable: bool = False) -> st.SearchStrategy[Any]:
    """Draw values as both `createDataFrame` and `pa.array` take them."""
    return st.none() | _values(kind) if nullable else _values(kind)


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, sql.DecimalType):
        most = 10**kind.precision - 1
        digits = st.integers(-most, most) | st.sampled_from([most, -most])
        return digits.map(lambda number: Decimal(number).scaleb(-kind.scale, _context()))
    if isinstance(kind, sql.ArrayType):
        return st.lists(values(kind.elementType, nullable=kind.containsNull), max_size=3)
    if isinstance(kind, sql.MapType):
        return st.dictionaries(
            _values(kind.keyType), values(kind.valueType, nullable=kind.valueContainsNull), max_size=3
        )
    if isinstance(kind, sql.StructType):
        return st.fixed_dictionaries({one.name: values(one.dataType, nullable=one.nullable) for one in kind})
    return _VALUES[type(kind).__name__]


def _context() -> Any:
    from decimal import Context

    return Context(prec=60)


def rows(struct: sql.StructType, *, least: int = 0, most: int = 5) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(_values(struct), min_size=least, max_size=most)


def arrow_of(struct: sql.StructType, *, zone: str = "UTC", large: bool = False) -> pa.Schema:
    """Return the Arrow schema that pyspark passes to a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    known = inspect.signature(to_arrow_schema).parameters
    options: dict[str, Any] = {"timezone": zone, "prefers_large_types": large}
    schema: pa.Schema = to_arrow_schema(struct, **{name: value for name, value in options.items() if name in known})
    return schema


def exactly(value: Any) -> Any:
    """Make values comparable exactly: NaN equals NaN, 0.0 doesn't equal -0.0, a timestamp is in UTC."""
    if isinstance(value, dict):
        return {exactly(key): exactly(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exactly(one) for one in value]
    if isinstance(value, tuple):
        return tuple(exactly(one) for one in value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dt.datetime):
        value = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
        return repr(value.astimezone(_UTC).replace(tzinfo=_UTC) if value.tzinfo else value)
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, UUID):
        return value.bytes
    return repr(float(value)) if isinstance(value, float) or type(value).__name__ == "float16" else value
