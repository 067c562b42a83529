"""Spark's frames and streams become messages: once, whatever is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.kit.pubsub.publishing import Publishing
from tests.kit.spark_faults import FaultyPut, Marks, Once, fail_task, kill_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def messages(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, 4).selectExpr(
        "cast(id as string) AS data", "map('half', cast(id % 2 as string)) AS attributes", "'k' AS ordering_key"
    )


def test_a_frame_is_published(spark: SparkSession, publishing: Publishing) -> None:
    with publishing.publisher():
        done = penstock.write(messages(spark, 3_000), publishing.path, url=publishing.server.url)
    assert done.rows == 3_000
    published = publishing.fake.published(publishing.topic)
    assert {int(each.data) for each in published} == set(range(3_000))
    assert len(published) == 3_000
    assert all(each.attributes["half"] == str(int(each.data) % 2) for each in published)


def test_a_task_that_is_retried_publishes_once(spark: SparkSession, publishing: Publishing, tmp_path: Path) -> None:
    """Its first try had put all of its rows, and the worker of another was killed after its put."""
    plan = {("put", 0): fail_task, ("put", 2): kill_worker}
    with publishing.publisher(), penstock.do_put(publishing.path, url=publishing.server.url) as put:
        task = FaultyPut(put, Once(Marks(tmp_path), plan))
        done = put.finish(messages(spark, 2_000).mapInArrow(task, put.schema).collect())
    assert done.rows == 2_000
    published = sorted(int(each.data) for each in publishing.fake.published(publishing.topic))
    assert published == [*range(2_000)]


def test_a_frame_is_published_as_json(spark: SparkSession, publishing: Publishing) -> None:
    if spark.version.startswith("3."):
        pytest.skip("Spark 3.5 has no data sources in Python")
    spark.dataSource.register(penstock.DataSource)
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "id", "cast(id / 10 as decimal(10,2)) AS total", "named_struct('name', 'Ada', 'tags', array('a', null)) AS who"
    )
    with publishing.publisher():
        writer = frame.write.format("penstock").option("url", str(publishing.server.url)).option("encode", "json")
        writer.option("topic", publishing.topic).option("idAttribute", "true").mode("append").save()
        penstock.write(frame, publishing.path, encode="json", url=publishing.server.url)
    published = publishing.fake.published(publishing.topic)
    rows = sorted(each.data.decode() for each in published)
    assert rows == sorted(
        f'{{"id":{n},"total":{n // 10}.{n % 10}0,"who":{{"name":"Ada","tags":["a",null]}}}}'
        for n in range(100)
        for _ in "ab"
    )
    assert len({each.attributes["penstock-id"] for each in published if each.attributes}) == 100


def test_a_stream_is_published_once(spark: SparkSession, publishing: Publishing, tmp_path: Path) -> None:
    """An epoch that fails after its commit comes again with its rows elsewhere, and adds nothing."""
    if spark.version.startswith("3."):
        pytest.skip("Spark 3.5 has no data sources in Python")
    spark.dataSource.register(penstock.DataSource)
    for number in range(3):
        messages(spark, 10).selectExpr(f"concat(data, '/', 'file {number}') AS data").coalesce(1).write.mode(
            "append"
        ).parquet(str(tmp_path / "in"))

    def run() -> None:
        stream = spark.readStream.schema("data string").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        writer = stream.writeStream.format("penstock").option("url", str(publishing.server.url))
        writer = writer.option("topic", publishing.topic).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(120)

    with publishing.publisher():
        run()
        (tmp_path / "checkpoint" / "commits" / "2").unlink()  # as if the driver had died before it noted the epoch
        (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
        run()
    published = sorted(each.data.decode() for each in publishing.fake.published(publishing.topic))
    assert published == sorted(f"{row}/file {number}" for row in range(10) for number in range(3))
