"""Lines of JSON: parsed exactly, or by Arrow's reader with the same result; a bad line is named."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.rows.exact import Misfit, column_of
from penstock.rows.json_lines import Lines, infer_schema, parse, read_fast

PLAIN = pa.schema([("n", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
NO_ROWS = {
    b'{"n": 1} {"n": 2}': "isn't JSON: Extra data",
    b'{"n": 1, "n": 2}': "isn't JSON: a key is there twice",
    b'{"n": {"a": 1, "a": 2}}': "isn't JSON: a key is there twice",
    b'{"n": 1': "isn't JSON",
    b'{"n": 01}': "isn't JSON",
    b"[]": "no object: []",
    b"7": "no object: 7",
    b'{"s": "caf\xe9"}': r"s isn't text in UTF-8, got 'caf\udce9'",
    b'{"s": "\xed\xa0\x80"}': "s isn't text in UTF-8",
    b'{"s": "\\ud800"}': r"s isn't text in UTF-8, got '\ud800'",
    b'{"n": 7, "new": ["\xff"]}': "new isn't text in UTF-8",
    b'{"n": 1, "caf\xe9": 7}': r"caf\udce9 isn't text in UTF-8, got '7'",
}


@pytest.mark.parametrize(("line", "reason"), NO_ROWS.items(), ids=ascii)
def test_a_line_that_is_no_row_is_named(line: bytes, reason: str) -> None:
    """Arrow's own reader accepts some of these, and would read a wrong number of rows."""
    lines = Lines(b'{"n": 1}\n\n' + line + b'\n{"n": 2}', number=5)
    assert read_fast(lines, PLAIN) is None
    with pytest.raises(InvalidRequest) as refused:
        parse(lines)
    assert str(refused.value).startswith("line 7")
    assert reason in str(refused.value)


def test_an_array_is_refused_with_the_cure() -> None:
    for text in (b'[{"x": 1}]', b'[\n{"x": 1},\n{"x": 2}]'):
        for read in (parse, infer_schema):
            with pytest.raises(InvalidRequest, match="one JSON array: expected an object per line"):
                read(Lines(text))


def test_rows_have_the_numbers_of_their_lines() -> None:
    text = b'\xef\xbb\xbf{"x": 1.10}\r\n \n{"x": "\xc3\xa9"}\n\n{}'
    assert parse(Lines(text)) == {1: {"x": Decimal("1.10")}, 3: {"x": "é"}, 5: {}}


def test_types_are_inferred_from_all_lines() -> None:
    schema = infer_schema(Lines(b'{"a": 1}\n{"b": "x", "a": 1.5}\n{"c": null}'))
    assert schema == pa.schema([("a", pa.float64()), ("b", pa.string()), ("c", pa.null())])


TIMES = {
    '"2026-11-18T20:00:00Z"': pa.timestamp("us", "UTC"),
    '"2026-11-18 20:00:00.25+01:00", "2026-11-18T20:00Z"': pa.timestamp("us", "UTC"),
    '"2026-11-18T20:00:00.123456789Z"': pa.timestamp("ns", "UTC"),
    '"2026-11-18T20:00:00"': pa.timestamp("us"),
    '"2026-11-18 20:00:00.5", null': pa.timestamp("us"),
    '"2026-11-18"': pa.timestamp("us"),
    '"2026-11-18T20:00:00Z", "2026-11-18T20:00:00"': pa.string(),
    '"2026-11-18T20:00:00Z", "soon"': pa.string(),
    '"20:00"': pa.string(),
}


@pytest.mark.parametrize(("values", "kind"), TIMES.items(), ids=TIMES)
def test_a_time_with_a_zone_is_never_without_one(values: str, kind: pa.DataType) -> None:
    nested = pa.struct([("at", pa.list_(kind))])
    lines = Lines(f'{{"at": [{values}], "in": {{"at": [{values}]}}}}\n{{}}'.encode())
    assert infer_schema(lines) == pa.schema([("at", pa.list_(kind)), ("in", nested)])
    column = "\n".join(f'{{"at": {value}}}' for value in values.split(", "))
    assert infer_schema(Lines(column.encode())) == pa.schema([("at", kind)])


def test_rows_of_inferred_types_are_read_again_and_fast() -> None:
    """The same lines are taken again, by Arrow's reader, also where times are nested."""
    row = '{"n": 1, "f": NaN, "at": "2026-11-18T20:00:00.5Z", "in": [{"at": "2026-11-18T20:00:00Z", "s": "x"}]}\n'
    lines = Lines(row.encode() * 3)
    batch = read_fast(lines, infer_schema(lines))
    assert batch is not None
    assert batch["at"][0].as_py() == datetime(2026, 11, 18, 20, 0, 0, 500_000, UTC)
    assert batch["in"][2].as_py() == [{"at": datetime(2026, 11, 18, 20, tzinfo=UTC), "s": "x"}]


@pytest.mark.parametrize("text", [b"", b" \n\n", b"{}\n{}", b'{"a": 1}\n{"a": "x"}', b'{"n\xe9": 1}'])
def test_lines_that_are_no_table_have_no_types(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        infer_schema(Lines(text))


def test_text_that_is_not_utf8_is_never_read() -> None:
    for line in (b'{"s": "\xff"}', b'{"s": "\\ud800"}'):
        assert read_fast(Lines(line), pa.schema([("s", pa.string())])) is None


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-129, 128) | st.floats(allow_nan=False, allow_infinity=False),
    pa.float64(): st.floats() | st.integers() | st.text(max_size=3),
    pa.string(): st.text(max_size=5) | st.integers() | st.booleans(),
    pa.bool_(): st.booleans() | st.integers(0, 1),
    pa.decimal128(6, 2): st.decimals(-9999, 9999, places=2).map(str) | st.integers(-99_999, 99_999) | st.floats(0, 9),
    pa.timestamp("us", "UTC"): st.datetimes().map(lambda moment: f"{moment.isoformat()}Z") | st.text(max_size=3),
    pa.timestamp("s"): st.datetimes().map(lambda moment: moment.isoformat()),
    pa.binary(): st.binary(max_size=5).map(lambda data: base64.b64encode(data).decode()) | st.text(),
    pa.list_(pa.float64()): st.lists(st.none() | st.floats()),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
}


@given(st.data())
def test_arrows_reader_makes_the_same_or_nothing(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    rows = data.draw(st.lists(st.dictionaries(st.just("x"), st.none() | KINDS[kind], max_size=1), min_size=1))
    lines = Lines("\n".join(json.dumps(row) for row in rows).encode())
    fast = read_fast(lines, pa.schema([("x", kind)]))
    if fast is not None:
        try:
            slow = column_of([row.get("x") for row in parse(lines).values()], kind)
            # As Python writes them, since NaN isn't equal to itself.
            assert (fast["x"].type, repr(fast["x"].to_pylist())) == (slow.type, repr(slow.to_pylist()))
        except (Misfit, InvalidRequest) as refused:
            raise AssertionError(f"{refused!r} isn't told of {fast['x']}") from refused
