"""Topics through the server: made, put to, read by ranges of offsets; a range that is gone is an error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import Client, connect
from penstock.errors import InvalidRequest, Lost
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics import keys
from penstock.queue.topics.retention import retain
from penstock.queue.topics.topic import Layout
from tests.kit.clock import Clock
from tests.kit.topics import Reach
from tests.kit.wire import (
    TRIPS,
    at,
    attempt_of,
    call,
    create_topic,
    fetch,
    ids,
    info,
    list_paths,
    new_attempt,
    put,
    read,
    refused,
    trips,
)

TOPIC = "topic/demo/x"
META = ["_shard", "_offset", "_time"]


@pytest.fixture
def timed(server: PenstockServer) -> Clock:
    """Give the server's ledger a clock of the test's own."""
    clock = Clock()
    server.state.ledger.now = clock.now
    return clock


def columns(schema: pa.Schema) -> list[dict[str, Any]]:
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]


def create(client: flight.FlightClient, path: str = TOPIC, schema: pa.Schema = TRIPS, **options: Any) -> Any:
    return create_topic(client, path, schema, **options)


def endpoint_notes(flight_info: flight.FlightInfo) -> list[dict[str, Any]]:
    """Return the metadata of each endpoint."""
    return [json.loads(endpoint.app_metadata) for endpoint in flight_info.endpoints]


def large(rows: int, start: int = 0) -> list[pa.RecordBatch]:
    """Return rows of 64 KiB, in batches of 16."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    return [
        pa.RecordBatch.from_pydict(
            {"id": list(range(at_, min(at_ + 16, start + rows))), "text": ["x" * 65_536] * min(16, start + rows - at_)},
            schema,
        )
        for at_ in range(start, start + rows, 16)
    ]


# --- creation and retention ------------------------------------------------------------------


def test_the_first_put_makes_a_topic_of_one_shard(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), [trips(1, 2), trips(3)])
    put(bare, at(TOPIC), [trips(4)])

    assert ids(bare, TOPIC) == [1, 2, 3, 4]
    topic = call(bare, "describe", path=TOPIC)
    assert topic["shards"] == [{"shard": 0, "first": 0, "next": 4}]
    assert (topic["kind"], topic["rows"], topic.get("key"), topic["keep_seconds"]) == ("topic", 4, None, 86_400)
    assert topic["schema"] == columns(TRIPS)
    assert list_paths(bare, b"topic/") == [TOPIC]
    assert list_paths(bare) == [], "a topic is no dataset"


def test_a_topic_may_be_created_before_its_first_row(bare: flight.FlightClient) -> None:
    created = create(bare, key="id", shards=3, keep_seconds=60, keep_bytes=1_000)
    assert create(bare, key="id", shards=3, keep_seconds=60, keep_bytes=1_000) == created
    assert [shard["shard"] for shard in created["shards"]] == [0, 1, 2]
    assert (created["keep_seconds"], created["keep_bytes"], created["rows"]) == (60, 1_000, 0)
    assert (created["kind"], created["key"], created["consumers"]) == ("topic", "id", [])
    assert read(bare, TOPIC).equals(TRIPS.empty_table())
    assert create(bare, key="id") == created, "options that aren't named stay"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": "city", "shards": 3}, "exists with key 'id', not key 'city': its rows are stored that way"),
        ({"key": "id", "shards": 4}, "exists with number of shards 3, not 4"),
        ({"shards": 1}, "exists with key 'id', not no key and number of shards 3, not 1"),
        ({"key": "id", "schema": pa.schema([("id", pa.date32()), ("city", pa.string())])}, "id is int64, got date32"),
        (
            {"key": "id", "schema": pa.schema([*TRIPS, ("tip", pa.float64())])},
            "without tip double: a put of rows",
        ),
    ],
)
def test_creating_a_different_topic_names_the_difference(
    bare: flight.FlightClient, options: dict[str, Any], words: str
) -> None:
    created = create(bare, key="id", shards=3, keep_seconds=60)
    with refused("exists", words):
        create(bare, **options, keep_seconds=5)
    description = call(bare, "describe", path=TOPIC)
    assert {name: description[name] for name in created} == created, "the topic is unchanged, its retention included"


def test_creating_a_grown_topic_again_returns_it(bare: flight.FlightClient) -> None:
    """A deploy step does so each time; puts have added a column in the meantime."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
    created = create(bare, schema=schema, key="city")
    wider = pa.schema([*TRIPS, ("tip", pa.float64())])
    put(bare, at(TOPIC), [pa.RecordBatch.from_pydict({"id": [1], "city": ["b"], "tip": [0.5]}, wider)])

    again = create(bare, schema=schema, key="city")

    assert [column["name"] for column in again["schema"]] == ["id", "city", "tip"]
    assert (again["journal"], again["rows"]) == (created["journal"], 1)
    with refused("exists", "lacks must int64"):
        create(bare, f"{TOPIC}2", schema=pa.schema([*TRIPS, pa.field("must", pa.int64(), nullable=False)]))
        create(bare, f"{TOPIC}2")


def test_create_changes_how_long_rows_are_kept(bare: flight.FlightClient, server: PenstockServer, timed: Clock) -> None:
    put(bare, at(TOPIC), [trips(1, 2)])
    changes: list[tuple[dict[str, Any], tuple[float, int | None]]] = [
        ({}, (86_400, None)),
        ({"keep_seconds": 60}, (60, None)),
        ({"keep_bytes": 0}, (60, 0)),
        ({"keep_bytes": 1_000_000}, (60, 1_000_000)),
        ({"keep_seconds": 7.5}, (7.5, 1_000_000)),
    ]
    for options, kept in changes:
        created = create(bare, **options)
        assert (created["keep_seconds"], created.get("keep_bytes")) == kept
        description = call(bare, "describe", path=TOPIC)
        assert (description["keep_seconds"], description.get("keep_bytes")) == kept
    timed.advance(8)
    assert retain(server.state.ledger) == 2


def test_retention_is_a_number_from_0(reach: Reach) -> None:
    reach.create()
    for path in ("topic/x", "topic/new"):
        invalid: list[dict[str, Any]] = [
            {"keep_seconds": -5.0}, {"keep_seconds": float("nan")}, {"keep_seconds": float("inf")}, {"keep_bytes": -1},
        ]  # fmt: skip
        for options in invalid:
            with pytest.raises(InvalidRequest, match=f"expected a {next(iter(options))} from 0, got"):
                reach.create(path, **options)
    assert reach.topics.find("topic/new") is None
    assert (reach.topic("topic/x").keep_seconds, reach.topic("topic/x").keep_bytes) == (86_400, None)


def test_topics_count_towards_the_limit_of_datasets(make_server: Callable[..., PenstockServer]) -> None:
    with flight.connect(make_server(limits=ServerLimits(datasets=2)).url) as bare:
        create(bare)
        put(bare, at("store/a"), [trips(1)])
        with refused("limit", "takes 2 datasets, topics and payloads", "--limit datasets="):
            create(bare, "topic/b")
        with refused("limit", "takes 2 datasets, topics and payloads"):
            put(bare, at("store/b"), [trips(1)])
        with refused("limit", "takes 2 datasets, topics and payloads"):
            call(bare, "write.open", path="topic/b")
        create(bare)  # the topic exists
        health = call(bare, "health")
        assert (health["datasets"], health["topics"]) == (1, 1)
        call(bare, "delete", path="store/a")
        create(bare, "topic/b")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"key": "nope"}, "invalid", "no column 'nope' to be its key: expected one of id, city"),
        ({"shards": 0}, "invalid", "1 to 256 shards"),
        ({"shards": 257}, "invalid", "1 to 256 shards"),
        ({"path": "store/x"}, "invalid", "store/x is a dataset"),
        ({"schema": pa.schema([("_offset", pa.int64())])}, "invalid", "one that the server adds"),
        ({"schema": pa.schema([("f", pa.float64())]), "key": "f"}, "invalid", "not double"),
        ({"schema": pa.schema([("f", pa.month_day_nano_interval())]), "key": "f"}, "invalid", "a key is"),
        ({"schema": pa.schema([("f", pa.decimal32(5, 2))]), "key": "f"}, "invalid", "not decimal32"),
    ],
)
def test_an_impossible_topic_is_refused(
    bare: flight.FlightClient, options: dict[str, Any], code: str, words: str
) -> None:
    with refused(code, words):
        create(bare, **options)
    assert list_paths(bare, b"topic/") == []


def test_a_topic_is_no_folder(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), [trips(1)])
    for path in ("topic/demo", f"{TOPIC}/below"):
        with refused("exists"):
            put(bare, at(path), [trips(1)])
        with refused("exists"):
            create(bare, path)
    with refused("invalid", "only grows"):
        put(bare, at(TOPIC, attempt=new_attempt(), mode="overwrite"), [trips(1)])
    with refused("not-found", "the first put makes one"):
        read(bare, "topic/none")


@pytest.mark.parametrize("name", META)
def test_columns_of_the_servers_names_are_refused(bare: flight.FlightClient, name: str) -> None:
    """They are refused in a bare put, and in a write."""
    schema = pa.schema([(name, pa.int64())])
    rows = pa.RecordBatch.from_pydict({name: [1]}, schema)
    with refused("invalid", f"{name} is one that the server adds"):
        put(bare, at(TOPIC), [rows])
    ticket = call(bare, "write.open", path=TOPIC)["ticket"]
    attempt = new_attempt()
    with refused("invalid", f"{name} is one that the server adds"):
        put(bare, attempt_of(ticket, attempt), [rows])
        call(bare, "write.finish", ticket=ticket, attempts=[attempt])
    assert list_paths(bare, b"topic/") == []


# --- a key -----------------------------------------------------------------------------------


def test_a_key_keeps_its_rows_in_one_shard_in_their_order(bare: flight.FlightClient) -> None:
    schema = pa.schema([("n", pa.int64()), ("key", pa.string())])
    create(bare, schema=schema, key="key", shards=4)
    words = [None if number % 11 == 0 else f"key {number % 11}" for number in range(400)]

    for start in range(0, 400, 50):
        batch = pa.RecordBatch.from_pydict({"n": range(start, start + 50), "key": words[start : start + 50]}, schema)
        put(bare, at(TOPIC), [batch.slice(0, 20), batch.slice(20)])

    rows = read(bare, TOPIC, columns=["n", "key", *META]).to_pylist()
    shards_of_key: dict[str | None, set[int]] = {}
    numbers_of_key: dict[str | None, list[int]] = {}
    for row in rows:
        shards_of_key.setdefault(row["key"], set()).add(row["_shard"])
        numbers_of_key.setdefault(row["key"], []).append(row["n"])
    assert len(shards_of_key.pop(None)) == 4, "rows without a key spread"
    del numbers_of_key[None]
    assert {key: len(shards) for key, shards in shards_of_key.items()} == dict.fromkeys(set(words) - {None}, 1)
    assert len(set.union(*shards_of_key.values())) > 1
    assert all(numbers == sorted(numbers) for numbers in numbers_of_key.values())
    assert sorted(row["n"] for row in rows) == list(range(400))
    counts = Counter(row["_shard"] for row in rows)
    for shard, count in counts.items():
        assert [row["_offset"] for row in rows if row["_shard"] == shard] == list(range(count))


KEYS = {
    "string view": pa.array(["a", "b", None, "a", "c"], pa.string_view()),
    "binary view": pa.array([b"a", b"b", None, b"a", b"c"], pa.binary_view()),
    "dictionary": pa.array(["a", "b", None, "a", "c"]).dictionary_encode(),
    "dictionary with a null": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0, 2]), pa.array(["a", None, "c"])),
    "nanoseconds": pa.array([1, 1_001, None, 1, 2], pa.timestamp("ns")),
    "time zone": pa.array([1, 2, None, 1, 3], pa.timestamp("s", "Europe/Oslo")),
    "date": pa.array([1, 2, None, 1, 3], pa.date32()),
    "duration": pa.array([1, 2, None, 1, 3], pa.duration("ns")),
    "boolean": pa.array([True, False, None, True, False]),
    "large number": pa.array([2**64 - 1, 2, None, 2**64 - 1, 3], pa.uint64()),
}


def shards_of(*batches: pa.RecordBatch) -> dict[int, int]:
    """Return the shard of each row."""
    parts = list(keys.sharded([list(batches)], Layout("journal", "key", 5), 0))
    assert all(rows.schema.equals(batches[0].schema) for _, part in parts for rows in part)
    return {row: shard for shard, part in parts for rows in part for row in rows["row"].to_pylist()}


def keyed(column: Any) -> pa.RecordBatch:
    """Return a batch with this key column."""
    texts = pa.array([str(row) for row in range(len(column))], pa.string_view())
    return pa.RecordBatch.from_pydict({"key": column, "row": range(len(column)), "text": texts})


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_have_one_shard(kind: str) -> None:
    """A key has the same shard in a batch of its own."""
    batch = keyed(KEYS[kind])
    keys.check_key(TOPIC, batch.schema, "key")

    together = shards_of(batch)

    assert sorted(together) == [0, 1, 2, 3, 4]
    assert together[0] == together[3]
    alone = shards_of(*(batch.slice(row, 1) for row in range(5)))
    keyed_rows = [row for row, value in enumerate(KEYS[kind].to_pylist()) if value is not None]
    assert [alone[row] for row in keyed_rows] == [together[row] for row in keyed_rows]


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.duration("s"), pa.time64("ns")])
def test_a_time_has_the_shard_of_its_number(kind: pa.DataType) -> None:
    """Not that of its text: Python prints times otherwise where pandas is installed."""
    numbers = pa.array(range(50), pa.int64())
    assert shards_of(keyed(numbers.cast(kind))) == shards_of(keyed(numbers))
    assert shards_of(keyed(numbers.cast(kind).dictionary_encode())) == shards_of(keyed(numbers))


# --- the schema ------------------------------------------------------------------------------


def test_puts_with_and_without_new_columns_are_accepted(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), [trips(1)])
    wider = pa.RecordBatch.from_pydict({"id": [2], "city": ["b"], "tip": [0.5]})
    put(bare, at(TOPIC), [wider])
    put(bare, at(TOPIC), [trips(3)])
    put(bare, at(TOPIC), [pa.RecordBatch.from_pydict({"id": [4], "tip": [1.5]})])

    rows = read(bare, TOPIC)
    assert rows.schema.names == ["id", "city", "tip"]
    assert rows["tip"].to_pylist() == [None, 0.5, None, 1.5]
    assert rows["city"].to_pylist() == ["city 1", "b", "city 3", None]
    assert read(bare, TOPIC, filter="tip > 1").to_pylist() == [{"id": 4, "city": None, "tip": 1.5}]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"id": ["text"], "city": ["x"]}, "id is int64, got string"),
        ({"id": [True], "city": ["x"]}, "id is int64, got bool"),
    ],
)
def test_another_schema_is_refused_with_the_difference(
    bare: flight.FlightClient, rows: dict[str, Any], words: str
) -> None:
    put(bare, at(TOPIC), [trips(1)])
    with refused("schema", words, "choose another topic"):
        put(bare, at(TOPIC), [pa.RecordBatch.from_pydict(rows)])
    assert ids(bare, TOPIC) == [1]
    required = pa.schema([*TRIPS, pa.field("must", pa.int64(), nullable=False)])
    put(bare, at(TOPIC), [pa.RecordBatch.from_pydict({"id": [2], "city": ["x"], "must": [1]}, required)])
    assert read(bare, TOPIC)["must"].to_pylist() == [None, 1], "what is added may be null"


# --- ranges ----------------------------------------------------------------------------------


def test_a_range_begins_and_ends_within_parts(bare: flight.FlightClient) -> None:
    for start in range(0, 30, 3):
        put(bare, at(TOPIC), [trips(start, start + 1), trips(start + 2)])

    for start, end in [(0, 30), (0, 1), (1, 2), (2, 3), (2, 4), (3, 6), (4, 29), (7, 7), (29, 30), (30, 30)]:
        rows = read(bare, TOPIC, start={"0": start}, end={"0": end}, columns=["id", "_offset"])
        assert rows["id"].to_pylist() == rows["_offset"].to_pylist() == list(range(start, end))
        assert info(bare, TOPIC, start={"0": start}, end={"0": end}).total_records == end - start
    assert read(bare, TOPIC, start={"0": 4}, limit=7)["id"].to_pylist() == list(range(4, 11))
    assert read(bare, TOPIC, limit=0).num_rows == 0
    assert read(bare, TOPIC, limit=1_000).num_rows == 30
    assert read(bare, TOPIC, start={"0": 5}, filter="id in (4, 6, 7)")["id"].to_pylist() == [6, 7]


def test_a_range_reads_the_same_while_the_topic_grows(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), [trips(1, 2, 3)])
    flight_info = info(bare, TOPIC)
    put(bare, at(TOPIC), [trips(4)])
    assert fetch(bare, flight_info)["id"].to_pylist() == [1, 2, 3]
    assert read(bare, TOPIC, end={"0": 3})["id"].to_pylist() == [1, 2, 3]
    call(bare, "delete", path=TOPIC)
    assert fetch(bare, flight_info)["id"].to_pylist() == [1, 2, 3]


def test_shards_offsets_and_times_are_read_by_name(bare: flight.FlightClient, timed: Clock) -> None:
    create(bare, shards=2)
    expected = []
    for number in range(6):
        timed.advance(1.5)
        put(bare, at(TOPIC, attempt=f"{number % 2:08x}-0000-0000-0000-{number:012x}"), [trips(number, number + 10)])
        when = datetime.fromtimestamp(timed.now(), UTC)
        expected += [(number % 2, number // 2 * 2 + row, when, number + 10 * row) for row in (0, 1)]

    assert read(bare, TOPIC).column_names == ["id", "city"]
    rows = read(bare, TOPIC, columns=["_shard", "_offset", "_time", "id"])
    assert [tuple(row.values()) for row in rows.to_pylist()] == sorted(expected)
    assert rows.schema.field("_time") == pa.field("_time", pa.timestamp("us", "UTC"), nullable=False)
    in_range = read(bare, TOPIC, columns=["_time", "id"], start={"0": 3, "1": 6}, end={"0": 4})
    assert [tuple(row.values()) for row in in_range.to_pylist()] == [
        (when, number) for shard, offset, when, number in sorted(expected) if (shard, offset) == (0, 3)
    ]
    kept = read(bare, TOPIC, filter="_shard = 1 and _offset >= 4", columns=["id"])
    assert kept["id"].to_pylist() == [5, 15]


def test_endpoints_have_their_shard_offset_and_rows(bare: flight.FlightClient) -> None:
    create(bare, shards=2)
    for number in range(4):
        put(bare, at(TOPIC, attempt=f"{number % 2:08x}-0000-0000-0000-{number:012x}"), [trips(number, number)])
    notes = endpoint_notes(info(bare, TOPIC, start={"0": 1}))
    assert [(note["shard"], note["start"], note["rows"]) for note in notes] == [(0, 1, 3), (1, 0, 4)]


def test_a_read_may_start_at_a_time(client: Client, bare: flight.FlightClient, timed: Clock) -> None:
    for number in range(5):
        client.put(TOPIC, trips(number))
        timed.advance(10)
    start = timed.now() - 50
    for seconds, expected in [(-5, 0), (0, 0), (0.5, 1), (10, 1), (39, 4), (40, 4), (41, 5)]:
        since = datetime.fromtimestamp(start + seconds, UTC)
        assert client.get(TOPIC, start=since).read_all()["id"].to_pylist() == list(range(expected, 5))
    with refused("invalid", "not both"):
        info(bare, TOPIC, start={"0": 1}, since=5)


def test_a_read_may_start_at_either_end_by_its_name(client: Client) -> None:
    client.put(TOPIC, trips(1, 2))
    assert client.get(TOPIC, start="earliest").read_all()["id"].to_pylist() == [1, 2]
    assert client.get(TOPIC, start="latest").read_all().num_rows == 0
    assert client.follow(TOPIC, start="earliest").position == {0: 0}
    assert client.follow(TOPIC, start="latest").position == {0: 2}


def test_offsets_past_the_end_are_refused_with_those_left(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), [trips(1, 2)])
    for start, end in [(0, 3), (2, 1), (3, 3), (5, None)]:
        with refused("invalid", "has no offset", "of shard 0 the offsets 0 to 2 are left"):
            read(bare, TOPIC, start={"0": start}, **({} if end is None else {"end": {"0": end}}))
    for wrong in ({"1": 0}, {"x": 0}, {"0": -1}, {"0": "1"}, {"0": 1.5}, {"0": True}):
        with refused("invalid", "shard ", "expected an offset"):
            read(bare, TOPIC, start=wrong)
    with refused("invalid", "name a range"):
        read(bare, TOPIC, part=0)
    with refused("invalid", "is a dataset and has no offsets"):
        put(bare, at("store/x"), [trips(1)])
        read(bare, "store/x", start={"0": 0})


def test_removed_rows_are_an_error_that_names_those_left(
    bare: flight.FlightClient, server: PenstockServer, timed: Clock
) -> None:
    put(bare, at(TOPIC), [trips(1, 2, 3)])
    timed.advance(25 * 3_600)
    put(bare, at(TOPIC), [trips(4)])
    retain(server.state.ledger)

    assert ids(bare, TOPIC) == [4]
    for end in ({}, {"end": {"0": 2}}):
        with refused("lost", " from offset 1 on ", " gone, they are kept for 24 h", "the offsets 3 to 4 are left"):
            read(bare, TOPIC, start={"0": 1}, **end)
    assert read(bare, TOPIC, since=0)["id"].to_pylist() == [4]
    with refused("lost", "2 rows from offset 0 on are gone", "the offsets 3 to 4 are left"):
        read(bare, TOPIC, end={"0": 2})
    with refused("lost", "0 rows from offset 2 on are gone"):
        read(bare, TOPIC, start={"0": 2}, end={"0": 1})


def test_offsets_of_another_journal_are_refused(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), [trips(1, 2)])
    journal = call(bare, "describe", path=TOPIC)["journal"]
    assert read(bare, TOPIC, journal=journal, start={"0": 1})["id"].to_pylist() == [2]
    call(bare, "delete", path=TOPIC)
    with refused("not-found"):
        read(bare, TOPIC, journal=journal)
    put(bare, at(TOPIC), [trips(3, 4)])
    with refused("lost", "deleted and made again since", journal[:12], "earliest or latest"):
        read(bare, TOPIC, journal=journal, start={"0": 1})
    assert ids(bare, TOPIC) == [3, 4]


# --- once ------------------------------------------------------------------------------------


def test_a_run_of_a_large_put_is_known_to_a_small_one(bare: flight.FlightClient) -> None:
    first = put(bare, at(TOPIC, attempt=new_attempt(), run="r"), large(200))
    small = pa.RecordBatch.from_pydict({"id": [1], "text": ["x"]}, large(1)[0].schema)
    assert put(bare, at(TOPIC, attempt=new_attempt(), run="r"), [small]) == first
    assert put(bare, at(TOPIC, attempt=new_attempt(), run="r"), large(200)) == first
    assert ids(bare, TOPIC) == list(range(200))


def test_concurrent_puts_of_a_run_are_published_once(server: PenstockServer) -> None:
    def put_run(number: int) -> int:
        with connect(server.url) as client:
            return client.put(TOPIC, trips(number), run=f"run {number % 3}").rows

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(put_run, range(12))) == {1}
    with connect(server.url) as client:
        numbers = client.get(TOPIC).read_all()["id"].to_pylist()
    assert sorted(number % 3 for number in numbers) == [0, 1, 2]


def test_a_deleted_topic_forgets_its_runs(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC, attempt=new_attempt(), run="r"), [trips(1)])
    deleted = call(bare, "delete", path=TOPIC)
    assert (deleted["path"], deleted["rows"], deleted["parts"]) == (TOPIC, 1, 1)
    assert list_paths(bare, b"topic/") == []
    put(bare, at(TOPIC, attempt=new_attempt(), run="r"), [trips(2)])
    assert read(bare, TOPIC, columns=["id", "_offset"]).to_pylist() == [{"id": 2, "_offset": 0}]


# --- large puts, and many attempts -----------------------------------------------------------


def test_a_put_of_many_parts_is_whole_or_absent(bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), large(3))
    receipt = put(bare, at(TOPIC), large(400, 3))
    assert (receipt["rows"], receipt["parts"]) == (400, 4)
    assert read(bare, TOPIC, columns=["id", "_offset"]).to_pylist() == [{"id": n, "_offset": n} for n in range(403)]
    with refused("invalid", "trailer"):
        put(bare, at(TOPIC), large(400, 403), end=b'{"v":1,"batches":1,"rows":1}')
    assert ids(bare, TOPIC) == list(range(403))
    rows = read(bare, TOPIC, start={"0": 120}, end={"0": 390}, columns=["id"])
    assert rows["id"].to_pylist() == list(range(120, 390))


def test_a_large_put_is_split_by_its_key(bare: flight.FlightClient) -> None:
    create(bare, schema=large(1)[0].schema, key="id", shards=3)
    put(bare, at(TOPIC), large(300))
    rows = read(bare, TOPIC, columns=["id", *META]).to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(300))
    for shard in range(3):
        of_shard = [row for row in rows if row["_shard"] == shard]
        assert [row["_offset"] for row in of_shard] == list(range(len(of_shard)))
        assert [row["id"] for row in of_shard] == sorted(row["id"] for row in of_shard)
        assert of_shard


def test_attempts_get_their_offsets_at_finish(client: Client, bare: flight.FlightClient) -> None:
    put(bare, at(TOPIC), [trips(0)])
    opened = client.call("write.open", {"path": TOPIC, "run": "query/7"})
    receipts = []
    for number in range(1, 5):
        with client.attempt(opened["ticket"], TRIPS) as writer:
            writer.write(trips(number, number + 10))
        receipts.append(writer.close().attempt)
    put(bare, at(TOPIC), [trips(99)])
    assert ids(bare, TOPIC) == [0, 99]

    summary = client.call("write.finish", {"ticket": opened["ticket"], "attempts": receipts[:3]})

    assert (summary["rows"], summary["attempts"]) == (6, 3)
    assert ids(bare, TOPIC) == [0, 99, 1, 11, 2, 12, 3, 13]
    assert client.call("write.finish", {"ticket": opened["ticket"], "attempts": receipts[:3]}) == summary
    again = client.call("write.open", {"path": TOPIC, "run": "query/7"})
    assert (again["state"], again["write"]) == ("finished", opened["write"])
    assert ids(bare, TOPIC) == [0, 99, 1, 11, 2, 12, 3, 13]


def test_an_attempt_without_rows_has_no_offset(client: Client, bare: flight.FlightClient) -> None:
    """Spark's empty partitions make such: their parts would share the offset of the next one."""
    opened = client.call("write.open", {"path": TOPIC})
    receipts = []
    for rows in (trips(), trips(1), trips(), trips(2)):
        with client.attempt(opened["ticket"], TRIPS) as writer:
            writer.write(rows)
        receipts.append(writer.close().attempt)
    assert client.call("write.finish", {"ticket": opened["ticket"], "attempts": receipts})["rows"] == 2
    assert ids(bare, TOPIC) == [1, 2]


# --- corruption ------------------------------------------------------------------------------


# --- without a server ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "hole", "whole"),
    [
        ("DELETE FROM journal WHERE first = 2", "2 to 5 are in none", [(0, 2), (5, 6)]),
        ("DELETE FROM journal WHERE first = 0", "0 to 2 are in none", [(2, 6)]),
        ("DELETE FROM journal WHERE first = 5", "5 to 6 are in none", [(0, 5)]),
        ("DELETE FROM journal", "0 to 6 are in none", []),
        ("UPDATE journal SET rows = 2 WHERE first = 2", "4 to 5 are in none", [(0, 2), (5, 6)]),
        ("UPDATE journal SET rows = 4 WHERE first = 2", "5 to 6 are in two", [(0, 2)]),
    ],
)
def test_a_hole_between_parts_is_an_error(reach: Reach, change: str, hole: str, whole: list[tuple[int, int]]) -> None:
    """It is never read as fewer rows; ranges beside it are served."""
    for numbers in ((0, 1), (2, 3, 4), (5,)):
        reach.put(*numbers)
    reach.ledger.change(lambda t: t.execute(change))
    with pytest.raises(Lost, match=f"topic/x: of shard 0 the offsets {hole} of its parts"):
        reach.ids()
    for start, end in whole:
        assert [row[2] for row in reach.read(start={0: start}, end={0: end})] == list(range(start, end))


def test_a_batch_ends_at_its_limit_of_rows_or_bytes(reach: Reach) -> None:
    reach.create(shards=2)
    for number in range(20):
        reach.put(number, attempt=f"{number % 2:08x}" + f"{number:024x}")
    topic = reach.topic()
    assert reach.topics.ahead(topic, {0: 4, 1: 10}) == {0: 10, 1: 10}
    for rows in range(1, 20):
        end = reach.topics.ahead(topic, {0: 4, 1: 0}, rows=rows)
        assert end[0] - 4 + end[1] == min(rows, 16)
        assert 4 <= end[0] <= 10
    assert sum(reach.topics.ahead(topic, {0: 4, 1: 0}, size=1).values()) == 5, "at least one row"
    reach.clock.advance(25 * 3_600)
    reach.put(99, attempt="0" * 31 + "f")
    retain(reach.ledger)
    ends = reach.topics.ahead(reach.topic(), {}, rows=5)
    assert ends == {0: 11, 1: 10}, "a shard that isn't named begins with its oldest row"


def test_the_lag_behind_a_position_is_counted(reach: Reach) -> None:
    start = reach.clock.now()
    for number in range(4):
        reach.put(number, number + 10)
        reach.clock.advance(5)
    whole = reach.topic().bytes
    for offset in range(9):
        lag = reach.topics.behind(reach.topic(), {0: offset})
        assert lag.rows == 8 - offset
        assert abs(lag.bytes - whole * lag.rows / 8) <= 1
        assert lag.oldest == (None if offset == 8 else start + 5 * (offset // 2))


def test_the_lag_in_many_shards_takes_one_query(reach: Reach) -> None:
    """The metrics compute it for each consumer of each topic."""
    reach.create(shards=50)
    start = reach.clock.now()
    for shard in range(50):
        reach.put(*range(shard % 4), attempt=f"{shard:08x}" + f"{shard:024x}")
        reach.clock.advance(1)
    topic = reach.topic()
    per_row = topic.bytes / topic.rows
    with mock.patch.object(reach.database, "row", wraps=reach.database.row) as query:
        lag = reach.topics.behind(topic, {shard: shard % 4 for shard in range(40)} | {13: 0, 43: 1, 44: 9})
        assert query.call_count == 1
        assert reach.topics.behind(topic, topic.latest()).oldest is None
        assert query.call_count == 1, "at the end of all shards there is no query"
    assert lag.rows == 1 + sum(shard % 4 for shard in range(40, 50)) - 1
    assert lag.bytes == pytest.approx(per_row * lag.rows, rel=0.2)
    assert lag.oldest == start + 13
