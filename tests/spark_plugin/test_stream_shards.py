"""A stream's batches while its topic gets more shards: each has its own rows, however often it is planned."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")

from pyspark.sql.types import LongType, StructField, StructType

from penstock.client.client import Client
from penstock.spark_plugin.stream import StreamReader
from tests.kit.streams import Reading, X


def rows_of(reader: StreamReader, client: Client, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the rows of a batch, by its tickets."""
    tickets = (ticket for each in reader.partitions(start, end) for ticket in each.value[1]["ticket"].to_pylist())
    return sorted(row for ticket in tickets for batch in client.fetch(ticket) for row in batch["id"].to_pylist())


@pytest.mark.parametrize("tasks", ["1", "3"])
def test_a_batch_has_the_same_rows_before_and_after(reading: Reading, tasks: str) -> None:
    reading.create(shards=1)
    reading.put(0, 10)
    values = {"path": X, "minPartitions": tasks, "minpartitions": tasks}
    reader = StreamReader(reading.client, values, StructType([StructField("id", LongType())]))
    start = reader.initialOffset()
    end = reader._consumption.latest().to_json()
    assert rows_of(reader, reading.client, start, end) == list(range(10))
    reading.client.alter_topic(X, shards=3)
    reading.put(2, 5, first=10)
    assert rows_of(reader, reading.client, start, end) == list(range(10))
    assert rows_of(reader, reading.client, end, reader._consumption.latest().to_json()) == list(range(10, 15))
