"""SplitPayloadStore: payloads under keys, with quota and time to live, over a medium that holds bytes."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import Lost, StoreFull
from penstock.rows.payload import SplitPayload
from penstock.rows.slices import PART_BYTES, size_of
from penstock.store.database import Database, Tables, Unsettled
from penstock.store.medium import Medium, OpenPart, Part, Room
from penstock.store.records import Label
from penstock.wire.paths import check_key

TABLES: Tables = {
    2: """
CREATE TABLE IF NOT EXISTS payloads(
    key TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, incarnation TEXT NOT NULL,
    split_id TEXT NOT NULL, metadata TEXT NOT NULL, stored REAL NOT NULL, expires REAL
) WITHOUT ROWID;
"""
}

ORPHAN_GRACE = 24 * 3600.0
"""Seconds for which parts stay that no row names: another process may be writing one, or the ledger may be the wrong
one."""


class SplitPayloadStore:
    """Payloads by key for workers, and parts by name for a server's ledger.

    A key's row in the database is what makes a payload exist; a medium holds its bytes.
    """

    def __init__(
        self,
        medium: Medium,
        database: Database,
        *,
        url: str,
        quota: int | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.medium = medium
        self.url = url
        self.quota = quota
        self._database = database
        self._now = now
        self._lock = threading.Lock()  # _sizes, _used, _admitted
        self._sizes = dict(medium.names())
        self._used = sum(self._sizes.values())
        self._admitted = 0
        """Bytes that open puts may need."""

    def __repr__(self) -> str:
        return f"SplitPayloadStore({self.url!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SplitPayloadStore):
            return False
        return (other.url, other.medium.incarnation) == (self.url, self.medium.incarnation)

    def __hash__(self) -> int:
        return hash(self.url)

    # --- payloads by key --------------------------------------------------------------------

    def store(self, key: str, payload: SplitPayload | bytes | pa.Buffer | pa.Table, *, ttl: float | None = None) -> str:
        """Keep a payload under a key, in place of what was there; gone after `ttl` seconds, if given.

        1. The bytes are durable under a name of their own, unseen.
        2. One transaction points the key at them.
        3. What the key pointed at before is deleted.
        A crash after 1 or 2 leaves bytes that no key points at: `orphans` finds them at the next start.
        """
        check_key(key)
        whole = SplitPayload.from_any(payload, key)
        whole.schema()  # rejects metadata before a byte is written
        noted = json.dumps(dict(whole.metadata))
        part = self.write(uuid.uuid4().hex, whole.data.schema, whole.data.to_batches(), path=key)  # 1.
        now = self._now()
        expires = None if ttl is None else now + ttl
        row = (key, part.name, self.medium.incarnation, whole.split_id, noted, now, expires)

        def point_key(sql: sqlite3.Connection) -> list[str]:
            before = sql.execute("SELECT name FROM payloads WHERE key = ?", (key,)).fetchall()
            sql.execute(
                "REPLACE INTO payloads(key, name, incarnation, split_id, metadata, stored, expires)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            return [row["name"] for row in before]

        try:
            before = self._database.run(point_key)  # 2.
        except Unsettled:  # the key may point at these bytes after a crash; if it doesn't, they are orphans then
            raise
        except Exception:
            self.discard([part.name])
            raise
        self.discard(before)  # 3.
        return key

    def get(self, key: str) -> SplitPayload | None:
        """Return the payload, None without one; Lost if its bytes are gone or corrupt."""
        rows = self._database.rows("SELECT * FROM payloads WHERE key = ?", check_key(key))
        if not rows or self._has_expired(rows[0]["expires"]):
            return None
        row = rows[0]
        try:
            table = self.open(row["name"]).reader().read_all()
        except Lost as gone:
            if self._moved_on(key, row["name"]):
                return self.get(key)
            raise Lost(f"the payload {key} is lost: {gone}") from gone
        return SplitPayload(table, row["split_id"], json.loads(row["metadata"]))

    def delete(self, key: str) -> bool:
        """Delete a payload; False if there was none."""
        return self._forget("key = ?", check_key(key)) > 0

    def clear(self) -> int:
        """Delete every payload, and return how many there were."""
        return self._forget("true")

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that have a payload, in order."""
        rows = self._database.rows(
            "SELECT key, expires FROM payloads WHERE substr(key, 1, ?) = ? ORDER BY key", len(prefix), prefix
        )
        return [row["key"] for row in rows if not self._has_expired(row["expires"])]

    def sweep(self) -> int:
        """Delete the payloads past their time, and return how many."""
        now = self._now()
        expired = self._database.rows("SELECT 1 FROM payloads WHERE expires <= ?", now)
        if expired:
            self._forget("expires <= ?", now)
        return len(expired)

    def _forget(self, condition: str, *arguments: object) -> int:
        """Forget payloads, and return how many of them were not past their time."""

        def forget(sql: sqlite3.Connection) -> list[sqlite3.Row]:
            return sql.execute(
                f"DELETE FROM payloads WHERE {condition} RETURNING name, expires",  # noqa: S608  # our own text
                arguments,
            ).fetchall()

        rows = self._database.run(forget)
        self.discard(row["name"] for row in rows)
        return sum(not self._has_expired(row["expires"]) for row in rows)

    # --- parts by name ----------------------------------------------------------------------

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit a put before its first byte, if there is room for a part beside one of each put that is open."""
        room = self.medium.room()
        most = room.total if self.quota is None else min(room.total, self.quota)
        size = min(PART_BYTES, most // 64)
        with self._lock:
            self._check_room(self._admitted + size, room)
            self._admitted += size
        try:
            yield
        finally:
            with self._lock:
                self._admitted -= size

    def write(self, name: str, schema: pa.Schema, batches: list[pa.RecordBatch], *, path: str) -> Part:
        """Write a part for a path, durable and unseen. StoreFull when it does not fit."""
        size, room = sum(map(size_of, batches)), self.medium.room()
        with self._lock:
            self._check_room(size, room)
            self._note(name, size)
        try:
            label = Label(self._database.id, path, name, self._database.commits)
            part = self.medium.write(name, schema, batches, label)
        except BaseException:
            with self._lock:
                self._note(name, 0)
            raise
        with self._lock:
            self._note(name, part.bytes)
        return part

    def _check_room(self, size: int, room: Room) -> None:
        if self.quota is not None and self._used + size > self.quota:
            raise StoreFull(
                f"the store has {self._used:,} of {self.quota:,} bytes in use, no room for {size:,} more: "
                "delete something (penstock rm; bytes go when their last read ticket ends), or raise --quota",
                retry_after=5,
            )
        if size > room.free:
            raise StoreFull(
                f"no room on the disk for {size:,} bytes: it has {room.free:,}, without those spared for the ledger. "
                "Free some space, or delete something (penstock rm; bytes go when their last read ticket ends)",
                retry_after=5,
            )

    def open(self, name: str) -> OpenPart:
        """Return a part, every byte verified; Lost by name if it is gone."""
        return self.medium.open(name)

    def discard(self, names: Iterable[str]) -> None:
        """Delete parts; one that is gone already is no error."""
        for name in names:
            self.medium.delete(name)
            with self._lock:
                self._note(name, 0)

    def set_aside(self, names: Iterable[str]) -> None:
        """Hide parts that no row names; they are deleted after ORPHAN_GRACE."""
        for name in names:
            self.medium.set_aside(name)
            with self._lock:
                self._note(name, 0)

    def drop_set_aside(self) -> int:
        """Delete the parts that were set aside for longer than ORPHAN_GRACE; return how many."""
        return self.medium.drop_set_aside(before=self._now() - ORPHAN_GRACE)

    def has(self, name: str) -> bool:
        """Whether the bytes of a part are in the store."""
        with self._lock:
            return name in self._sizes

    def orphans(self, known: Iterable[str] = (), *, before: float = math.inf) -> list[str]:
        """Return the parts written before that time that are neither known nor a payload's: a crash left them."""
        named = {row["name"] for row in self._database.rows("SELECT name FROM payloads")}.union(known)
        return [name for name, _ in self.medium.names(before=before) if name not in named]

    @property
    def used(self) -> int:
        """The bytes that all parts take."""
        with self._lock:
            return self._used

    def close(self) -> None:
        """Close files and memory; payloads on disk stay."""
        self.medium.close()

    def _note(self, name: str, size: int) -> None:
        self._used += size - self._sizes.pop(name, 0)
        if size:
            self._sizes[name] = size

    def _has_expired(self, expires: float | None) -> bool:
        return expires is not None and expires <= self._now()

    def _moved_on(self, key: str, name: str) -> bool:
        """Whether the key was replaced or deleted meanwhile."""
        rows = self._database.rows("SELECT name FROM payloads WHERE key = ?", key)
        return not rows or rows[0]["name"] != name
