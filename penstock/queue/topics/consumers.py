"""Consumers of topics: who reads, the position that each has committed, and which session of it may commit.

A consumer is a UUID that its reader mints with its first offset, and keeps in its own checkpoint. Rows below its
position may be removed when the topic's retention says so, rows from there on may not.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping

from penstock.errors import AlreadyExists, Fenced, LimitExceeded, Lost, NotFound, StoreFull
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.topics import dead, journal
from penstock.queue.topics.topic import Behind, Topic
from penstock.queue.topics.topics import Topics
from penstock.store.database import Reader
from penstock.wire.actions import ConsumerState
from penstock.wire.position import Position
from penstock.wire.read import PayloadSchema

log = logging.getLogger("penstock")
UNSEEN = 7 * 24 * 3600.0
"""Seconds after which a consumer that nobody has seen holds no rows any more."""
MOST = 1_000
"""Live consumers of one topic."""
_SEEN = 60.0
"""Seconds between notes that a consumer which only asks is alive, as each note is an fsync."""
_RETURN = 3600.0
"""Seconds that consumers have after a start to be seen again, as nobody could be while the server was away."""
_JUMP = 60.0
"""Seconds by which the wall clock may run ahead of the steady one in between before it counts as a jump."""


class Consumers:
    """The consumers of a ledger's topics."""

    def __init__(
        self,
        ledger: Ledger,
        topics: Topics,
        passed: Callable[[str, int], None] = lambda path, rows: None,
        *,
        changed: Callable[[Transaction, str], None] = lambda t, path: None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`passed` is told how many rows of a topic were removed before a consumer had read them; `changed` is called
        in each transaction that has changed the consumers of a path; `steady` is a clock that never jumps.
        """
        self._ledger, self._topics, self._passed, self._steady = ledger, topics, passed, steady
        self._changed = changed
        self._expired_at: tuple[float, float] | None = None
        """When consumers were expired last: by the wall clock, and by the one that never jumps."""

    def attach(
        self,
        topic: Topic,
        consumer: str,
        session: str,
        *,
        initial: Mapping[int, int],
        position: Mapping[int, int],
        known: Mapping[int, int] | None = None,
        decoding: PayloadSchema | None = None,
    ) -> Position:
        """Make a session the one that speaks for a consumer, and return the position that the consumer has committed.

        An unknown consumer is registered at the session's position, or at the oldest row if that is behind it; the
        position has to be within the topic, and no other topic may have a consumer of that name. One that has committed
        more than is `known` to the session is rejected.
        """

        def attach(t: Transaction) -> Position:
            row = _row(t, topic, consumer)
            _check_room(t, topic, row)
            if row is None:
                _check_within(topic, initial)
                _check_within(topic, position)
                _check_name_is_free(t, topic, consumer)
                _forget_detached(t, topic)
                t.execute("DELETE FROM consumers WHERE id = ?", consumer)  # the topic may have been made again since
                oldest = journal.by_path(t, topic.path).earliest()  # retention may have removed rows since
                begin = {shard: max(offset, oldest.get(shard, offset)) for shard, offset in position.items()}
                t.insert(
                    "consumers", id=consumer, path=topic.path, journal=topic.journal, session=session,
                    initial=_text(initial), position=_text(begin), registered=t.now, seen=t.now, state="live",
                )  # fmt: skip
                dead.register(t, topic, consumer, decoding, Position(begin))
                self._changed(t, topic.path)
                return Position(begin)
            committed = _position(row["position"])
            _check_checkpoint_is_current(topic, known or {}, committed)
            _log_return(topic, row)
            t.execute(
                "UPDATE consumers SET session = ?, seen = ?, state = 'live' WHERE id = ?", session, t.now, consumer
            )
            dead.register(t, topic, consumer, decoding, committed)
            self._changed(t, topic.path)
            return committed

        return self._ledger.change(attach)

    def commit(self, topic: Topic, consumer: str, session: str, position: Mapping[int, int]) -> Position:
        """Note that rows below a position are done for good; return the consumer's position, which never goes back."""

        def commit(t: Transaction) -> tuple[Position, Position]:
            row = _row_of_session(t, topic, consumer, session)
            before = _position(row["position"])
            after = {shard: max(before.get(shard, 0), position.get(shard, 0)) for shard in topic.latest()}
            _check_within(topic, after)
            _check_room(t, topic, row)
            _log_return(topic, row)
            t.execute(
                "UPDATE consumers SET position = ?, seen = ?, state = 'live' WHERE id = ?",
                _text(after), t.now, consumer,
            )  # fmt: skip
            self._changed(t, topic.path)
            return before, Position(after)

        before, after = self._ledger.change(commit)
        first = topic.earliest()
        removed = sum(max(0, min(end, first[shard]) - before.get(shard, end)) for shard, end in after.items())
        if removed:
            self._passed(topic.path, removed)
        return after

    def heard(self, topic: Topic, consumer: str, session: str) -> None:
        """Note that a session is alive; Fenced if another has taken its place. A full disk stops no reader."""
        row = self._ledger.database.row("SELECT session, state, seen FROM consumers WHERE id = ?", consumer)
        is_current = row is not None and (row["session"], row["state"]) == (session, "live")
        if row is not None and is_current and self._ledger.now() - row["seen"] < _SEEN:
            return

        def note(t: Transaction) -> None:
            row = _row_of_session(t, topic, consumer, session)
            _check_room(t, topic, row)
            _log_return(topic, row)
            t.execute("UPDATE consumers SET seen = ?, state = 'live' WHERE id = ?", t.now, consumer)

        try:
            self._ledger.change(note)
        except StoreFull:
            if not is_current:
                raise

    def detach(self, topic: Topic, consumer: str, session: str) -> None:
        """Note that a consumer will not return, and holds no rows any more."""

        def detach(t: Transaction) -> None:
            _row_of_session(t, topic, consumer, session)
            t.execute("UPDATE consumers SET state = 'detached', seen = ? WHERE id = ?", t.now, consumer)
            self._changed(t, topic.path)

        self._ledger.change(detach)

    def of(self, topic: Topic) -> list[ConsumerState]:
        """Return the consumers of a topic, the one with the most rows to read first."""
        rows = self._ledger.database.rows(
            "SELECT id, state, position, seen FROM consumers WHERE path = ? AND journal = ?", topic.path, topic.journal
        )
        counts = dead.counts(self._ledger.database, topic.path)
        consumers = (self._consumer(topic, row, counts.get(row["id"], 0)) for row in rows)
        return sorted(consumers, key=lambda consumer: -consumer.lag_rows)

    def dead(self, topic: Topic, consumer: str) -> int:
        """Return how many dead rows of a consumer wait to be redriven."""
        return dead.counts(self._ledger.database, topic.path).get(consumer, 0)

    def age(self, behind: Behind) -> float:
        """Return the age of the oldest of these rows, in seconds; 0 without one."""
        return 0.0 if behind.oldest is None else max(0.0, self._ledger.now() - behind.oldest)

    def expire(self) -> list[str]:
        """Expire the consumers that nobody has seen for UNSEEN seconds, and forget them after as long again.

        Where the wall clock has jumped ahead since the last time, those that were seen before jump with it: they had
        no time to be seen again. At the first time nobody expires: the server may have been away, or the clock wrong.
        """
        before, self._expired_at = self._expired_at, (self._ledger.now(), self._steady())
        wall, steady = before or self._expired_at
        jump = (self._expired_at[0] - wall) - (self._expired_at[1] - steady)

        def expire(t: Transaction) -> list[sqlite3.Row]:
            if before is None:
                latest = t.now - UNSEEN + _RETURN
                t.execute("UPDATE consumers SET seen = ?1 WHERE state = 'live' AND seen < ?1", latest)
            if jump > _JUMP:
                t.execute("UPDATE consumers SET seen = seen + ? WHERE state = 'live' AND seen <= ?", jump, wall)
            t.execute("DELETE FROM consumers WHERE journal NOT IN (SELECT journal FROM topics)")
            expired = t.rows(
                "UPDATE consumers SET state = 'expired' WHERE state = 'live' AND seen < ? RETURNING id, path",
                t.now - UNSEEN,
            )
            t.execute("DELETE FROM consumers WHERE state <> 'live' AND seen < ?", t.now - 2 * UNSEEN)
            for path in {row["path"] for row in expired}:
                self._changed(t, path)
            return expired

        expired = self._ledger.change(expire)
        for row in expired:
            log.warning(
                "consumer %s of %s was not seen for %g days and holds no rows any more: a query that returns after "
                "its rows are removed is told so", row["id"], row["path"], UNSEEN / 86400,
            )  # fmt: skip
        return [row["id"] for row in expired]

    def _consumer(self, topic: Topic, row: sqlite3.Row, dead_rows: int) -> ConsumerState:
        position = _position(row["position"])
        behind = self._topics.behind(topic, position)
        return ConsumerState(
            row["id"], row["state"], position, row["seen"], behind.rows, behind.bytes, self.age(behind), dead_rows
        )


def floors(reader: Reader, path: str) -> dict[int, int]:
    """Return the lowest position of a topic's live consumers in each shard, and of the looks for their dead rows:
    retention ends there.
    """
    lowest: dict[int, int] = {}
    rows = reader.rows(
        "SELECT position FROM consumers JOIN topics ON topics.path = consumers.path"
        " WHERE consumers.path = ? AND consumers.journal = topics.journal AND state = 'live'",
        path,
    )
    for position in (*(_position(row["position"]) for row in rows), *dead.floors(reader, path)):
        for shard, offset in position.items():
            lowest[shard] = min(lowest.get(shard, offset), offset)
    return lowest


def _check_within(topic: Topic, position: Mapping[int, int]) -> None:
    """Reject a position past the end."""
    ends = topic.latest()
    beyond = [f"shard {shard}: {at} of {ends[shard]}" for shard, at in position.items() if at > ends.get(shard, at)]
    if beyond:
        raise Lost(f"{topic.path} ends before {', '.join(beyond)}: these offsets aren't of this journal")


def _check_checkpoint_is_current(topic: Topic, known: Mapping[int, int], committed: Mapping[int, int]) -> None:
    """Reject a stale copy of a checkpoint, before the session that has the newer one is fenced."""
    older = [f"shard {s}: {at} of {committed[s]}" for s, at in known.items() if at < committed.get(s, at)]
    if older:
        raise Lost(
            f"{topic.path}: the checkpoint is older than what this query has committed ({', '.join(older)}): its next "
            "batches would have numbers that others had, and a sink that goes by them drops rows"
        )


def _check_room(t: Transaction, topic: Topic, row: sqlite3.Row | None) -> None:
    """Reject one live consumer too many: each costs something at every look."""
    if row is not None and row["state"] == "live":
        return
    live = t.rows(
        "SELECT count(*) AS n FROM consumers WHERE path = ? AND journal = ? AND state = 'live'",
        topic.path, topic.journal,
    )[0]["n"]  # fmt: skip
    if live >= MOST:
        raise LimitExceeded(
            f"{topic.path} has {live:,} live consumers, its most: end one that is done (consumer.detach), or wait "
            f"until the ones expire that nobody has seen for {UNSEEN / 86400:g} days"
        )


def _check_name_is_free(t: Transaction, topic: Topic, consumer: str) -> None:
    """Reject a name that has a position in another topic."""
    other = t.row(
        "SELECT path FROM consumers WHERE id = ? AND path <> ? AND state <> 'detached'"
        " AND journal IN (SELECT journal FROM topics)",
        consumer, topic.path,
    )  # fmt: skip
    if other is not None:
        raise AlreadyExists(
            f"consumer {consumer[:40]} reads {other['path']}: a name is for one topic. Choose another "
            f"for {topic.path}, or detach it there first"
        )


def _forget_detached(t: Transaction, topic: Topic) -> None:
    """Keep only the last ones: more are not worth a line."""
    t.execute(
        "DELETE FROM consumers WHERE id IN (SELECT id FROM consumers WHERE path = ? AND journal = ?"
        " AND state = 'detached' ORDER BY seen DESC LIMIT -1 OFFSET ?)",
        topic.path, topic.journal, MOST,
    )  # fmt: skip


def _log_return(topic: Topic, row: sqlite3.Row) -> None:
    if row["state"] == "expired":
        log.warning("consumer %s of %s is back after it had expired", row["id"], topic.path)


def _row_of_session(t: Transaction, topic: Topic, consumer: str, session: str) -> sqlite3.Row:
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


def _row(t: Transaction, topic: Topic, consumer: str) -> sqlite3.Row | None:
    return t.row(
        "SELECT id, session, position, state FROM consumers WHERE id = ? AND path = ? AND journal = ?",
        consumer, topic.path, topic.journal,
    )  # fmt: skip


def _text(position: Mapping[int, int]) -> str:
    return json.dumps(Position(position).to_json())


def _position(text: str) -> Position:
    return Position({int(shard): offset for shard, offset in json.loads(text).items()})
