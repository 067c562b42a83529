"""Values of JSON and of text become columns exactly, or the first value that can't is named."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rows.exact import Misfit, column_of
from penstock.rows.json_lines import Lines, read_fast

LONG = "12345678901234567890123456.0000000001"
DAY_AND_N = pa.struct([("day", pa.date32()), ("n", pa.int8())])
VALUES: list[tuple[pa.DataType, Any, Any]] = [  # type, as JSON, as the column has it
    (pa.int8(), -128, -128),
    (pa.int32(), 2.0, 2),
    (pa.int32(), "3", 3),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.float32(), 0.5, 0.5),
    (pa.float64(), 3, 3.0),
    (pa.float64(), "inf", float("inf")),
    (pa.bool_(), True, True),
    (pa.string(), 5, "5"),
    (pa.string(), 12.5, "12.5"),
    (pa.string(), True, "true"),
    (pa.string(), "0017", "0017"),
    (pa.string(), "2026-11-18", "2026-11-18"),
    (pa.large_string(), "ä", "ä"),
    (pa.string_view(), "view", "view"),
    (pa.decimal128(10, 2), 12.1, Decimal("12.10")),
    (pa.decimal128(10, 2), "3.5", Decimal("3.50")),
    (pa.decimal128(10, 2), 7, Decimal("7.00")),
    (pa.decimal128(38, 10), LONG, Decimal(LONG)),
    (pa.decimal256(50, 2), 1, Decimal("1.00")),
    (pa.date32(), "2026-11-18", date(2026, 11, 18)),
    (pa.timestamp("ms"), "2026-11-18T20:00:00.123", datetime.fromisoformat("2026-11-18T20:00:00.123")),
    (pa.timestamp("us", "UTC"), "2026-11-18 21:00:00+01:00", datetime(2026, 11, 18, 20, tzinfo=UTC)),
    (pa.timestamp("us", "Europe/Oslo"), "2026-11-18T20:00:00Z", datetime(2026, 11, 18, 20, tzinfo=UTC)),
    (pa.time64("us"), "20:00:01.5", time(20, 0, 1, 500000)),
    (pa.time32("s"), "20:00:01", time(20, 0, 1)),
    (pa.binary(), "/wA=", b"\xff\x00"),
    (pa.binary(2), "/wA=", b"\xff\x00"),
    (pa.dictionary(pa.int32(), pa.string()), "word", "word"),
    (pa.dictionary(pa.int32(), pa.int64()), 5, 5),
    (pa.list_(pa.int8()), [1, None], [1, None]),
    (pa.list_(pa.decimal128(10, 2)), [12.1, "3"], [Decimal("12.10"), Decimal("3.00")]),
    (pa.large_list(pa.int64()), [1], [1]),
    (pa.list_(pa.int64(), 2), [1, 2], [1, 2]),
    (pa.list_view(pa.int64()), [1], [1]),
    (DAY_AND_N, {"day": "2026-11-18"}, {"day": date(2026, 11, 18), "n": None}),
    (pa.list_(DAY_AND_N), [{"n": 1}, None], [{"day": None, "n": 1}, None]),
    (pa.map_(pa.string(), pa.float64()), {"a": 1}, [("a", 1.0)]),
    (pa.map_(pa.string(), pa.float64()), [["a", 1.5]], [("a", 1.5)]),
]
UNFIT: list[tuple[pa.DataType, Any, str]] = [  # type, as JSON, why
    (pa.int32(), 3_000_000_000, ""),
    (pa.int32(), 1.5, "it has a fraction"),
    (pa.uint8(), -1, ""),
    (pa.int32(), "one", ""),
    (pa.int32(), True, ""),
    (pa.bool_(), 1, ""),
    (pa.decimal128(10, 2), "12.345", ""),
    (pa.decimal128(10, 2), 12.345, ""),
    (pa.decimal128(4, 2), 123.45, ""),
    (pa.float32(), 1e39, "too large"),
    (pa.date32(), "2026-13-01", ""),
    (pa.date32(), 5, "a number tells no time without its unit"),
    (pa.timestamp("us", "UTC"), "2026-11-18T20:00:00", "a time with its zone is needed"),
    (pa.timestamp("us"), "2026-11-18T20:00:00Z", "a time without a zone is needed"),
    (pa.timestamp("s"), "2026-11-18T20:00:00.5", ""),
    (pa.timestamp("us", "UTC"), 1_795_000_000, "without its unit"),
    (pa.time64("us"), "25:00:00", ""),
    (pa.duration("s"), "7", "text can't become duration[s]"),
    (pa.binary(), "?", "bytes are written in base64"),
    (pa.binary(), 1234, ""),
    (pa.string(), {"a": 1}, ""),
    (pa.list_(pa.int8()), [1, 300], ""),
    (pa.list_(pa.int8()), {"a": 1}, ""),
    (pa.list_(pa.field("item", pa.int8(), nullable=False)), [None], "item is never null"),
    (pa.struct([("n", pa.int8())]), {"m": 1}, "it has no field 'm'"),
    (pa.struct([("n", pa.int8())]), [1], ""),
    (pa.struct([("at", pa.timestamp("us"))]), {"at": "2026-11-18T20:00:00Z"}, "without a zone"),
    (pa.map_(pa.string(), pa.int8()), [1], ""),
]


def of_json(value: Any) -> Any:
    return json.loads(json.dumps(value), parse_float=Decimal)


def text_of(*values: Any) -> pa.Array:
    """Return the fields that a CSV file has for these values."""
    return pa.array([v if v is None or isinstance(v, str) else json.dumps(v) for v in values], pa.string())


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES, ids=str)
def test_a_value_of_json_keeps_all_it_says(kind: pa.DataType, value: Any, expected: Any) -> None:
    column = column_of([of_json(value), None], kind)
    assert (column.type, column.to_pylist()) == (kind, [expected, None])
    lines = Lines(b"\n".join(json.dumps({"x": each}).encode() for each in (value, None)))
    fast = read_fast(lines, pa.schema([("x", kind)]))
    assert fast is None or fast["x"].equals(column)


@pytest.mark.parametrize(("kind", "value", "expected"), [v for v in VALUES if v[1:] != (2.0, 2)], ids=str)
def test_a_field_of_text_keeps_all_it_says(kind: pa.DataType, value: Any, expected: Any) -> None:
    column = column_of(text_of(value, None), kind)
    assert (column.type, column.to_pylist()) == (kind, [expected, None])


@pytest.mark.parametrize(("kind", "value", "why"), UNFIT, ids=str)
def test_a_value_that_would_lose_something_is_named(kind: pa.DataType, value: Any, why: str) -> None:
    unfit = of_json(value)
    with pytest.raises(Misfit) as misfit:
        column_of([None, None, unfit, None, unfit], kind)
    assert (misfit.value.row, misfit.value.value) == (2, unfit)
    assert (why in misfit.value.why) if why else misfit.value.why == ""
    assert read_fast(Lines(json.dumps({"x": value}).encode()), pa.schema([("x", kind)])) is None


@pytest.mark.parametrize(("kind", "text"), [
    (pa.int32(), "2.5"), (pa.int32(), "2.0"), (pa.decimal128(10, 2), "2.555"), (pa.bool_(), "yes"),
    (pa.float64(), "1e400"), (pa.list_(pa.int8()), "[1"), (pa.list_(pa.int8()), "[300]"),
], ids=str)  # fmt: skip
def test_a_text_that_would_lose_something_is_named(kind: pa.DataType, text: str) -> None:
    with pytest.raises(Misfit) as misfit:
        column_of(text_of(None, text, text), kind)
    assert (misfit.value.row, misfit.value.value) == (1, text)


def test_text_may_stand_between_spaces() -> None:
    assert column_of(text_of(" 2 ", "\t3"), pa.int32()).to_pylist() == [2, 3]
    assert column_of(text_of(" 2 "), pa.string()).to_pylist() == [" 2 "]


def test_nulls_become_any_type() -> None:
    for kind in (pa.duration("s"), pa.null(), pa.list_(pa.duration("s")), pa.month_day_nano_interval()):
        assert column_of([None, None], kind).equals(pa.nulls(2, kind))
        assert column_of(text_of(None), kind).equals(pa.nulls(1, kind))


def test_a_column_of_the_type_stays_as_it_is() -> None:
    column = pa.array([timedelta(seconds=5)], pa.duration("s"))
    assert column_of(column, pa.duration("s")) is column


def test_nanoseconds_are_kept_within_nested_values() -> None:
    kind = pa.list_(pa.timestamp("ns"))
    column = column_of([["2026-06-01T01:02:03.000400001"]], kind)
    assert column.flatten()[0].value == 1_780_275_723_000_400_001


def test_a_dictionary_without_room_is_a_misfit() -> None:
    kind, words = pa.dictionary(pa.int8(), pa.string()), [f"word {n}" for n in range(200)]
    for values in (words, text_of(*words)):
        with pytest.raises(Misfit) as misfit:
            column_of(values, kind)
        assert misfit.value.row == 199
    with pytest.raises(Misfit):
        column_of([words], pa.list_(kind))


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)), st.sampled_from([pa.int8(), pa.uint16(), pa.int64()]))
def test_an_integer_is_kept_or_named(numbers: list[int | None], kind: pa.DataType) -> None:
    bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    unfit = [row for row, number in enumerate(numbers) if number is not None and not low <= number < high]
    if not unfit:
        assert column_of(numbers, kind).to_pylist() == numbers
        return
    with pytest.raises(Misfit) as misfit:
        column_of(numbers, kind)
    assert misfit.value.row == unfit[0]
