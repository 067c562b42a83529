"""One SQLite file: its format, its one connection, its transactions."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import Internal, StoreFull, Unavailable

FORMAT = 2
_APPLICATION = 0x50454E53  # "PENS"
_NOT_COMMITTED = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_BUSY"}
"""Errors of a COMMIT whose last frame, which makes the others count, wasn't written."""


class Unsettled(Unavailable):
    """A COMMIT failed when all of it may have been written: it didn't happen, and after a crash it may have.

    The next transaction that commits settles it, as it takes the same place in the log. Until then, nothing may be
    deleted that the change names.
    """


class Database:
    """A ledger's file. What a transaction said when it returned outlives a power cut (WAL, synchronous=FULL)."""

    def __init__(self, path: Path, *tables: str) -> None:
        self.path = path
        self.lock = threading.RLock()  # the connection
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._connection.row_factory = sqlite3.Row
        path.chmod(0o600)
        try:
            self._prepare(tables)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: a damaged schema, in sqlite3's error
            self._connection.close()
            raise self._translated(error) from error
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, tables: tuple[str, ...]) -> None:
        found = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise Internal(
                f"{self.path} has format {found}; this penstock reads {FORMAT}: use the version that wrote it"
            )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        for statements in tables:
            self._connection.executescript(statements)
        if found != FORMAT:
            self._connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._connection.execute(f"PRAGMA user_version = {FORMAT}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block or none of it; durable when the block is left. Not to be nested.

        Any error but Unsettled says that it didn't happen and never will.
        """
        with self.lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._commit()
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError):
                    raise self._translated(error) from error
                raise

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except Exception as error:  # MemoryError too
            if getattr(error, "sqlite_errorname", None) in _NOT_COMMITTED:
                raise
            raise Unsettled(
                f"the end of a change of the ledger failed ({str(error) or 'no memory'}): nothing was changed, unless "
                "the server ends before it writes again. Try again",
                retry_after=5,
            ) from error

    def rows(self, query: str, *arguments: object) -> list[sqlite3.Row]:
        """What a query finds, outside of a transaction."""
        with self.lock:
            try:
                return self._connection.execute(query, arguments).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._translated(error) from error

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        with self.lock:
            self._connection.close()

    def _translated(self, error: sqlite3.DatabaseError | UnicodeDecodeError) -> Internal | Unavailable:
        """SQLite says 'disk I/O error' for a file that may not grow, and recovers on the same connection."""
        if isinstance(error, sqlite3.IntegrityError):
            return Internal(f"the ledger refuses a change: {error}")
        if "full" in str(error) or "disk I/O" in str(error):
            return StoreFull(
                "no room on the disk for the ledger: nothing was changed. Free some space, then try again",
                retry_after=5,
            )
        if "locked" in str(error):
            return Unavailable("the ledger is in use by another process", retry_after=1)
        return Internal(
            f"the ledger {self.path.name} can't be read ({error}): restore it from a backup, or use another data folder"
        )
