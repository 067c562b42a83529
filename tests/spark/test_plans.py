"""Frames as the plans that Spark gets: the whole of each is in plans.txt. Nothing is sent while they are made."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("grpc")

from google.protobuf import text_format

from penstock.spark import col, fn, lit
from penstock.spark.errors import InvalidPlan, Unsupported
from penstock.spark.frame import Frame
from tests.kit.connect_frames import unsent_session

GOLDENS = Path(__file__).with_name("plans.txt")


def self_join(spark: Any, t: Frame) -> Frame:
    other = spark.table("u")
    return t.join(other, t["id"] == other["id"], "left").select(t["id"], other["*"])


PLANS: dict[str, Callable[[Any, Frame], Frame]] = {
    "table": lambda spark, t: t,
    "parquet": lambda spark, t: spark.read.parquet(Path("a"), "b", mergeSchema=True),
    "csv": lambda spark, t: spark.read.option("header", True).csv("a.csv", "id long", sep=";", nullValue=None),
    "json": lambda spark, t: spark.read.schema("id long").json(["a", "b"]),
    "text": lambda spark, t: spark.read.text("a"),
    "orc": lambda spark, t: spark.read.orc("a"),
    "load": lambda spark, t: spark.read.format("delta").options(versionAsOf=3, ratio=0.5).load("a"),
    "load without a path": lambda spark, t: spark.read.load(format="jdbc", url="u", dbtable="t"),
    "range": lambda spark, t: spark.range(5, 10, 2, numPartitions=3),
    "range to an end": lambda spark, t: spark.range(5),
    "select": lambda spark, t: t.select("id", "t.*", col("amount") * 2, fn.upper("city").alias("city")),
    "select of a list": lambda spark, t: t.select(["id", "*"]),
    "select_expr": lambda spark, t: t.select_expr("id", "amount * 2 AS double"),
    "filter": lambda spark, t: t.filter((col("amount") > 100) & ~col("city").isin("Oslo", "Bergen")),
    "filter by text": lambda spark, t: t.where("amount > 100"),
    "with_column": lambda spark, t: t.with_column("net", col("amount") / 1.25),
    "with_columns": lambda spark, t: t.withColumns({"a": lit(None), "b": col("x")}),
    "with_column_renamed": lambda spark, t: t.withColumnRenamed("a", "b"),
    "to_df": lambda spark, t: t.toDF("a", "b"),
    "drop": lambda spark, t: t.drop("a", col("b"), "c"),
    "alias": lambda spark, t: t.alias("x").select("x.id"),
    "join by names": lambda spark, t: t.join(spark.table("u"), ["id", "day"]),
    "join by a name": lambda spark, t: t.join(spark.table("u"), "id", "left_outer"),
    "join by conditions": lambda spark, t: t.join(
        spark.table("u"), [col("a") == col("b"), col("c") < col("d")], "full"
    ),
    "join of two frames' columns": self_join,
    "cross_join": lambda spark, t: t.crossJoin(spark.table("u")),
    "group_by": lambda spark, t: t.group_by("country").agg(fn.sum("amount").alias("s"), fn.count("*")),
    "group_by and agg of names": lambda spark, t: t.groupBy("country").agg({"amount": "sum"}),
    "group_by and count": lambda spark, t: t.groupBy("country", col("day")).count(),
    "group_by and sum": lambda spark, t: t.groupBy("country").sum("a", "b"),
    "agg": lambda spark, t: t.agg(fn.max("a")),
    "rollup": lambda spark, t: t.rollup("a", "b").count(),
    "cube": lambda spark, t: t.cube("a").count(),
    "pivot": lambda spark, t: t.groupBy("a").pivot("b", ["x", "y"]).sum("c"),
    "pivot of all values": lambda spark, t: t.groupBy("a").pivot("b").agg(fn.max("c")),
    "order_by": lambda spark, t: t.order_by("a", col("b").desc(), col("c").asc_nulls_last()),
    "order_by descending": lambda spark, t: t.orderBy("a", col("b").desc(), ascending=[False, False]),
    "sort_within_partitions": lambda spark, t: t.sortWithinPartitions("a", ascending=False),
    "limit and offset": lambda spark, t: t.offset(2).limit(3),
    "distinct": lambda spark, t: t.distinct(),
    "drop_duplicates": lambda spark, t: t.dropDuplicates(["a", "b"]),
    "sample": lambda spark, t: t.sample(0.1, 7),
    "sample with replacement": lambda spark, t: t.sample(True, 0.5, seed=7),
    "union": lambda spark, t: t.union(spark.table("u")),
    "union_by_name": lambda spark, t: t.unionByName(spark.table("u"), allowMissingColumns=True),
    "intersect": lambda spark, t: t.intersect(spark.table("u")),
    "intersect_all": lambda spark, t: t.intersectAll(spark.table("u")),
    "subtract": lambda spark, t: t.subtract(spark.table("u")),
    "except_all": lambda spark, t: t.exceptAll(spark.table("u")),
    "repartition": lambda spark, t: t.repartition(4),
    "repartition by columns": lambda spark, t: t.repartition(4, "a", col("b")),
    "repartition by a column alone": lambda spark, t: t.repartition("a"),
    "coalesce": lambda spark, t: t.coalesce(1),
    "hint": lambda spark, t: fn.broadcast(t),
    "fillna": lambda spark, t: t.fillna(0, ["a"]),
    "fillna by columns": lambda spark, t: t.fillna({"a": 0, "b": "x"}),
    "describe": lambda spark, t: t.describe("a", "b"),
    "dropna": lambda spark, t: t.dropna(),
    "dropna of all": lambda spark, t: t.dropna("all", subset=["a"]),
    "lambda": lambda spark, t: t.select(fn.transform("xs", lambda x: x + 1)),
    "struct's fields": lambda spark, t: t.select(col("s").with_field("a", 1).drop_fields("b").a),
    "casts": lambda spark, t: t.select(col("a").cast("long"), col("a").try_cast("date")),
    "transform": lambda spark, t: t.transform(lambda frame, n: frame.limit(n), 3),
}


def goldens() -> dict[str, str]:
    """Return the plans of the file by name."""
    return dict(re.findall(r"^== (.*)\n(.*)\n", GOLDENS.read_text(), re.MULTILINE))


def plan_text(frame: Frame) -> str:
    """Return the message of a frame, on one line."""
    return str(text_format.MessageToString(frame._message().root, as_one_line=True)).strip()


def test_plans_are_those_of_the_file() -> None:
    """PENSTOCK_WRITE_GOLDENS=1 writes the file anew: look at the difference."""
    spark = unsent_session()
    texts = {name: plan_text(make(spark, spark.table("t"))) for name, make in PLANS.items()}
    if os.environ.get("PENSTOCK_WRITE_GOLDENS"):
        GOLDENS.write_text("".join(f"== {name}\n{text}\n" for name, text in texts.items()))
    for name, text in texts.items():
        assert text == goldens().get(name), name
    assert list(texts) == list(goldens())


def test_rows_of_this_side_travel_in_the_plan() -> None:
    spark = unsent_session()
    table = pa.table({"id": [1, 2]})
    for rows, names in ((table, None), (table.to_pylist(), None), (table.to_reader(), None), ([(1,), [2]], ["id"])):
        message = spark.createDataFrame(rows, names)._message().root.local_relation
        with pa.ipc.open_stream(message.data) as stream:
            assert stream.read_all() == table
    with pytest.raises(InvalidPlan, match="more than 101 MB"):
        spark.create_frame(pa.table({"x": [b"x" * (1 << 20)] * 110}))


def test_a_thousand_operations_send_nothing() -> None:
    """Frames are frozen: each operation leaves the frame that it began with as it was."""
    spark = unsent_session()
    first = frame = spark.table("t")
    before = plan_text(first)
    for number in range(1_000):
        frame = frame.filter(col("id") > number)
    assert plan_text(first) == before
    assert "filter (id > 999)" in repr(frame)
    with pytest.raises(AttributeError):
        frame.plan.kind = "x"


def test_a_plan_too_deep_for_spark_is_refused() -> None:
    """A loop, not Python's stack, encodes it; the message has the cure."""
    spark = unsent_session()
    frame = spark.table("t")
    for number in range(490):
        frame = frame.filter(col("id") > number)
    assert len(frame._message().SerializeToString()) > 490
    condition = col("id") == 0
    for number in range(10_000):
        frame = frame.filter(col("id") > number)
        condition = condition | (col("id") == number)
    for deep in (frame, spark.table("t").filter(condition)):
        with pytest.raises(InvalidPlan, match=r"more than 500 operations.*local_checkpoint"):
            deep._message()
    assert len(repr(condition)) < 10_000


def test_a_column_of_another_frame_is_refused() -> None:
    spark = unsent_session()
    with pytest.raises(InvalidPlan, match="column 'id' is of a frame that isn't part of this plan"):
        spark.table("t").filter(spark.table("u")["id"] > 1)._message()
    with pytest.raises(InvalidPlan, match="two sessions"):
        spark.table("t").join(unsent_session().table("u"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda t: t.filter(False), "a condition.*decided by Python"),
        (lambda t: t.select(1), "expected a column"),
        (lambda t: t.with_column("a", 1), r"a: expected a column.*lit\(1\)"),
        (lambda t: t.join(t, how="lfet"), "did you mean 'left'"),
        (lambda t: t.join(t, on=["a", col("b") == 1]), "names that both frames have, or conditions"),
        (lambda t: t.join("u"), "expected a frame, got str"),
        (lambda t: t.limit(-1), "from 0 to"),
        (lambda t: t.limit(1.5), "whole number"),
        (lambda t: t.sample(2), "a fraction"),
        (lambda t: t.order_by(), "expected columns"),
        (lambda t: t.order_by(1), r"got 1: frame\.columns"),
        (lambda t: t.group_by("a", 2), r"got 2: frame\.columns"),
        (lambda t: t.order_by("a", ascending=[True, False]), "one for each of 1"),
        (lambda t: t.group_by("a").agg(), "expected aggregates"),
        (lambda t: t.group_by("a").pivot("b").pivot("c"), "once"),
        (lambda t: t.drop_duplicates("a"), r"\['a'\]"),
        (lambda t: t.dropna("some"), "'any' or 'all'"),
        (lambda t: t.explain("formated"), "did you mean 'formatted'"),
        (lambda t: t[0], "a column's name"),
        (lambda t: 1 if t else 2, r"count\(\)"),
        (lambda t: t.session.sql("select ?", 1), "a list for"),
        (lambda t: t.session.createDataFrame([(1, 2)], "a long, b long"), "a list of names"),
        (lambda t: t.session.createDataFrame([(1, 2, 3)], ["a", "b"]), r"a tuple of 2 values.*\(1, 2, 3\)"),
        (lambda t: t.session.createDataFrame(pa.table({"a": [1]}), ["b"]), "a tuple of 1 values"),
        (lambda t: t.session.read.csv(5), "iterable|paths as text"),
        (lambda t: t.session.read.option("a", [1]).table("t"), "option a="),
        (lambda t: t.session.read.schema(5), "columns as text"),
    ],
)
def test_what_is_wrong_with_a_frame_says_what_was_meant(wrong: Callable[[Any], Any], words: str) -> None:
    with pytest.raises((InvalidPlan, TypeError), match=words):
        wrong(unsent_session().table("t"))


def test_a_misspelt_method_names_the_nearest() -> None:
    frame: Any = unsent_session().table("t")
    with pytest.raises(AttributeError, match=r"did you mean 'filter'.*frame\['fliter'\]"):
        _ = frame.fliter
    with pytest.raises(AttributeError, match="did you mean 'sum'"):
        _ = frame.group_by("a").sun
    assert not hasattr(frame, "_repr_html_")
    with pytest.raises(TypeError, match="no rows"):
        list(frame)


@pytest.mark.parametrize(
    "name", ["rdd", "write", "writeStream", "mapInArrow", "toLocalIterator", "foreach", "randomSplit"]
)
def test_what_stays_with_pyspark_names_the_way(name: str) -> None:
    frame = unsent_session().table("t")
    with pytest.raises(Unsupported, match=f"no {name} here: "):
        getattr(frame, name)
    assert not hasattr(frame, name)


def test_a_frame_reads_as_its_steps() -> None:
    spark = unsent_session()
    frame = spark.read.parquet("lake").filter(col("a") > 1).group_by("b").agg(fn.sum("a").alias("s")).limit(3)
    assert repr(frame) == "Frame[read lake → filter (a > 1) → group by b: sum(a) AS s → limit 3]"
    assert repr(spark.table("t").group_by("a")) == "GroupedFrame[a of Frame[read t]]"
