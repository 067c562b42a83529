"""Waiting changes share a transaction, and each alone counts or is undone; readers wait for no change."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreFull, Unavailable
from penstock.store import database as module
from penstock.store.database import Database, Unsettled

TABLES = {
    2: "CREATE TABLE numbers(n INTEGER PRIMARY KEY);"
    " CREATE TRIGGER fatal BEFORE INSERT ON numbers WHEN new.n = 666 BEGIN SELECT RAISE(ROLLBACK, 'all of it'); END;"
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "ledger.db", TABLES)) as database:
        yield database


@pytest.fixture
def commits(database: Database) -> list[str]:
    """Record how transactions end while the test runs."""
    statements: list[str] = []
    database._connection.set_trace_callback(
        lambda statement: statements.append(statement) if statement in ("COMMIT", "ROLLBACK") else None
    )
    return statements


def insert(number: int) -> Callable[[sqlite3.Connection], int]:
    def change(sql: sqlite3.Connection) -> int:
        sql.execute("INSERT INTO numbers(n) VALUES (?)", (number,))
        return number

    return change


def numbers(database: Database) -> list[int]:
    return [row["n"] for row in database.rows("SELECT n FROM numbers ORDER BY n")]


class Busy:
    """A change that occupies the database's thread until `end`: changes submitted meanwhile form one group."""

    def __init__(self, database: Database) -> None:
        self._started, self._ended = threading.Event(), threading.Event()
        self.answer: Future[None] = database.submit(self._wait)
        assert self._started.wait(10)

    def _wait(self, sql: sqlite3.Connection) -> None:
        self._started.set()
        self._ended.wait(10)

    def end(self) -> None:
        self._ended.set()
        self.answer.result(10)


def as_group(database: Database, *changes: Callable[[sqlite3.Connection], Any]) -> list[Future[Any]]:
    """Submit these changes as one group, and return their answers."""
    busy = Busy(database)
    answers = [database.submit(change) for change in changes]
    busy.end()
    for answer in answers:
        answer.exception(10)
    return answers


def test_a_change_returns_its_value_once_it_is_committed(database: Database) -> None:
    assert database.run(insert(7)) == 7
    assert numbers(database) == [7]


def test_changes_that_wait_share_one_commit(database: Database, commits: list[str]) -> None:
    answers = as_group(database, *(insert(number) for number in range(20)))
    assert [answer.result() for answer in answers] == list(range(20))
    assert commits == ["COMMIT", "COMMIT"], "one of the busy change, and one of all others"


def test_a_change_that_raises_is_undone_alone(database: Database) -> None:
    def insert_and_fail(sql: sqlite3.Connection) -> None:
        insert(50)(sql)
        raise ValueError("no")

    one, failed, repeated, two = as_group(database, insert(1), insert_and_fail, insert(1), insert(2))
    assert (one.result(), two.result(), numbers(database)) == (1, 2, [1, 2])
    with pytest.raises(ValueError, match="no"):
        failed.result()
    with pytest.raises(Exception, match="refuses a change"):
        repeated.result()


def test_a_group_that_sqlite_ended_runs_again_one_by_one(database: Database) -> None:
    one, fatal, two = as_group(database, insert(1), insert(666), insert(2))
    assert (one.result(), two.result(), numbers(database)) == (1, 2, [1, 2])
    assert fatal.exception() is not None


def test_an_error_is_answered_after_the_groups_commit(database: Database) -> None:
    """It may depend on another change of the group."""
    was_answered: list[bool] = []

    def fails(sql: sqlite3.Connection) -> None:
        raise ValueError

    busy = Busy(database)
    failed = database.submit(fails)
    last = database.submit(lambda sql: was_answered.append(failed.done()))
    busy.end()
    last.result(10)
    assert was_answered == [False]


def fail_second_commit(database: Database, errorname: str) -> None:
    """Let the second commit from now on fail with SQLite's error of that name."""
    real, commits = database._connection, iter([False, True])

    class FailingConnection:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
            if statement == "COMMIT" and next(commits, False):
                real.execute("ROLLBACK")
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorname = errorname
                raise error
            return real.execute(statement, *arguments)

    database._connection = FailingConnection()  # type: ignore[assignment]


def test_a_group_whose_commit_failed_for_sure_runs_again(database: Database) -> None:
    fail_second_commit(database, "SQLITE_FULL")
    answers = as_group(database, *(insert(number) for number in range(3)))
    assert [answer.result() for answer in answers] == numbers(database) == [0, 1, 2]


def test_a_lone_change_whose_commit_failed_for_sure_fails(database: Database) -> None:
    fail_second_commit(database, "SQLITE_FULL")
    (answer,) = as_group(database, insert(1))
    assert (type(answer.exception()), numbers(database)) == (StoreFull, [])


def test_a_commit_of_unknown_outcome_is_unsettled_for_all(database: Database) -> None:
    fail_second_commit(database, "SQLITE_IOERR_FSYNC")
    answers = as_group(database, *(insert(number) for number in range(3)))
    assert [type(answer.exception()) for answer in answers] == [Unsettled] * 3
    assert database.run(insert(9)) == 9


def test_a_change_that_waits_too_long_is_withdrawn(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    busy = Busy(database)
    with pytest.raises(Unavailable, match=r"was busy for 0\.05 s, so the change was withdrawn"):
        database.run(insert(1))
    busy.end()
    database.submit(insert(2)).result(10)
    assert numbers(database) == [2]


def test_a_change_that_has_started_is_awaited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    pause = threading.Event()

    def slow(sql: sqlite3.Connection) -> int:
        pause.wait(0.2)
        return insert(1)(sql)

    assert database.run(slow) == 1


def test_a_change_that_never_ends_is_not_awaited_for_ever(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome is unknown, as that of a COMMIT may be."""
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    monkeypatch.setattr(module, "_ENDLESS", 0.01)
    resume = threading.Event()

    def hanging(sql: sqlite3.Connection) -> int:
        assert resume.wait(20)
        return insert(1)(sql)

    with pytest.raises(Unsettled, match=r"a change of the ledger waits for the disk for 0\.01 s, .* isn't known"):
        database.run(hanging)
    resume.set()
    database.submit(insert(2)).result(10)
    assert numbers(database) == [1, 2]


def test_the_end_waits_for_no_change_for_ever(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENDLESS", 0.01)
    resume = threading.Event()
    database.submit(lambda sql: resume.wait(20))
    database.close()
    assert not resume.is_set()
    resume.set()
    monkeypatch.setattr(module, "_ENDLESS", 20.0)
    database.close()


def test_readers_wait_for_no_change(database: Database) -> None:
    database.run(insert(1))
    busy = Busy(database)  # in the middle of its transaction
    waiting = database.submit(insert(2))
    assert numbers(database) == [1]
    busy.end()
    waiting.result(10)
    assert numbers(database) == [1, 2]


def test_a_view_does_not_change(database: Database) -> None:
    database.run(insert(1))
    with database.reading() as view:
        assert [row["n"] for row in view.rows("SELECT n FROM numbers")] == [1]
        database.run(insert(2))
        assert [row["n"] for row in view.rows("SELECT n FROM numbers")] == [1]
    assert numbers(database) == [1, 2]


def test_only_changes_can_write(database: Database) -> None:
    with pytest.raises(Exception, match="readonly"):
        database.rows("INSERT INTO numbers(n) VALUES (1)")
    assert numbers(database) == []


def test_close_carries_out_the_changes_that_wait(tmp_path: Path) -> None:
    database = Database(tmp_path / "ledger.db", TABLES)
    busy = Busy(database)
    answer = database.submit(insert(3))
    closer = threading.Thread(target=database.close)
    closer.start()
    busy.end()
    closer.join(10)
    assert answer.result(10) == 3
    with pytest.raises(Unavailable, match="closed"):
        database.run(insert(4))
    with pytest.raises(Unavailable, match="closed"):
        numbers(database)
    database.close()
