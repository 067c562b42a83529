"""Puts beside a topic never take its rows; and a topic takes what a dataset takes."""

from __future__ import annotations

import uuid
from collections import Counter

import pyarrow as pa
import pytest

import penstock
from penstock.client.put import Writer
from penstock.errors import AlreadyExists, LimitExceeded, StoreFull
from penstock.flight_server.server import PenstockServer
from penstock.ledger.ledger import REMEMBERED_BRIEFLY
from penstock.queue.topics.append import Appender
from penstock.queue.topics.compaction import Compactor
from penstock.wire.put import PutCommand
from tests.kit.clock import Clock
from tests.kit.topics import TOPIC, Reach, small_put

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
KEYED = pa.schema([("id", pa.int64()), ("k", pa.string())])
LARGE = pa.table({"id": pa.array(range(1_200_000), pa.int64())})


@pytest.mark.parametrize("path", ["topic/other", "store/other"])
def test_an_attempt_named_as_a_part_takes_none_of_its_rows(server: PenstockServer, path: str) -> None:
    with penstock.connect(str(server.url)) as client:
        for _ in range(2):
            client.put("topic/victim", ROWS)
        names = [row["name"] for row in server.state.ledger.database.rows("SELECT name FROM parts")]
        opened = client.call("write.open", {"path": path, "mode": "append"})
        attempts = []
        for name in names:  # read tickets contain them
            command = PutCommand(str(uuid.UUID(name[:32])), ticket=opened["ticket"])
            with Writer(client.connection, command, ROWS.schema) as writer:
                writer.write(ROWS.slice(0, 1))
            attempts.append(writer.close().attempt)
        client.call("write.finish", {"ticket": opened["ticket"], "attempts": attempts})

        assert client.get(path).read_all()["id"].to_pylist() == [1, 1]
        assert client.get("topic/victim", columns=["id", "_offset"]).read_all().to_pydict() == {
            "id": [1, 2, 1, 2], "_offset": [0, 1, 2, 3],
        }  # fmt: skip


def test_a_repeated_large_put_moves_and_adds_no_row(server: PenstockServer) -> None:
    command = PutCommand(uuid.uuid4().hex, path="topic/x")
    with penstock.connect(str(server.url)) as client:
        receipts = []
        for _ in range(2):
            with Writer(client.connection, command, LARGE.schema) as writer:
                for batch in LARGE.to_batches(max_chunksize=200_000):
                    writer.write(batch)
            receipts.append(writer.close())

        assert receipts[0] == receipts[1]
        assert client.info("topic/x").rows == LARGE.num_rows
        with (
            pytest.raises(AlreadyExists, match=r"1,200,000 rows \(.*\); the 1,400,000 rows"),
            Writer(client.connection, command, LARGE.schema) as writer,
        ):
            for batch in [*LARGE.to_batches(max_chunksize=200_000), LARGE.to_batches()[0].slice(0, 200_000)]:
                writer.write(batch)


def test_a_users_run_named_put_is_remembered_as_any_other(reach: Reach, clock: Clock) -> None:
    """Only runs that the client makes up, `put-<uuid>`, are forgotten after an hour."""
    run = f"put-{'n' * 32}"
    reach.put(1, run=run)
    clock.advance(REMEMBERED_BRIEFLY + 1)
    reach.ledger.expire()

    reach.put(1, run=run)

    assert reach.ids() == [1]


def test_rows_without_the_key_column_spread_as_those_of_null(server: PenstockServer) -> None:
    with penstock.connect(str(server.url)) as client:
        client.create_topic("topic/k", KEYED, key="k", shards=4)
        client.put("topic/k", ROWS)
        client.put("topic/k", pa.table({"id": [3], "k": [None]}, schema=KEYED))

        client.put("topic/k", pa.table({"id": range(4, 12)}))
        client.put("topic/k", pa.table({"id": range(12, 20), "k": [None] * 8}, schema=KEYED))

        columns = client.get("topic/k", columns=["id", "_shard"]).read_all().to_pydict()
        assert sorted(columns["id"]) == list(range(1, 20))
        assert set(columns["_shard"]) == {0, 1, 2, 3}


def test_a_topic_takes_two_dictionaries_as_a_dataset_does(server: PenstockServer) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [pa.record_batch({"c": pa.array([f"{part}-{n}" for n in range(100)]).cast(kind)}) for part in ("a", "b")]
    with penstock.connect(str(server.url)) as client:
        for path in ("store/x", "topic/x"):
            with client.writer(path, batches[0].schema) as writer:
                for batch in batches:
                    writer.write(batch)

            values = client.get(path).read_all()["c"].to_pylist()
            assert values == [f"{part}-{n}" for part in ("a", "b") for n in range(100)]


def test_dictionaries_too_large_to_merge_stop_no_compaction(reach: Reach) -> None:
    """The 200 values of topic/a don't fit one int8 dictionary; topic/b is compacted all the same."""
    kind = pa.dictionary(pa.int8(), pa.string())
    for part in range(20):
        column = pa.array([f"{part}-{n}" for n in range(10)]).cast(kind)
        reach.put(path="topic/a", rows=pa.record_batch({"c": column}))
        reach.put(part, path="topic/b")

    Compactor(reach.ledger, reach.store).compact()

    assert len(reach.parts("topic/b")) == 1
    assert reach.ids("topic/b") == list(range(20))
    tables = [reach.store.open(name).reader().read_all() for name in reach.parts("topic/a")]
    values = [value for table in tables for value in table["c"].to_pylist()]
    assert values == [f"{part}-{n}" for part in range(20) for n in range(10)]


def test_pandas_metadata_keeps_no_parts_apart(server: PenstockServer) -> None:
    """Pandas writes its index, another one in each put, into the schema's metadata."""
    with penstock.connect(str(server.url)) as client:
        for rows in range(1, 8):
            annotated = ROWS.slice(0, 1).replace_schema_metadata({"pandas": f"rows {rows}"})
            client.put("topic/x", annotated)

        assert len(client.info("topic/x").endpoints) == 1
        schemas = server.state.ledger.database.rows("SELECT count(*) AS n FROM schemas")
        assert schemas[0]["n"] == 1


def test_a_topic_made_by_a_put_counts_as_a_dataset(reach: Reach) -> None:
    puts = [small_put(1, path=f"topic/{name}") for name in "abc"]
    reach.ledger.most_paths = 2

    Appender(reach.ledger, reach.store).commit(puts)

    errors = [put.answer.exception(0) for put in puts]
    assert [type(error) for error in errors] == [type(None), type(None), LimitExceeded]
    assert reach.ids("topic/a") == [1]


def test_one_put_too_large_for_the_store_is_refused_alone(reach: Reach) -> None:
    large = pa.record_batch({"id": pa.array(range(100_000), pa.int64())})
    reach.store.quota = reach.store.used + 200_000
    puts = [small_put(1), small_put(path="topic/y", rows=large), small_put(2)]

    Appender(reach.ledger, reach.store).commit(puts)

    assert [type(put.answer.exception(0)) for put in puts] == [type(None), StoreFull, type(None)]
    assert Counter(reach.ids(TOPIC)) == Counter([1, 2])
