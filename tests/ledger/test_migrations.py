"""A data folder of an older format opens, reads and takes writes; one of a newer format is refused."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import Internal, NotFound
from penstock.ledger import tables
from penstock.queue.destinations import TABLES
from penstock.queue.topics import journal, producers
from penstock.store import payload_table
from penstock.store.database import FORMAT, Database
from penstock.store.disk import DiskMedium
from tests.kit.server import served, sorted_ids

DUMPED_AT = {2: 1_795_097_829.0, 5: 1_795_146_168.0}
PARTS = {  # the ids of the rows in each part
    "abee9b9f5c5e4be5b4ece01c3d8aa83d-05184cb1-000000": (1, 2, 3),
    "9ab8451ba63f43e3b028ba68d80ff6d5-a27a8aa3-000000": (4,),
    "6e29b234c65240d385d6b9aac842e919-f90d8e33-000000": (9,),
    "855e74f640c5418985842a6f0acb171d-296ccc7a-000000": (10,),
    "6677c6b87e504f70886c9a40ce2405f1-000000": (2,),
    "6677c6b87e504f70886c9a40ce2405f1-000001": (1, 3, 4),
    "5273b0f52de04e10be4f2a5705793628-000000": (1, 2),
    "590379126def49ec9ebcc44e5448ea6d-000000": (3,),
    "7fa2da0db9514d4db312285f97319afd-d5eb8d3f-000000": (7,),
}
PARTS_5 = {
    "97349ec5126e4e05aa1571960d2d104e-59ac2302-000000": (1, 2, 3),
    "4fc23013681c4887970c93a903e5cc8c-306c20e9-000000": (4,),
    "3c60e3579be243c8b1269d94bd7de138-e9b39ab6-000000": (5,),
    "792ff5a1e59842f4aeb3c282050b5592-000000": (1,),
    "e982d36d7aff4a888ac1bffa33d09555-000000": (2,),
    "4055830222de4c67bcf93998997c9b22-000000": (3,),
}
STORE_5 = """
CREATE TABLE ledger(id TEXT NOT NULL, commits INTEGER NOT NULL);
INSERT INTO ledger VALUES('f6a282f9df496d57782efc55d64dab65', 1);
CREATE TABLE payloads(
    key TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, incarnation TEXT NOT NULL,
    split_id TEXT NOT NULL, metadata TEXT NOT NULL, stored REAL NOT NULL, expires REAL
) WITHOUT ROWID;
INSERT INTO payloads VALUES('j/a', '2c411d8212554a2e9229ddb44b011086', '', 's', '{"by": "me"}', 1795146167.9, NULL);
PRAGMA user_version = 5;
"""
"""The ledger of a store that stands alone: only these had payloads in format 5."""


def rows(*ids: int) -> pa.Table:
    cities = pa.array([f"c{number}" for number in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "city": cities})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path, 2, PARTS)


def make_folder(folder: Path, format: int, parts: dict[str, tuple[int, ...]]) -> Path:
    """Make the data folder of an older format, with its times moved to today."""
    later = time.time() - DUMPED_AT[format]
    dump = (Path(__file__).parent / f"format_{format}.sql").read_text()
    dump = re.sub(r"1\.795\d+e\+09|\b1795\d{6}\.\d+", lambda match: repr(float(match[0]) + later), dump)
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        ledger.executescript(f"{dump} PRAGMA user_version = {format};")
        (name,) = ledger.execute("SELECT name FROM stores").fetchone()
    medium = DiskMedium(folder)
    for part, ids in parts.items():
        medium.write(part, rows().schema, rows(*ids).to_batches())
    (folder / "owner").write_text(name)
    return folder


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    with served(folder) as server, penstock.connect(server.url) as client:
        yield client


def test_a_folder_of_format_2_reads_as_before(client: Client) -> None:
    assert sorted_ids(client, "store/a/b") == [1, 2, 3, 4]
    assert sorted_ids(client, "store/old") == [10]
    assert sorted_ids(client, "topic/keyed") == [1, 2, 3, 4]
    assert sorted_ids(client, "topic/x") == [1, 2, 3]
    (consumer,) = client.call("describe", {"path": "topic/x"})["consumers"]
    assert (consumer["consumer"], consumer["position"], consumer["lag_rows"]) == ("reader", {"0": 1}, 2)


def test_a_folder_of_format_2_takes_writes(client: Client) -> None:
    client.put("store/a/b", rows(5), mode="append")
    client.put("store/a/b", rows(99), mode="append", run="nightly")
    client.put("topic/x", rows(4))
    client.put("topic/x", rows(99), run="named")
    with client.producer("topic/keyed") as producer:
        producer.send(rows(5))
    assert sorted_ids(client, "topic/keyed") == [1, 2, 3, 4, 5]
    assert (sorted_ids(client, "store/a/b"), sorted_ids(client, "topic/x")) == ([1, 2, 3, 4, 5], [1, 2, 3, 4])
    opened = client.call("write.open", {"path": "store/opened", "run": "open one"})
    assert (opened["summary"]["attempts"], opened["summary"]["rows"]) == (1, 1)
    client.delete("store/a/b")
    with pytest.raises(NotFound):
        client.get("store/a/b")


def test_a_folder_of_format_5_opens_and_takes_queues(tmp_path: Path) -> None:
    """Rows, runs, offsets and the open write are as before; messages and payloads have their tables."""
    with served(make_folder(tmp_path, 5, PARTS_5)) as server, penstock.connect(server.url) as client:
        assert (sorted_ids(client, "store/a/b"), sorted_ids(client, "topic/x")) == ([1, 2, 3, 4], [1, 2, 3])
        client.put("store/a/b", rows(99), mode="append", run="nightly")
        client.put("store/a/b", rows(5), mode="append")
        opened = client.call("write.open", {"path": "store/opened", "run": "open one"})
        client.call("write.finish", {"ticket": opened["ticket"], "attempts": ["3c60e3579be243c8b1269d94bd7de138"]})
        assert (sorted_ids(client, "store/a/b"), sorted_ids(client, "store/opened")) == ([1, 2, 3, 4, 5], [5])

        write = client.call("write.open", {"path": "store/new", "queue": "queue/q"})
        with client.attempt(write["ticket"], rows().schema) as writer:
            writer.write(rows(6, 7).to_batches()[0])
        client.call("write.finish", {"ticket": write["ticket"], "attempts": [writer.close().attempt]})
        client.push("queue/q", rows(8), finish=True)
        claimed = []
        for lease in client.claim("queue/q"):
            with lease as split:
                claimed += split.payload.data["id"].to_pylist()
        assert sorted(claimed) == [6, 7, 8]


def test_a_store_of_format_5_keeps_its_payloads(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        ledger.executescript(STORE_5)
    DiskMedium(tmp_path).write("2c411d8212554a2e9229ddb44b011086", rows().schema, rows(1, 2).to_batches())
    with penstock.SplitPayloadStore(f"disk:{tmp_path}") as store:
        store.store("j/b", rows(3))
        assert store.keys() == ["j/a", "j/b"]
        payload = store.get("j/a")
        assert payload == penstock.SplitPayload(rows(1, 2), "s", {"by": "me"})
        assert store.clear() == 2


def test_bytes_that_a_ticket_names_stay_after_a_migration(folder: Path) -> None:
    with closing(Database(folder / "ledger.db", *TABLES)) as database:
        expiry = {row["path"]: row["until"] for row in database.rows("SELECT path, until FROM ticketed")}
    assert set(expiry) == {"topic/x"}
    assert expiry["topic/x"] > time.time() + 11 * 3_600


@pytest.mark.parametrize(("format", "parts"), [(2, PARTS), (5, PARTS_5)])
def test_a_migrated_ledger_has_the_tables_of_a_new_one(
    tmp_path: Path, format: int, parts: dict[str, tuple[int, ...]]
) -> None:
    folder = make_folder(tmp_path, format, parts)

    def schema_of(path: Path) -> set[str]:
        with closing(Database(path, *TABLES)) as database:
            return {
                " ".join(row["sql"].split()) for row in database.rows("SELECT sql FROM sqlite_schema WHERE sql <> ''")
            }

    assert schema_of(folder / "ledger.db") == schema_of(tmp_path / "new" / "ledger.db")


def test_a_migration_that_is_cut_starts_again(folder: Path) -> None:
    broken = {2: "", 3: tables.TABLES[3] + "SELECT no_such_function();"}
    with pytest.raises(Internal):
        Database(folder / "ledger.db", broken, journal.TABLES, producers.TABLES, payload_table.TABLES)
    with closing(Database(folder / "ledger.db", *TABLES)) as database:
        assert database.rows("PRAGMA user_version")[0][0] == FORMAT
        assert len(database.rows("SELECT path FROM datasets")) == 2


@pytest.mark.parametrize("format", [1, FORMAT + 1, 99])
def test_another_format_is_refused_with_the_cure(tmp_path: Path, format: int) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute(f"PRAGMA user_version = {format}")
    with pytest.raises(Internal, match=rf"has format {format}, this penstock reads 2 to {FORMAT}: .* or a newer one"):
        Database(tmp_path / "ledger.db", tables.TABLES)
