"""Rows of JSON and CSV become batches of a given schema; a value that doesn't fit is named by row and column."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows.converter import Converter, is_untyped
from penstock.rows.json_lines import Lines, infer_schema

ORDERS = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("total", pa.decimal128(10, 2)),
        ("city", pa.string()),
    ]
)
IDS = pa.schema([("id", pa.int64())])
CITIES = IDS.append(pa.field("city", pa.string()))
TOOK = IDS.append(pa.field("took", pa.duration("s")))
DAY = datetime(2026, 11, 18, 20, tzinfo=UTC)


def from_json(schema: pa.Schema, *lines: str, at_once: int = 1_000) -> pa.Table:
    """Convert lines of JSON, so many at once."""
    converter = Converter("topic/x", schema)
    pieces = [Lines("\n".join(lines[n : n + at_once]).encode(), n + 1) for n in range(0, len(lines), at_once)]
    return pa.Table.from_batches([converter.convert_json(piece) for piece in pieces])


def from_csv(schema: pa.Schema, *lines: str) -> pa.Table:
    """Convert a CSV file, whose known columns are read as text."""
    options = pyarrow.csv.ConvertOptions(
        null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
        column_types=pa.schema([(name, pa.string()) for name in schema.names]),
    )  # fmt: skip
    reader = pyarrow.csv.open_csv(io.BytesIO("\n".join(lines).encode()), convert_options=options)
    return pa.Table.from_batches(Converter("topic/x", schema).convert_batches(reader, is_text=True))


def from_typed(schema: pa.Schema, table: pa.Table) -> pa.Table:
    """Convert a table that has types of its own."""
    return pa.Table.from_batches(Converter("topic/x", schema).convert_batches(table.to_batches(), is_text=False))


def test_json_is_read_in_the_types_of_the_schema() -> None:
    table = from_json(
        ORDERS,
        '{"id": 1, "at": "2026-11-18T20:00:00.5Z", "total": 12.10, "city": "0017"}',
        '{"city": "2026-11-18", "total": "3.5", "at": "2026-11-18 21:00:00+01:00", "id": 2.0}',
        "",
        '{"total": 7, "id": "3", "at": null}',
    )
    assert table.schema == ORDERS
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (1, DAY + timedelta(seconds=0.5), Decimal("12.10"), "0017"),
        (2, DAY, Decimal("3.50"), "2026-11-18"),
        (3, None, Decimal("7.00"), None),
    ]


def test_csv_is_read_in_the_types_of_the_schema() -> None:
    table = from_csv(ORDERS, "city,id,total", "0017,1,12.10", "true, 2 ,3", '"",3,')
    assert table.schema == ORDERS
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (1, None, Decimal("12.10"), "0017"),
        (2, None, Decimal("3.00"), "true"),
        (3, None, None, ""),
    ]


def test_typed_columns_are_put_in_order() -> None:
    table = from_typed(ORDERS, pa.table({"city": ["a"], "id": pa.array([1], pa.int32())}))
    assert table.to_pylist() == [{"id": 1, "at": None, "total": None, "city": "a"}]


def test_typed_columns_that_mean_the_same_are_cast() -> None:
    sent = pa.table({
        "city": pa.array(["a"], pa.string_view()), "total": [7], "id": [1],
        "at": pa.array([DAY], pa.timestamp("s", "Etc/UTC")),
    })  # fmt: skip
    assert from_typed(ORDERS, sent).to_pylist() == [{"id": 1, "at": DAY, "total": Decimal("7.00"), "city": "a"}]
    grown = from_typed(pa.schema([("in", pa.struct([("a", pa.int64())]))]), pa.table({"in": [{"a": 1, "b": "x"}]}))
    assert grown.to_pylist() == [{"in": {"a": 1, "b": "x"}}]


@pytest.mark.parametrize(("read", "lines"), [
    (from_json, ['{"id": 2}', '{"weight": 1.5, "none": null, "took": null, "id": 3}']),
    (from_csv, ["weight,took,id", ",,2", "1.5,,3"]),
])  # fmt: skip
def test_a_new_column_is_added(read: Callable[..., pa.Table], lines: list[str]) -> None:
    """A known column that text can't express, such as a duration, may be null."""
    table = read(TOOK, *lines)
    assert table.schema == TOOK.append(pa.field("weight", pa.float64()))
    assert table.to_pydict() == {"id": [2, 3], "took": [None, None], "weight": [None, 1.5]}


MOMENTS = st.datetimes().map(datetime.isoformat)
VALUES = [
    st.booleans(), st.integers(), st.integers() | st.floats(), st.text(max_size=4), MOMENTS, st.dates().map(str),
    MOMENTS.map("{}Z".format) | MOMENTS.map("{:.19}+05:30".format), st.lists(st.integers() | st.floats()),
    st.dictionaries(st.sampled_from("pq"), MOMENTS.map("{}Z".format)), st.lists(st.lists(MOMENTS | st.text())),
]  # fmt: skip


@given(st.sampled_from(VALUES).flatmap(lambda value: st.lists(st.none() | value, min_size=1, max_size=4)))
def test_lines_are_taken_in_the_types_that_they_made(values: list[Any]) -> None:
    lines = Lines("\n".join(json.dumps({"n": 1, "x": value}) for value in values).encode())
    try:
        schema = infer_schema(lines)
    except InvalidRequest:  # such as integers of more than 64 bits
        return
    assert Converter("topic/x", schema).convert_json(lines).num_rows == len(values)


UNFIT_JSON: list[tuple[pa.Schema, list[str], str]] = [
    (ORDERS, ['{"id": 1}'] * 37 + ['{"id": "x"}', '{"id": 1}', '{"id": "y"}'],
     "line 38: id of topic/x is int32, got 'x'"),
    (ORDERS, ['{"id": 1}', "", '{"id": 1, "at": 5}'],
     "line 3: at of topic/x is timestamp[us, tz=UTC], got '5' (a number tells no time without its unit"),
    (ORDERS, ['{"id": {"a": [1]}}'], """line 1: id of topic/x is int32, got '{"a": [1]}'"""),
    (ORDERS, ['{"id": 1, "city": ["\\u001b[2J"]}'], r"""line 1: city of topic/x is string, got '["\u001b[2J"]'"""),
    (ORDERS, ['{"id": "\\u001b[2J"}'], r"line 1: id of topic/x is int32, got '\x1b[2J'"),
    (TOOK, ['{"id": 4}', '{"id": 5, "took": "7"}'], "line 2: took of topic/x is duration[s], got '7'"),
    (ORDERS, ['{"id": 1}', '{"city": "a"}'], "line 2 has no value for 'id', which is never null in topic/x"),
    (CITIES, ['{"ID": "5"}'], "line 1 has a column 'ID', which topic/x lacks: did you mean 'id'?"),
    (CITIES, ['{"cty": "5"}'], "line 1 has a column 'cty', which topic/x lacks: did you mean 'city'?"),
    (IDS, ['{"id": 1}', '{"id": 2}', '{"id": 3, "weight": 1}'],
     "line 3 has a column 'weight', which the beginning lacks"),
]  # fmt: skip
NO_TYPES = ["null", "[]", "{}", "[[], []]", '[{"a": []}]', '{"a": null}']


@pytest.mark.parametrize("value", NO_TYPES)
def test_a_new_column_has_a_value_that_tells_its_type(value: str) -> None:
    """A column of nulls is left out until it has one, any other is refused."""
    line = f'{{"id": 1, "new": {value}}}'
    if value == "null":
        assert from_json(IDS, line).schema == IDS
        return
    with pytest.raises(SchemaMismatch, match="line 1 has a column 'new', which has no value that tells its type"):
        from_json(IDS, line)
    assert is_untyped(infer_schema(Lines(line.encode())).field("new").type)


def test_objects_may_get_more_fields() -> None:
    schema = pa.schema([("in", pa.struct([("a", pa.int32())])), ("all", pa.list_(pa.struct([("a", pa.int8())])))])
    line = '{"in": {"a": 1, "b": 1.5, "none": null}, "all": [{"a": 1, "at": "2026-11-18T20:00:00Z"}, {"a": 2}]}'
    with pytest.raises(SchemaMismatch, match=r"in of topic/x is .* \(it has no field 'none'\)"):
        from_json(schema, line)
    table = from_json(schema, line.replace(', "none": null', ""), '{"in": {"b": 2.5}}')
    assert table.schema == pa.schema([
        ("in", pa.struct([("a", pa.int32()), ("b", pa.float64())])),
        ("all", pa.list_(pa.struct([("a", pa.int8()), ("at", pa.timestamp("us", "UTC"))]))),
    ])  # fmt: skip
    assert table["in"].to_pylist() == [{"a": 1, "b": 1.5}, {"a": None, "b": 2.5}]
    with pytest.raises(SchemaMismatch, match="it has no field 'b'"):
        from_json(schema, '{"in": {"a": 1}}', '{"in": {"b": 2.5}}', at_once=1)


UNFIT_CSV: list[tuple[pa.Schema, list[str], str]] = [
    (ORDERS, ["id,total", "1,2", "2,2.555", "3,x"], "row 2: total of topic/x is decimal128(10, 2), got '2.555'"),
    (ORDERS, ["id,city", f"{'7' * 99},x"], f"row 1: id of topic/x is int32, got '{'7' * 79}…'"),
    (ORDERS, ["city", "a"], "row 1 has no value for 'id', which is never null in topic/x"),
    (CITIES, ["ID,", "5,"], "row 1 has a column 'ID', which topic/x lacks: did you mean 'id'?"),
    (CITIES, ["cty,", "5,"], "row 1 has a column 'cty', which topic/x lacks: did you mean 'city'?"),
    (CITIES, ["id,city,city", "2,b,c"], "the column 'city' is there more than once"),
]


@pytest.mark.parametrize(("schema", "lines", "message"), UNFIT_JSON, ids=[case[2][:60] for case in UNFIT_JSON])
def test_a_line_that_does_not_fit_is_named(schema: pa.Schema, lines: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        from_json(schema, *lines, at_once=1 if schema is IDS else 1_000)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("schema", "lines", "message"), UNFIT_CSV, ids=[case[2][:60] for case in UNFIT_CSV])
def test_a_row_that_does_not_fit_is_named(schema: pa.Schema, lines: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        from_csv(schema, *lines)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("schema", "table", "message"), [
    (IDS, pa.table({"id": [1.5]}), "column id is double, and can't be cast to int64: "),
    (IDS, pa.table({"id": ["1"]}), "topic/x has another schema: id is int64, got string"),
    (CITIES, pa.table({"city": [1]}), "topic/x has another schema: city is string, got int64"),
    (ORDERS, pa.table({"city": ["a"]}), "topic/x has another schema: lacks id int32"),
    (ORDERS, pa.table({"id": pa.array([1, None], pa.int32())}), "column id has a null where its schema allows none"),
    (CITIES, pa.table({"cty": ["a"]}), "row 1 has a column 'cty', which topic/x lacks: did you mean 'city'?"),
    (CITIES, pa.table([[2], ["b"], ["c"]], names=["id", "city", "city"]), "the column 'city' is there more than once"),
])  # fmt: skip
def test_a_typed_column_that_does_not_fit_is_named(schema: pa.Schema, table: pa.Table, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        from_typed(schema, table)
    assert str(refused.value).startswith(message)


def test_a_converter_that_grows_takes_later_columns() -> None:
    converter = Converter("topic/x", IDS, grows=True)
    for number, name in enumerate("abc"):
        batch = converter.convert_json(Lines(f'{{"id": {number}, "{name * 4}": "x"}}'.encode(), number + 1))
        assert batch.schema.names == ["id", *(letter * 4 for letter in "abc"[: number + 1])]


def test_one_odd_value_leaves_the_other_rows_alone() -> None:
    """Arrow's reader takes the lines piece by piece; only the piece with the odd value is parsed exactly."""
    lines = [f'{{"s": "{n}", "n": {n}{".0" if n == 500 else ""}}}' for n in range(1_000)]
    table = from_json(pa.schema([("n", pa.int32()), ("s", pa.string())]), *lines, at_once=99)
    assert table.to_pydict() == {"n": list(range(1_000)), "s": [str(n) for n in range(1_000)]}
