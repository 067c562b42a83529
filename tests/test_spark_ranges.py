"""Ranges of a topic on every Spark, and docs/streaming.md's recipe for the ones that have no streams of ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client import Client
from penstock.errors import InvalidRequest
from penstock.flight_server.server import PenstockServer
from tests.test_docs import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
IN, OUT = "topic/in", "store/out"


@pytest.fixture
def here(server: PenstockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))


def put(client: Client, first: int, count: int) -> None:
    client.put(IN, pa.table({"id": range(first, first + count)}))


@pytest.mark.usefixtures("here")
def test_a_range_is_read_and_never_more_or_fewer_rows(spark: SparkSession, client: Client) -> None:
    put(client, 0, 10)
    frame = penstock.read(spark, IN, start={0: 3}, end={0: 5})
    put(client, 10, 10)
    assert [row.id for row in frame.collect()] == [3, 4]
    assert penstock.read(spark, IN, start={0: 18}).count() == 2
    with pytest.raises(InvalidRequest, match="has no offsets 0 to 21"):
        penstock.read(spark, IN, end={0: 21})


@pytest.mark.usefixtures("here")
def test_the_recipe_takes_each_row_once_wherever_it_is_killed(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    (code,) = [code for code in blocks("docs/streaming.md", "python") if "def take(" in code]
    names: dict[str, Any] = {"penstock": penstock}
    exec(compile(code, "streaming.md", "exec"), names)
    file = tmp_path / "position"

    def take() -> None:
        names["take"](spark, IN, OUT, file)

    put(client, 0, 10)
    take()
    begun = file.read_text().replace("true", "false")
    put(client, 10, 5)
    file.write_text(begun)  # killed behind the write: it is known
    take()
    assert client.info(OUT).rows == 10
    with pytest.MonkeyPatch.context() as broken:  # killed before the write: the same range again, though more came
        broken.setattr(penstock, "write", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take()
    put(client, 15, 5)
    take()
    assert client.info(OUT).rows == 15
    for _ in range(2):
        take()
    assert sorted(client.get(OUT).read_all()["id"].to_pylist()) == list(range(20))
