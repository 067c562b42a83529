"""Ranges of a topic on every Spark, and docs/streaming.md's recipe for the ones that have no streams of ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import InvalidRequest, Lost
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics.retention import retain
from tests.kit.pages import blocks
from tests.kit.server import sorted_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("url_variable")]
IN, OUT = "topic/in", "store/out"


def put(client: Client, first: int, count: int) -> None:
    client.put(IN, pa.table({"id": range(first, first + count)}))


def test_a_range_is_read_and_never_more_or_fewer_rows(spark: SparkSession, client: Client) -> None:
    put(client, 0, 10)
    frame = penstock.read(spark, IN, start={0: 3}, end={0: 5})
    put(client, 10, 10)
    assert [row.id for row in frame.collect()] == [3, 4]
    assert penstock.read(spark, IN, start={0: 18}).count() == 2
    get = penstock.do_get(IN, start=datetime(2001, 1, 1, tzinfo=UTC), columns=["id", "_offset"])
    assert [tuple(row) for row in get.rows(spark).collect()] == [(n, n) for n in range(20)]
    with pytest.raises(InvalidRequest, match="has no offsets 0 to 21"):
        penstock.read(spark, IN, end={0: 21})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "position"


@pytest.fixture
def take(spark: SparkSession, file: Path) -> Callable[[], None]:
    """The page's recipe, once."""
    (code,) = [code for code in blocks("docs/streaming.md", "python") if "def take(" in code]
    names: dict[str, Any] = {"penstock": penstock}
    exec(compile(code, "streaming.md", "exec"), names)
    return lambda: names["take"](spark, IN, OUT, file)


def killed_before_the_write(take: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(penstock, "write", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take()


def test_the_recipe_takes_each_row_once_wherever_it_is_killed(
    take: Callable[[], None], client: Client, file: Path
) -> None:
    put(client, 0, 10)
    take()
    begun = file.read_text().replace("true", "false")
    put(client, 10, 5)
    file.write_text(begun)  # killed behind the write: it is known
    take()
    assert client.info(OUT).rows == 10
    killed_before_the_write(take)  # the same range again, though more came
    put(client, 15, 5)
    take()
    assert client.info(OUT).rows == 15
    for _ in range(2):
        take()
    assert sorted_ids(client, OUT) == list(range(20))


def test_the_recipes_first_range_never_reads_as_fewer_rows(
    take: Callable[[], None], client: Client, server: PenstockServer, file: Path
) -> None:
    """Its beginning is noted: `the oldest row` is another one later."""
    put(client, 0, 6)
    killed_before_the_write(take)
    server.state.ledger.now = lambda: time.time() + 2 * 24 * 3600
    assert retain(server.state.ledger) == 6
    server.state.ledger.now = time.time
    put(client, 6, 1)
    with pytest.raises(Lost, match="6 rows from offset 0 on are gone"):
        take()
    assert len(client.list("store/")) == 0
    file.unlink()
    take()
    assert sorted_ids(client, OUT) == [6]


def test_the_recipe_notices_a_topic_that_was_created_again(
    take: Callable[[], None], client: Client, file: Path
) -> None:
    put(client, 0, 10)
    take()
    client.delete(IN)
    put(client, 100, 15)
    for _ in range(2):
        with pytest.raises(Lost, match="made again"):
            take()
    assert sorted_ids(client, OUT) == list(range(10))
    file.unlink()
    client.delete(IN)
    put(client, 200, 10)  # which ends at an offset that was written before
    take()
    assert sorted_ids(client, OUT) == [*range(10), *range(200, 210)]


def test_a_range_of_a_journal_is_no_other_ones(client: Client) -> None:
    put(client, 0, 10)
    journal = client.call("describe", {"path": IN})["journal"]
    penstock.do_get(IN, start={0: 3}, journal=journal)
    client.delete(IN)
    put(client, 0, 10)
    with pytest.raises(Lost, match="made again"):
        penstock.do_get(IN, start={0: 3}, journal=journal)
