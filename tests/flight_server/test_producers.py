"""Producers that mean the same: whoever puts first, the others' rows are taken, and queries that run go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import Client
from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows import schemas
from tests.kit.wire import at, attempt_of, call, create_topic, info, new_attempt, put, read, refused

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
ROW = {"id": 1, "city": "Oslo", "at": NOON, "tags": ["a", "b"]}
ZONED = pa.timestamp("us", "UTC")
SPARK = pa.schema([pa.field("id", pa.int32(), nullable=False), ("city", pa.string()), ("at", ZONED),
                   ("tags", pa.list_(pa.field("element", pa.string())))])  # fmt: skip

PRODUCERS: dict[str, Callable[[], Any]] = {
    "pyarrow": lambda: pa.Table.from_pylist([ROW]),
    "polars": lambda: pl.DataFrame([ROW]).select("tags", "at", "city", "id"),
    "polars, categorical": lambda: pl.DataFrame([ROW]).with_columns(pl.col("city").cast(pl.Categorical)),
    "pandas": lambda: pd.DataFrame([ROW]),
    "pandas, with a nullable id": lambda: pd.DataFrame([ROW]).astype({"id": "Int64"}),
    "DuckDB": lambda: duckdb.sql(
        "SELECT 1 AS id, 'Oslo' AS city, '2026-11-19 12:00:00+00'::TIMESTAMPTZ AS at, ['a', 'b'] AS tags"
    ),
    "Spark": lambda: pa.Table.from_pylist([ROW], SPARK),
}


@pytest.mark.parametrize("path", ["topic/x", "store/x"])
@pytest.mark.parametrize("first", PRODUCERS)
def test_whoever_puts_first_the_others_rows_are_taken(client: Client, first: str, path: str) -> None:
    order = [first, *(name for name in PRODUCERS if name != first)]
    for name in order:
        client.put(path, PRODUCERS[name](), mode="append")
    assert client.get(path).read_all().select(list(ROW)).to_pylist() == [ROW] * len(order)
    assert "view" not in str(client.info(path).schema)


@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_a_column_without_a_value_takes_the_first_type(bare: flight.FlightClient, client: Client, path: str) -> None:
    """As pandas and polars have none for a column of nulls or of empty lists."""
    none: dict[str, Any] = {"city": None, "tags": [], "s": {"x": None}}
    later = {"city": "Oslo", "tags": ["a"], "s": {"x": 1}}
    rows = [none, later, none]
    for row in rows:
        client.put(path, pa.table({name: [value] for name, value in row.items()}), mode="append")
    types = [pa.string(), pa.list_(pa.string()), pa.struct({"x": pa.int64()})]
    for table in (client.get(path).read_all(), read(bare, path)):
        assert table.schema.types == types
        assert table.to_pylist() == rows
    assert client.get(path, filter="city = 'Oslo'").read_all().to_pylist() == [later]
    assert client.get(path, columns=["city"], limit=1).read_all().to_pylist() == [{"city": None}]
    with pytest.raises(SchemaMismatch, match="city is string, got int64"):
        client.put(path, pa.table({"city": [1], "tags": [["a"]], "s": [{"x": 1}]}), mode="append")


@pytest.mark.parametrize("order", [1, -1])
def test_attempts_with_and_without_a_type_are_one_dataset(
    bare: flight.FlightClient, client: Client, order: int
) -> None:
    opened = call(bare, "write.open", path="store/x")
    attempts = [new_attempt(), new_attempt()]
    for attempt, column in zip(attempts, [pa.nulls(1), pa.array(["Oslo"])][::order], strict=True):
        put(bare, attempt_of(opened["ticket"], attempt), [pa.record_batch({"city": column})])
    call(bare, "write.finish", ticket=opened["ticket"], attempts=attempts)
    assert client.get("store/x").read_all()["city"].to_pylist() == [None, "Oslo"][::order]


def at_append(path: str) -> flight.FlightDescriptor:
    return at(path, attempt=new_attempt(), mode="append")


@pytest.mark.parametrize("way", ["a put", "large puts", "attempts"])
@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_each_way_of_putting_casts(bare: flight.FlightClient, path: str, way: str) -> None:
    wide = pa.schema([("id", pa.int64()), ("city", pa.string())])
    put(bare, at_append(path), [pa.record_batch([[0], ["x"]], schema=wide)])
    count = 1 << 20 if way == "large puts" else 3
    sent = pa.record_batch(
        {"city": pa.array(["y"] * count, pa.string_view()), "id": pa.array(range(count), pa.int32())}
    )
    if way == "attempts":
        opened = call(bare, "write.open", path=path, mode="append")
        put(bare, attempt_of(opened["ticket"], attempt := new_attempt()), [sent])
        call(bare, "write.finish", ticket=opened["ticket"], attempts=[attempt])
    else:
        put(bare, at_append(path), [sent])
    table = read(bare, path)
    assert table.schema.equals(wide)
    assert table.column("id").to_pylist() == [0, *range(count)]


def test_an_announced_schema_is_stored_without_views(bare: flight.FlightClient, client: Client) -> None:
    announced = schemas.encode(pa.schema([("city", pa.string_view())]))
    opened = call(bare, "write.open", path="store/x", schema=announced)
    put(bare, attempt_of(opened["ticket"], attempt := new_attempt()), [pa.record_batch({"city": ["Oslo"]})])
    call(bare, "write.finish", ticket=opened["ticket"], attempts=[attempt])
    assert client.get("store/x").read_all().equals(pa.table({"city": ["Oslo"]}))


@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_a_value_that_would_lose_something_is_refused(client: Client, path: str) -> None:
    client.put(path, pa.table({"id": pa.array([1], pa.int8())}))
    with pytest.raises(SchemaMismatch, match=r"column id is int64, and can't be cast to int8: .*300 not in range"):
        client.put(path, pa.table({"id": [1, 300]}), mode="append")
    with pytest.raises(SchemaMismatch, match=f"{path} has another schema: id is int8, got string. Cast the rows"):
        client.put(path, pa.table({"id": ["1"]}), mode="append")
    assert client.get(path).read_all().to_pylist() == [{"id": 1}]


def test_names_of_columns_break_no_line_of_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    name = "id\n2026-11-19 12:00:00 ERROR penstock: \x1b[31mforged"
    client.put("store/x", pa.table({name: [1]}))
    with caplog.at_level("INFO"), pytest.raises(SchemaMismatch):
        client.put("store/x", pa.table({name: ["x"]}), mode="append")
    (line,) = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    assert line.isprintable()
    assert "id\\n2026" in line


# --- nulls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_a_column_that_is_never_null_takes_no_null(client: Client, path: str) -> None:
    """Its schema stays as it is, as queries have been planned with it; rows without a null are taken."""
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    client.put(path, pa.table({"id": [1]}, schema=strict))
    client.put(path, pa.table({"id": [2]}), mode="append")
    with pytest.raises(InvalidRequest, match="column id has a null where its schema allows none: fill it"):
        client.put(path, pa.table({"id": [3, None]}), mode="append")
    assert client.info(path).schema == strict
    assert client.get(path).read_all().column("id").to_pylist() == [1, 2]


def test_a_stream_that_breaks_its_own_schema_is_refused(bare: flight.FlightClient) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with refused("invalid", "column id has a null where its schema allows none"):
        put(bare, at_append("store/x"), [pa.record_batch([pa.array([None], pa.int64())], schema=strict)])


def test_a_created_topic_holds_producers_to_its_schema(bare: flight.FlightClient, client: Client) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])
    create_topic(bare, "topic/x", strict)
    create_topic(bare, "topic/x", pa.schema([("city", pa.string_view()), ("id", pa.int32())]))
    client.put("topic/x", pa.table({"id": [1]}))
    with pytest.raises(SchemaMismatch, match="lacks id int64"):
        client.put("topic/x", pa.table({"city": ["Oslo"]}))
    assert client.info("topic/x").schema == strict


# --- fields within structs -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_a_field_within_a_struct_may_be_added(client: Client, bare: flight.FlightClient, path: str) -> None:
    """Older rows have null there, also where they are read with a filter, in part, or on the server's own host."""
    client.put(path, pa.table({"n": [1, 2], "s": [{"a": 1}, None]}))
    client.put(path, pa.table({"n": [3], "s": [{"b": "new", "a": 3}]}), mode="append")
    client.put(path, pa.table({"n": [4], "s": [{"a": 4}]}), mode="append")
    assert client.info(path).schema.field("s").type == pa.struct({"a": pa.int64(), "b": pa.string()})
    expected = [{"a": 1, "b": None}, None, {"a": 3, "b": "new"}, {"a": 4, "b": None}]
    for table in (client.get(path).read_all(), read(bare, path)):
        assert table.column("s").to_pylist() == expected
    assert client.get(path, filter="n > 1", columns=["s"]).read_all().column("s").to_pylist() == expected[1:]
    assert client.get(path, columns=["s"], limit=1).read_all().column("s").to_pylist() == expected[:1]
    assert info(bare, path).total_records == 4
