"""Filters keep what SQL keeps: SQLite is asked the same."""

from __future__ import annotations

import datetime as dt
import sqlite3
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import filters
from penstock.client import Client
from penstock.errors import InvalidRequest

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
    }
)


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
    ],
)
def test_a_literal_takes_the_type_of_its_column(text: str, kept: list[int]) -> None:
    assert KINDS.filter(filters.parse(text, KINDS.schema).expression)["at"].to_pylist() == kept


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
        ("text > 5", "doesn't fit the columns"),
        ("int = 1; drop", "can't be read from ';"),
        ("int", "expected =, !="),
        ("(" * 10_000, "levels of brackets"),
        ("not " * 10_000 + "yes", "levels of brackets"),
        ("int = 1 or " * 20_000, "characters"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_expected(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        filters.parse(text, KINDS.schema)


COLUMNS = {"a": st.integers(-3, 3), "b": st.sampled_from(["", "x", "y'z", "ß"]), "c": st.sampled_from([-1.5, 0.0, 2.0])}
LITERALS = {
    "a": st.integers(-4, 4).map(str),
    "b": st.sampled_from(["''", "'x'", "'y''z'", "'ß'"]),
    "c": st.sampled_from(["-1.5", "0", "2e0", "7.25"]),
}


def predicates() -> st.SearchStrategy[str]:
    """SQL that SQLite understands too."""

    def of(name: str) -> st.SearchStrategy[str]:
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
        st.sampled_from(sorted(COLUMNS)).flatmap(of),
        lambda some: st.one_of(
            st.builds("({} and {})".format, some, some),
            st.builds("{} or {}".format, some, some),
            st.builds("not ({})".format, some),
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

    assert table.filter(filters.parse(text, schema).expression)["at"].to_pylist() == expected


def test_a_filter_is_evaluated_at_the_server_over_all_parts(client: Client) -> None:
    table = pa.table({"id": range(3_000_000), "city": ["Oslo", "Bergen", "Narvik"] * 1_000_000})
    client.put("store/x", table)

    found = client.get("store/x", columns=["city"], filter="id >= 1500000 and id < 1500003 or id = 0")
    first = client.get("store/x", filter="city = 'Oslo'", limit=5)

    assert found.read_all().to_pydict() == {"city": ["Oslo", "Oslo", "Bergen", "Narvik"]}
    assert first.read_all()["id"].to_pylist() == [0, 3, 6, 9, 12]
    assert client.get("store/x", filter="id < 0").read_all().equals(table.schema.empty_table())
    assert client.info("store/x", filter="id < 0").rows == -1


def test_a_column_added_later_is_null_for_the_filter_too(client: Client) -> None:
    client.put("store/x", pa.table({"id": [1, 2]}))
    client.put("store/x", pa.table({"id": [3], "more": [7]}), mode="append")

    assert client.get("store/x", filter="more is null").read_all()["id"].to_pylist() == [1, 2]
    assert client.get("store/x", columns=["id"], filter="more = 7").read_all().to_pydict() == {"id": [3]}


def test_a_filter_that_does_not_fit_is_refused_before_a_ticket_is_given(client: Client) -> None:
    client.put("store/x", pa.table({"id": [1, 2]}))

    with pytest.raises(InvalidRequest, match="did you mean 'id'"):
        client.info("store/x", filter="ids = 1")


def test_few_kept_rows_leave_together(client: Client) -> None:
    client.put("store/x", pa.table({"id": range(6_000_000)}))  # 6 parts

    assert len(list(client.get("store/x", filter="id in (5, 3000000, 5999999)"))) <= 2  # an endpoint's in one
