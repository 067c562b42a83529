"""The subscriptions of a ledger: what each says, up to where it is released, and which acks were sent.

A subscription's rows are in a journal of the same path. All that the ledger knows besides is here; who deduplicates,
releases and forgets is `subscription.py`, which needs numpy. This module doesn't.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from penstock.errors import AlreadyExists, InvalidRequest, NotFound
from penstock.ledger import writes
from penstock.ledger.tables import Transaction
from penstock.queue.topics import journal
from penstock.queue.topics.consumers import floors
from penstock.store.database import Reader, Tables
from penstock.wire.paths import Path
from penstock.wire.position import Position

TABLES: Tables = {
    5: """
CREATE TABLE subscriptions(
    path TEXT PRIMARY KEY REFERENCES topics ON DELETE CASCADE, ack TEXT NOT NULL CHECK (ack IN ('commit', 'journal')),
    pullers INTEGER, max_unreleased_rows INTEGER NOT NULL, max_unreleased_bytes INTEGER NOT NULL,
    retention REAL NOT NULL, released TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE acked(
    path TEXT NOT NULL REFERENCES subscriptions ON DELETE CASCADE, shard INTEGER NOT NULL, first INTEGER NOT NULL,
    end INTEGER NOT NULL, PRIMARY KEY (path, shard, first)
) WITHOUT ROWID;
CREATE TABLE stragglers(
    path TEXT NOT NULL REFERENCES subscriptions ON DELETE CASCADE, shard INTEGER NOT NULL, offset INTEGER NOT NULL,
    message_id TEXT NOT NULL, publish_time INTEGER NOT NULL, PRIMARY KEY (path, shard, offset)
) WITHOUT ROWID;
"""
}
"""`subscriptions.retention`: seconds for which Pub/Sub keeps a message. `released`: under `ack=commit`; under `journal`
every durable row is. `acked`: the offsets whose acks a puller has sent, as far as their ids are still known.
`stragglers`: messages without such an ack a window after their release, whose rows may be gone; times in
microseconds."""
MESSAGES = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("publish_time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("ordering_key", pa.string(), nullable=False),
        pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("delivery_attempt", pa.int32()),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
"""The columns of every subscription's journal."""
ACKS = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("state", pa.string(), nullable=False),
        pa.field("attempts", pa.int32()),
        pa.field("duplicate", pa.bool_()),
        pa.field("puller", pa.string(), nullable=False),
        pa.field("received", pa.timestamp("us", "UTC")),
        pa.field("changed", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of an ack ledger, a row for each lease. Without shard and offset until the server has answered; attempts:
how often its ack was sent; duplicate: the message had come before; changed: since when it has its state."""
SHARDS = 4
MAX_UNRELEASED_ROWS = 1_000_000
MAX_UNRELEASED_BYTES = 4 << 30
Ack = Literal["commit", "journal"]


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said of a subscription; None leaves it as it is, or at its default."""

    ack: Ack | None = None
    pullers: int | None = None
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    max_unreleased_rows: int | None = None
    max_unreleased_bytes: int | None = None

    def check(self, path: str) -> None:
        """Reject bounds under which nothing would move."""
        for name, value in (("row", self.max_unreleased_rows), ("byte", self.max_unreleased_bytes)):
            if value == 0:
                raise InvalidRequest(f"{path}: max_unreleased_{name}s=0 lets no message in: expected 1 or more")
        if self.pullers is not None and self.pullers > MOST_PULLERS:
            raise InvalidRequest(f"{path}: expected 0 to {MOST_PULLERS} pullers, got {self.pullers}")


MOST_PULLERS = 64


@dataclass(frozen=True, slots=True)
class Record:
    """A subscription's row."""

    path: str
    ack: Ack
    pullers: int | None
    """None: as many as the server says."""
    max_unreleased_rows: int
    max_unreleased_bytes: int
    retention: float
    released: Position
    """Under `ack=commit`."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A message that is known though its row may be gone."""

    shard: int
    offset: int
    message_id: str
    publish_time: int
    """In microseconds."""


def google_name(path: Path) -> str:
    """Return Pub/Sub's name of the subscription at a path; InvalidRequest if it isn't subscription/project/name."""
    project, slash, name = path.key.partition("/")
    if path.kind != "subscription" or not (project and slash and name) or "/" in name:
        raise InvalidRequest(f"{path}: expected subscription/PROJECT/NAME, such as subscription/my-project/orders")
    return f"projects/{project}/subscriptions/{name}"


def find(reader: Reader, path: str) -> Record | None:
    """Return the subscription at a path, None without one."""
    row = reader.row("SELECT * FROM subscriptions WHERE path = ?", path)
    return None if row is None else _record(row)


def by_path(reader: Reader, path: str) -> Record:
    """Return the subscription at a path."""
    record = find(reader, path)
    if record is None:
        raise NotFound(f'{path} is not attached: penstock call subscription.attach \'{{"path": "{path}"}}\' does it')
    return record


def all_paths(reader: Reader) -> list[str]:
    """Return the paths of all subscriptions."""
    return [row["path"] for row in reader.rows("SELECT path FROM subscriptions ORDER BY path")]


def attach(
    t: Transaction, path: str, options: Options, *, ack: Ack, is_ordered: bool, retention: float
) -> tuple[Record, bool]:
    """Make a subscription with its journal, or change what is said; return it, and whether it is new.

    `ack` is its policy unless the options, or the existing row, name one. A policy never takes back what was released.
    """
    key = "ordering_key" if is_ordered else None
    row = find(t, path)
    topic = journal.find(t, path)
    if row is None or topic is None:
        journal.check_path(t, path)
        writes.check_room(t)
        journal.create(t, path, MESSAGES, shards=SHARDS, key=key)
        nothing = Position(dict.fromkeys(range(SHARDS), 0))
        t.insert(
            "subscriptions", path=path, ack=ack, pullers=None, max_unreleased_rows=MAX_UNRELEASED_ROWS,
            max_unreleased_bytes=MAX_UNRELEASED_BYTES, retention=retention, released=_text(nothing),
        )  # fmt: skip
        journal.hold(t, path, nothing)
    elif topic.key != key:
        was, now = ("with", "without") if topic.key else ("without", "with")
        raise AlreadyExists(
            f"{path} was attached {was} message ordering, Pub/Sub's subscription is one {now} it now, so it was made "
            f"anew there: penstock rm {path}, then attach again"
        )
    elif row.ack == "journal" and options.ack == "commit":
        move_released(t, path, topic.latest())
    journal.keep(t, path, keep_seconds=options.keep_seconds, keep_bytes=options.keep_bytes)
    t.execute(
        "UPDATE subscriptions SET ack = coalesce(?2, ack), pullers = coalesce(?3, pullers), retention = ?4,"
        " max_unreleased_rows = coalesce(?5, max_unreleased_rows),"
        " max_unreleased_bytes = coalesce(?6, max_unreleased_bytes) WHERE path = ?1",
        path, options.ack, options.pullers, retention, options.max_unreleased_rows, options.max_unreleased_bytes,
    )  # fmt: skip
    return by_path(t, path), row is None


def waits_for_consumers(reader: Reader, path: str) -> bool:
    """Whether the messages of a path are acknowledged only once its consumers have committed them."""
    record = find(reader, path)
    return record is not None and record.ack == "commit"


def release(t: Transaction, path: str) -> None:
    """Move what is released of a subscription up to its slowest live consumer; without one nothing moves.

    Called in the transaction that has changed the path's consumers; a topic's have nothing to release.
    """
    if find(t, path) is not None:
        move_released(t, path, floors(t, path))


def move_released(t: Transaction, path: str, position: Mapping[int, int]) -> None:
    """Move what is released up to a position; it never goes back."""
    released = by_path(t, path).released
    moved = {shard: max(offset, position.get(shard, 0)) for shard, offset in released.items()}
    if moved != released:
        t.execute("UPDATE subscriptions SET released = ? WHERE path = ?", _text(Position(moved)), path)


def acked(reader: Reader, path: str) -> list[tuple[int, int, int]]:
    """Return shard, first and end of the ranges whose acks were sent, in order."""
    rows = reader.rows("SELECT shard, first, end FROM acked WHERE path = ? ORDER BY shard, first", path)
    return [(row["shard"], row["first"], row["end"]) for row in rows]


def note_acked(t: Transaction, path: str, ranges: Iterable[tuple[int, int, int]]) -> None:
    """Note that acks of these ranges were sent; those that touch become one."""
    for shard, first, end in ranges:
        low, high = first, end
        for row in t.rows(
            "DELETE FROM acked WHERE path = ? AND shard = ? AND first <= ? AND end >= ? RETURNING first, end",
            path, shard, end, first,
        ):  # fmt: skip
            low, high = min(low, row["first"]), max(high, row["end"])
        t.insert("acked", path=path, shard=shard, first=low, end=high)


def forget_acked(t: Transaction, path: str, position: Mapping[int, int]) -> None:
    """Forget the acks below a position."""
    for shard, offset in position.items():
        t.execute("DELETE FROM acked WHERE path = ? AND shard = ? AND end <= ?", path, shard, offset)


def stragglers(reader: Reader, path: str) -> list[Straggler]:
    """Return the stragglers of a subscription."""
    columns = "shard, offset, message_id, publish_time"
    return [Straggler(*row) for row in reader.rows(f"SELECT {columns} FROM stragglers WHERE path = ?", path)]  # noqa: S608  # our own names


def add_stragglers(t: Transaction, path: str, messages: Iterable[Straggler]) -> None:
    """Keep messages without their rows."""
    for each in messages:
        t.execute(
            "INSERT OR REPLACE INTO stragglers VALUES (?, ?, ?, ?, ?)",
            path, each.shard, each.offset, each.message_id, each.publish_time,
        )  # fmt: skip


def drop_stragglers(t: Transaction, path: str, places: Iterable[tuple[int, int]]) -> None:
    """Forget the stragglers of these shards and offsets."""
    for shard, offset in places:
        t.execute("DELETE FROM stragglers WHERE path = ? AND shard = ? AND offset = ?", path, shard, offset)


def _record(row: sqlite3.Row) -> Record:
    released = Position({int(shard): offset for shard, offset in json.loads(row["released"]).items()})
    return Record(
        row["path"], row["ack"], row["pullers"], row["max_unreleased_rows"], row["max_unreleased_bytes"],
        row["retention"], released,
    )  # fmt: skip


def _text(position: Position) -> str:
    return json.dumps(position.to_json())
