"""Spark's writes to a queue on Kafka: the messages are there at finish, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import InvalidRequest
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import SparkSourceV2Config, SparkSourceV2Master
from tests.kit.kafka import KafkaBroker
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_write_makes_records_of_its_splits(
    spark: SparkSession, make_server: Callable[..., PenstockServer], kafka: KafkaBroker, topic: str
) -> None:
    url = make_server(kafka=kafka.url).url
    df = spark.range(100)
    with pytest.raises(InvalidRequest, match="names no topic"):
        penstock.write(df, "store/a", queue=kafka.url, url=url)
    for _ in range(2):
        written = penstock.write(df, "store/a", queue=f"{kafka.url}/{topic}", split_rows=10, run="r", url=url)
    v2 = SparkSourceV2Master(
        f"{topic}/in", SparkSourceV2Config(dataframe_fn=lambda _: df, tansu_storage_url=kafka.url), url=url
    )
    parts = v2.start()
    rows: list[int] = []
    with penstock.connect(url) as c:
        for path in (f"queue/{topic}", f"queue/{topic}/in"):
            for lease in c.claim(path):
                with lease as split:
                    rows += split.payload.data["id"].to_pylist()
    assert sorted(rows) == sorted([*range(100), *range(100)])
    for name, number in ((topic, written.parts), (f"{topic}.in", parts)):
        eventually(lambda name=name, number=number: len(kafka.ids(name)) >= number)  # type: ignore[misc]
        assert len(set(kafka.ids(name))) == len(kafka.ids(name)) == number
