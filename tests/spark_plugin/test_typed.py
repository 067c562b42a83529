"""`decode=json`: payloads of a topic become columns in Spark, in streams and in batches."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from tests.kit.avro import encode
from tests.kit.streams import IN, Streams
from tests.kit.wait import eventually

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
    put(streams, order(101))
    assert streams.run(streams.stream(schema=SCHEMA, decode="json"), "store/out") == [1]  # commits the batch before
    eventually(lambda: [row["dead"] for row in streams.consumers()] == [1])
    [dead] = streams.client.get(f"{IN}/dead").read_all().to_pylist()
    assert (dead["_dead_offset"], dead["data"], dead["_dead_error"][:13]) == (100, b"no JSON", "it isn't JSON")


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


def test_avro_is_decoded_at_the_server(streams: Streams, tmp_path: Path) -> None:
    """In streams and batches, without a schema too; and what fails is dead."""
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    (file := tmp_path / "row.avsc").write_text(json.dumps(row))
    put(streams, *encode(row, [{"id": number, "name": f"n{number}"} for number in range(20)]), b"\2")
    options = {"decode": "avro", "writerSchema": str(file)}
    assert streams.run(streams.stream(schema="id int, name string", **options), "store/out") == [21]
    rows = streams.client.get("store/out").read_all().to_pylist()
    assert (rows[7], rows[20]) == ({"id": 7, "name": "n7"}, {"id": None, "name": None})
    url = streams.client.settings.url
    batch = streams.spark.read.format("penstock").options(**options, url=url).load(IN)
    frame = penstock.read(streams.spark, IN, decode="avro", writer_schema=file, url=url)
    assert batch.columns == frame.columns == ["id", "name", "_error"]
    both = [sorted(map(tuple, each.na.fill({"id": -1}).collect())) for each in (batch, frame)]
    assert both[0] == both[1]
    assert both[0][0] == (-1, None, "it ends too early")
    put(streams, *encode(row, [{"id": 21, "name": ""}]))
    assert streams.run(streams.stream(schema="id int, name string", **options), "store/out") == [1]
    eventually(lambda: [row["dead"] for row in streams.consumers()] == [1])
    [dead] = streams.client.get(f"{IN}/dead").read_all().to_pylist()
    assert (dead["_dead_offset"], dead["_dead_error"]) == (20, "it ends too early")


SAME = [
    ("bigint", "12"), ("bigint", "null"), ("bigint", "1.5"), ("int", "3000000000"), ("tinyint", "300"),
    ("bigint", "true"), ("double", "1.25"), ("double", "3"), ("double", '"NaN"'), ("float", "0.1"), ("double", "NaN"),
    ("double", "true"), ("decimal(10,2)", "12.5"), ("decimal(10,2)", '"12.5"'), ("decimal(4,2)", "123.4"),
    ("decimal(20,0)", "12345678901234567890"), ("string", '"x"'), ("string", "12"), ("string", "true"),
    ("string", '{"b": [1, 2.5]}'), ("boolean", "false"), ("boolean", "1"), ("binary", '"YWI="'),
    ("date", '"2026-11-18"'), ("timestamp", '"2026-11-18T20:00:00.123456+01:00"'),
    ("timestamp_ntz", '"2026-11-18T20:00:00"'), ("array<int>", "[1, null]"), ("array<int>", "{}"),
    ("struct<b: int>", '{"b": 1, "c": 2}'), ("map<string,int>", '{"b": 1}'),
    ("struct<b: int, d: int>", '{"b": "x y", "d": 1}'),
]  # fmt: skip
OTHER = [
    ("bigint", '"3"'), ("bigint", "3.0"), ("double", '"1.5"'), ("decimal(10,2)", "1.005"), ("string", "1.50"),
    ("timestamp", '"2026-11-18T20:00:00"'), ("timestamp", "1789000000"), ("array<int>", '[1, "x"]'),
]  # fmt: skip
"""What docs/decoding.md lists as differences."""


def test_values_are_those_of_from_json_but_where_the_page_says(streams: Streams) -> None:
    """Each case is a column of its own, of a row that has it alone."""
    from pyspark.sql import functions

    cases = [*SAME, *OTHER]
    row = "{" + ", ".join(f'"c{n}": {value}' for n, (_, value) in enumerate(cases)) + "}"
    put(streams, row.encode())
    schema = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(cases))
    ours = penstock.read(streams.spark, IN, decode="json", schema=schema, url=streams.client.settings.url)
    each = [
        functions.from_json(functions.lit(f'{{"a": {value}}}'), f"a {kind}").a.alias(f"c{n}")
        for n, (kind, value) in enumerate(cases)
    ]
    sparks = streams.spark.range(1).select(each)
    both = [list(map(str, frame.collect()[0])) for frame in (ours.drop("_error"), sparks)]

    differing = [case for case, one, other in zip(cases, *both, strict=True) if one != other]
    assert differing == OTHER, [
        (case, one, other) for case, one, other in zip(cases, *both, strict=True) if one != other
    ]
