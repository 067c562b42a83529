"""Frames out and in: in one line, and by hand with mapInArrow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    PenstockError,
    SchemaMismatch,
    TimedOut,
    Unavailable,
    WriteEnded,
)  # fmt: skip
from penstock.flight_server.server import PenstockServer
from penstock.spark_plugin import tuning
from tests.kit.server import TOKEN, sorted_ids, token_file
from tests.kit.wait import eventually, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("url_variable")]


def test_workers_have_pyarrow_alone(spark: SparkSession) -> None:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.machinery

        for _ in batches:
            names = ["penstock", "pandas", "numpy", "IPython", "click"]
            there = [name for name in names if importlib.machinery.PathFinder.find_spec(name)]
            yield pa.RecordBatch.from_pydict({"names": [",".join(there)]})

    assert {row.names for row in spark.range(0, 4, 1, 2).mapInArrow(look, "names string").collect()} == {""}


# --- out ----------------------------------------------------------------------------------------


def test_the_five_lines(spark: SparkSession, client: Client) -> None:
    df = spark.range(0, 1000, 1, 5)

    put = penstock.do_put("store/x")
    put.finish(df.mapInArrow(put, put.schema).collect())
    get = penstock.do_get("store/x", columns=["id"])
    frame = get.tickets(spark).mapInArrow(get, get.schema)

    assert sorted_ids(client, "store/x") == list(range(1000))
    assert sorted(row.id for row in frame.collect()) == list(range(1000))


def test_one_line_writes_and_says_what_was_written(spark: SparkSession, client: Client) -> None:
    written = penstock.write(spark.range(0, 1000, 1, 5), "store/x")

    assert (written.rows, written.path, written.attempts) == (1000, "store/x", 5)
    assert repr(written).startswith("store/x: 1,000 rows, ")
    assert "1,000" in written._repr_html_()
    assert sorted_ids(client, "store/x") == list(range(1000))


def test_a_partition_is_overwritten_alone(spark: SparkSession, client: Client) -> None:
    for day in ("mon", "tue"):
        penstock.write(spark.range(10), "store/x", mode="append", partition=day, ttl=3_600, progress=False)
    penstock.write(spark.range(100, 103), "store/x", mode="overwrite", partition="mon", progress=False)
    assert sorted(client.get("store/x").read_all()["id"].to_pylist()) == [*range(10), 100, 101, 102]
    described = client.call("describe", {"path": "store/x"})
    assert [(each["partition"], each["rows"]) for each in described["partitions"]] == [("mon", 3), ("tue", 10)]
    assert described["expires"] > described["changed"]


def test_modes(spark: SparkSession, client: Client) -> None:
    penstock.write(spark.range(3), "store/x")
    penstock.write(spark.range(3, 5), "store/x", mode="append")
    assert sorted_ids(client, "store/x") == [0, 1, 2, 3, 4]
    penstock.write(spark.range(7, 9), "store/x", mode="overwrite")
    assert sorted_ids(client, "store/x") == [7, 8]
    with pytest.raises(AlreadyExists, match="store/x"):
        penstock.write(spark.range(3), "store/x")


def test_texts_are_handed_out_by_the_width_that_the_path_has(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, tuned = list[int](), tuning.tuned

    @contextmanager
    def heard(session: SparkSession, *about: Any) -> Iterator[None]:
        with tuned(session, *about):
            rows.append(int(str(session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))))
            yield

    monkeypatch.setattr(tuning, "tuned", heard)
    texts = spark.range(0, 20_000, 1, 2).selectExpr("id", "concat('city ', id % 7) as city")
    wide = spark.range(0, 8, 1, 1).selectExpr("id", "repeat('x', 100000) as city")
    for frame, path, options in (
        (texts, "store/x", {}),
        (texts, "store/x", {"mode": "append"}),
        (texts.withColumn("more", texts.city), "store/x", {"mode": "append"}),
        (texts, "store/x", {"mode": "overwrite"}),
        (texts, "store/x", {"mode": "overwrite", "batch_rows": 77}),
        (texts, "store/first", {"batch_rows": 10_000}),
        (texts, "topic/x", {}),
        (texts, "topic/x", {}),
        (wide, "store/wide", {}),
        (wide, "store/wide", {"mode": "append"}),
    ):
        penstock.write(frame, path, **options)
    assert rows[:8] == [1_024, 10_000, 1_024, 10_000, 77, 10_000, 1_024, 10_000]
    assert (rows[8], rows[9] * 4 * 100_000 <= 8 << 20) == (1_024, True)
    assert client.info("store/x").rows == 20_000
    for wrong in (0, -1, 1.5, "7", True):
        with pytest.raises(InvalidRequest, match=r"batch_rows=.*: expected a whole number from 1"):
            penstock.do_put("store/y", batch_rows=wrong)  # type: ignore[arg-type]


def test_nothing_is_seen_before_finish_and_the_listing_says_why(spark: SparkSession, client: Client) -> None:
    put = penstock.do_put("store/x")
    receipts = spark.range(0, 10, 1, 2).mapInArrow(put, put.schema).collect()

    with pytest.raises(NotFound):
        client.get("store/x")
    (entry,) = client.list("write/")
    assert (entry.path, entry.state) == (f"write/{put.write}", "open, error to store/x")
    assert put.finish(receipts).rows == 10
    assert len(client.list("write/")) == 0


@pytest.mark.parametrize("form", ["rows", "table", "dicts", "frame"])
def test_finish_takes_receipts_in_every_form(spark: SparkSession, client: Client, form: str) -> None:
    put = penstock.do_put("store/x")
    frame = spark.range(0, 10, 1, 2).mapInArrow(put, put.schema)
    if form == "table" and not hasattr(frame, "toArrow"):
        pytest.skip("toArrow came with Spark 4.0")
    forms: dict[str, Any] = {
        "rows": frame.collect,
        "table": getattr(frame, "toArrow", None),
        "dicts": lambda: [row.asDict() for row in frame.collect()],
        "frame": lambda: frame,
    }

    assert put.finish(forms[form]()).rows == 10
    assert sorted_ids(client, "store/x") == list(range(10))


def test_finish_again_returns_the_same_and_rejects_others(spark: SparkSession) -> None:
    put = penstock.do_put("store/x")
    frame = spark.range(0, 10, 1, 2).mapInArrow(put, put.schema)
    receipts = frame.collect()
    first = put.finish(receipts)
    assert put.finish(receipts) == put.finish(list(receipts)) == first
    with pytest.raises(WriteEnded, match="another list"):
        put.finish(receipts[:1])
    with pytest.raises(InvalidRequest, match="expected the receipts"):
        put.finish("nonsense")


def test_the_same_frame_again_is_not_evaluated_again(spark: SparkSession) -> None:
    put = penstock.do_put("store/x")
    frame = spark.range(0, 10, 1, 2).mapInArrow(put, put.schema)

    assert put.finish(frame) == put.finish(frame)


def test_a_put_is_for_one_frame_and_refuses_a_second_ones_rows(spark: SparkSession, client: Client) -> None:
    put = penstock.do_put("store/x")
    put.finish(spark.range(0, 10, 1, 2).mapInArrow(put, put.schema))

    with pytest.raises(Exception, match="WriteEnded"):
        put.finish(spark.range(10, 20, 1, 2).mapInArrow(put, put.schema))

    assert sorted_ids(client, "store/x") == list(range(10))


@pytest.mark.parametrize("error", [TimedOut, Unavailable])
def test_a_block_whose_finish_had_no_answer_is_not_aborted(client: Client, error: type[PenstockError]) -> None:
    with pytest.raises(error, match="planted"), penstock.do_put("store/x") as put:
        raise error("planted: no answer")

    assert put.progress().state == "open"


def test_two_drivers_of_one_run_write_it_once_and_both_are_told(spark: SparkSession, client: Client) -> None:
    puts = [penstock.do_put("store/x", run=("nightly", 7)) for _ in range(2)]
    receipts = [spark.range(0, 10, 1, 2).mapInArrow(put, put.schema).collect() for put in puts]

    first, second = (put.finish(rows) for put, rows in zip(puts, receipts, strict=True))

    assert (first.rows, second.rows, second.seconds) == (10, 10, None)
    assert sorted_ids(client, "store/x") == list(range(10))


def test_what_cannot_be_written_is_refused_with_its_cure(spark: SparkSession, server: PenstockServer) -> None:
    one = spark.range(1)
    put = penstock.do_put("store/x")
    wrongs: dict[Callable[[], Any], str] = {
        lambda: penstock.write("store/x", one): "expected Spark's frame, then the path",  # type: ignore[arg-type]
        lambda: penstock.write(pa.table({"a": [1]}), "store/x"): r"connect\(\)\.put",
        lambda: penstock.write(one.toDF("a.b"), "store/x"): r"column 'a\.b' has .*rename",
        lambda: penstock.write(one.toDF("a`b"), "store/x"): "rename",
        lambda: penstock.write(one.toDF("*"), "store/x"): "rename",
        lambda: penstock.write(one.selectExpr("id as a", "id as A"), "store/x"): "in case alone",
        lambda: penstock.write(one.select(), "store/x"): "without columns",
        lambda: penstock.write(spark.readStream.format("rate").load(), "store/x"): "foreachBatch",
        lambda: put.finish(one): r"mapInArrow\(put, put.schema\), got one of id",
        lambda: put.finish(3): "expected receipts, got 3",
        lambda: penstock.read("store/x", spark): "expected the session, then the path",  # type: ignore[arg-type]
    }
    for wrong, cure in wrongs.items():
        with pytest.raises(InvalidRequest, match=cure):
            wrong()
    assert [entry.path for entry in penstock.connect().list("write/")] == [f"write/{put.write}"]


def test_receipts_of_another_write_or_none_at_all_are_refused(spark: SparkSession) -> None:
    one, other = penstock.do_put("store/x"), penstock.do_put("store/y")
    receipts = spark.range(3).mapInArrow(one, one.schema).collect()
    with pytest.raises(InvalidRequest, match=f"of write/{one.write}, this is write/{other.write}"):
        other.finish(receipts)
    with pytest.raises(InvalidRequest, match="expected the receipts"):
        one.finish(spark.range(3).collect())


def test_a_block_without_finish_aborts(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the user"), penstock.do_put("store/x") as put:
        spark.range(0, 10, 1, 2).mapInArrow(put, put.schema).collect()
        raise ValueError("of the user")
    with penstock.do_put("store/x") as put:
        spark.range(0, 10, 1, 2).mapInArrow(put, put.schema).collect()

    assert len(client.list("write/")) == len(client.list("store/")) == 0
    eventually(lambda: not files(tmp_path / "data" / "parts"))


def test_a_task_that_fails_leaves_nothing_but_its_error(spark: SparkSession, client: Client) -> None:
    broken = spark.range(0, 10, 1, 2).selectExpr("if(id > 7, raise_error('of the user'), id) AS id")
    with pytest.raises(Exception, match="of the user"):
        penstock.write(broken, "store/x")
    assert len(client.list("write/")) == len(client.list("store/")) == 0


def test_an_empty_frame_keeps_its_schema(spark: SparkSession, client: Client) -> None:
    penstock.write(spark.range(10).selectExpr("id", "id IS NULL AS odd").limit(0), "store/x")

    assert client.info("store/x").schema.names == ["id", "odd"]
    assert penstock.read(spark, "store/x").collect() == []
    with penstock.do_put("store/y") as put, pytest.raises(InvalidRequest, match="schema"):
        put.finish(spark.range(10).limit(0).mapInArrow(put, put.schema).collect())


def test_another_schema_is_refused_before_a_task_runs(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    penstock.write(spark.range(3), "store/x")

    def marks(batches: Any) -> Any:
        (tmp_path / "ran").touch()
        yield from batches

    with pytest.raises(SchemaMismatch, match="id is int64, got string"):
        penstock.write(spark.range(3).mapInArrow(marks, "id string"), "store/x", mode="append")
    assert not (tmp_path / "ran").exists()
    assert len(client.list("write/")) == 0


@pytest.mark.parametrize(("run", "skipped", "evaluations"), [
    ("nightly", "'nightly': this frame is skipped", "x"),
    (("query", 7), "'query/7': the batch of 10 rows is skipped. Rows that are not the same again need", "xxx"),
])  # fmt: skip
def test_a_run_is_written_once_and_warns_that_it_skips(
    spark: SparkSession,
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    run: Any,
    skipped: str,
    evaluations: str,
) -> None:
    """The rows of a stream's batch are counted for that; a job's aren't, as that may take as long as the job."""

    def counted(batches: Any) -> Any:
        with (tmp_path / "evaluations").open("a") as file:
            file.write("x")
        yield from batches

    df = spark.range(0, 10, 1, 1).mapInArrow(counted, "id long")
    for _ in range(3):
        written = penstock.write(df, "store/x", mode="append", run=run)

    assert [(one.name, one.levelname) for one in caplog.records] == [("penstock.spark_plugin.write", "WARNING")] * 2
    assert re.search(rf"store/x: 10 rows, .* written before by run {re.escape(skipped)}", caplog.messages[0])
    assert sorted_ids(client, "store/x") == list(range(10))
    assert (tmp_path / "evaluations").read_text() == evaluations
    assert "written before by run" in repr(written)


def test_sessions_of_all_time_zones_write_one_schema(spark: SparkSession, client: Client) -> None:
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        for name in ("Europe/Berlin", "America/Los_Angeles", "+05:30"):
            spark.conf.set("spark.sql.session.timeZone", name)
            penstock.write(spark.sql("SELECT timestamp'2026-03-29 12:00:00Z' AS at"), "store/x", mode="append")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    table = client.get("store/x").read_all()
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert table["at"].unique().cast(pa.int64()).to_pylist() == [1774785600_000_000]


def test_progress_is_told_while_spark_works(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(batches: Any) -> Any:
        time.sleep(0.8)
        yield from batches

    penstock.write(spark.range(0, 300, 1, 3).mapInArrow(slow, "id long"), "store/x", progress=True)
    told = capsys.readouterr().err
    assert "store/x: " in told
    assert "partitions are there" in told
    penstock.write(spark.range(3), "store/y")
    assert capsys.readouterr().err == ""  # no terminal


# --- in -----------------------------------------------------------------------------------------


@pytest.fixture
def people(spark: SparkSession, client: Client, url_variable: None) -> DataFrame:
    client.put("store/people", pa.table({"id": range(100), "name": [f"n{n % 3}" for n in range(100)]}))
    return penstock.read(spark, "store/people")


def test_a_frame_is_the_dataset_as_it_was(people: DataFrame, client: Client) -> None:
    client.put("store/people", pa.table({"id": [-1], "name": ["late"]}), mode="append")
    assert people.count() == 100
    client.delete("store/people")
    assert sorted(row.id for row in people.collect()) == list(range(100))


@pytest.mark.usefixtures("people")
def test_columns_and_filter_are_applied_at_the_server(spark: SparkSession, server: PenstockServer) -> None:
    frame = penstock.read(spark, "store/people", columns=["name"], filter="id < 2 or name = 'n2' and id > 95")
    assert [row.asDict() for row in frame.collect()] == [{"name": "n0"}, {"name": "n1"}, {"name": "n2"}]
    assert 'penstock_rows_total{way="out"} 3' in server.state.metrics.text()


@pytest.mark.usefixtures("people")
def test_what_does_not_fit_is_refused_at_the_driver(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'name'"):
        penstock.read(spark, "store/people", columns=["nam"])
    with pytest.raises(InvalidRequest, match="filter"):
        penstock.read(spark, "store/people", filter="id >")
    with pytest.raises(NotFound):
        penstock.read(spark, "store/nobody")


def test_tickets_are_in_partitions_of_about_the_same_bytes(spark: SparkSession, client: Client) -> None:
    client.put("store/x", pa.table({"id": pa.array(range(12_000_000))}))  # 96 MB
    tickets = penstock.do_get("store/x").tickets(spark)
    rows = tickets.collect()
    assert sum(row.rows for row in rows) == 12_000_000
    assert 3 <= tickets.rdd.getNumPartitions() <= len(rows) <= 5
    assert max(row.bytes for row in rows) <= 32 << 20


def test_no_token_travels_with_a_task(make_server: Any, tmp_path: Path, spark: SparkSession) -> None:
    import pickle

    with_token = make_server(data=tmp_path / "other", token_file=token_file(tmp_path))
    known = {"url": with_token.url, "token": TOKEN}

    put = penstock.do_put("store/x", **known)
    put.finish(spark.range(0, 10, 1, 2).mapInArrow(put, put.schema).collect())
    get = penstock.do_get("store/x", **known)

    assert get.tickets(spark).mapInArrow(get, get.schema).count() == 10
    for task in (put, get):
        assert b"canary" not in pickle.dumps(task)
        assert "canary" not in repr(task)
