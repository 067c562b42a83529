"""Topics as the server asks for them: what there is, which parts hold a range, what is over."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Lost, NotFound
from penstock.ledger import datasets
from penstock.ledger.catalog import below, to_schema
from penstock.ledger.ledger import Ledger
from penstock.ledger.writes import Laid
from penstock.queue.topics import creating, journal
from penstock.queue.topics.topic import Behind, Layout, Shard, Topic, check_range, must_follow
from penstock.store.medium import OpenPart
from penstock.store.payloads import SplitPayloadStore


class Topics:
    """Reads and changes topics in the ledger."""

    def __init__(self, ledger: Ledger, store: SplitPayloadStore | None = None) -> None:
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
        most_datasets: int = 1_000_000,
    ) -> Topic:
        """Make an empty topic. Again the same changes only what it keeps; one of another kind that is there is refused.

        The same is also what has grown from it: a topic gets columns by what is put.
        """
        creating.check(path, schema, shards=shards, key=key, keep_seconds=keep_seconds, keep_bytes=keep_bytes)
        with self._ledger.transaction() as t:
            creating.create(
                t, path, schema, shards=shards, key=key, keep_seconds=keep_seconds, keep_bytes=keep_bytes,
                most_datasets=most_datasets,
            )  # fmt: skip
            return self.topic(path)

    def topic(self, path: str) -> Topic:
        """A topic by path."""
        found = self.find(path)
        if found is None:
            raise NotFound(f"no topic at {path}: penstock ls topic/ shows what there is; the first put makes one")
        return found

    def find(self, path: str) -> Topic | None:
        """The same, None where there is none."""
        rows = self._ledger.database.rows(f"{_TOPICS} WHERE topics.path = ?", path)
        return self._topic(rows[0]) if rows else None

    def layout(self, path: str) -> Layout | None:
        """What a put needs to know of a topic, without a look at all of its parts."""
        rows = self._ledger.database.rows(
            "SELECT journal, key, (SELECT count(*) FROM shards WHERE shards.path = topics.path) AS shards"
            " FROM topics WHERE path = ?", path,
        )  # fmt: skip
        return Layout(rows[0]["journal"], rows[0]["key"], rows[0]["shards"]) if rows else None

    def below(self, folder: str) -> list[Topic]:
        """The topics below a folder's path, or all."""
        first, end = below(folder)
        query = f"{_TOPICS} WHERE topics.path >= ? AND topics.path < ? ORDER BY topics.path"
        return [self._topic(row) for row in self._ledger.database.rows(query, first, end)]

    def at(self, topic: Topic, moment: float) -> dict[int, int]:
        """For each shard the first offset that was appended at this time or later."""
        return {shard.number: self._at(topic, shard, moment) for shard in topic.shards}

    def _at(self, topic: Topic, shard: Shard, moment: float) -> int:
        query = (
            "SELECT part, first, since FROM journal WHERE path = ? AND shard = ? AND until >= ? ORDER BY first LIMIT 1"
        )
        while found := self._ledger.database.rows(query, topic.path, shard.number, moment):
            part, first = found[0]["part"], found[0]["first"]
            if found[0]["since"] >= moment or self._store is None:
                return int(first)
            try:
                return int(first) + _rows_before(self._store.open(part), moment)
            except Lost:
                if self._ledger.database.rows("SELECT 1 FROM journal WHERE part = ?", part):
                    return int(first)  # who reads there is told what is lost
        return shard.next

    def range(
        self, topic: Topic, start: Mapping[int, int], end: Mapping[int, int], *, ticketed_until: float
    ) -> list[Laid]:
        """The parts with the rows from `start` up to `end`, shard by shard; their bytes stay until that time.

        Rows that are gone, or that never were, are an error that says what is left: never fewer rows.
        """
        with self._ledger.database.lock:
            now = self.topic(topic.path)
            if now.journal != topic.journal:
                raise Lost(f"{topic.path} was deleted and made again meanwhile: read again")
            found = [
                laid
                for shard in now.shards
                for laid in self._in_shard(now, shard, start.get(shard.number), end.get(shard.number))
            ]
            if found:  # who waits for rows that aren't there holds none
                self._ledger.hold(topic.path, ticketed_until)
            return found

    def _in_shard(self, topic: Topic, shard: Shard, start: int | None, end: int | None) -> Iterator[Laid]:
        end = shard.next if end is None else end
        if start is None:  # its oldest row, unless what is asked for is all older than that
            start = shard.first if end >= shard.first else 0
        check_range(topic, shard, start, end)
        if end == shard.next:
            last = "SELECT first + rows AS next FROM journal WHERE path = ? AND shard = ? ORDER BY first DESC LIMIT 1"
            for row in self._ledger.database.rows(last, topic.path, shard.number):
                must_follow(topic, shard, row["next"], end)
        if start == end:  # nothing of the part around it
            return
        query = (
            "SELECT part, first, journal.rows, journal.bytes, since, ipc FROM journal JOIN parts ON parts.name = part"
            " JOIN schemas ON schemas.id = parts.schema"
            " WHERE journal.path = ?1 AND journal.shard = ?2 AND first + journal.rows > ?3 AND first < ?4 AND"
            " first >= (SELECT coalesce(max(first), 0) FROM journal WHERE path = ?1 AND shard = ?2 AND first <= ?3)"
            " ORDER BY first"
        )
        reached = start
        for row in self._ledger.database.rows(query, topic.path, shard.number, start, end):
            skip = max(0, start - row["first"])
            rows = min(row["rows"], end - row["first"]) - skip
            must_follow(topic, shard, reached, row["first"] + skip)
            reached += rows
            size = row["bytes"] * rows // max(1, row["rows"])
            yield Laid(
                row["part"], rows, size, to_schema(row["ipc"]), row["rows"],
                skip=skip, shard=shard.number, first=row["first"], since=row["since"],
            )  # fmt: skip
        must_follow(topic, shard, reached, end)

    def behind(self, topic: Topic, position: Mapping[int, int]) -> Behind:
        """What lies from a position on to the end."""
        starts = {each.number: max(position.get(each.number, each.first), each.first) for each in topic.shards}
        left = {
            each.number: each.next - starts[each.number] for each in topic.shards if each.next > starts[each.number]
        }
        if not left:
            return Behind(0, 0, None)
        query = (
            "WITH places(shard, start) AS (SELECT CAST(key AS INTEGER), value FROM json_each(?1))"
            " SELECT coalesce(sum(CAST(bytes AS REAL) * (first + rows - max(first, start)) / max(rows, 1)), 0) AS size,"
            " min(since) AS oldest FROM places CROSS JOIN journal ON journal.path = ?2 AND journal.shard = places.shard"
            " AND first + rows > start"
        )
        places = json.dumps({shard: starts[shard] for shard in left})
        found = self._ledger.database.rows(query, places, topic.path)[0]
        return Behind(sum(left.values()), int(found["size"]), found["oldest"])

    def ahead(
        self,
        topic: Topic,
        start: Mapping[int, int],
        until: Mapping[int, int] | None = None,
        *,
        rows: int | None = None,
        size: int | None = None,
    ) -> dict[int, int]:
        """Where a batch from `start` on ends that has about so many rows or bytes at most, and at least one row.

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
        for shard, has in left.items():  # what is left to give, by what is left to have: adds up to exactly `most`
            share = most * has // total if total else 0
            most, total = most - share, total - has
            end[shard] = start.get(shard, first[shard]) + share
        return end

    def remove(self, path: str) -> Topic:
        """Delete a topic; its bytes stay for as long as tickets name them."""
        with self._ledger.transaction() as t:
            found = self.topic(path)
            journal.remove(t, path)
            datasets.forget_runs(t, path)
        return found

    def _topic(self, row: sqlite3.Row) -> Topic:
        shards = self._ledger.database.rows("SELECT * FROM shards WHERE path = ? ORDER BY shard", row["path"])
        return Topic(
            row["path"], row["journal"], row["epoch"], to_schema(row["ipc"]), row["key"],
            tuple(Shard(each["shard"], each["first"], each["next"], each["lost"]) for each in shards),
            sum(each["next"] - each["first"] for each in shards), sum(each["bytes"] for each in shards),
            sum(each["parts"] for each in shards), row["changed"], row["keep_seconds"], row["keep_bytes"],
        )  # fmt: skip


_TOPICS = "SELECT topics.*, ipc FROM topics JOIN schemas ON schemas.id = topics.schema"


def _rows_before(part: OpenPart, moment: float) -> int:
    """How many rows of a compacted part were appended before the first one that was at this time or later."""
    times: Any = part.reader(["_time"]).read_all()["_time"]
    found = pc.index(pc.greater_equal(times.cast(pa.int64()), round(moment * 1e6)), True).as_py()
    return int(found) if found >= 0 else part.rows
