"""`decode=json`: payloads of a topic become columns in Spark, in streams and in batches."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from tests.kit.streams import IN, Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = pytest.mark.spark

SCHEMA = "id long, total decimal(10,2), customer struct<name: string, city: string>"


def put(streams: Streams, *payloads: bytes) -> None:
    streams.client.put(IN, pa.table({"data": pa.array(payloads, pa.binary())}))


def order(number: int) -> bytes:
    return b'{"id": %d, "total": "12.50", "customer": {"name": "n%d", "city": "Oslo"}}' % (number, number)


def test_a_stream_has_the_columns_of_its_schema(streams: Streams) -> None:
    put(streams, *map(order, range(100)), b"no JSON")
    assert streams.run(streams.stream(schema=SCHEMA, decode="json"), "store/out") == [101]

    rows = streams.client.get("store/out").read_all().to_pylist()
    assert rows[7] == {"id": 7, "total": Decimal("12.50"), "customer": {"name": "n7", "city": "Oslo"}}
    assert rows[100] == {"id": None, "total": None, "customer": None}


def test_a_batch_reads_the_same(streams: Streams) -> None:
    put(streams, order(1), b"", order(2))
    url = streams.client.settings.url
    named = f"{SCHEMA}, _offset long, _error string"
    batch = streams.spark.read.format("penstock").option("decode", "json").option("url", url).schema(named).load(IN)
    read: list[Any] = [batch, penstock.read(streams.spark, IN, decode="json", schema=named, url=url)]
    rows = [[tuple(row) for row in frame.orderBy("_offset").collect()] for frame in read]

    assert rows[0] == rows[1]
    assert [(row[0], row[3], row[4]) for row in rows[0]] == [(1, 0, None), (None, 1, "it is empty"), (2, 2, None)]


def test_malformed_payloads_are_dropped_or_fail(streams: Streams) -> None:
    put(streams, order(1), b"{", order(2))
    url = streams.client.settings.url

    def read(mode: str) -> DataFrame:
        return penstock.read(streams.spark, IN, decode="json", schema="id long, _offset long", mode=mode, url=url)

    assert sorted(row.id for row in read("DROPMALFORMED").collect()) == [1, 2]
    with pytest.raises(Exception, match=r"_offset=1"):
        read("FAILFAST").collect()
