"""What belongs to a topic stays there, whatever is put beside it; and what fits a dataset fits a topic."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict

import pyarrow as pa
import pytest

import penstock
from penstock.client.put import Writer
from penstock.errors import AlreadyExists, LimitExceeded, StoreFull, WriteEnded
from penstock.flight_server.server import PenstockServer
from penstock.ledger.ledger import REPEATED
from penstock.queue.topics.append import commit
from penstock.queue.topics.compaction import Compactor
from penstock.wire.put import PutCommand
from tests.kit.doubles import Clock
from tests.kit.topics import TOPIC, Reach, small_put

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
KEYED = pa.schema([("id", pa.int64()), ("k", pa.string())])
LARGE = pa.table({"id": pa.array(range(1_200_000), pa.int64())})
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "k", "type": "string"}]


@pytest.mark.parametrize("path", ["topic/other", "store/other"])
def test_an_attempt_named_as_a_part_of_a_topic_takes_none_of_its_rows(server: PenstockServer, path: str) -> None:
    with penstock.connect(str(server.url)) as client:
        for _ in range(2):
            client.put("topic/victim", ROWS)
        names = [row["name"] for row in server._ledger.database.rows("SELECT name FROM parts")]
        opened = client.call("write.open", {"path": path, "mode": "append"})
        attempts = []
        for name in names:  # as whoever holds a read ticket knows them
            command = PutCommand(str(uuid.UUID(name[:32])), ticket=opened["ticket"])
            with Writer(client.connection, command, ROWS.schema) as writer:
                writer.write(ROWS.slice(0, 1))
            attempts.append(writer.close().attempt)
        client.call("write.finish", {"ticket": opened["ticket"], "attempts": attempts})

        assert client.get(path).read_all()["id"].to_pylist() == [1, 1]
        assert client.get("topic/victim", columns=["id", "_offset"]).read_all().to_pydict() == {
            "id": [1, 2, 1, 2], "_offset": [0, 1, 2, 3],
        }  # fmt: skip


def test_a_large_put_that_comes_again_moves_no_row_and_adds_none(server: PenstockServer) -> None:
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
            pytest.raises(AlreadyExists, match="1,200,000 rows; the 1,400,000 rows"),
            Writer(client.connection, command, LARGE.schema) as writer,
        ):
            for batch in [*LARGE.to_batches(max_chunksize=200_000), LARGE.to_batches()[0].slice(0, 200_000)]:
                writer.write(batch)


def test_a_run_that_a_user_calls_put_something_is_remembered_as_others_are(reach: Reach, clock: Clock) -> None:
    reach.put(1, run="put-nightly")
    clock.now += REPEATED + 1
    reach.ledger.expire()

    reach.put(1, run="put-nightly")

    assert reach.ids() == [1]


def test_a_key_keeps_to_its_shard_when_the_topic_is_made_again_while_a_put_runs(server: PenstockServer) -> None:
    rows = pa.table({"id": list(range(40)), "k": [f"k{n % 20}" for n in range(40)]}, schema=KEYED)
    with penstock.connect(str(server.url)) as client:
        client.call("topic.create", {"path": "topic/k", "schema": COLUMNS, "key": "k", "shards": 2})
        opened = client.call("write.open", {"path": "topic/k"})
        writer = client.attempt(opened["ticket"], KEYED)
        writer.write(rows.to_batches()[0])
        client.delete("topic/k")
        client.call("topic.create", {"path": "topic/k", "schema": COLUMNS, "key": "k", "shards": 8})
        receipt = writer.close()
        with pytest.raises(WriteEnded, match="made anew"):
            client.call("write.finish", {"ticket": opened["ticket"], "attempts": [receipt.attempt]})
        client.put("topic/k", rows)

        found = client.get("topic/k", columns=["k", "_shard"]).read_all().to_pydict()
        shards = defaultdict(set)
        for key, shard in zip(found["k"], found["_shard"], strict=True):
            shards[key].add(shard)
        assert {len(each) for each in shards.values()} == {1}


def test_rows_without_the_key_go_where_null_goes(server: PenstockServer) -> None:
    with penstock.connect(str(server.url)) as client:
        client.call("topic.create", {"path": "topic/k", "schema": COLUMNS, "key": "k", "shards": 4})
        client.put("topic/k", ROWS)
        client.put("topic/k", pa.table({"id": [3], "k": [None]}, schema=KEYED))

        found = client.get("topic/k", columns=["id", "_shard", "_offset"]).read_all().to_pydict()
        assert found == {"id": [1, 2, 3], "_shard": [0, 0, 0], "_offset": [0, 1, 2]}


def test_a_put_of_two_dictionaries_is_taken_as_a_dataset_takes_it(server: PenstockServer) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [pa.record_batch({"c": pa.array([f"{part}-{n}" for n in range(100)]).cast(kind)}) for part in ("a", "b")]
    with penstock.connect(str(server.url)) as client:
        for path in ("store/x", "topic/x"):
            with client.writer(path, batches[0].schema) as writer:
                for batch in batches:
                    writer.write(batch)

            found = client.get(path).read_all()["c"].to_pylist()
            assert found == [f"{part}-{n}" for part in ("a", "b") for n in range(100)]


def test_dictionaries_that_do_not_fit_into_one_stop_no_other_topic_s_compaction(reach: Reach) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    for part in range(20):
        values = pa.array([f"{part}-{n}" for n in range(10)]).cast(kind)
        reach.put(path="topic/a", rows=pa.record_batch({"c": values}))
        reach.put(part, path="topic/b")

    Compactor(reach.ledger, reach.store).compact()

    assert len(reach.parts("topic/b")) == 1
    assert reach.ids("topic/b") == list(range(20))
    tables = [reach.store.open(name).reader().read_all() for name in reach.parts("topic/a")]
    held = [value for table in tables for value in table["c"].to_pylist()]
    assert held == [f"{part}-{n}" for part in range(20) for n in range(10)]


def test_what_pandas_notes_of_its_index_keeps_no_parts_apart(server: PenstockServer) -> None:
    with penstock.connect(str(server.url)) as client:
        for rows in range(1, 8):
            noted = ROWS.slice(0, 1).replace_schema_metadata({"pandas": f"rows {rows}"})
            client.put("topic/x", noted)

        assert len(client.info("topic/x").endpoints) == 1
        schemas = server._ledger.database.rows("SELECT count(*) AS n FROM schemas")
        assert schemas[0]["n"] == 1


def test_a_put_that_makes_a_topic_counts_as_one_dataset_more(reach: Reach) -> None:
    puts = [small_put(1, path=f"topic/{name}") for name in "abc"]

    commit(reach.ledger, reach.store, puts, most_datasets=2)

    refused = [put.answer.exception(0) for put in puts]
    assert [type(each) for each in refused] == [type(None), type(None), LimitExceeded]
    assert reach.ids("topic/a") == [1]


def test_one_put_too_large_for_the_store_is_refused_alone(reach: Reach) -> None:
    large = pa.record_batch({"id": pa.array(range(100_000), pa.int64())})
    reach.store.quota = reach.store.used + 200_000
    puts = [small_put(1), small_put(path="topic/y", rows=large), small_put(2)]

    commit(reach.ledger, reach.store, puts)

    assert [type(put.answer.exception(0)) for put in puts] == [type(None), StoreFull, type(None)]
    assert Counter(reach.ids(TOPIC)) == Counter([1, 2])
