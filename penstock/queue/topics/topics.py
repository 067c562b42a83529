"""Topics as the server serves them: made, found, read by ranges, deleted."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import AlreadyExists, InvalidRequest, Lost, SchemaMismatch
from penstock.ledger import runs, writes
from penstock.ledger.ledger import Ledger
from penstock.ledger.parts import Slice
from penstock.ledger.tables import Transaction
from penstock.queue.topics import dead, journal, keys, producers, ranges
from penstock.queue.topics.topic import Behind, Layout, Shard, Topic
from penstock.rows import schemas
from penstock.store.medium import OpenPart
from penstock.store.payloads import Store
from penstock.text import counted
from penstock.wire.position import Position

MOST_SHARDS = 256


class Topics:
    """The topics of a ledger."""

    def __init__(self, ledger: Ledger, store: Store | None = None) -> None:
        self._ledger, self._store = ledger, store

    def create(
        self,
        path: str,
        schema: pa.Schema,
        *,
        shards: int | None = None,
        key: str | None = None,
        keep_seconds: float | None = None,
        keep_bytes: int | None = None,
        keep_absent: bool | None = None,
    ) -> Topic:
        """Make an empty topic. The same again changes only what it keeps; another kind of topic is rejected.

        The same is also what has grown from it: a topic gets columns by what is put.
        """
        schema = journal.growth.fit(None, schema, path)
        _check_options(path, schema, shards=shards, key=key, keep_seconds=keep_seconds, keep_bytes=keep_bytes)

        def create_or_keep(t: Transaction) -> Topic:
            current = journal.find(t, path)
            if current is None:
                journal.check_path(t, path)
                writes.check_room(t)
                journal.create(
                    t, path, schema, shards=shards or (1 if key is None else 4), key=key,
                    keep_seconds=journal.KEEP if keep_seconds is None else keep_seconds, keep_bytes=keep_bytes,
                )  # fmt: skip
            else:
                _check_same(current, schema, key, shards)
                journal.keep(t, path, keep_seconds=keep_seconds, keep_bytes=keep_bytes)
            journal.keep_absent(t, path, keep_absent)
            return journal.by_path(t, path)

        return self._ledger.change(create_or_keep)

    def alter(
        self, path: str, *, shards: int | None = None, keep_seconds: float | None = None, keep_bytes: int | None = None
    ) -> Topic:
        """Change what a topic keeps, and give one without a key more shards; what is None stays.

        Readers and consumers read a new shard from its first row.
        """
        if shards is None and keep_seconds is None and keep_bytes is None:
            raise InvalidRequest(f"{path}: nothing to change; expected shards, keep_seconds or keep_bytes")
        _check_numbers(path, shards=shards, keep_seconds=keep_seconds, keep_bytes=keep_bytes)

        def alter(t: Transaction) -> Topic:
            topic = journal.by_path(t, path)
            if shards is not None and shards != len(topic.shards):
                _check_may_have(topic, shards)
                journal.add_shards(t, path, range(len(topic.shards), shards))
            journal.keep(t, path, keep_seconds=keep_seconds, keep_bytes=keep_bytes)
            return journal.by_path(t, path)

        return self._ledger.change(alter)

    def topic(self, path: str) -> Topic:
        """Return a topic by path."""
        with self._ledger.reading() as reader:
            return journal.by_path(reader, path)

    def find(self, path: str) -> Topic | None:
        """Return a topic by path, None without one."""
        with self._ledger.reading() as reader:
            return journal.find(reader, path)

    def labelled(self, topic: Topic, offsets: Mapping[int, int]) -> Position:
        """Return offsets as a position with the life that wrote the last rows before it."""
        return Position(offsets, journal.life_of(self._ledger.database, topic.journal, offsets))

    def complete_position(self, topic: Topic, position: Position | None, default: Mapping[int, int]) -> Position:
        """Return a reader's position with an offset for every shard: the default's where it names none.

        One of a life that this data folder doesn't know, or past that life's end, is rejected: its rows were others.
        """
        if position is None:
            return Position(default)
        for shard in position:
            if not shard < len(topic.shards):
                raise InvalidRequest(
                    f"{topic.path} has no shard {shard}: expected an offset for "
                    + (
                        "shard 0 alone"
                        if len(topic.shards) == 1
                        else f"each of the shards 0 to {len(topic.shards) - 1}"
                    )
                )
        if position.life is not None:
            ends = journal.ends_of_life(self._ledger.database, topic.path, topic.journal, position.life)
            if ends is None or any(offset > ends[shard] for shard, offset in position.items()):
                raise Lost(
                    f"{topic.path}: the server's data folder was put back to an older state: rows before this position "
                    f"({dict(position)}) are gone, and others may have their offsets now. Start again from earliest or "
                    "latest; a Spark query needs a new checkpoint"
                )
        return Position({**default, **position}, position.life)

    def layout(self, path: str) -> Layout | None:
        """Return what a put needs to know of a topic, None without one."""
        return journal.layout(self._ledger.database, path)

    def below(self, folder: str) -> list[Topic]:
        """Return the topics below a folder's path."""
        with self._ledger.reading() as reader:
            return journal.below(reader, folder)

    def count(self) -> int:
        """Return how many topics there are."""
        return journal.count(self._ledger.database)

    def at(self, topic: Topic, moment: float) -> dict[int, int]:
        """Return for each shard the first offset that was appended at this time or later."""
        return {shard.number: self._at(topic, shard, moment) for shard in topic.shards}

    def _at(self, topic: Topic, shard: Shard, moment: float) -> int:
        while row := ranges.first_part_since(self._ledger.database, topic.path, shard.number, moment):
            part, first = row["part"], int(row["first"])
            if row["since"] >= moment or self._store is None:
                return first
            try:
                opened = self._store.open(part, path=topic.path, rows=row["rows"], digest=row["digest"])
                return first + _rows_before(opened, moment)
            except Lost:
                if journal.is_placed(self._ledger.database, part):
                    return first  # reading there names the loss
        return shard.next

    def range(
        self,
        topic: Topic,
        start: Mapping[int, int],
        end: Mapping[int, int],
        *,
        shards: Collection[int] | None = None,
        ticketed_until: float,
    ) -> list[Slice]:
        """Return the rows from `start` up to `end`, shard by shard, or of some; their bytes stay until that time.

        Rows that are gone, or never were, are an error that names what is left: never fewer rows.
        1. The time is noted, if there are rows: a removal from now on keeps the bytes for so long. 2. The rows, from
        one view.
        """
        if self._slices(topic, start, end, shards):  # a reader that waits for rows holds none
            self._ledger.hold(topic.path, ticketed_until)  # 1.
        return self._slices(topic, start, end, shards)  # 2.

    def _slices(
        self, topic: Topic, start: Mapping[int, int], end: Mapping[int, int], shards: Collection[int] | None
    ) -> list[Slice]:
        with self._ledger.reading() as reader:
            current = journal.by_path(reader, topic.path)
            if current.journal != topic.journal:
                raise Lost(f"{topic.path} was deleted and made again meanwhile: read again")
            return ranges.slices(reader, current, start, end, shards)

    def behind(self, topic: Topic, position: Mapping[int, int]) -> Behind:
        """Return how much is between a position and the end."""
        return ranges.behind(self._ledger.database, topic, position)

    def ahead(
        self,
        topic: Topic,
        start: Mapping[int, int],
        until: Mapping[int, int] | None = None,
        *,
        rows: int | None = None,
        size: int | None = None,
    ) -> dict[int, int]:
        """Return the end of a batch from `start` on of about so many rows or bytes at most, and at least one row.

        Each shard gives in proportion to what it has before `until`.
        """
        ends = {shard: min(end, (until or {}).get(shard, end)) for shard, end in topic.latest().items()}
        left = {each.number: max(0, ends[each.number] - start.get(each.number, each.first)) for each in topic.shards}
        first, total = topic.earliest(), sum(left.values())
        most = total if rows is None else min(total, max(1, rows))
        if size is not None and total:
            behind = self.behind(topic, start)
            per_row = behind.bytes / max(1, behind.rows)
            most = min(most, max(1, int(size / max(per_row, 1e-9))))
        end = {}
        for shard, rows_left in left.items():  # the shares add up to exactly `most`
            share = most * rows_left // total if total else 0
            most, total = most - share, total - rows_left
            end[shard] = start.get(shard, first[shard]) + share
        return end

    def remove(self, path: str) -> Topic:
        """Delete a topic with its runs and producers; its bytes stay for as long as tickets name them."""

        def remove(t: Transaction) -> Topic:
            topic = journal.by_path(t, path)
            journal.remove(t, path)
            dead.forget(t, path)
            runs.forget(t, path)
            producers.forget(t, path)
            return topic

        return self._ledger.change(remove)


def _rows_before(part: OpenPart, moment: float) -> int:
    """Return how many rows of a compacted part were appended before this time."""
    times: Any = part.reader(["_time"]).read_all()["_time"]
    first = pc.index(pc.greater_equal(times.cast(pa.int64()), round(moment * 1e6)), True).as_py()
    return int(first) if first >= 0 else part.rows


# --- what may be made ----------------------------------------------------------------------


def _check_options(
    path: str,
    schema: pa.Schema,
    *,
    shards: int | None,
    key: str | None,
    keep_seconds: float | None,
    keep_bytes: int | None,
) -> None:
    schemas.check_names(schema)
    journal.check_schema(path, schema)
    if key is not None:
        keys.check_key(path, schema, key)
    _check_numbers(path, shards=shards, keep_seconds=keep_seconds, keep_bytes=keep_bytes)


def _check_numbers(path: str, *, shards: int | None, keep_seconds: float | None, keep_bytes: int | None) -> None:
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        raise InvalidRequest(f"{path}: expected 1 to {MOST_SHARDS} shards, got {shards}")
    for name, value in (("keep_seconds", keep_seconds), ("keep_bytes", keep_bytes)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InvalidRequest(f"{path}: expected a {name} from 0, got {value}")


def _check_may_have(topic: Topic, shards: int) -> None:
    """Reject another number of shards where rows would be in a shard that isn't their key's, or in none."""
    if topic.key is not None:
        raise InvalidRequest(
            f"{topic.path} has {_key(topic.key)}, so it keeps its {counted(len(topic.shards), 'shard')}: rows of one "
            "key would be in two of them, without an order. Create another topic, and copy the rows"
        )
    if shards < len(topic.shards):
        raise InvalidRequest(
            f"{topic.path} has {len(topic.shards)} shards, each with offsets of its own: it can get more, not fewer"
        )


def _check_same(current: Topic, schema: pa.Schema, key: str | None, shards: int | None) -> None:
    """Reject a topic that differs from the existing one in key, shards or columns."""
    differences = []
    if current.key != key:
        differences.append(f"{_key(current.key)}, not {_key(key)}")
    if shards not in (None, len(current.shards)):
        differences.append(f"number of shards {len(current.shards)}, not {shards}")
    if differences:
        raise AlreadyExists(
            f"{current.path} exists with {' and '.join(differences)}: its rows are stored that way, so create it with "
            "the same, or choose another path; penstock topic alter changes what may be changed"
        )
    try:
        fitted = journal.growth.fit(current.schema, schema, current.path)
        both = journal.growth.merge(current.schema, fitted, current.path)
    except SchemaMismatch as unlike:
        raise AlreadyExists(f"{current.path} exists: {unlike}") from unlike
    changed = [field for field, known in zip(both, current.schema, strict=False) if not field.equals(known)]
    added = changed + list(both)[len(current.schema) :]
    if added:
        raise AlreadyExists(
            f"{current.path} exists without {', '.join(map(_column, added))}: a put of rows that have it adds it; "
            "create it with the columns that it has"
        )


def _key(key: str | None) -> str:
    return "no key" if key is None else f"key {key[:80]!r}"


def _column(field: pa.Field) -> str:
    return f"{field.name} {field.type}"
