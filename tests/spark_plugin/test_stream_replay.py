"""A batch comes again, or its topic isn't what it was: nothing twice, nothing skipped, or an error that says so."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.client import connect
from penstock.errors import InvalidRequest
from penstock.ledger.backup import backup
from penstock.queue.destinations import DESTINATIONS
from penstock.queue.work import work_queues
from penstock.store.disk import DiskMedium
from tests.kit.server import served
from tests.kit.streams import IN, Streams, ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = [pytest.mark.spark, pytest.mark.faults]

OUT = "store/out"


def to_the_end(streams: Streams, frame: DataFrame, sink: object = OUT) -> None:
    """Before 4.2 AvailableNow takes one batch and ends."""
    while streams.run(frame, sink):
        pass


# --- foreachBatch -----------------------------------------------------------------------------


def test_a_batch_that_fails_after_each_action_is_written_once(streams: Streams) -> None:
    """And each action of each try sees the same rows, whatever came meanwhile."""
    url, fails, seen = streams.client.settings.url, 0, set[tuple[int, ...]]()

    def batch(df: DataFrame, number: int) -> None:
        def write(path: str, frame: DataFrame) -> None:
            penstock.write(frame, path, mode="append", run=("three", path, number), url=url, progress=False)

        actions: list[Callable[[], object]] = [
            lambda: write("store/all", df),
            lambda: seen.add(tuple(row.id for row in df.collect())),
            lambda: write("topic/even", df.filter("id % 2 = 0")),
        ]
        for done, action in enumerate(actions, 1):
            action()
            if number == 1 and done == fails:
                raise RuntimeError("planted")

    streams.put(0, 10)
    frame = streams.stream()
    streams.run(frame, batch)
    streams.put(10, 10)
    for fails in (1, 2, 3):
        with pytest.raises(Exception, match="planted"):
            streams.run(frame, batch)
        streams.put(10 + fails * 10, 10)
    fails = 0
    to_the_end(streams, frame, batch)
    assert streams.landed("store/all") == Counter(range(50))
    assert streams.landed("topic/even") == Counter(range(0, 50, 2))
    assert seen == {tuple(range(10)), tuple(range(10, 20)), tuple(range(20, 50))}


def test_batches_of_a_new_checkpoint_are_no_repetitions(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    """It counts them from 0 again: under a name of the user's own they are skipped, with a warning."""
    url = streams.client.settings.url

    def named(df: DataFrame, number: int) -> None:
        penstock.write(df, "store/named", mode="append", run=("orders", number), url=url, progress=False)

    streams.put(0, 10)
    for checkpoint in ("c", "new"):
        streams.run(streams.stream(), penstock.foreach_batch(OUT, url=url), checkpoint)
        streams.run(streams.stream(), named, f"{checkpoint} named")
        streams.put(10, 5)

    assert streams.landed(OUT) == Counter(range(10)) + Counter(range(15))
    assert streams.landed("store/named") == Counter(range(10))
    (skipped,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(r"store/named: 10 rows, .*run 'orders/0': the batch of 15 rows is skipped", skipped.getMessage())


def test_a_batch_without_a_query_is_refused(streams: Streams) -> None:
    with pytest.raises(InvalidRequest, match=r"does not tell a batch its query: use format\('penstock'\)"):
        penstock.foreach_batch(OUT)(streams.spark.range(1), 0)
    with pytest.raises(InvalidRequest, match="path="):
        penstock.foreach_batch(Path(OUT))  # type: ignore[arg-type]


# --- an older checkpoint is put back ------------------------------------------------------------


def put_back(streams: Streams, copy: str) -> None:
    shutil.rmtree(streams.folder / "c")
    shutil.copytree(streams.folder / copy, streams.folder / "c")


def test_an_older_checkpoint_ends_the_query_or_is_replayed(streams: Streams) -> None:
    """Its position at the server stays where it was, so that nobody else's rows are held, and none is skipped."""
    found: list[int] = []

    def batch(df: DataFrame, number: int) -> None:
        found.extend(row.id for row in df.collect())

    for first in (0, 10, 20):
        streams.put(first, 10)
        streams.run(streams.stream(), batch)
        shutil.copytree(streams.folder / "c", streams.folder / f"after {first}")
    streams.put(30, 10)
    put_back(streams, "after 0")
    with pytest.raises(Exception, match=r"the checkpoint is older than.*failOnDataLoss=false"):
        to_the_end(streams, streams.stream(), batch)
    to_the_end(streams, streams.stream(failOnDataLoss=False), batch)
    assert Counter(found) == Counter(range(40)) + Counter(range(10, 30))
    if streams.tells_start:
        assert streams.position() == {"0": 40}


def to_the_end_of_an_older_checkpoint(streams: Streams, out: str, more: int) -> str:
    """Three epochs, the checkpoint of after the first one, and more rows; the error, if there is one."""
    for first in (0, 10, 20):
        streams.put(first, 10)
        streams.run(streams.stream(), out)
        shutil.copytree(streams.folder / "c", streams.folder / f"after {first}")
    if more:
        streams.put(30, more)
    put_back(streams, "after 0")
    return error_of(streams, streams.stream(), out)


def error_of(streams: Streams, frame: DataFrame, out: str = OUT) -> str:
    """What the query ends with, nothing where it comes to the end."""
    try:
        to_the_end(streams, frame, out)
    except Exception as error:
        return str(error)
    return ""


def test_into_our_sink_an_older_checkpoint_brings_nothing_twice(streams: Streams) -> None:
    to_the_end_of_an_older_checkpoint(streams, OUT, 0)
    assert streams.landed(OUT) == Counter(range(30))


def test_our_sink_replays_an_older_checkpoint_or_says_why_not(streams: Streams) -> None:
    """The epochs' numbers come again, with other rows in them."""
    told = to_the_end_of_an_older_checkpoint(streams, "topic/out", 10)
    if told:
        assert "the checkpoint is older than what this query has committed" in told
    assert streams.landed("topic/out") == Counter(range(30 if told else 40))


# --- the topic is another one -------------------------------------------------------------------


def test_a_topic_made_anew_ends_the_query_or_is_read_anew(streams: Streams) -> None:
    """As the query says; the error names the cure."""
    streams.put(0, 10)
    streams.run(streams.stream(), OUT)
    streams.put(10, 5)
    streams.client.delete(IN)
    with pytest.raises(Exception, match="NotFound: no topic at topic/in"):
        streams.run(streams.stream(schema="id long"), OUT)
    streams.put(100, 20)
    with pytest.raises(Exception, match=r"topic/in was deleted and made again since.*failOnDataLoss=false"):
        streams.run(streams.stream(), OUT)
    assert streams.landed(OUT) == Counter(range(10))
    to_the_end(streams, streams.stream(failOnDataLoss=False))
    streams.put(120, 5)
    to_the_end(streams, streams.stream(failOnDataLoss=False))
    assert streams.landed(OUT) == Counter([*range(10), *range(100, 125)])


def test_a_topic_made_anew_ends_a_running_query(streams: Streams) -> None:
    streams.put(0, 10)
    query = streams.start(streams.stream(), OUT, now=False)
    query.processAllAvailable()
    streams.client.delete(IN)
    streams.put(100, 20)
    with pytest.raises(Exception, match=r"topic/in was deleted and made again since|no topic at topic/in"):
        ended(query)
    assert streams.landed(OUT) == Counter(range(10))


# --- the data folder is another one -------------------------------------------------------------


@pytest.fixture
def on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], AbstractContextManager[Streams]]:
    """Streams by way of a server on a data folder of that name."""

    @contextmanager
    def streams(name: str) -> Iterator[Streams]:
        with served(tmp_path / name) as server:
            with monkeypatch.context() as here:
                here.setenv("PENSTOCK_URL", str(server.url))
                spark.dataSource.register(penstock.DataSource)
            with connect(server.url, retry_for=2) as client:
                yield Streams(spark, client, tmp_path)

    return streams


def test_an_empty_data_folder_ends_the_query(on: Callable[[str], AbstractContextManager[Streams]]) -> None:
    with on("data") as streams:
        streams.put(0, 10)
        streams.run(streams.stream(), OUT)
    with on("empty") as streams:
        with pytest.raises(Exception, match="NotFound: no topic at topic/in"):
            streams.run(streams.stream(schema="id long"), OUT)
        streams.put(100, 20)
        with pytest.raises(Exception, match="topic/in was deleted and made again since"):
            streams.run(streams.stream(), OUT)
        assert OUT not in [entry.path for entry in streams.client.list()]
        to_the_end(streams, streams.stream(failOnDataLoss=False))
        assert streams.landed(OUT) == Counter(range(100, 120))


@contextmanager
def on_older_data(on: Callable[[str], AbstractContextManager[Streams]], folder: Path) -> Iterator[Streams]:
    """On the data folder of when the topic had 10 rows; the query has read 20."""
    with on("data") as streams:
        streams.put(0, 10)
        streams.run(streams.stream(), OUT)
    shutil.copytree(folder / "data", folder / "older")
    with on("data") as streams:
        streams.put(10, 10)
        streams.run(streams.stream(), OUT)
    with on("older") as streams:
        yield streams


def test_an_older_data_folder_ends_the_query(
    on: Callable[[str], AbstractContextManager[Streams]], tmp_path: Path
) -> None:
    """Its topic ends before the query's place: what comes next would have the offsets of rows that were read."""
    with on_older_data(on, tmp_path) as streams:
        for _ in range(2):
            with pytest.raises(Exception, match=r"topic/in.*put back to an older state.*checkpointLocation"):
                streams.run(streams.stream(), OUT)
            streams.put(100, 5)
        assert streams.landed(OUT) == Counter(range(10))


def test_an_older_data_folder_that_has_grown_ends_the_query(
    on: Callable[[str], AbstractContextManager[Streams]], tmp_path: Path
) -> None:
    """Other rows have the offsets that it has read."""
    with on_older_data(on, tmp_path) as streams:
        streams.put(100, 20)
        assert "put back to an older state" in error_of(streams, streams.stream())
        assert streams.landed(OUT) == Counter(range(10))


def test_a_restore_by_the_docs_lands_no_row_twice(
    on: Callable[[str], AbstractContextManager[Streams]], tmp_path: Path
) -> None:
    """The epochs after the backup are landed again, those before it add nothing: docs/operating.md, Restore."""
    files = tmp_path / "files"
    files.mkdir()

    def land(streams: Streams, *numbers: int) -> None:
        for number in numbers:
            (files / f"{number}.json").write_text(f'{{"id": {number}}}\n')
        reader = streams.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        streams.run(reader.json(str(files)), OUT)

    with on("data") as streams:
        land(streams, 0, 1)
        backup(tmp_path / "data", DiskMedium(tmp_path / "data"), tmp_path / "restored", DESTINATIONS, work_queues)
        land(streams, 2, 3)
    with on("restored") as streams:
        assert streams.landed(OUT) == Counter([0, 1])
        (query,) = streams.client.call("describe", {"path": OUT})["queries"]
        for log, keep in (("commits", query["epoch"]), ("offsets", query["epoch"] + 1)):
            for file in (tmp_path / "c" / log).iterdir():
                if int(re.sub(r"\D", "", file.name)) > keep:
                    file.unlink()
        land(streams, 4)
        assert streams.landed(OUT) == Counter([0, 1, 2, 3, 4])
