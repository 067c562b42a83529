"""One SQLite file: numbered migrations, one connection that changes it, and readers that never wait for an fsync.

Changes that wait at the same time share one transaction and one fsync. What a change returned outlives a power cut
(WAL, `synchronous=FULL`): its caller sees it only after COMMIT has returned.

The file counts its commits, and parts note that count: a file that has lost its last commits is recognized by them.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from penstock.errors import Internal, InvalidRequest, Lost, PenstockError, StoreFull, Unavailable
from penstock.store import wal

log = logging.getLogger("penstock")
Tables = Mapping[int, str]
"""One owner's tables: the statements that lead to each format from the one before."""
_OLDEST, FORMAT = 2, 15
_TABLES: Tables = {
    4: """
CREATE TABLE ledger(id TEXT NOT NULL, commits INTEGER NOT NULL);
INSERT INTO ledger(id, commits) VALUES (lower(hex(randomblob(16))), 0);
"""
}
"""`id` tells a ledger from every other; its copies have the same."""
_APPLICATION = 0x50454E53  # "PENS"
_NOT_COMMITTED = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_BUSY"}
"""Errors of a COMMIT whose last frame, which makes the others count, wasn't written."""
_PATIENCE = 30.0
"""Seconds after which a change that still waits is withdrawn."""
_ENDLESS = 300.0
"""Seconds more for which one that has started is awaited: an fsync may never return."""
_GROUP = 256
"""Changes of one transaction at most: the first one's answer waits for the last."""
_IDLE_READERS = 8
_T = TypeVar("_T")


class Unsettled(Unavailable):
    """The outcome of a COMMIT is unknown: the change counts as not made, and a crash may bring it to light.

    The next transaction that commits settles it, as it takes the same place in the log. Until then nothing may be
    deleted that the change names.
    """


class Reader(Protocol):
    """Runs queries: a database, one view of it, or a change."""

    def rows(self, query: str, *arguments: object) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        ...

    def row(self, query: str, *arguments: object) -> sqlite3.Row | None:
        """Return the first row of a query, None without one."""
        ...


class View:
    """One connection's rows: what was committed when the view began, or within a change what it has done so far."""

    __slots__ = ("sql",)

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql

    def rows(self, query: str, *arguments: object) -> list[sqlite3.Row]:
        """Return all rows of a query: an open cursor would break the next savepoint."""
        try:
            return self.sql.execute(query, arguments).fetchall()
        except sqlite3.DatabaseError as error:
            raise translated(error) from error

    def row(self, query: str, *arguments: object) -> sqlite3.Row | None:
        """Return the first row of a query, None without one."""
        rows = self.rows(query, *arguments)
        return rows[0] if rows else None


class _Change(Future[Any]):
    """A change that waits, and its answer."""

    def __init__(self, function: Callable[[sqlite3.Connection], Any]) -> None:
        super().__init__()
        self.function = function


class Database:
    """A ledger's file, for one process."""

    def __init__(self, path: Path, *tables: Tables, accept_loss: bool = False) -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        was_damaged = _check_log(path, accept_loss)  # before SQLite reads the log, and drops what is behind a damage
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._connection.row_factory = sqlite3.Row
        path.chmod(0o600)
        try:
            self._prepare((_TABLES, *tables))
            row = self._connection.execute("SELECT id, commits FROM ledger").fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: a damaged schema, in sqlite3's error
            self._connection.close()
            raise translated(error) from error
        except BaseException:
            self._connection.close()
            raise
        self.id: str = row["id"]
        self.commits: int = row["commits"]
        """The count of the last COMMIT that has returned."""
        self._changes = 0
        """SQLite's count of changed rows when the transaction began."""
        self._unsettled = was_damaged
        """Whether frames behind the last commit's may look like commits that are lost."""
        if was_damaged:
            self._empty_log()
        self._lock = threading.Condition()  # _waiting, _readers, _closed
        self._waiting: deque[_Change] = deque()
        self._readers: list[sqlite3.Connection] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-ledger", daemon=True)
        self._thread.start()

    def _prepare(self, tables: tuple[Tables, ...]) -> None:
        """Bring the file to this format, step by step; each step happens whole or not."""
        format: int = self._connection.execute("PRAGMA user_version").fetchone()[0]  # noqa: A001  # SQLite's word
        if format > FORMAT or 0 < format < _OLDEST:
            raise Internal(
                f"{self.path} has format {format}, this penstock reads {_OLDEST} to {FORMAT}: use the version that "
                "wrote it, or a newer one"
            )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("PRAGMA temp_store = MEMORY")  # where savepoints keep pages, for the life of a change
        for step in range(max(format + 1, _OLDEST), FORMAT + 1):
            statements = "\n".join(owner.get(step, "") for owner in tables)
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {statements} PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {step};"
                " COMMIT;"
            )

    # --- changes ------------------------------------------------------------------------------

    def submit(self, function: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        """Queue a change; its future has what the function returns, once that is durable.

        The function runs in the database's own thread, in a savepoint, perhaps more than once, and alone counts or is
        undone. Any error but Unsettled says that nothing of it happened and never will.
        """
        change = _Change(function)
        with self._lock:
            if self._closed:
                raise Unavailable("the ledger is closed: its server is stopping", retry_after=2)
            self._waiting.append(change)
            self._lock.notify()
        return change

    def run(self, function: Callable[[sqlite3.Connection], _T]) -> _T:
        """Carry out a change and return what the function returned."""
        change = self.submit(function)
        try:
            return change.result(_PATIENCE)
        except Late:
            if change.done() or not change.cancel():  # its own error, or it has started
                return _result_of_started(change)
            raise Unavailable(
                f"the ledger was busy for {_PATIENCE:g} s, so the change was withdrawn: try again", retry_after=5
            ) from None

    def count_from(self, commits: int) -> None:
        """Continue the count of commits behind this one."""
        self.run(
            lambda sql: sql.execute("UPDATE ledger SET commits = ? WHERE commits < ?", (commits, commits)).rowcount
        )

    def _run(self) -> None:
        while (waiting := self._next_group()) is not None:
            group = [change for change in waiting if change.set_running_or_notify_cancel()]
            try:
                self._commit_group(group)
            except BaseException as error:  # nobody may wait for ever for an answer
                for change in group:
                    if not change.done():
                        change.set_exception(translated(error))

    def _next_group(self) -> list[_Change] | None:
        """Wait for changes; None when the database is closed and nothing waits any more."""
        with self._lock:
            while not (self._waiting or self._closed):
                self._lock.wait()
            return [self._waiting.popleft() for _ in range(min(_GROUP, len(self._waiting)))] or None

    def _commit_group(self, group: list[_Change]) -> None:
        """Carry out changes in one transaction.

        1. Each runs in a savepoint, unless it is alone; one that raises is rolled back alone.
        2. COMMIT, with one fsync for all.
        3. The answers, errors too: one may be about what another of the group did.
        Where SQLite has ended the whole transaction (a full disk, an I/O error), and where the COMMIT failed for sure,
        the group is void and its changes run again one by one.
        """
        answers: list[tuple[_Change, Any, BaseException | None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._changes = self._connection.total_changes
            if len(group) == 1:
                answers.append((group[0], group[0].function(self._connection), None))
            else:
                answers += ((change, *self._in_savepoint(change)) for change in group)  # 1.
            self._commit()  # 2.
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if len(group) == 1 or isinstance(error, Unsettled):
                answers = [(change, None, error) for change in group]
            else:
                for change in group:
                    self._commit_group([change])
                return
        for change, value, failure in answers:  # 3.
            if failure is None:
                change.set_result(value)
            else:
                change.set_exception(translated(failure))

    def _in_savepoint(self, change: _Change) -> tuple[Any, BaseException | None]:
        """Return a change's value, or its error once it is undone; raise where the whole transaction has ended."""
        try:
            self._connection.execute("SAVEPOINT change")
            value = change.function(self._connection)
            self._connection.execute("RELEASE change")
        except BaseException as error:
            if not self._connection.in_transaction:  # ROLLBACK TO would fail
                raise
            self._connection.execute("ROLLBACK TO change")
            self._connection.execute("RELEASE change")
            return None, error
        return value, None

    def _commit(self) -> None:
        """End the transaction; it counts itself, if it has changed anything."""
        count = "UPDATE ledger SET commits = commits + 1 RETURNING commits"
        is_change = self._connection.total_changes > self._changes
        commits = self._connection.execute(count).fetchone()["commits"] if is_change else self.commits
        try:
            self._connection.execute("COMMIT")
            self.commits = commits
        except Exception as error:  # MemoryError too
            if getattr(error, "sqlite_errorname", None) in _NOT_COMMITTED:
                raise
            self._unsettled = True
            raise Unsettled(
                f"the end of a change of the ledger failed ({str(error) or 'no memory'}): nothing was changed, unless "
                "the server ends before it writes again. Try again",
                retry_after=5,
            ) from error
        if self._unsettled and is_change:
            self._empty_log()

    def _empty_log(self) -> None:
        """Empty the log: frames of an unsettled commit, or behind a damage, would look like commits that are lost."""
        with contextlib.suppress(sqlite3.DatabaseError):  # a failing disk: the next commit tries again
            self._connection.execute("PRAGMA busy_timeout = 0")  # a reader may be in it
            is_busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._unsettled = bool(is_busy)
            self._connection.execute("PRAGMA busy_timeout = 30000")

    # --- reads --------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[View]:
        """Give one view of what is committed: later changes aren't seen within the block."""
        with self._borrowed() as connection:
            connection.execute("BEGIN")
            try:
                yield View(connection)
            finally:
                connection.execute("ROLLBACK")

    def rows(self, query: str, *arguments: object) -> list[sqlite3.Row]:
        """Return all rows of one query."""
        with self._borrowed() as connection:
            return connection.execute(query, arguments).fetchall()

    def row(self, query: str, *arguments: object) -> sqlite3.Row | None:
        """Return the first row of one query, None without one."""
        rows = self.rows(query, *arguments)
        return rows[0] if rows else None

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        connection = self._borrow()
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            connection.close()
            raise translated(error) from error
        except BaseException:
            self._give_back(connection)
            raise
        self._give_back(connection)

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise Unavailable("the ledger is closed: its server is stopping", retry_after=2)
            if self._readers:
                return self._readers.pop()
        return _open_for_reading(self.path)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._readers) < _IDLE_READERS:
                self._readers.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Carry out what waits, and close the file; a second time does nothing."""
        with self._lock:
            self._closed = True
            readers, self._readers = self._readers, []
            self._lock.notify_all()
        self._thread.join(_ENDLESS)
        if self._thread.is_alive():
            log.error("%s: a change has waited for the disk for %g s; the file is left to it", self.path, _ENDLESS)
            return
        for connection in (*readers, self._connection):
            connection.close()


def _result_of_started(change: Future[_T]) -> _T:
    try:
        return change.result(_ENDLESS)
    except Late:
        if change.done():
            raise
        raise Unsettled(
            f"a change of the ledger waits for the disk for {_ENDLESS:g} s, and whether it will be made isn't known: "
            "look at the disk, then try again",
            retry_after=5,
        ) from None


@contextmanager
def read_file(path: Path) -> Iterator[View]:
    """Give one view of a ledger's file, whether or not a process has it; nothing is changed."""
    with closing(_open_for_reading(path)) as connection:
        view = View(connection)
        connection.execute("BEGIN")
        format_ = view.rows("PRAGMA user_version")[0][0]
        if format_ != FORMAT:
            raise InvalidRequest(
                f"{path} has format {format_}, this reads {FORMAT}: start its server with this version"
            )
        yield view


def copy_file(path: Path, target: Path) -> None:
    """Copy a ledger's file as of one moment, whether or not a process has it."""
    target.unlink(missing_ok=True)
    try:
        with closing(_open_for_reading(path)) as connection, closing(sqlite3.connect(target)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # so that a read-only disk is enough to verify it
    except sqlite3.DatabaseError as error:
        raise translated(error) from error
    target.chmod(0o600)


def _open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a connection that changes nothing, and that may be used by any thread."""
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=30
        )
    except sqlite3.DatabaseError as error:
        raise translated(error) from error
    connection.row_factory = sqlite3.Row
    return connection


def _check_log(path: Path, accept_loss: bool) -> bool:
    """Reject a damaged log; with `accept_loss`, copy it aside, and return True."""
    file = path.with_name(f"{path.name}-wal")
    damage = wal.damage(file)
    if damage is None:
        return False
    if not accept_loss:
        raise Lost(
            f"{file}: {damage}, changes that were acknowledged. Nothing was changed: restore the folder from a backup, "
            "or start once with --accept-loss, which continues without them and keeps a copy of this file"
        )
    aside = file.with_name(f"{file.name}.{time.strftime('%Y%m%dT%H%M%S')}")
    shutil.copyfile(file, aside)
    log.warning("accepted loss: %s: %s; the file as it was is %s", file, damage, aside)
    return True


def translated(error: BaseException) -> BaseException:
    """Return SQLite's error as penstock's, any other as it is.

    SQLite says 'disk I/O error' for a file that may not grow, and recovers on the same connection.
    """
    if isinstance(error, PenstockError) or not isinstance(error, sqlite3.DatabaseError | UnicodeDecodeError):
        return error
    if isinstance(error, sqlite3.IntegrityError):
        return Internal(f"the ledger refuses a change: {error}")
    if "full" in str(error) or "disk I/O" in str(error):
        return StoreFull(
            "no room on the disk for the ledger: nothing was changed. Free some space, then try again", retry_after=5
        )
    if "locked" in str(error):
        return Unavailable("the ledger is in use by another process", retry_after=1)
    return Internal(f"the ledger can't be read ({error}): restore it from a backup, or use another data folder")
