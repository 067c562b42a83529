"""A COMMIT whose fsync fails counts as not done; a crash may still bring it to light, and then its bytes are there."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from penstock import store as stores
from penstock.errors import StoreFull, Unavailable
from penstock.flight_server.server import PenstockServer
from penstock.ledger import jobs, tables
from penstock.ledger.ledger import Ledger
from penstock.store import payload_table, payloads
from penstock.store.database import Database
from penstock.store.payloads import Store
from tests.kit.rows import numbers
from tests.kit.server import served
from tests.kit.wait import files
from tests.kit.wire import at, attempt_of, call, ids, list_paths, new_attempt, put, refused, trips


class FailingCommit:
    """Takes the place of a database's connection: the first COMMIT after the statement `fatal` fails.

    At its fsync (the default): all frames are in the files, which are copied to `crashed` at that moment; then this
    process's own files are put back as they were before, as SQLite does. For want of room (SQLITE_FULL): nothing is in
    the files.
    """

    def __init__(self, database: Database, fatal: str, crashed: Path, *, error: str = "SQLITE_IOERR_FSYNC") -> None:
        self._path, self._fatal, self._crashed, self._error = database.path, fatal, crashed, error
        self._real, self._readers = database._connection, database._readers
        self._armed, self.failed = False, 0
        database._connection = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        self._armed |= self._fatal in statement
        return self._real.executemany(statement, rows)

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        self._armed |= self._fatal in statement
        if statement != "COMMIT" or not self._armed or self.failed:
            return self._real.execute(statement, *arguments)
        self.failed += 1
        if self._error == "SQLITE_FULL":
            self._real.execute("ROLLBACK")
        else:
            self._commit_and_undo()
        error = sqlite3.OperationalError("database or disk is full" if "FULL" in self._error else "disk I/O error")
        error.sqlite_errorname = self._error
        raise error

    def _commit_and_undo(self) -> None:
        before = self._crashed.with_name("before")
        self._copy(self._path.parent, before)
        self._real.execute("COMMIT")
        self._copy(self._path.parent, self._crashed)
        self._real.close()
        while self._readers:  # they have the replaced files open
            self._readers.pop().close()
        self._path.with_name("ledger.db-shm").unlink(missing_ok=True)
        self._copy(before, self._path.parent)
        self._real = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._real.row_factory = sqlite3.Row
        self._real.execute("PRAGMA foreign_keys = ON")

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        for name in ("ledger.db", "ledger.db-wal"):
            shutil.copy2(source / name, target / name)


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Return the folder that has the ledger as a crash would have left it."""
    return tmp_path / "crashed"


def parts_after_the_crash(crashed: Path) -> list[str]:
    with closing(Database(crashed / "ledger.db", tables.TABLES, jobs.TABLES, payload_table.TABLES)) as database:
        return Ledger(database).part_names()


def put_once(bare: flight.FlightClient, kind: str) -> None:
    if kind == "a write of its own":
        put(bare, at("store/x"), [trips(1, 2)])
    else:
        put(bare, attempt_of(call(bare, "write.open", path="store/x")["ticket"], new_attempt()), [trips(1, 2)])


@pytest.mark.parametrize("kind", ["a write of its own", "an attempt"])
def test_a_put_whose_commit_failed_keeps_its_bytes(
    server: PenstockServer, bare: flight.FlightClient, crashed: Path, kind: str
) -> None:
    """It is invisible, but a crash may bring its rows to light."""
    FailingCommit(server.state.ledger.database, "INSERT INTO parts", crashed)
    with refused("unavailable", "nothing was changed, unless the server ends"):
        put_once(bare, kind)
    assert list_paths(bare) == []
    assert server.state.ledger.part_names() == []
    (part,) = parts_after_the_crash(crashed)
    assert server.state.store.open(part).rows == 2


def test_a_crash_after_a_failed_commit_shows_the_whole_dataset(
    make_server: Callable[..., PenstockServer], tmp_path: Path, crashed: Path
) -> None:
    server = make_server()
    FailingCommit(server.state.ledger.database, "INSERT INTO parts", crashed)
    with flight.connect(server.url) as bare, refused("unavailable"):
        put_once(bare, "a write of its own")
    after = tmp_path / "after"
    shutil.copytree(tmp_path / "data", after, ignore=shutil.ignore_patterns("lock", "ledger.db*"))
    shutil.copytree(crashed, after, dirs_exist_ok=True)
    with served(after) as again, flight.connect(again.url) as bare:
        assert ids(bare, "store/x") == [1, 2]


def test_the_next_start_deletes_the_bytes_of_a_failed_commit(tmp_path: Path, crashed: Path) -> None:
    """Until then the server goes on serving, and keeps them."""
    data = tmp_path / "data"
    with served(data) as server, flight.connect(server.url) as bare:
        FailingCommit(server.state.ledger.database, "INSERT INTO parts", crashed)
        with refused("unavailable"):
            put_once(bare, "a write of its own")
        put(bare, at("store/x"), [trips(3)])
        assert ids(bare, "store/x") == [3]
        assert len(files(data / "parts")) == 2
    with served(data) as server, flight.connect(server.url) as bare:
        assert ids(bare, "store/x") == [3]
        assert len(files(data / "parts")) == 1


def test_a_commit_without_room_removes_the_bytes_at_once(
    server: PenstockServer, bare: flight.FlightClient, crashed: Path
) -> None:
    """Nothing of it can have been written."""
    failing = FailingCommit(server.state.ledger.database, "INSERT INTO parts", crashed, error="SQLITE_FULL")
    with refused("full", "no room on the disk for the ledger"):
        put_once(bare, "a write of its own")
    assert failing.failed == 1
    assert list(server.state.store.medium.names()) == []


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(payloads, "INLINE", 0)
    with closing(stores.open(f"disk:{tmp_path / 'store'}")) as opened:
        yield opened


def test_a_payload_whose_commit_failed_keeps_its_bytes(store: Store, crashed: Path) -> None:
    store.store("k", numbers(1))
    FailingCommit(store._database, "INSERT INTO payloads", crashed)
    with pytest.raises(Unavailable, match="unless the server ends"):
        store.store("k", numbers(2))
    before = store.get("k")
    assert before is not None
    assert before.data.num_rows == 1
    with closing(sqlite3.connect(crashed / "ledger.db")) as after:
        ((name,),) = after.execute("SELECT part FROM payloads")
    assert store.open(name).rows == 2


def test_a_payload_without_room_for_its_row_leaves_no_bytes(store: Store, crashed: Path) -> None:
    FailingCommit(store._database, "INSERT INTO payloads", crashed, error="SQLITE_FULL")
    with pytest.raises(StoreFull):
        store.store("k", numbers(2))
    assert list(store.medium.names()) == []
