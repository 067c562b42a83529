"""Filters keep the rows that SQL keeps: SQLite evaluates the same predicates."""

from __future__ import annotations

import datetime as dt
import operator
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.client import Client, connect
from penstock.errors import InvalidRequest
from penstock.rows import schemas
from penstock.rows.filter import parse
from penstock.rows.filter.parse import parse_filter
from tests.kit.server import process_server

DAYS = [dt.date(2026, 1, day) for day in (1, 2, 3, 4)]
KINDS = pa.table(
    {
        "at": [1, 2, 3, 4],
        "int": pa.array([1, 2, None, 4], pa.int32()),
        "float": [1.0, float("nan"), None, -0.0],
        "text": ["a", "b'c", None, "d"],
        "day": pa.array(DAYS),
        "utc": pa.array([dt.datetime(2026, 1, d.day, tzinfo=dt.UTC) for d in DAYS], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.10"), Decimal("2.20"), None, Decimal("9.99")], pa.decimal128(10, 2)),
        "yes": [True, False, None, True],
        "raw": [b"\x00\xff", b"", None, b"x"],
        "coded": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "odd `name`": [1, 2, 3, 4],
        "nothing": pa.nulls(4),
        "half": pa.array([0.5, float("nan"), None, 2.0], pa.float16()),
        "single": pa.array([0.1, float("inf"), None, -0.0], pa.float32()),
        "coded_float": pa.array([1.0, float("nan"), None, 0.5]).dictionary_encode(),
        "coded_int": pa.array([1, 2, None, 4]).dictionary_encode(),
        "view": pa.array(["a", "b'c", None, "d"], pa.string_view()),
        "raw_view": pa.array([b"\x00\xff", b"", None, b"x"], pa.binary_view()),
        "nested": pa.array([["a"], [], None, ["d"]], pa.list_(pa.string_view())),
        "inner": pa.array([{"v": "a"}, {"v": None}, None, {"v": "d"}], pa.struct({"v": pa.string_view()})),
        "nanos": pa.array([1, 2, None, 4], pa.timestamp("ns")),
        "list": [[1], [], None, [4]],
    }
)


UNFILTERABLE = pa.table({"at": [1, 2], "ree": pa.nulls(2, pa.run_end_encoded(pa.int32(), pa.int64()))})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("day >= date '2026-01-03'", [3, 4]),
        ("utc < timestamp '2026-01-02T00:00:00Z'", [1]),
        ("utc <= '2026-01-02T02:00:00+02:00'", [1, 2]),
        ("price between 1.1 and 2.2", [1, 2]),
        ("price > 1.105 and price <> 9.99", [2]),
        ("price in (1.10, 3)", [1]),
        ("yes", [1, 4]),
        ("not yes or yes is null", [2, 3]),
        ("yes = FALSE", [2]),
        ("raw = x'00FF'", [1]),
        ("coded = 'x'", [1, 4]),
        ("coded in ('y', 'z')", [2]),
        ("`odd ``name``` = 3", [3]),
        ('"odd `name`" != 3', [1, 2, 4]),
        ("text = 'b''c'", [2]),
        ("float in (0.0)", [4]),
        ("float > 0.5", [1, 2]),  # NaN is the largest, as in Spark
        ("not float <= 0.5", [1, 2]),
        ("int > 99999999999", []),
        ("int < 9999999999999999999999", [1, 2, 4]),
        ("int in (1, 99999999999)", [1]),
        ("int = 1.5 or int = 2.0", [2]),
        ("nothing is null", [1, 2, 3, 4]),
        ("NOT (int = 1 OR int = 2)", [4]),
        ("price in (1.1, 2.205, 1e-50, 99999999999)", [1]),
        ("price > '1e-50' and price < '2.205'", [1, 2]),
        ("int in (1, 1.5, 2.0, 1e50)", [1, 2]),
        ("int > 1" + "0" * 50, []),
        ("float in (0, 1)", [1, 4]),
        ("float in (-0.0)", [4]),
        ("float in (" + ", ".join(["1"] * 3_000) + ")", [1]),
        ("float < 1" + "0" * 400, [1, 4]),
        ("float > 'inf'", [2]),
        ("half > 1 or half = 0.5", [1, 2, 4]),
        ("half in (0.5)", [1]),
        ("single = 0.1", [1]),
        ("single in (0.1, 0)", [1, 4]),
        ("single > 1e40", [2]),  # larger than every float32 but infinity
        ("coded_float > 0.7", [1, 2]),
        ("coded_float in (1.0, 0.5)", [1, 4]),
        ("coded_int >= 1.5", [2, 4]),
        ("view = 'b''c' or view in ('a')", [1, 2]),
        ("raw_view = x'00FF' or raw_view is null", [1, 3]),
        ("nested is null or inner is null", [3]),
        ("nanos in ('1970-01-01T00:00:00.000000002')", [2]),
        ("nothing = 1", []),
        (" or ".join(["int = 9"] * 99 + ["yes"]), [1, 4]),
        ("(" * 49 + "yes" + ")" * 49, [1, 4]),
    ],
)
def test_a_literal_takes_the_type_of_its_column(text: str, kept: list[int]) -> None:
    table = parse_filter(text, KINDS.schema).kept(KINDS)
    assert table["at"].to_pylist() == kept


def rows_of(kept: list[int]) -> list[pa.Table]:
    """Return these rows of KINDS, each by itself: Arrow can't take rows of views."""
    return [KINDS.slice(at - 1, 1) for at in kept]


EDGES = {
    pa.int32(): [-(2**31), -1, 0, 1, 2**24 + 1, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 1, 2, 2**24, 2**24 + 1, 2**53 + 1, 2**63 - 1],
    pa.uint64(): [0, 1, 2, 2**24 + 1, 2**63 - 1, 2**63, 2**64 - 1],
}
SIGNS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@pytest.mark.parametrize("kind", EDGES, ids=str)
@pytest.mark.parametrize(
    "number", ["1.5", "-1", "2.0", "16777217", "16777216.5", "9223372036854775807", "9223372036854775808",
               "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1e30", "-1e-30"]
)  # fmt: skip
def test_whole_numbers_of_any_size_are_compared_exactly(kind: pa.DataType, number: str) -> None:
    """The comparison is that of Python's integers and decimals."""
    table = pa.table({"n": pa.array(EDGES[kind], kind)})

    for sign, holds in SIGNS.items():
        expected = [value for value in EDGES[kind] if holds(Decimal(value), Decimal(number))]
        assert parse_filter(f"n {sign} {number}", table.schema).kept(table)["n"].to_pylist() == expected, sign
    among = parse_filter(f"n in (1, {number}, 3.5)", table.schema).kept(table)["n"].to_pylist()
    assert among == [value for value in EDGES[kind] if Decimal(value) in (1, Decimal(number))]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a column, found the end"),
        ("int >", "expected a number"),
        ("int = 1 int = 2", "expected 'and' or 'or', found 'int'"),
        ("((int = 1)", "expected '\\)'"),
        ("int = null", "is null"),
        ("itn = 1", "did you mean 'int'"),
        ("int = 'x'", "'x' is no value of a int32 column"),
        ("utc > '2026-01-02'", "add its zone"),
        ("text > 5", "'5' is no value of a string column"),
        ("raw in (1)", "'1' is no value of a binary column"),
        ("yes in (1)", "'1' is no value of a bool column"),
        ("int = true", "'True' is no value of a int32 column"),
        ("day > 1.5", "1.5' is no value of a date32"),
        ("list = 1", "is no value of a list"),
        ("list = '1'", "is no value of a list|doesn't fit the columns"),
        ("ree is null", "run_end_encode"),
        ("price = 1e-99999999", "at most 50 digits"),
        ("price < '1e-99999999'", "at most 50 digits"),
        ("price in (1, 1e99999999)", "at most 50 digits"),
        ("price = 'nan'", "at most 50 digits"),
        ("price = 'much'", "no value of a decimal"),
        ("int < 1e-99999999", "at most 50 digits"),
        ("int < 1" + "0" * 400, "at most 50 digits"),
        ("price < 1" + "0" * 400, "at most 50 digits"),
        ("float < 1e99999999999999999999", "is too large"),
        ("float = 'nan'", "NaN is above all numbers"),
        ("float in (1, 'NaN')", "NaN is above all numbers"),
        ("coded_float < 'nan'", "NaN is above all numbers"),
        (" or ".join(["yes"] * 101), "more than 100 comparisons"),
        ("(" * 51 + "yes" + ")" * 51, "levels of brackets"),
        ("int in (" + ", ".join(["1.5"] * 101) + ")", "more than 100 comparisons"),
        ("int = 1; drop", "can't be read at ';"),
        ("int", "expected =, !="),
        ("(" * 10_000, "levels of brackets"),
        ("not " * 3_000 + "yes", "levels of brackets"),
        ("int = 1 or " * 20_000, "characters"),
    ],
)
def test_a_wrong_filter_is_refused_with_what_was_expected(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_filter(text, (UNFILTERABLE if "ree" in text else KINDS).schema)


COLUMNS = {"a": st.integers(-3, 3), "b": st.sampled_from(["", "x", "y'z", "ß"]), "c": st.sampled_from([-1.5, 0.0, 2.0])}
LITERALS = {
    "a": st.integers(-4, 4).map(str),
    "b": st.sampled_from(["''", "'x'", "'y''z'", "'ß'"]),
    "c": st.sampled_from(["-1.5", "0", "2e0", "7.25"]),
}


def predicates() -> st.SearchStrategy[str]:
    """Draw predicates that SQLite understands, too."""

    def comparisons_of(name: str) -> st.SearchStrategy[str]:
        literal = LITERALS[name]
        return st.one_of(
            st.builds(f"{name} {{}} {{}}".format, st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="]), literal),
            st.builds(
                lambda no, values: f"{name} {no}in ({', '.join(values)})",
                st.sampled_from(["", "not "]),
                st.lists(literal, min_size=1, max_size=3),
            ),
            st.builds(f"{name} {{}}between {{}} and {{}}".format, st.sampled_from(["", "not "]), literal, literal),
            st.sampled_from([f"{name} is null", f"{name} is not null"]),
        )

    return st.recursive(
        st.sampled_from(sorted(COLUMNS)).flatmap(comparisons_of),
        lambda inner: st.one_of(
            st.builds("({} and {})".format, inner, inner),
            st.builds("{} or {}".format, inner, inner),
            st.builds("not ({})".format, inner),
        ),
        max_leaves=6,
    )


@given(rows=st.lists(st.tuples(*(st.none() | values for values in COLUMNS.values())), max_size=12), text=predicates())
def test_the_rows_that_sqlite_keeps_are_kept(rows: list[tuple[object, ...]], text: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t(at INTEGER, a INTEGER, b TEXT, c REAL)")
    database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [(at, *row) for at, row in enumerate(rows)])
    expected = [at for (at,) in database.execute(f"SELECT at FROM t WHERE {text} ORDER BY at")]
    database.close()
    schema = pa.schema({"at": pa.int64(), "a": pa.int64(), "b": pa.string(), "c": pa.float64()})
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, (at, *row), strict=True)) for at, row in enumerate(rows)], schema
    )

    assert parse_filter(text, schema).kept(table)["at"].to_pylist() == expected


@pytest.mark.faults
def test_a_filter_is_evaluated_at_the_server_over_all_parts(client: Client) -> None:
    table = pa.table({"id": range(3_000_000), "city": ["Oslo", "Bergen", "Narvik"] * 1_000_000})
    client.put("store/x", table)

    filtered = client.get("store/x", columns=["city"], filter="id >= 1500000 and id < 1500003 or id = 0")
    first = client.get("store/x", filter="city = 'Oslo'", limit=5)

    assert filtered.read_all().to_pydict() == {"city": ["Oslo", "Oslo", "Bergen", "Narvik"]}
    assert first.read_all()["id"].to_pylist() == [0, 3, 6, 9, 12]
    assert client.get("store/x", filter="id < 0").read_all().equals(table.schema.empty_table())
    assert client.info("store/x", filter="id < 0").rows == -1


def test_a_column_added_later_is_null_for_the_filter_too(client: Client) -> None:
    client.put("store/x", pa.table({"id": [1, 2]}))
    client.put("store/x", pa.table({"id": [3], "more": [7]}), mode="append")

    assert client.get("store/x", filter="more is null").read_all()["id"].to_pylist() == [1, 2]
    assert client.get("store/x", columns=["id"], filter="more = 7").read_all().to_pydict() == {"id": [3]}


def test_a_wrong_filter_is_refused_before_a_ticket_is_given(client: Client) -> None:
    client.put("store/x", pa.table({"id": [1, 2]}))

    with pytest.raises(InvalidRequest, match="did you mean 'id'"):
        client.info("store/x", filter="ids = 1")


def test_columns_of_views_are_filtered_and_read_unchanged(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars sends its text as views, and earlier versions stored them so."""
    monkeypatch.setattr(schemas, "_without_views", lambda field: field)
    columns = ["at", "view", "raw_view", "nested", "inner"]
    client.put("store/x", KINDS.select(columns))
    narrow = client.get("store/x", columns=["view"], filter="at = 4")

    others = pa.concat_tables(rows_of([1, 3, 4])).select(columns)
    assert client.get("store/x", filter="at <> 2").read_all().equals(others)
    assert narrow.read_all().equals(KINDS.select(["view"]).slice(3))
    assert client.get("store/x", columns=["at"], filter="view = 'd'").read_all()["at"].to_pylist() == [4]


def test_a_column_that_arrow_cannot_filter_is_refused(client: Client) -> None:
    """Only a read that selects the column is refused."""
    client.put("store/x", UNFILTERABLE)
    with pytest.raises(InvalidRequest, match="no rows can be chosen of column 'ree', a run_end_encoded"):
        client.info("store/x", filter="at = 1")
    assert client.get("store/x", columns=["at"], filter="at = 1").read_all()["at"].to_pylist() == [1]


def test_a_filter_that_fails_on_the_rows_is_refused() -> None:
    """One that lacks memory is not: it may succeed when it is tried again."""

    def table_failing_with(error: type[Exception]) -> pa.Table:
        def filter_(_: object) -> None:
            raise error("array_filter")

        return SimpleNamespace(schema=KINDS.schema.empty_table().select(["at"]).schema, filter=filter_)

    parsed = parse_filter("at = 1", KINDS.schema)
    with pytest.raises(InvalidRequest, match=r"'at = 1' can't be evaluated: array_filter"):
        parsed.kept(table_failing_with(pa.ArrowNotImplementedError))
    with pytest.raises(pa.ArrowMemoryError):
        parsed.kept(table_failing_with(pa.ArrowMemoryError))


@pytest.mark.process
def test_no_filter_ends_the_server(tmp_path: Path) -> None:
    """The server's threads have small stacks, and Arrow walks an expression by recursion."""
    alternating = "b"
    for level in range(800):
        alternating = f"(b {'and' if level % 2 else 'or'} {alternating})"
    deepest = "b"
    for _ in range(24):
        deepest = f"not (b or {deepest})"
    refused = [" or ".join(["b"] * 1_500), alternating, "d > 1e-99999999", "d > '1e-99999999'", "d in (1e-99999999)"]
    accepted = [f"x in ({', '.join(['1'] * 3_000)})", " or ".join(["x between 1 and 2"] * 100), deepest]
    rows = pa.table({"b": [True], "x": [1.0], "d": pa.array([Decimal(1)], pa.decimal128(10, 2))})

    with process_server(tmp_path / "d") as server, connect(server.url, retry_for=0) as client:
        client.put("store/x", rows)
        for text in refused:
            with pytest.raises(InvalidRequest):
                client.get("store/x", filter=text).read_all()
        for text in accepted[:2]:
            assert client.get("store/x", filter=text).read_all() == rows
        assert client.get("store/x", filter=accepted[2]).read_all().num_rows == 0
        assert server.process.poll() is None


def test_dictionaries_too_large_to_merge_are_filtered(client: Client) -> None:
    """Pandas' categories may be such: 300 values under indices of a byte."""
    kind = pa.dictionary(pa.int8(), pa.string())
    for first in (0, 100, 200):
        words = pa.array([f"w{number}" for number in range(first, first + 100)]).dictionary_encode().cast(kind)
        client.put("store/x", pa.table({"id": range(first, first + 100), "word": words}), mode="append")

    rows = client.get("store/x", filter="id >= 50 and id < 250").read_all()
    assert rows["word"].to_pylist() == [f"w{number}" for number in range(50, 250)]


@pytest.mark.faults
def test_few_kept_rows_are_sent_in_few_batches(client: Client) -> None:
    client.put("store/x", pa.table({"id": range(6_000_000)}))  # 6 parts

    assert len(list(client.get("store/x", filter="id in (5, 3000000, 5999999)"))) <= 2  # one for each endpoint


def test_filters_of_large_schemas_are_not_remembered() -> None:
    """The memory of what was parsed is bounded by bytes: 16 schemas of 4 MB were 64 MB."""
    parse._parse_short.cache_clear()
    wide = pa.schema([pa.field("n", pa.int64())], {"notes": "x" * 100_000})
    small = pa.schema([pa.field("n", pa.int64())])
    assert parse_filter("n = 1", wide).columns == ("n",)
    assert parse._parse_short.cache_info().currsize == 0
    assert parse_filter("n = 1", small) is parse_filter("n = 1", small)
