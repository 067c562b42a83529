"""Consumers of topics: who reads, how far each has come for good, and which session of it may say so.

A consumer is a UUID that its reader minted with its first offset, and keeps in its own checkpoint. Its position is
what it has committed: rows below may go when the topic's retention says so, rows from there on may not.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import AlreadyExists, Fenced, LimitExceeded, Lost, NotFound, StoreFull
from penstock.ledger.ledger import Ledger
from penstock.ledger.transaction import Transaction
from penstock.queue.topics.topic import Behind, Topic
from penstock.queue.topics.topics import Topics

log = logging.getLogger("penstock")
UNSEEN = 7 * 24 * 3600.0
"""Seconds after which a consumer that nobody has seen holds no rows any more."""
MOST = 1_000
"""Live consumers of one topic."""
_SEEN = 60.0
"""A consumer that only asks is noted so often, as each note is an fsync."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One reader of a topic, and how much lies before it."""

    consumer: str
    state: str
    position: dict[int, int]
    seen: float
    lag_rows: int
    lag_bytes: int
    lag_seconds: float
    """The age of the oldest row that it hasn't committed."""


class Consumers:
    """Registers consumers in the ledger, moves their positions, and forgets the ones that are gone."""

    def __init__(
        self, ledger: Ledger, topics: Topics, passed: Callable[[str, int], None] = lambda path, rows: None
    ) -> None:
        """`passed` is told how many rows of a topic were gone before a consumer that went on behind them had them."""
        self._ledger, self._topics, self._passed = ledger, topics, passed

    def attach(
        self,
        topic: Topic,
        consumer: str,
        session: str,
        *,
        initial: Mapping[int, int],
        position: Mapping[int, int],
        known: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """A session of a consumer begins; the one before may say nothing any more. How far it has committed.

        A consumer that isn't known is registered where this session stands, if that is within the topic, and if the
        name is no other topic's. One that has committed more than is `known` to this session is refused to it.
        """
        with self._ledger.transaction() as t:
            row = _row(t, topic, consumer)
            _check_room(t, topic, row)
            if row is None:
                _check_place(topic, initial)
                _check_place(topic, position)
                _check_free(t, topic, consumer)
                _forget_detached(t, topic)
                t.sql.execute(  # REPLACE, as the topic may have been made again since, and its failOnDataLoss be false
                    "INSERT OR REPLACE INTO consumers VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'live')",
                    (consumer, topic.path, topic.journal, session, _text(initial), _text(position), t.now, t.now),
                )
                return dict(position)
            _check_age(topic, known or {}, _position(row["position"]))
            _is_back(topic, row)
            t.sql.execute(
                "UPDATE consumers SET session = ?, seen = ?, state = 'live' WHERE id = ?", (session, t.now, consumer)
            )
            return _position(row["position"])

    def commit(self, topic: Topic, consumer: str, session: str, position: Mapping[int, int]) -> dict[int, int]:
        """What lies below is done for good; a position never goes back. Where the consumer stands then."""
        with self._ledger.transaction() as t:
            row = self._of_session(t, topic, consumer, session)
            held = _position(row["position"])
            moved = {shard: max(held.get(shard, 0), position.get(shard, 0)) for shard in topic.latest()}
            _check_place(topic, moved)
            _check_room(t, topic, row)
            _is_back(topic, row)
            t.sql.execute(
                "UPDATE consumers SET position = ?, seen = ?, state = 'live' WHERE id = ?",
                (_text(moved), t.now, consumer),
            )
        first = topic.earliest()
        if gone := sum(max(0, min(at, first[shard]) - held.get(shard, at)) for shard, at in moved.items()):
            self._passed(topic.path, gone)
        return moved

    def heard(self, topic: Topic, consumer: str, session: str) -> None:
        """The session asks for something: it is alive, and still the one. A full disk keeps nobody from reading."""
        with self._ledger.database.lock:
            rows = self._ledger.database.rows("SELECT * FROM consumers WHERE id = ?", consumer)
            is_it = bool(rows) and (rows[0]["session"], rows[0]["state"]) == (session, "live")
            if is_it and self._ledger.now() - rows[0]["seen"] < _SEEN:
                return
            try:
                with self._ledger.transaction() as t:
                    row = self._of_session(t, topic, consumer, session)
                    _check_room(t, topic, row)
                    _is_back(topic, row)
                    t.sql.execute("UPDATE consumers SET seen = ?, state = 'live' WHERE id = ?", (t.now, consumer))
            except StoreFull:
                if not is_it:
                    raise

    def detach(self, topic: Topic, consumer: str, session: str) -> None:
        """This consumer won't come again, and holds nothing any more."""
        with self._ledger.transaction() as t:
            self._of_session(t, topic, consumer, session)
            t.sql.execute("UPDATE consumers SET state = 'detached', seen = ? WHERE id = ?", (t.now, consumer))

    def of(self, topic: Topic) -> list[Consumer]:
        """The consumers of a topic, the one that is furthest behind first."""
        rows = self._ledger.database.rows(
            "SELECT * FROM consumers WHERE path = ? AND journal = ?", topic.path, topic.journal
        )
        found = [self._consumer(topic, row) for row in rows]
        return sorted(found, key=lambda each: -each.lag_rows)

    def age(self, behind: Behind) -> float:
        """Of the oldest row of them, in seconds; 0 where there is none."""
        return 0.0 if behind.oldest is None else max(0.0, self._ledger.now() - behind.oldest)

    def expire(self) -> list[str]:
        """Let go of the consumers that nobody has seen for UNSEEN seconds, loudly; forget them after as long again."""
        with self._ledger.transaction() as t:
            t.sql.execute("DELETE FROM consumers WHERE journal NOT IN (SELECT journal FROM topics)")
            gone = t.sql.execute(
                "UPDATE consumers SET state = 'expired' WHERE state = 'live' AND seen < ? RETURNING id, path",
                (t.now - UNSEEN,),
            ).fetchall()
            t.sql.execute("DELETE FROM consumers WHERE state <> 'live' AND seen < ?", (t.now - 2 * UNSEEN,))
        for row in gone:
            log.warning(
                "consumer %s of %s was not seen for %g days and holds no rows any more: a query that comes back after "
                "its rows are gone will be told so", row["id"], row["path"], UNSEEN / 86400,
            )  # fmt: skip
        return [row["id"] for row in gone]

    def _of_session(self, t: Transaction, topic: Topic, consumer: str, session: str) -> sqlite3.Row:
        row = _row(t, topic, consumer)
        if row is None:
            raise NotFound(
                f"{topic.path} has no consumer {consumer[:40]}: it has expired or was never attached; start again"
            )
        if row["session"] != session:
            raise Fenced(
                f"another query reads {topic.path} as consumer {consumer[:40]}: two queries have one checkpoint, or "
                "this one is the older of them. Stop one, or give it a checkpoint of its own"
            )
        return row

    def _consumer(self, topic: Topic, row: sqlite3.Row) -> Consumer:
        position = _position(row["position"])
        behind = self._topics.behind(topic, position)
        return Consumer(row["id"], row["state"], position, row["seen"], behind.rows, behind.bytes, self.age(behind))


def floors(t: Transaction, path: str) -> dict[int, int]:
    """The lowest position of a topic's live consumers in each shard: retention ends there."""
    found: dict[int, int] = {}
    query = (
        "SELECT position FROM consumers JOIN topics ON topics.path = consumers.path"
        " WHERE consumers.path = ? AND consumers.journal = topics.journal AND state = 'live'"
    )
    for row in t.sql.execute(query, (path,)):
        for shard, offset in _position(row["position"]).items():
            found[shard] = min(found.get(shard, offset), offset)
    return found


def _check_place(topic: Topic, position: Mapping[int, int]) -> None:
    """Refuse a place behind the end: its consumer would be owed less than no rows."""
    ends = topic.latest()
    beyond = [f"shard {shard}: {at} of {ends[shard]}" for shard, at in position.items() if at > ends.get(shard, at)]
    if beyond:
        raise Lost(f"{topic.path} ends before {', '.join(beyond)}: these offsets aren't of this journal")


def _check_age(topic: Topic, known: Mapping[int, int], held: Mapping[int, int]) -> None:
    """Refuse an older copy of a checkpoint, before the session that has the newer one is told to stop."""
    older = [f"shard {shard}: {at} of {held[shard]}" for shard, at in known.items() if at < held.get(shard, at)]
    if older:
        raise Lost(
            f"{topic.path}: the checkpoint is older than what this query has committed ({', '.join(older)}): the "
            "batches that come now have numbers that others had, and a sink that goes by them drops rows"
        )


def _check_room(t: Transaction, topic: Topic, row: sqlite3.Row | None) -> None:
    """Refuse one live consumer too many: each costs something whenever somebody looks."""
    if row is not None and row["state"] == "live":
        return
    live = t.sql.execute(
        "SELECT count(*) FROM consumers WHERE path = ? AND journal = ? AND state = 'live'", (topic.path, topic.journal)
    ).fetchone()[0]
    if live >= MOST:
        raise LimitExceeded(
            f"{topic.path} has {live:,} live consumers, its most: end one that is done (consumer.detach), or wait "
            f"until the ones expire that nobody has seen for {UNSEEN / 86400:g} days"
        )


def _check_free(t: Transaction, topic: Topic, consumer: str) -> None:
    """Refuse a name that stands for a place in another topic: the rows from there on are its own to read."""
    other = t.sql.execute(
        "SELECT path FROM consumers WHERE id = ? AND path <> ? AND state <> 'detached'"
        " AND journal IN (SELECT journal FROM topics)",
        (consumer, topic.path),
    ).fetchone()
    if other is not None:
        raise AlreadyExists(
            f"consumer {consumer[:40]} reads {other['path']}: a name stands for one place in one topic. Take another "
            f"for {topic.path}, or detach it there first"
        )


def _forget_detached(t: Transaction, topic: Topic) -> None:
    """Only the last ones are worth a line."""
    t.sql.execute(
        "DELETE FROM consumers WHERE id IN (SELECT id FROM consumers WHERE path = ? AND journal = ?"
        " AND state = 'detached' ORDER BY seen DESC LIMIT -1 OFFSET ?)",
        (topic.path, topic.journal, MOST),
    )


def _is_back(topic: Topic, row: sqlite3.Row) -> None:
    if row["state"] == "expired":
        log.warning("consumer %s of %s is back after it had expired", row["id"], topic.path)


def _row(t: Transaction, topic: Topic, consumer: str) -> sqlite3.Row | None:
    found: sqlite3.Row | None = t.sql.execute(
        "SELECT * FROM consumers WHERE id = ? AND path = ? AND journal = ?", (consumer, topic.path, topic.journal)
    ).fetchone()
    return found


def _text(position: Mapping[int, int]) -> str:
    return json.dumps({str(shard): offset for shard, offset in position.items()})


def _position(text: str) -> dict[int, int]:
    return {int(shard): offset for shard, offset in json.loads(text).items()}
