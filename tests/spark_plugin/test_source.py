"""`format("penstock")`: rows go out once and come back as they were, and what is refused says why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import Internal
from penstock.flight_server.server import PenstockServer
from penstock.ledger.ledger import Ledger
from penstock.wire.actions import Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = pytest.mark.spark


@pytest.fixture
def source(spark: SparkSession, server: PenstockServer, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Spark with the data source, registered where PENSTOCK_URL is this test's server."""
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    spark.dataSource.register(penstock.DataSource)
    monkeypatch.delenv("PENSTOCK_URL")
    return spark


def save(df: DataFrame, path: str, mode: str = "append", **options: str) -> None:
    df.write.format("penstock").mode(mode).options(**options).save(path)


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**options).load(path)


def ids(rows: DataFrame | pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist() if isinstance(rows, pa.Table) else (row.id for row in rows.collect()))


# --- out and in ----------------------------------------------------------------------------


def test_rows_go_out_and_come_back(source: SparkSession, client: Client) -> None:
    save(source.range(0, 1000, 1, 5), "store/x")

    assert ids(client.get("store/x").read_all()) == list(range(1000))
    assert ids(load(source, "store/x")) == list(range(1000))
    assert len(client.list("write/")) == 0


def test_processes_of_spark_have_no_penstock(source: SparkSession, client: Client) -> None:
    """Neither tasks nor planning: what they say of it in a traceback comes from no file."""
    save(source.range(3), "store/x")
    with pytest.raises(Exception, match=r'File "<string>", line \d+, in within') as refused:
        load(source, "store/none")
    assert "site-packages/penstock" not in str(refused.value)


def test_append_adds_and_overwrite_replaces(source: SparkSession, client: Client) -> None:
    save(source.range(0, 10), "store/x")
    save(source.range(10, 20), "store/x")
    assert ids(client.get("store/x").read_all()) == list(range(20))

    save(source.range(5), "store/x", "overwrite")
    assert ids(client.get("store/x").read_all()) == list(range(5))


def test_a_frame_reads_the_rows_of_its_first_action(source: SparkSession) -> None:
    save(source.range(10), "store/x")
    frame = load(source, "store/x")
    assert ids(frame) == list(range(10))

    save(source.range(3), "store/x", "overwrite")
    assert ids(frame) == list(range(10))
    assert load(source, "store/x").count() == 3


def test_a_failed_overwrite_leaves_the_rows_that_were(source: SparkSession, client: Client) -> None:
    save(source.range(10), "store/x")
    with pytest.raises(Exception, match="planted"):
        save(
            source.range(0, 100, 1, 4).selectExpr("if(id < 90, id, raise_error('planted')) id"), "store/x", "overwrite"
        )
    assert ids(client.get("store/x").read_all()) == list(range(10))
    assert len(client.list("write/")) == 0


@pytest.mark.parametrize("rows", [0, 7])
def test_columns_keep_their_exact_types_and_nullability(rows: int, source: SparkSession) -> None:
    df = source.range(rows).selectExpr(
        "id", "cast(id as string) s", "if(id > 2, id, null) n", "cast(id as decimal(10, 2)) m", "cast(id as double) f",
        "timestamp_micros(id) t", "timestamp_ntz'2024-03-31 02:30:00' w", "date'1500-01-01' d", "array(id, 1L) a",
        "array(nullif(id, 1)) b", "map('k', id) p", "named_struct('x', id, 'y', nullif(id, 1)) st",
        "cast(string(id) as binary) r",
    )  # fmt: skip
    save(df, "store/x")
    frame = load(source, "store/x")

    assert frame.schema == df.schema
    assert sorted(map(repr, frame.collect())) == sorted(map(repr, df.collect()))


def test_a_run_is_written_once(source: SparkSession, client: Client) -> None:
    for _ in range(2):
        save(source.range(0, 10, 1, 2), "store/x", run="orders/7")
    assert client.get("store/x").read_all().num_rows == 10


# --- what Spark does to tasks --------------------------------------------------------------


def test_a_task_that_fails_at_first_is_written_once(source: SparkSession, client: Client, tmp_path: Path) -> None:
    """It fails after some of its rows are under way."""
    source.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    marks = str(tmp_path)

    def once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            mark = f"{marks}/{batch.column(0)[0].as_py()}"
            if number == 3 and not os.path.exists(mark):
                open(mark, "w").close()
                raise OSError("planted")

    try:
        save(source.range(0, 200, 1, 2).mapInArrow(once, "id long"), "store/x")
    finally:
        source.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert len(list(tmp_path.glob("[0-9]*"))) == 2
    assert ids(client.get("store/x").read_all()) == list(range(200))


def test_a_task_that_always_fails_leaves_nothing(source: SparkSession, client: Client) -> None:
    with pytest.raises(Exception, match="planted"):
        save(source.range(0, 100, 1, 4).selectExpr("if(id < 90, id, raise_error('planted')) id"), "store/x")
    assert len(client.list()) == len(client.list("write/")) == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_fails_tells_the_truth(
    when: str, source: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark aborts after it. A finish that had happened stays; one that hadn't leaves nothing."""

    finish = Ledger.finish

    def lost(ledger: Ledger, write: str, attempts: list[str], **run: Any) -> Summary:
        if when == "after":
            finish(ledger, write, attempts, **run)
        raise Internal("planted: no answer")

    monkeypatch.setattr(Ledger, "finish", lost)
    with pytest.raises(Exception, match="planted: no answer"):
        save(source.range(10), "store/x")

    assert len(client.list("write/")) == 0
    assert [entry.rows for entry in client.list()] == ([10] if when == "after" else [])


# --- options and schemas -------------------------------------------------------------------


@pytest.fixture
def people(source: SparkSession) -> SparkSession:
    save(source.sql("select id, string(id) name, array(named_struct('x', nullif(id, 1))) st from range(4)"), "store/p")
    return source


def test_columns_and_filter_are_the_servers(people: SparkSession) -> None:
    frame = load(people, "store/p", columns="name, id", filter="id < 2 and `name` <> '0'")
    assert [tuple(row) for row in frame.collect()] == [("1", 1)]


def test_a_schema_of_ones_own_picks_columns(people: SparkSession) -> None:
    frame = people.read.format("penstock").schema("name string, id long").load("store/p")
    assert frame.columns == ["name", "id"]
    assert sorted(tuple(row) for row in frame.collect()) == [(str(number), number) for number in range(4)]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id int", "id is bigint, requested as int"),
        ("id long, nme string", "no column 'nme', did you mean 'name'"),
        ("zzz long", "no column 'zzz', it has id, name, st"),
        ("st array<struct<y: bigint>>", "st is array<struct<x:bigint>>, requested as array<struct<y:bigint>>"),
        ("st array<struct<x: bigint not null>>", "st may hold nulls, requested as not null"),
        ("id timestamp", "id is bigint, requested as timestamp"),
    ],
)
def test_another_schema_is_rejected_with_the_difference(schema: str, said: str, people: SparkSession) -> None:
    with pytest.raises(Exception, match=f"penstock.errors.SchemaMismatch: store/p has another schema.*{said}"):
        people.read.format("penstock").schema(schema).load("store/p").collect()


def test_rows_that_dont_fit_are_rejected_before_a_task_runs(people: SparkSession, client: Client) -> None:
    with pytest.raises(Exception, match="store/p has another schema: lacks name string"):
        save(people.range(3), "store/p")
    assert client.get("store/p").read_all().num_rows == 4
    assert len(client.list("write/")) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "store/p", "fliter": "a"}, "no option 'fliter'; did you mean 'filter'"),
        ({"path": "store/p", "run": "a"}, "'run' is for a write"),
        ({"path": "store/p", "filter": "ide = 3"}, "no column 'ide'; did you mean 'id'"),
        ({"path": "store/p", "columns": "ide"}, "no column 'ide'; did you mean 'id'"),
        ({"path": "store/none"}, "no dataset at store/none"),
        ({}, "'path' is missing: say .load"),
        ({"path": "store/p", "url": "grpc://127.0.0.1:1", "retry_for": "0"}, "could not reach grpc://.*running"),
        ({"path": "store/p", "url": "127.0.0.1"}, "expected grpc://host:port"),
    ],
)
def test_what_is_refused_is_said_in_the_last_line(options: dict[str, str], said: str, people: SparkSession) -> None:
    with pytest.raises(Exception, match=f"penstock.errors.*{said}") as refused:
        people.read.format("penstock").options(**options).load()
    lines = [line for line in str(refused.value).splitlines() if line.strip() and "SQLSTATE" not in line]
    assert len(lines) == 3, "Spark's line, ours of the traceback, and the error"


@pytest.mark.parametrize("mode", [None, "error", "errorifexists", "ignore"])
def test_spark_itself_refuses_the_other_modes(mode: str | None, source: SparkSession, client: Client) -> None:
    """docs/datasource.md says so; the day that it doesn't, the page is wrong."""
    writer = source.range(3).write.format("penstock")
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        (writer.mode(mode) if mode else writer).save("store/x")
    assert len(client.list()) == len(client.list("write/")) == 0


def test_a_table_of_sparks_catalog_has_no_path_and_says_so(source: SparkSession) -> None:
    with pytest.raises(Exception, match=r"'path' is missing: say \.save\('store/…'\)"):
        source.range(3).write.format("penstock").mode("append").saveAsTable("lost")
