"""Store: parts by name for a server's ledger, payloads by key for workers alone; with quota, over a medium."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from penstock.errors import Lost, StoreFull
from penstock.rows.payload import PayloadStore, SplitPayload, payloads_by_key
from penstock.rows.slices import PART_BYTES, size_of_stream
from penstock.store import payload_table
from penstock.store.database import Database, Unsettled, View
from penstock.store.medium import Medium, NewPart, OpenPart, Part, Room, file_of, lost
from penstock.store.payload_table import INLINE, InlinePart, PayloadRow
from penstock.store.records import Label
from penstock.text import counted
from penstock.wire.paths import check_key

_T = TypeVar("_T")
_TOGETHER = 64
"""Payloads in a row whose files are in one folder."""
_DELETE = (
    "delete something (penstock rm; a file stays while a read ticket names bytes in it, or a message that isn't done, "
    "a dead one too)"
)
ORPHAN_GRACE = 24 * 3600.0
"""Seconds for which parts stay that no row names: another process may be writing one, or the ledger may be the wrong
one."""


@dataclass(frozen=True, slots=True)
class NewPayload:
    """A payload whose bytes are to be kept."""

    key: str
    schema: pa.Schema
    batches: list[pa.RecordBatch]
    path: str
    bytes: int
    expires: float | None = None

    @classmethod
    def of(
        cls, key: str, schema: pa.Schema, batches: list[pa.RecordBatch], *, path: str, expires: float | None = None
    ) -> NewPayload:
        """Return a payload with the size of its IPC stream."""
        return cls(key, schema, batches, path, size_of_stream(schema, batches), expires)

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(batch.num_rows for batch in self.batches)

    def inline(self) -> PayloadRow | None:
        """Return the row of a small payload, which has its bytes; None if it is to be a part."""
        if self.bytes <= INLINE:
            stream = payload_table.encode(self.schema, self.batches)
            if len(stream) <= INLINE:
                return PayloadRow(self.key, None, stream, self.rows, len(stream), self.expires, schema=self.schema)
        return None

    def row(self, part: Part) -> PayloadRow:
        """Return the row of a payload that is a part."""
        return PayloadRow(
            self.key, part.name, None, part.rows, part.bytes, self.expires, schema=self.schema, digest=part.digest
        )


class Store(PayloadStore):
    """Parts by name for a server's ledger, and payloads by key for workers that share a folder without a server.

    A key's row in the database is what makes a payload exist; a medium holds its bytes, unless they are few.
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
        self.make_room: Callable[[int], bool] = lambda size: False
        """Makes room for so many bytes, if it can; the server sets it."""
        self._numbers = itertools.count()
        """Of payloads that are parts."""
        self._lock = threading.Lock()  # _sizes, _used, _admitted
        self._sizes = dict(medium.names())
        self._used = sum(self._sizes.values())
        self._admitted = 0
        """Bytes that open puts may need."""

    def __repr__(self) -> str:
        return f"SplitPayloadStore({self.url!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Store):
            return False
        return (other.url, other.medium.incarnation) == (self.url, self.medium.incarnation)

    def __hash__(self) -> int:
        return hash(self.url)

    # --- payloads by key: of a store that stands alone ----------------------------------------

    def store_all(self, payloads: Mapping[str, Any] | Iterable[tuple[str, Any]], *, ttl: float | None = None) -> int:
        """Keep many payloads, all or none.

        1. The bytes of large ones are durable under names of their own, unseen. 2. One transaction points the keys at
        them; small ones lie in it. 3. What the keys pointed at before is deleted.
        A crash after 1 or 2 leaves bytes that no key points at: `orphans` finds them at a later start.
        """
        by_key = payloads_by_key(payloads)
        carried = {key: payload.schema() for key, payload in by_key.items()}  # rejects metadata before a byte is kept
        now = self._now()
        expires = None if ttl is None else now + ttl
        rows: list[PayloadRow] = []
        try:
            for key, payload in by_key.items():
                batches = payload.data.to_batches()
                rows.append(self.keep(NewPayload.of(key, carried[key], batches, path=key, expires=expires)))  # 1.
            self.check_room(sum(row.bytes for row in rows if row.part is None))
            before = self._change(lambda view: self._point_keys(view, rows, now))  # 2.
        except Unsettled:  # the keys may point at these bytes after a crash; if they don't, they are orphans then
            raise
        except BaseException:
            self.discard(row.part for row in rows if row.part is not None)
            raise
        self.discard(before)  # 3.
        return len(rows)

    def _point_keys(self, view: View, rows: list[PayloadRow], now: float) -> list[str]:
        before = []
        for row in rows:
            payload_table.check_free(view, row.key, now)
            before.append(payload_table.put(view, row, now))
        return [part for part in before if part is not None]

    def keep(self, new: NewPayload) -> PayloadRow:
        """Make a payload's bytes ready for its row: a large one is a part that is durable when this returns."""
        return new.inline() or self._keep_part(new)

    def _keep_part(self, new: NewPayload) -> PayloadRow:
        return new.row(self.write(self._part_name(), new.schema, new.batches, path=new.path))

    def keep_together(self, new: Sequence[NewPayload]) -> list[PayloadRow]:
        """Make the bytes of several payloads ready, none of which lies in its row, in one file with its fsyncs.

        The file goes with the last of them: the ledger frees all its parts at once.
        """
        if len(new) == 1:
            return [self._keep_part(new[0])]
        name, size = self._part_name(), sum(each.bytes for each in new)
        self._reserve(name, size)
        sizes = Counter[str]()
        try:
            label = Label(self._database.id, "", name, self._database.commits)
            parts = self.medium.write_together(
                name, [NewPart(each.schema, each.batches, replace(label, path=each.path)) for each in new]
            )
            for part in parts:
                sizes[file_of(part.name)] += part.bytes
        finally:
            with self._lock:
                self._note(name, 0)
                for file, size in sizes.items():
                    self._note(file, size)
        return [each.row(part) for each, part in zip(new, parts, strict=True)]

    def _part_name(self) -> str:
        """Name a payload's part: names of one time are in one folder, as they share its fsyncs."""
        return f"{next(self._numbers) // _TOGETHER % 256:02x}{uuid.uuid4().hex[2:]}"

    def get_all(self, keys: Iterable[str]) -> dict[str, SplitPayload]:
        """Return the payloads of those keys that have one; Lost if the bytes of one are gone or corrupt."""
        payloads = ((key, self._get(check_key(key))) for key in keys)
        return {key: payload for key, payload in payloads if payload is not None}

    def _get(self, key: str) -> SplitPayload | None:
        row = payload_table.find(self._database, key, self._now())
        if row is None:
            return None
        try:
            part = InlinePart(row.inline) if row.inline is not None else self._open(row)
        except Lost as gone:
            if self._moved_on(key, row.part):
                return self._get(key)
            raise Lost(f"the payload {key} is lost: {gone}") from gone
        payload = SplitPayload.from_arrow(part.reader().read_all(), row.split_id or key)
        return payload if row.metadata is None else replace(payload, metadata=json.loads(row.metadata))

    def _open(self, row: PayloadRow) -> OpenPart:
        if row.digest is None:  # stored before format 6, which counted no rows either
            return self.open(row.part or "")
        return self.open(row.part or "", path=row.key, rows=row.rows, digest=row.digest)

    def delete(self, key: str) -> bool:
        """Delete a payload; False if there was none."""
        check_key(key)
        row = self._change(lambda view: payload_table.remove(view, key))
        return row is not None and self._forget([row]) > 0

    def clear(self, prefix: str = "") -> int:
        """Delete the payloads whose keys begin with a prefix, and return how many there were."""
        return self._forget(self._change(lambda view: payload_table.remove_below(view, prefix, -1)))

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with a prefix, in order."""
        return payload_table.keys(self._database, prefix, self._now())

    def sweep(self) -> int:
        """Delete the payloads past their time, and return how many."""
        now = self._now()
        if self._database.row("SELECT 1 FROM payloads WHERE expires <= ?", now) is None:
            return 0
        rows = self._change(lambda view: payload_table.remove_expired(view, now))
        self._forget(rows)
        return len(rows)

    def _change(self, function: Callable[[View], _T]) -> _T:
        return self._database.run(lambda sql: function(View(sql)))

    def _forget(self, rows: list[sqlite3.Row]) -> int:
        """Delete the bytes of removed rows, and return how many rows were not past their time."""
        self.discard(row["part"] for row in rows if row["part"] is not None)
        now = self._now()
        return sum(row["expires"] is None or row["expires"] > now for row in rows)

    # --- parts by name ----------------------------------------------------------------------

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit a put before its first byte, if there is room for a part beside one of each put that is open."""
        size = self._admission(self.medium.room())

        def admit(room: Room) -> None:
            self._check_room(self._admitted + size, room)
            self._admitted += size

        self._take(size, admit)
        try:
            yield
        finally:
            with self._lock:
                self._admitted -= size

    def why_full(self) -> str | None:
        """Return why a put would not be admitted now; None if it would."""
        room = self.medium.room()
        with self._lock:
            try:
                self._check_room(self._admitted + self._admission(room), room)
            except StoreFull as full:
                return str(full)
        return None

    def _admission(self, room: Room) -> int:
        """Return the bytes for which there must be room when a put begins."""
        return min(PART_BYTES, (room.total if self.quota is None else min(room.total, self.quota)) // 64)

    def write(self, name: str, schema: pa.Schema, batches: list[pa.RecordBatch], *, path: str) -> Part:
        """Write a part for a path, durable and unseen. StoreFull when it does not fit."""
        self._reserve(name, size_of_stream(schema, batches))
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

    def _reserve(self, name: str, size: int) -> None:
        def reserve(room: Room) -> None:
            self._check_room(size, room)
            self._note(name, size)

        self._take(size, reserve)

    def _take(self, size: int, take: Callable[[Room], None]) -> None:
        """Let `take` have room, or raise StoreFull once nothing is left that may go for it."""
        while True:
            room = self.medium.room()
            try:
                with self._lock:
                    take(room)
                return
            except StoreFull:
                if not self.make_room(size):
                    raise

    def check_room(self, size: int) -> None:
        """Reject bytes that the ledger is to take where parts of that size would not fit."""
        self._take(size, lambda room: self._check_room(size, room))

    def _check_room(self, size: int, room: Room) -> None:
        used = self._used + payload_table.inline_bytes(self._database)
        if self.quota is not None and used + size > self.quota:
            raise StoreFull(
                f"the store has {used:,} of {self.quota:,} bytes in use, no room for {size:,} more: "
                f"{_DELETE}, or raise --quota",
                retry_after=5,
            )
        if size > room.free:
            raise StoreFull(
                f"no room on the disk for {size:,} bytes: it has {room.free:,}, without those spared for the ledger. "
                f"Free some space, or {_DELETE}",
                retry_after=5,
            )

    def open(
        self, name: str, *, path: str | None = None, rows: int | None = None, digest: str | None = None
    ) -> OpenPart:
        """Return a part, every byte verified; Lost by name if it is gone, or another than its row or ticket says."""
        part = self.medium.open(name)
        if rows is not None and part.rows != rows:
            raise lost(name, f"its file has {counted(part.rows, 'row')} where {rows:,} were written")
        if digest is not None and part.digest != digest:
            raise lost(name, f"its file has the records {part.digest} where {digest} were written")
        if path is not None and part.label is not None and part.label.path != path:
            raise lost(name, f"its file was written for {part.label.path}, not for {path}")
        return part

    def discard(self, names: Iterable[str]) -> None:
        """Delete parts, with all that are in their files; one that is gone already is no error."""
        for name in names:
            self.medium.delete(name)
            with self._lock:
                self._note(file_of(name), 0)

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
            return file_of(name) in self._sizes

    def orphans(self, known: Iterable[str] = (), *, before: float = math.inf) -> list[str]:
        """Return the files written before that time with neither a known part nor a payload's: a crash left them."""
        named = set(map(file_of, itertools.chain(payload_table.named_parts(self._database), known)))
        return [name for name, _ in self.medium.names(before=before) if name not in named]

    @property
    def used(self) -> int:
        """The bytes that all parts take, and all payloads in rows."""
        with self._lock:
            return self._used + payload_table.inline_bytes(self._database)

    def close(self) -> None:
        """Close files and memory; payloads on disk stay."""
        self.medium.close()

    def _note(self, name: str, size: int) -> None:
        self._used += size - self._sizes.pop(name, 0)
        if size:
            self._sizes[name] = size

    def _moved_on(self, key: str, part: str | None) -> bool:
        """Whether the key was replaced or deleted meanwhile."""
        row = payload_table.find(self._database, key, self._now())
        return row is None or row.part != part
