"""JSON payloads against an oracle that shares no code: any schema, any bytes, and no row changes another's value."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decode.json import JsonDecoder
from tests.kit.json_oracle import expected
from tests.kit.profiles import examples

LEAVES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(5, 2),
    pa.decimal128(38, 10), pa.decimal128(10, 0), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"),
    pa.timestamp("us"), pa.time64("ns"),
]  # fmt: skip
NAMES = ["a", "b", "é", ""]


A = pa.schema({"a": pa.int64()})
NUMBERS = [
    "0", "1", "-7", "1.0", "1e2", "-0", "-0.0", "1e400", "1e-400", "127", "128", "0.1", "1.500", "1.505", "9" * 50,
    "3.4028236e38", "3.4028235677973366e38", "16777217", "1.00000005960464477539062", "123e-2", "1e99999", "0e99999",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1.7976931348623159e308", "7e-10", "1E5",
    "7609656143120153047", "9e37", "99999999999999999999999999999999999999",
]  # fmt: skip
TEXTS = [
    '"2026-11-18"', '"2026-11-18T20:00:00Z"', '"2026-11-18 20:00:00.123456789+01:30"', '"1969-12-31T23:59:59.999"',
    '"2026-11-18T20:00"', '"20:00:01"', '"20:00:01.000001"', '"2026-02-30"', '" 2026-11-18 "', '"0001-01-01"', '"NaN"',
    '"-Infinity"', '"INF"', '"Info"', '"a:NaN"', r'"\u0061"', r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00"', r'"\u0000"',
    '"\t"', '"YQ=="', '"YQ="', '"+1"', '"1."', '"0x10"', '""', '"}"', '"{"', '"2026-11-18T24:00:00"', '"é"', '"😀"',
    r'"\n\"\\\/"', '"abc', r'"\x"', '"2026-11-18T20:00:00+0100"', '"2026-11-18T20Z"',
]  # fmt: skip
OTHERS = [
    "true",
    "false",
    "null",
    "null",
    "NaN",
    "-Infinity",
    "Infinity",
    "nan",
    "Inf",
    "01",
    "1.",
    ".5",
    "+1",
    "-",
    "{}",
    "[]",
]
WHOLE = [
    b"",
    b" ",
    b"\n",
    b"null",
    b"[]",
    b"{}",
    b"{}{}",
    b"{}\0{}",
    b"\xef\xbb\xbf{}",
    b'{"a":1}{"a":2}',
    b'"a"',
    None,
]
NOISE = [b"\0", b"\n", b"\xff", b"\x0b", b"}", b"{", b'"', b" ", b"\xc3", b",", b"\\"]


class Generator(random.Random):
    """Draws schemas and payloads."""

    def kind(self, depth: int = 3, *, maps: bool) -> Any:
        shape = self.randint(0, 9) if depth else 0
        if shape < 6:
            return self.choice(LEAVES)
        if shape == 9 and maps:
            return pa.map_(pa.string(), self.kind(depth - 1, maps=maps))
        if shape == 8:
            return pa.list_(self.kind(depth - 1, maps=maps))
        names = self.sample(NAMES, self.randint(1, 3))
        return pa.struct([pa.field(name, self.kind(depth - 1, maps=maps)) for name in names])

    def schema(self) -> pa.Schema:
        maps = self.random() < 0.3
        return pa.schema([(name, self.kind(maps=maps)) for name in self.sample(NAMES, self.randint(1, 4))])

    def value(self, kind: Any = None, depth: int = 4) -> str:  # noqa: C901, PLR0912  # a case for each type
        """Return JSON, mostly of a type."""
        if kind is None or self.random() < 0.03:
            shape = self.randint(0, 5) if depth else self.randint(0, 3)
            if shape < 4:
                return self.choice((NUMBERS, TEXTS, OTHERS, OTHERS)[shape])
            items = [self.value(None, depth - 1) for _ in range(self.randint(0, 3))]
            if shape == 4:
                return f"[{', '.join(items)}]"
            return "{" + ",".join(f'"{self.choice([*NAMES, "c"])}": {item}' for item in items) + "}"
        if self.random() < 0.1:
            return "null"
        if pa.types.is_struct(kind):
            names = [field.name for field in kind if self.random() < 0.8]
            fields = [f"{json.dumps(name)}:{self.value(kind.field(name).type, depth - 1)}" for name in names]
            if self.random() < 0.2:
                fields.append(f'"c" : {self.value(None, 2)}')
            if fields and self.random() < 0.05:
                fields.append(self.choice(fields))
            return "{" + self.choice((",", " ,\n")).join(fields) + "}"
        if pa.types.is_map(kind):
            return (
                "{"
                + ",".join(f'"{n}":{self.value(kind.item_type, depth - 1)}' for n in range(self.randint(0, 2)))
                + "}"
            )
        if pa.types.is_list(kind):
            return "[" + ",".join(self.value(kind.value_type, depth - 1) for _ in range(self.randint(0, 3))) + "]"
        if pa.types.is_boolean(kind):
            return self.choice(("true", "false"))
        if kind == pa.string():
            return self.choice(TEXTS) if self.random() < 0.3 else f'"{self.randint(0, 999)}"'
        if pa.types.is_temporal(kind):
            return self.choice(TEXTS[:12])
        if kind == pa.binary():
            return '"YWI="' if self.random() < 0.9 else self.choice(TEXTS)
        return self.choice(NUMBERS) if self.random() < 0.3 else str(self.randint(-99, 99))

    def payload(self, schema: pa.Schema) -> bytes | None:
        """Return an object of a schema, mostly; else one that is cut, doubled or spoilt, or no object."""
        row = self.value(pa.struct(list(schema))).encode()
        at = self.randint(0, len(row))
        match self.randint(0, 19):
            case 0:
                return row[:at]
            case 1:
                return row + self.value(pa.struct(list(schema))).encode()
            case 2:
                return row[:at] + self.choice(NOISE) + row[at:]
            case 3:
                return self.choice(WHOLE)
            case 4:
                return b" " + row + b"\r\n"
        return row


def check(schema: pa.Schema, rows: list[bytes | None]) -> None:
    decoder, payloads = JsonDecoder(schema), pa.array(rows, pa.binary())
    columns, errors = decoder.decode(payloads)
    again, errors_again = decoder.decode(payloads)  # which knows by now whether there are bad ones
    assert all(map(same, [each.to_pylist() for each in again], [each.to_pylist() for each in columns]))
    assert errors_again.equals(errors)
    decoded = [list(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
    assert [column.type for column in columns] == schema.types
    for column in columns:
        column.validate(full=True)
    assert len(errors) == len(rows)
    for row, value, error in zip(rows, decoded, errors.to_pylist(), strict=True):
        wanted, whole = expected(schema, row)
        assert same(value, wanted), (row, value, wanted)
        assert (error is None) == whole, (row, error)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isnan(one) == math.isnan(other) and (
            math.isnan(one) or (one, math.copysign(1, one)) == (other, math.copysign(1, other))
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other and type(one) is type(other))


@given(st.integers(0, 2**63))
@settings(max_examples=examples(60))
def test_any_payloads_decode_as_the_oracle_says(seed: int) -> None:
    """Each example has rows alone, a few together, and some of them many times in several windows."""
    generator = Generator(seed)
    schema = generator.schema()
    rows = [generator.payload(schema) for _ in range(generator.choice((1, 3, 12, 40)))]
    check(schema, rows)
    if generator.random() < 0.1:
        check(schema, generator.choices(rows, k=600))


def test_an_empty_payload_shifts_no_row() -> None:
    """Two objects in one payload would make up for a payload that is no row."""
    check(A, [b"", b'{"a": 1}{"a": 2}', b'{"a": 3}'])
    check(A, [b'{"a": 1}\n{"a": 2}', b"\n", b'{"a": 3}', None, b'{"a": 4'])
    check(A, [b'{"a": 1', b', "b": 2}', b'{"a": 3}'])


def test_bytes_that_are_not_utf8_spoil_their_row_alone() -> None:
    """Arrow's reader takes them, in fields that the schema lacks without a check."""
    check(A, [b'{"a": 1}', b'{"a": 2, "b": "\xff"}', b'{"a": 3, "\xc3": 1}', b'{"a": 4, "b": "\xc3\xa9"}'])


def test_a_zero_byte_ends_no_block() -> None:
    check(A, [b'{"a": 1}{"a": 2}', b'{"a": 3}\0}', b'{"a": 4}'])


def test_large_decimals_are_exact_or_refused() -> None:
    """Arrow's reader takes 7609656143120153047 with a scale of 32 for -1579305.17, and 9e37 with one of 10 likewise."""
    check(pa.schema({"a": pa.decimal128(33, 32)}), [b'{"a": 7609656143120153047}'])
    check(pa.schema({"a": pa.decimal128(38, 38)}), [b'{"a": %d}' % 10**n for n in range(76)])
    schema = pa.schema({"a": pa.decimal128(38, 10)})
    check(schema, [b'{"a": 9e37}'])
    check(schema, [b'{"a": 3.4028235677973366e38}', b'{"a": "3.4028235677973366e38"}', b'{"a": 1.5e3}', b'{"a": 2.50}'])


def test_names_that_look_like_no_number_stay_fast() -> None:
    readable = JsonDecoder(pa.schema({"a": pa.string()}))._readable(pa.array([b'{"a": "Info"}', b'{"a": NaN}']))
    assert readable.lines.to_pylist() == [b'{"a": "Info"}\n']


def test_deep_payloads_decode_alone_as_among_others() -> None:
    deep = b'{"b": ' + b"[" * 100_000 + b"]" * 100_000 + b', "a": 1}'
    known = b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}"
    for rows in ([deep], [deep, b"x"], [b'{"a": 2}', deep, known]):
        columns, errors = JsonDecoder(A).decode(pa.array(rows, pa.binary()))
        assert columns[0][rows.index(deep)].as_py() == 1
        assert errors[rows.index(deep)].as_py() is None
    assert errors.to_pylist()[2] == "it is nested deeper than 200 levels"


def test_no_row_depends_on_its_neighbours() -> None:
    """A few bad rows of every kind in several windows: all others are as they are without them."""
    bad = [b"", b"{", b'{"a": "x"}', b'{"a": 1.5}', b'{"a": 99999999999999999999}', b"\xff", b"[]", b'{"a": [1]}', None]
    rows: list[bytes | None] = [b'{"a": %d}' % number for number in range(3_000)]
    for at in range(0, 3_000, 37):
        rows[at] = bad[at % len(bad)]
    check(A, rows)


def test_what_looks_bad_and_is_not_changes_nothing() -> None:
    """Names that an unknown field has, too, or that are written otherwise, and more bad rows than good ones."""
    rows: list[bytes | None] = [b'{"x": {"a": "text"}, "a": %d}' % number for number in range(2_000)]
    check(A, [*rows, b'{"a": true}'])
    check(A, [*rows[:100], rb'{"\u0061": "text"}', rb'{"\u0061": 1}'])
    check(A, [*(b'{"a": "%d"}' % number for number in range(1_000)), *rows[:9]])
    check(pa.schema({"": pa.int8(), "\n.*": pa.int8()}), [b'{"": 1, "\\n.*": "x"}', b'{"": 100}', b'{"": 1000}'] * 9)


def test_no_payload_makes_no_row() -> None:
    check(A, [])
    columns, errors = JsonDecoder(pa.schema([]), "_rest").decode(pa.array([b'{"a": [1.0]}', b"x"]))
    assert columns[0].to_pylist() == [[("a", "[1.0]")], None]
    assert errors.null_count == 1


def test_no_payload_takes_quadratic_time() -> None:
    """A regular expression that searches again from each character holds the GIL for five minutes, for 200 kB."""
    quotes, digits = rb"\"" * 200_000, b"1" * 200_000
    for schema in (pa.schema({"a": pa.decimal128(38, 10)}), A, pa.schema({"a": pa.map_(pa.string(), pa.string())})):
        for value in (
            b"[" * 201 + b'"' + quotes,
            b'"' + b"{" * 201 + quotes,
            b'"%bx"' % digits,
            b'"%b.%bx"' % (digits, digits),
        ):
            columns, errors = JsonDecoder(schema).decode(pa.array([b'{"a": %b}' % value, b'{"a": %b' % value]))
            assert (columns[0].null_count, errors.null_count) == (2, 0)
