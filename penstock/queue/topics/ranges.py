"""Ranges of a topic: the parts that hold the rows between two positions, and how much that is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping

from penstock.ledger.parts import Slice
from penstock.ledger.tables import to_schema
from penstock.queue.topics.topic import Behind, Shard, Topic, check_no_hole, check_range
from penstock.store.database import Reader


def first_part_since(reader: Reader, path: str, shard: int, moment: float) -> sqlite3.Row | None:
    """Return the first part of a shard with a row appended at this time or later: its row, with its digest."""
    return reader.row(
        "SELECT journal.*, digest FROM journal JOIN parts ON parts.name = part"
        " WHERE journal.path = ? AND shard = ? AND until >= ? ORDER BY first LIMIT 1",
        path, shard, moment,
    )  # fmt: skip


def slices(
    reader: Reader,
    topic: Topic,
    start: Mapping[int, int],
    end: Mapping[int, int],
    shards: Collection[int] | None = None,
) -> list[Slice]:
    """Return the rows from `start` up to `end`, shard by shard, or of some shards.

    Lost or InvalidRequest where some are not there.
    """
    return [
        piece
        for shard in topic.shards
        if shards is None or shard.number in shards
        for piece in _slices_of_shard(reader, topic, shard, start.get(shard.number), end.get(shard.number))
    ]


def _slices_of_shard(reader: Reader, topic: Topic, shard: Shard, start: int | None, end: int | None) -> Iterator[Slice]:
    end = shard.next if end is None else end
    if start is None:  # its oldest row, unless the whole range is older
        start = shard.first if end >= shard.first else 0
    check_range(topic, shard, start, end)
    if end == shard.next:
        last = "SELECT first + rows AS next FROM journal WHERE path = ? AND shard = ? ORDER BY first DESC LIMIT 1"
        for row in reader.rows(last, topic.path, shard.number):
            check_no_hole(topic, shard, row["next"], end)
    if start == end:  # nothing of the part around it
        return
    query = (
        "SELECT part, first, journal.rows, journal.bytes, since, digest, ipc FROM journal"
        " JOIN parts ON parts.name = part JOIN schemas ON schemas.id = parts.schema"
        " WHERE journal.path = ?1 AND journal.shard = ?2 AND first + journal.rows > ?3 AND first < ?4 AND"
        " first >= (SELECT coalesce(max(first), 0) FROM journal WHERE path = ?1 AND shard = ?2 AND first <= ?3)"
        " ORDER BY first"
    )
    reached = start
    for row in reader.rows(query, topic.path, shard.number, start, end):
        skip = max(0, start - row["first"])
        rows = min(row["rows"], end - row["first"]) - skip
        check_no_hole(topic, shard, reached, row["first"] + skip)
        reached += rows
        size = row["bytes"] * rows // max(1, row["rows"])
        yield Slice(
            row["part"], rows, size, to_schema(row["ipc"]), row["rows"],
            skip=skip, shard=shard.number, first=row["first"], since=row["since"],
            digest=row["digest"],
        )  # fmt: skip
    check_no_hole(topic, shard, reached, end)


def behind(reader: Reader, topic: Topic, position: Mapping[int, int]) -> Behind:
    """Return how much is between a position and the end."""
    starts = {each.number: max(position.get(each.number, each.first), each.first) for each in topic.shards}
    left = {each.number: each.next - starts[each.number] for each in topic.shards if each.next > starts[each.number]}
    if not left:
        return Behind(0, 0, None)
    row = reader.row(
        "WITH position(shard, start) AS (SELECT CAST(key AS INTEGER), value FROM json_each(?1))"
        " SELECT coalesce(sum(CAST(bytes AS REAL) * (first + rows - max(first, start)) / max(rows, 1)), 0) AS size,"
        " min(since) AS oldest FROM position CROSS JOIN journal ON journal.path = ?2"
        " AND journal.shard = position.shard AND first + rows > start",
        json.dumps({shard: starts[shard] for shard in left}), topic.path,
    )  # fmt: skip
    assert row is not None
    return Behind(sum(left.values()), int(row["size"]), row["oldest"])
