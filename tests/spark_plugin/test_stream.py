"""`readStream.format("penstock")`: rows of a topic in batches that repeat, each once into a sink of ours."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.pages import run_all
from tests.kit.proxy import open_proxy
from tests.kit.streams import IN, LIMIT, Reading, Streams, ended
from tests.kit.wait import eventually

if TYPE_CHECKING:
    import pyarrow.flight as flight
    from pyspark.sql import DataFrame

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
pytestmark = pytest.mark.spark
ASYNC = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "3600000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}


# --- rows ----------------------------------------------------------------------------------


def test_rows_come_once_and_a_query_goes_on_where_it_was(streams: Streams) -> None:
    for first in (0, 10, 20):
        streams.put(first, 10)
    assert streams.run(streams.stream(), "store/out") == [30]
    streams.put(30, 5)
    assert streams.run(streams.stream(), "store/out") == [5]
    assert streams.run(streams.stream(), "store/out") == []

    assert streams.ids("store/out") == list(range(35))
    assert streams.position() == {"0": 35}
    assert len(streams.client.list("write/")) == 0


def test_several_queries_read_one_topic_each_at_its_pace(streams: Streams) -> None:
    streams.put(0, 10)
    seen: list[int] = []

    def batch(df: DataFrame, number: int) -> None:
        seen.extend(row.id for row in df.collect())

    sinks: list[tuple[str, Any]] = [("a", "store/out"), ("b", "topic/out"), ("c", batch), ("d", "noop")]
    for rows in ([10], [5]):
        queries = [streams.start(streams.stream(), sink, checkpoint) for checkpoint, sink in sinks]
        assert [ended(query) for query in queries] == [rows] * 4
        streams.put(10, 5)
    assert streams.ids("store/out") == streams.ids("topic/out") == seen == list(range(15))
    assert len({each["consumer"] for each in streams.consumers()}) == 4


def test_columns_have_each_rows_place_and_time(streams: Streams) -> None:
    before = datetime.now(UTC).timestamp()
    streams.put(0, 3)
    streams.put(3, 2)
    streams.run(streams.stream(columns="id,_offset,_shard,_time"), "store/out")
    rows = streams.client.get("store/out").read_all()

    assert rows.column_names == ["id", "_offset", "_shard", "_time"]
    assert rows["_offset"].to_pylist() == rows["id"].to_pylist() == list(range(5))
    assert set(rows["_shard"].to_pylist()) == {0}
    times = [time.timestamp() for time in rows["_time"].to_pylist()]
    assert before - 1 <= times[0] == times[2] <= times[3] <= datetime.now(UTC).timestamp() + 1


def test_a_schema_of_ones_own_picks_columns_and_is_checked(streams: Streams) -> None:
    streams.put(0, 3)
    streams.run(streams.stream(schema="city string"), "store/out")
    assert streams.client.get("store/out").read_all().to_pydict() == {"city": ["city 0", "city 1", "city 2"]}
    with pytest.raises(Exception, match=r"topic/in has another schema .*: id is bigint, requested as int"):
        streams.run(streams.stream(schema="id int"), "noop", "other")


def test_puts_of_other_producers_do_not_end_a_query(streams: Streams) -> None:
    """They are wider, lack a column, have nulls elsewhere, and bring columns and fields within structs."""
    fields = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("s", fields)])
    streams.client.create_topic(IN, schema)
    planned, running = streams.stream(), streams.start(streams.stream(), "store/out", now=False)

    def has_landed(rows: int) -> bool:
        return sum(entry.rows for entry in streams.client.list()) == rows

    later = [
        {"id": pa.array([1], pa.uint8()), "s": [{"b": [1], "a": 1}], "city": pa.array(["x"], pa.string_view())},
        {"s": [None], "new": ["y"], "id": pa.array([2], pa.int32())},
        {"id": [3], "city": pa.array(["z"]).dictionary_encode(), "s": [{"a": 3}]},
    ]
    for number, columns in enumerate(later, 1):
        streams.client.put(IN, pa.table(columns))
        eventually(partial(has_landed, number), within=LIMIT)
    streams.client.put(IN, pa.table(later[0]))
    running.stop()
    assert streams.run(planned, "store/again", "again") == [4], "nor one that was planned before"
    expected = [(1, "x", {"a": 1}), (2, None, None), (3, "z", {"a": 3})]
    rows = streams.client.get("store/out").read_all().to_pylist()[:3]
    assert [(row["id"], row["city"], row["s"]) for row in rows] == expected


def test_the_readmes_stream_lands_each_row_once(
    streams: Streams, server: PenstockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    run_all("README.md", "python spark 4", {"spark": streams.spark})
    assert streams.ids("store/readme/landed") == list(range(1000))


# --- batches -------------------------------------------------------------------------------


def test_a_limit_of_rows_makes_batches_of_that_size(streams: Streams) -> None:
    """Before 4.2 Spark takes one batch per AvailableNow, as docs/streaming.md says."""
    streams.put(0, 10)
    frame = streams.stream(maxRowsPerTrigger=4)
    runs = 1 if streams.tells_start else 3
    assert [rows for _ in range(runs) for rows in streams.run(frame, "store/out")] == [4, 4, 2]
    assert streams.ids("store/out") == list(range(10))


def test_a_batch_waits_for_rows_but_not_for_ever(streams: Streams) -> None:
    """The first one doesn't, so that a query that runs by AvailableNow gets somewhere."""

    def rows(query: Any) -> list[int]:
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    few: Any = {"minRowsPerTrigger": 15, "maxTriggerDelay": 3_600}
    streams.put(0, 3)
    assert streams.run(streams.stream(**few), "store/out") == [3]
    streams.put(3, 1)
    query = streams.start(streams.stream(**few), "store/out", now=False)
    eventually(lambda: rows(query) == [1], within=60)
    streams.put(4, 10)
    streams.put(14, 5)
    eventually(lambda: sum(rows(query)) == 16, within=60)
    query.stop()
    assert rows(query) == [1, 15]
    query = streams.start(streams.stream(**few | {"maxTriggerDelay": 2}), "store/out", now=False)
    for first in (19, 20):
        streams.put(first, 1)
        eventually(lambda first=first: rows(query) == [1] * (first - 18), within=60)  # type: ignore[misc]
    query.stop()
    assert streams.ids("store/out") == list(range(21))


def test_a_batch_that_failed_is_repeated_byte_for_byte(streams: Streams) -> None:
    streams.put(0, 5)
    streams.put(5, 5)
    seen: dict[int, list[bytes]] = defaultdict(list)
    held: list[int] = []

    def batch(df: DataFrame, number: int) -> None:
        rows = df.toArrow()
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        seen[number].append(out.getvalue().to_pybytes())
        (consumer,) = streams.client.call("describe", {"path": IN})["consumers"]
        held.append(sum(consumer["position"].values()))
        if len(seen[number]) < 3:
            raise RuntimeError("planted")

    for _ in range(2):
        with pytest.raises(Exception, match="planted"):
            streams.run(streams.stream(startingOffsets='{"0": 2}'), batch)
        streams.put(10, 5)
    assert streams.run(streams.stream(startingOffsets="latest"), lambda df, n: batch(df, n) if n == 0 else None)
    assert [len(set(each)) for each in seen.values()] == [1]
    assert held == [2, 2, 2], "no row of it counts as done before it is"
    assert pa.ipc.open_stream(seen[0][0]).read_all()["id"].to_pylist() == list(range(2, 10))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("options", [{}, {"minPartitions": "3"}])
def test_tasks_share_a_batch_and_each_row_is_in_one(shards: int, options: dict[str, str], streams: Streams) -> None:
    streams.client.create_topic(IN, pa.schema([("id", pa.int64()), ("city", pa.string())]), shards=shards)
    for first in range(0, 100, 10):
        streams.put(first, 10)
    found: list[tuple[int, int]] = []

    def batch(df: DataFrame, number: int) -> None:
        found.extend((row.task, row.id) for row in df.selectExpr("spark_partition_id() task", "id").collect())

    streams.run(streams.stream(**options), batch)
    assert sorted(number for _, number in found) == list(range(100))
    assert len({task for task, _ in found}) == int(options.get("minPartitions", 1))


def test_a_key_keeps_its_order_in_one_task(streams: Streams) -> None:
    """One task per shard, whatever minPartitions says."""
    streams.client.create_topic(IN, pa.schema([("key", pa.int64()), ("n", pa.int64())]), key="key", shards=3)
    for first in range(0, 60, 12):
        numbers = range(first, first + 12)
        streams.client.put(IN, pa.table({"key": [n % 6 for n in numbers], "n": list(numbers)}))
    found: list[tuple[int, int, int]] = []

    def batch(df: DataFrame, number: int) -> None:
        rows = df.selectExpr("spark_partition_id() task", "key", "n", "_shard").collect()
        assert len({(row.task, row._shard) for row in rows}) == len({row._shard for row in rows}) > 1
        found.extend((row.task, row.key, row.n) for row in rows)

    streams.run(streams.stream(minPartitions=10, columns="key,n,_shard"), batch)
    assert len({(task, key) for task, key, _ in found}) == 6
    for key in range(6):
        assert [n for _, its, n in found if its == key] == list(range(key, 60, 6))


# --- positions -----------------------------------------------------------------------------


def test_available_now_ends_with_the_position_at_the_end(streams: Streams) -> None:
    """Before 4.2 Spark tells of the last batch when the query starts again."""
    streams.put(0, 10)
    streams.run(streams.stream(), "noop")
    if not streams.tells_start:
        assert streams.position() == {"0": 0}
        streams.run(streams.stream(), "noop")
    assert streams.position() == {"0": 10}
    assert streams.consumers()[0]["lag_rows"] == 0


def test_an_idle_query_has_its_position_at_the_end(streams: Streams) -> None:
    streams.put(0, 10)
    query = streams.start(streams.stream(), "noop", now=False)
    eventually(lambda: streams.consumers() and streams.position() == {"0": 10}, within=60)
    query.stop()


def test_a_query_that_scans_twice_commits_up_to_the_end(streams: Streams) -> None:
    """Spark plans each batch of it twice."""
    streams.put(0, 10)
    frame = streams.stream()
    twice = frame.filter("id % 2 = 0").union(frame.filter("id % 2 = 1"))
    query = streams.start(twice, "store/out", now=False)
    eventually(lambda: streams.consumers() and streams.position() == {"0": 10}, within=60)
    streams.put(10, 5)
    eventually(lambda: streams.position() == {"0": 15}, within=60)
    query.stop()
    assert sorted(streams.ids("store/out")) == list(range(15))


def test_an_idle_query_that_starts_again_brings_it_along(streams: Streams, server: PenstockServer) -> None:
    """Here the server has forgotten the consumer, which is the hard case."""
    streams.put(0, 10)
    streams.run(streams.stream(), "noop")
    server.state.ledger.change(lambda t: t.execute("DELETE FROM consumers"))
    query = streams.start(streams.stream(), "noop", now=False)
    eventually(lambda: streams.consumers() and streams.position() == {"0": 10}, within=60)
    query.stop()


def test_progress_tells_how_much_is_left(streams: Streams) -> None:
    if not streams.tells_start:
        pytest.skip("Spark before 4.2 asks a Python source for no more than its offsets")
    streams.put(0, 10)
    query = streams.start(streams.stream(maxRowsPerTrigger=4), "noop")
    ended(query)
    left = [json.loads(p.sources[0].latestOffset)["behind"]["rows"] for p in query.recentProgress]
    assert left[0] == 6
    assert left[-1] == 0


def test_two_queries_on_one_checkpoint_are_found_out(streams: Streams) -> None:
    """The older one is told. Its checkpoint is copied, as Spark itself refuses the same query twice in one session."""
    streams.put(0, 10)
    older = streams.start(streams.stream(), "noop", now=False)
    eventually(lambda: streams.consumers() and streams.position() == {"0": 10}, within=60)
    copy = streams.folder / "copy"
    shutil.copytree(streams.folder / "c", copy, ignore=shutil.ignore_patterns(".*"))
    (copy / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    newer = streams.start(streams.stream(), "noop", "copy", now=False)
    with pytest.raises(Exception, match=r"Fenced: another query reads topic/in.*two queries have one checkpoint"):
        ended(older)

    streams.put(10, 5)
    eventually(lambda: streams.position() == {"0": 15}, within=60)
    newer.stop()


def test_async_progress_tracking_commits_only_what_is_on_disk(streams: Streams) -> None:
    """Spark goes on without its log. What it asks for when it starts again is still held for it."""

    def rows(query: Any) -> int:
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    streams.put(0, 10)
    query = streams.start(streams.stream(), "noop", now=False, **ASYNC)
    for count in range(10, 50, 10):
        if count > 10:
            streams.put(count - 10, 10)
        eventually(lambda count=count: rows(query) == count, within=60)  # type: ignore[misc]
    query.stop()
    position = streams.position()["0"]
    assert position <= max(offsets["0"] for offsets in streams.logged("offsets").values())

    again = streams.start(streams.stream(), "noop", now=False, **ASYNC)
    eventually(lambda: rows(again) > 0, within=60)
    again.stop()
    assert rows(again) >= 20, "of four batches Spark has written down the first two at most"
    assert position <= 40 - rows(again)


# --- what goes wrong -----------------------------------------------------------------------


def test_a_topic_that_isnt_there_is_named_at_once(streams: Streams) -> None:
    with pytest.raises(Exception, match="NotFound: no topic at topic/in"):
        streams.stream()
    with pytest.raises(Exception, match="NotFound: no topic at topic/in"):
        streams.run(streams.stream(schema="id long"), "noop")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxFilesPerTrigger": "5"}, "no option 'maxFilesPerTrigger'; did you mean 'maxRowsPerTrigger'"),
        ({"endingOffsets": "latest"}, "'endingOffsets' is for a read, this is a streaming read"),
        ({"maxRowsPerTrigger": "few"}, "maxRowsPerTrigger='few': expected a whole number from 1"),
        ({"startingOffsets": "newest"}, "startingOffsets='newest': expected earliest, latest, a time"),
    ],
)
def test_options_that_cant_be_meant_end_the_query(options: dict[str, str], said: str, streams: Streams) -> None:
    streams.put(0, 3)
    with pytest.raises(Exception, match=said):
        streams.run(streams.stream(**options), "noop")


def test_an_absent_server_fails_the_query_within_its_patience(streams: Streams) -> None:
    """And it starts cleanly when there is one."""
    streams.put(0, 3)
    away = streams.stream(schema="id long", url="grpc://127.0.0.1:1", retry_for="0.2")
    with pytest.raises(Exception, match=r"could not reach grpc://127\.0\.0\.1:1 within 0\.2 s.*server running"):
        streams.run(away, "store/out")
    assert streams.run(streams.stream(schema="id long"), "store/out") == [3]
    assert streams.ids("store/out") == [0, 1, 2]


def test_a_server_that_goes_for_good_ends_the_query(streams: Streams, server: PenstockServer) -> None:
    """And its checkpoint goes on where it was, by another address."""
    streams.put(0, 3)
    with open_proxy() as between:
        between.target = int(str(server.url).rpartition(":")[2])
        reader = streams.stream(schema="id long", url=between.url, retry_for="0.5")
        query = streams.start(reader, "store/out", now=False)
        eventually(lambda: len(streams.client.list("store/")), within=LIMIT, what="the rows landed")
    with pytest.raises(Exception, match=r"could not reach .* within 0\.5 s.*Is the server running"):
        ended(query)
    streams.put(3, 2)
    streams.run(streams.stream(schema="id long"), "store/out")
    assert streams.ids("store/out") == [0, 1, 2, 3, 4]


def test_removed_rows_fail_the_query_or_are_passed(
    streams: Streams, server: PenstockServer, client: Client, bare: flight.FlightClient
) -> None:
    """As the query says; the error names the cure."""
    streams.put(0, 10)
    streams.run(streams.stream(), "store/out")
    streams.put(10, 10)
    Reading(server, client, bare).purge()
    streams.put(20, 5)

    said = r"10 rows are gone that this query hasn't read \(shard 0: offsets 10 to 20\).*failOnDataLoss=false; to start"
    with pytest.raises(Exception, match=said):
        streams.run(streams.stream(), "store/out")
    assert streams.ids("store/out") == list(range(10))
    assert streams.run(streams.stream(failOnDataLoss=False), "store/out") == [5]
    assert streams.ids("store/out") == [*range(10), *range(20, 25)]


# --- a range at once -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, range(10)),
        ({"startingOffsets": '{"0": 4}'}, range(4, 10)),
        ({"endingOffsets": '{"0": 4}'}, range(4)),
        ({"startingOffsets": '{"0": 2}', "endingOffsets": '{"0": 4}'}, range(2, 4)),
        ({"startingOffsets": "latest"}, ()),
        ({"startingOffsets": "earliest", "endingOffsets": "latest", "filter": "id > 7"}, range(8, 10)),
        ({"startingOffsets": "2001-01-01", "endingOffsets": "2999-01-01"}, range(10)),
        ({"endingOffsets": "2001-01-01"}, ()),
        ({"startingOffsets": '{"in": {"0": 2}}', "endingOffsets": '{"in": {"0": -1}}'}, range(2, 10)),
        ({"startingTimestamp": "0", "endingOffsetsByTimestamp": '{"in": {"0": 4000000000000}}'}, range(10)),
    ],
)
def test_a_range_is_read_at_once(options: dict[str, str], ids: Any, streams: Streams) -> None:
    streams.put(0, 10)
    frame = streams.spark.read.format("penstock").options(**options).load(IN)
    assert [row.id for row in frame.collect()] == list(ids)
    assert streams.consumers() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": '{"0": 11}'}, "shard 0 of topic/in has offsets 0 to 10, got 11"),
        ({"startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 3}'}, "has no offsets 5 to 3"),
        ({"endingOffsets": '{"0": 11}'}, "has no offsets 0 to 11"),
        ({"endingOffsets": '{"3": 1}'}, "topic/in has no shard 3"),
        ({"endingOffsets": "earliest"}, "no rows lie before it"),
        ({"endingOffsets": "soon"}, "endingOffsets='soon': expected"),
        ({"startingOffsets": "earliest", "path": "store/x"}, "store/x has no offsets: expected topic/"),
    ],
)
def test_a_range_that_isnt_there_is_refused(options: dict[str, str], said: str, streams: Streams) -> None:
    streams.put(0, 10)
    streams.put(0, 1, "store/x")
    with pytest.raises(Exception, match=said):
        streams.spark.read.format("penstock").options(**{"path": IN, **options}).load().collect()
