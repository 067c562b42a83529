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

DUMP = Path(__file__).parent / "format_2.sql"
DUMPED_AT = 1_795_097_829.0
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


def rows(*ids: int) -> pa.Table:
    cities = pa.array([f"c{number}" for number in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "city": cities})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make the data folder of format 2, with its times moved to today."""
    later = time.time() - DUMPED_AT
    dump = re.sub(r"1\.795\d+e\+09", lambda match: repr(float(match[0]) + later), DUMP.read_text())
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        ledger.executescript(dump + "PRAGMA user_version = 2;")
        (name,) = ledger.execute("SELECT name FROM stores").fetchone()
    medium = DiskMedium(tmp_path)
    for part, ids in PARTS.items():
        medium.write(part, rows().schema, rows(*ids).to_batches())
    (tmp_path / "owner").write_text(name)
    return tmp_path


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


def test_bytes_that_a_ticket_names_stay_after_a_migration(folder: Path) -> None:
    with closing(Database(folder / "ledger.db", *TABLES)) as database:
        expiry = {row["path"]: row["until"] for row in database.rows("SELECT path, until FROM ticketed")}
    assert set(expiry) == {"topic/x"}
    assert expiry["topic/x"] > time.time() + 11 * 3_600


def test_a_migrated_ledger_has_the_tables_of_a_new_one(folder: Path, tmp_path: Path) -> None:
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
