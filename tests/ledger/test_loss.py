"""What was acknowledged and is gone is named at start, and nothing is deleted; a crash raises no false alarm."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import Client, connect
from penstock.errors import Lost, NotFound, PenstockError
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import serving
from penstock.ledger.verify import verify
from penstock.queue.destinations import DESTINATIONS
from penstock.queue.work import work_queues
from penstock.store import records
from penstock.store.disk import DiskMedium
from penstock.store.payloads import ORPHAN_GRACE
from tests.kit.server import ANY_PORT, process_server
from tests.kit.topics import Reach
from tests.kit.wire import at

DATASETS, PUTS = 5, 40
Damage = Callable[[Path], object]


def rows(n: int) -> pa.Table:
    return pa.table({"n": [n], "text": [f"row {n}"]})


@contextmanager
def client_of(data: Path, **settings: Any) -> Iterator[Client]:
    with serving(ServerConfig(data=data, listen=ANY_PORT, **settings)) as server, connect(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder as kill -9 leaves it, after puts to datasets and to a topic."""
    living, copy = tmp_path_factory.mktemp("living") / "data", tmp_path_factory.mktemp("crashed") / "data"
    with client_of(living) as client:
        for n in range(DATASETS):
            client.put(f"store/{n}", rows(n))
    with client_of(living) as client:
        for n in range(PUTS):
            client.put("topic/t", rows(n))
        shutil.copytree(living, copy)
    return copy


@pytest.fixture
def data(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "data"))


def parts(data: Path) -> list[Path]:
    return sorted(file for file in data.glob("parts/*/*"))


def cut_log(data: Path, frames: int) -> None:
    """Cut the last frames off the log, as a file system does that lost the file's end."""
    log = data / "ledger.db-wal"
    page = struct.unpack(">I", log.read_bytes()[8:12])[0] + 24
    os.truncate(log, log.stat().st_size - frames * page)


def put_back_file(data: Path) -> None:
    """Remove the log: the file alone was restored."""
    (data / "ledger.db-wal").unlink()


def damage_log(data: Path) -> None:
    log = bytearray((data / "ledger.db-wal").read_bytes())
    log[len(log) // 2] ^= 1
    (data / "ledger.db-wal").write_bytes(log)


def delete_part(data: Path) -> None:
    parts(data)[3].unlink()


LOSSES: list[tuple[Damage, str]] = [
    (damage_log, "SQLite would drop"),
    (put_back_file, "changes in between are gone"),
    (lambda data: cut_log(data, 60), "changes in between are gone"),
    (delete_part, "lacks parts that the ledger names"),
]


@pytest.mark.parametrize(("damage", "words"), LOSSES)
def test_a_start_is_rejected_and_deletes_nothing(data: Path, damage: Damage, words: str) -> None:
    damage(data)
    before = [file.name for file in parts(data)]
    for _ in range(2):
        with pytest.raises(Lost, match=rf"{words}.*--accept-loss"), client_of(data):
            pass
    assert [file.name for file in parts(data)] == before


@pytest.mark.parametrize(("damage", "words"), LOSSES)
def test_an_accepted_loss_is_told_once(
    data: Path, damage: Damage, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(data)
    before = {file.name for file in parts(data)}
    with client_of(data, accept_loss=True) as client:
        assert words in caplog.text
        client.put("store/new", rows(1))
    left = {file.name for file in [*data.glob("parts/*/*"), *data.glob("orphans/*")]}
    assert before <= left
    with client_of(data) as client:
        assert client.get("store/new").read_all() == rows(1)


def test_rows_that_contradict_each_other_are_told_at_each_start(data: Path) -> None:
    with sqlite3.connect(data / "ledger.db") as sql:
        sql.execute("UPDATE datasets SET rows = 7 WHERE path = 'store/0'")
    sql.close()
    for _ in range(2):
        told = r"store/0 has 7 rows, its parts have 1.* start each time until then with --accept-loss"
        with pytest.raises(Lost, match=told), client_of(data):
            pass
        with client_of(data, accept_loss=True) as client:
            assert client.get("store/1").read_all() == rows(1)


def test_the_rows_of_a_missing_part_are_named_when_read(data: Path) -> None:
    lost = {part.name for part in parts(data)}
    for part in parts(data):
        part.unlink()
    with client_of(data, accept_loss=True) as client, pytest.raises(Lost, match="its file is gone") as gone:
        client.get("store/0").read_all()
    assert any(name in str(gone.value) for name in lost)


def test_swapped_parts_are_not_read_as_each_other(data: Path) -> None:
    with sqlite3.connect(data / "ledger.db") as sql:
        names = [name for (name,) in sql.execute("SELECT name FROM parts WHERE path IN ('store/0', 'store/1')")]
    first, second = (next(data.glob(f"parts/*/{name}")) for name in names)
    aside = data / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    with client_of(data) as client:
        for path in ("store/0", "store/1"):
            with pytest.raises(Lost, match=r"its file is that of part|was found corrupt"):
                client.get(path).read_all()


def name_of_part(data: Path, path: str) -> str:
    """Return the name of the first part of a dataset or a topic."""
    query = "SELECT name FROM parts LEFT JOIN journal ON part = name WHERE ? IN (parts.path, journal.path)"
    with sqlite3.connect(data / "ledger.db") as sql:
        name: str = sql.execute(query, (path,)).fetchone()[0]
    sql.close()
    return name


def put_other_part(data: Path, name: str, table: pa.Table, *, path: str | None = None) -> None:
    """Put a whole part with other rows, or for another path, in the place of one of that name."""
    label = DiskMedium(data).label(name)
    assert label is not None
    file = data / "parts" / name[:2] / name
    file.unlink()
    fd = os.open(file, os.O_CREAT | os.O_WRONLY)
    records.write(fd, table.schema, table.to_batches(), replace(label, path=path or label.path))
    os.close(fd)


OTHERS: list[tuple[pa.Table, str | None, str]] = [
    (pa.concat_tables([rows(0), rows(0)]), None, "has 2 rows where 1 were written|has 2 rows, the ledger 1"),
    (rows(7), None, "has the records "),
    (rows(0), "store/other", "was written for store/other"),
]


@pytest.mark.parametrize(("table", "written_for", "words"), OTHERS, ids=["rows", "digest", "path"])
@pytest.mark.parametrize("path", ["store/new", "topic/new"])
def test_another_part_under_the_same_name_is_lost(
    data: Path, path: str, table: pa.Table, written_for: str | None, words: str
) -> None:
    """Whether its ticket was issued before or after, for do_get, for a map of the file and for `verify`."""
    config = ServerConfig(data=data, listen=ANY_PORT)
    with serving(config) as server, connect(server.url) as client, flight.connect(server.url) as bare:
        client.put(path, rows(0))
        tickets = [endpoint.ticket for endpoint in bare.get_flight_info(at(path)).endpoints]
    name = name_of_part(data, path)
    put_other_part(data, name, table, path=written_for)
    losses = verify(data, DiskMedium(data), DESTINATIONS, work_queues, is_served=False).losses
    assert [loss for loss in losses if name in loss and re.search(words, loss)] == list(losses) != []
    with serving(config) as server, connect(server.url) as client, flight.connect(server.url) as bare:
        with pytest.raises(Lost, match=f"part {name} is lost: .*({words})"):
            client.get(path).read_all()
        with pytest.raises(flight.FlightError, match=f"part {name} is lost: .*({words})"):
            [bare.do_get(ticket).read_all() for ticket in tickets]
        assert client.get("store/1").read_all() == rows(1)
    assert (data / "parts" / name[:2] / name).exists()


def test_parts_of_before_digests_are_compared_by_rows(data: Path) -> None:
    with client_of(data) as client:
        client.get("store/0")
    with sqlite3.connect(data / "ledger.db") as sql:
        sql.execute("UPDATE parts SET digest = NULL")
    sql.close()
    assert verify(data, DiskMedium(data), DESTINATIONS, work_queues, is_served=False).losses == ()
    with client_of(data) as client:
        assert client.get("store/0").read_all() == rows(0)
        assert client.get("topic/t").read_all().num_rows == PUTS
    put_other_part(data, name_of_part(data, "store/0"), pa.concat_tables([rows(0), rows(0)]))
    with client_of(data) as client, pytest.raises(Lost, match="has 2 rows where 1 were written"):
        client.get("store/0").read_all()


def test_an_orphan_is_kept_for_a_day(data: Path, tmp_path: Path, clock: Any) -> None:
    reach = Reach(tmp_path / "orphans", clock)
    reach.store.write("a" * 40, rows(1).schema, rows(1).to_batches(), path="store/a")
    reach.restart()
    orphan = tmp_path / "orphans" / "orphans" / ("a" * 40)
    assert orphan.exists()
    assert reach.store.used == 0
    clock.set(time.time() + ORPHAN_GRACE - 60)
    assert reach.store.drop_set_aside() == 0
    clock.set(time.time() + ORPHAN_GRACE + 60)
    assert reach.store.drop_set_aside() == 1
    assert not orphan.exists()
    orphan.parent.rmdir()  # somebody has moved it away
    assert reach.store.drop_set_aside() == 0
    reach.close()


@pytest.mark.faults
@pytest.mark.parametrize("damages", [45, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_a_lost_row_is_never_silent(crashed: Path, tmp_path: Path, damages: int) -> None:
    """Flips and cuts in log, ledger, parts: all rows are there, or a start or a read names part, path or ledger."""
    seed = random.randrange(2**32)
    names = [part.name for part in parts(crashed)]
    for number in range(damages):
        data = Path(shutil.copytree(crashed, tmp_path / str(number)))
        dice = random.Random(seed + number)
        file = (data / "ledger.db-wal", data / "ledger.db", dice.choice(parts(data)))[number % 3]
        content = bytearray(file.read_bytes())
        if dice.random() < 0.7:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        else:  # not by the last commit alone
            content = content[: dice.randrange(int(len(content) * 0.95))]
        file.write_bytes(content)
        try:
            with client_of(data) as client:
                for n in range(DATASETS):
                    assert client.get(f"store/{n}").read_all() == rows(n), (seed + number, file)
                assert client.get("topic/t").read_all()["n"].to_pylist() == list(range(PUTS)), (seed + number, file)
        except NotFound:  # a loss must not look like something that never was
            raise
        except PenstockError as error:
            if not re.search("|".join(["ledger", r"store/\d", "topic/t", *names]), str(error)):
                pytest.fail(f"{seed + number}: {file}: {error}")
        shutil.rmtree(data)


@pytest.mark.process
@pytest.mark.parametrize("kills", [12, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])])
def test_a_killed_server_starts_without_a_false_alarm(tmp_path: Path, kills: int) -> None:
    """Kills at any moment under puts from four clients."""
    data, acknowledged = tmp_path / "data", [0] * 4
    for kill in range(kills):
        with process_server(data) as server:
            stop = threading.Event()
            threads = [
                threading.Thread(target=put_until_killed, args=(server.url, client, acknowledged, stop))
                for client in range(4)
            ]
            for thread in threads:
                thread.start()
            goal = sum(acknowledged) + random.Random(kill).randrange(1, 60)
            while sum(acknowledged) < goal and threads[0].is_alive():
                time.sleep(0.001)
            server.kill()
            stop.set()
            for thread in threads:
                thread.join()
    with client_of(data) as client:
        for number, count in enumerate(acknowledged):
            assert len(set(client.get(f"topic/{number}").read_all()["n"].to_pylist())) >= count


def put_until_killed(url: str, number: int, acknowledged: list[int], stop: threading.Event) -> None:
    with connect(url, retry_for=0) as client:
        try:
            while not stop.is_set():
                client.put(f"topic/{number}", rows(acknowledged[number]))
                acknowledged[number] += 1
        except PenstockError:
            pass


def test_a_queue_that_miscounts_its_messages_is_told_at_a_start(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        client.push("queue/j/in", [rows(1), rows(2)])
    with sqlite3.connect(tmp_path / "ledger.db") as sql:
        sql.execute("UPDATE messages SET state = 'claimed' WHERE id = 1")
    sql.close()
    words = "queue/j/in counts 2, 0, 0, 0, .* and has 1, 1, 0, 0, "
    [loss] = verify(tmp_path, DiskMedium(tmp_path), DESTINATIONS, work_queues, is_served=False).losses
    assert re.search(words, loss)
    with pytest.raises(Lost, match=words), client_of(tmp_path):
        pass
