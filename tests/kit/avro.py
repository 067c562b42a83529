"""Schemas and rows of Avro for Hypothesis, and what fastavro says that they are."""

from __future__ import annotations

import io
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import strategies as st

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_DATES = st.dates(date(1600, 1, 1), date(2500, 1, 1))
_TIMES = st.builds(datetime.combine, _DATES, st.times())


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-scale))


LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", _TEXT),
    ("bytes", st.binary(max_size=20)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}, _decimals(20, 3)),
    ({"type": "int", "logicalType": "date"}, _DATES),
    ({"type": "long", "logicalType": "timestamp-micros"}, _TIMES.map(lambda moment: moment.replace(tzinfo=UTC))),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        _TIMES.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1_000 * 1_000, tzinfo=UTC)),
    ),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, _TIMES),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
]


@st.composite
def typed_values(draw: st.DrawFn, name: str, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and what makes values of it."""
    kind = draw(st.integers(0, 7 if depth else 3))
    if kind <= 2:
        leaf: tuple[Any, st.SearchStrategy[Any]] = draw(st.sampled_from(LEAVES))
        return leaf
    if kind == 3:
        if draw(st.booleans()):
            return {"type": "enum", "name": f"E{name}", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
        size = draw(st.integers(1, 9))
        return {"type": "fixed", "name": f"F{name}", "size": size}, st.binary(min_size=size, max_size=size)
    inner, values = draw(typed_values(f"{name}x", depth - 1))
    if kind == 4:
        branches = ["null", inner] if draw(st.booleans()) else [inner, "null"]
        if isinstance(inner, list):
            return inner, values
        return branches, st.none() | values
    if kind == 5:
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == 6:
        return {"type": "map", "values": inner}, st.dictionaries(_TEXT.filter(bool), values, max_size=3)
    other, others = draw(typed_values(f"{name}y", depth - 1))
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": other}]
    return {"type": "record", "name": f"R{name}", "fields": fields}, st.fixed_dictionaries({"a": values, "b": others})


@st.composite
def records(draw: st.DrawFn, most: int = 12) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A record's schema, and rows of it."""
    columns = [draw(typed_values(str(number))) for number in range(draw(st.integers(1, 4)))]
    fields = [{"name": f"c{number}", "type": kind} for number, (kind, _) in enumerate(columns)]
    row = st.fixed_dictionaries({f"c{number}": values for number, (_, values) in enumerate(columns)})
    schema = {"type": "record", "name": "Row", "fields": fields}
    return schema, draw(st.lists(row, min_size=1, max_size=most))


def encode(schema: dict[str, Any], rows: list[dict[str, Any]]) -> list[bytes]:
    """Return rows as fastavro writes them."""
    parsed, payloads = fastavro.parse_schema(schema), []
    for row in rows:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, row)
        payloads.append(file.getvalue())
    return payloads


def normal(value: Any) -> Any:
    """Return a value of Arrow's or fastavro's so that the same ones are equal: times in microseconds, maps as pairs."""
    if isinstance(value, dict):
        return {name: normal(each) for name, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, tuple) and len(each) == 2 for each in value):
        return {key: normal(each) for key, each in value}
    if isinstance(value, list):
        return [normal(each) for each in value] or {}
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return str(value) if isinstance(value, uuid.UUID) else value
