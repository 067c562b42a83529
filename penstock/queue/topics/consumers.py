"""Consumers of topics: who reads, the position that each has committed, and which session of it may commit.

A consumer is a UUID that its reader mints with its first offset, and keeps in its own checkpoint. Rows below its
position may be removed when the topic's retention says so, rows from there on may not.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping

from penstock.errors import AlreadyExists, Fenced, LimitExceeded, Lost, NotFound, StoreFull
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.topics import dead, journal
from penstock.queue.topics.topic import Behind, Topic
from penstock.queue.topics.topics import Topics
from penstock.store.database import Reader
from penstock.text import counted, format_age, format_size
from penstock.wire.actions import ConsumerState
from penstock.wire.position import Position
from penstock.wire.read import PayloadSchema

log = logging.getLogger("penstock")
UNSEEN = 7 * 24 * 3600.0
"""Seconds after which a consumer that nobody has seen holds no rows any more."""
ABSENT = 600.0
"""Seconds after which a consumer that nobody has seen is absent: what it alone holds is warned of."""
ALONE = 120.0
"""Seconds after which a group that nobody has seen has no members: their leases are over."""
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
        holds_acks: Callable[[Reader, str], bool] = lambda reader, path: False,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`passed` is told how many rows of a topic were removed before a consumer had read them; `changed` is called
        in each transaction that has changed the consumers of a path; `holds_acks` says whether messages of a path wait
        for its consumers; `steady` is a clock that never jumps.
        """
        self._ledger, self._topics, self._passed, self._steady = ledger, topics, passed, steady
        self._changed, self._holds_acks = changed, holds_acks
        self._began = steady()
        self._warned: set[tuple[str, str]] = set()
        """The absent consumers that the log has, path and name."""
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
            row = find(t, topic, consumer)
            check_room(t, topic, row)
            if row is None:
                check_within(topic, initial)
                check_within(topic, position)
                _check_name_is_free(t, topic, consumer)
                forget_detached(t, topic)
                remove_older(t, topic, consumer)
                oldest = journal.by_path(t, topic.path).earliest()  # retention may have removed rows since
                begin = {shard: max(offset, oldest.get(shard, offset)) for shard, offset in position.items()}
                t.insert(
                    "consumers", id=consumer, path=topic.path, journal=topic.journal, session=session,
                    initial=to_text(initial), position=to_text(begin), registered=t.now, seen=t.now, state="live",
                )  # fmt: skip
                dead.register(t, topic, consumer, decoding, Position(begin))
                self._changed(t, topic.path)
                return Position(begin)
            if row["holders"] is not None:
                raise AlreadyExists(f"{topic.path}: consumer {consumer} is a group of programs: choose another name")
            committed = to_position(row["position"])
            _check_checkpoint_is_current(topic, known or {}, committed)
            log_return(topic, row)
            t.execute(
                "UPDATE consumers SET session = ?, seen = ?, state = 'live' WHERE path = ? AND id = ?",
                session, t.now, topic.path, consumer,
            )  # fmt: skip
            dead.register(t, topic, consumer, decoding, committed)
            self._changed(t, topic.path)
            return committed

        return self._ledger.change(attach)

    def commit(self, topic: Topic, consumer: str, session: str, position: Mapping[int, int]) -> Position:
        """Note that rows below a position are done for good; return the consumer's position, which never goes back."""

        def commit(t: Transaction) -> tuple[Position, Position]:
            row = _row_of_session(t, topic, consumer, session)
            before = to_position(row["position"])
            after = {shard: max(before.get(shard, 0), position.get(shard, 0)) for shard in topic.latest()}
            check_within(topic, after)
            check_room(t, topic, row)
            log_return(topic, row)
            t.execute(
                "UPDATE consumers SET position = ?, seen = ?, state = 'live' WHERE path = ? AND id = ?",
                to_text(after), t.now, topic.path, consumer,
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
        row = find(self._ledger.database, topic, consumer)
        is_current = row is not None and (row["session"], row["state"]) == (session, "live")
        if row is not None and is_current and self._ledger.now() - row["seen"] < _SEEN:
            return

        def note(t: Transaction) -> None:
            row = _row_of_session(t, topic, consumer, session)
            check_room(t, topic, row)
            log_return(topic, row)
            t.execute(
                "UPDATE consumers SET seen = ?, state = 'live' WHERE path = ? AND id = ?", t.now, topic.path, consumer
            )

        try:
            self._ledger.change(note)
        except StoreFull:
            if not is_current:
                raise

    def detach(self, topic: Topic, consumer: str, session: str) -> None:
        """Note that a consumer will not return, and holds no rows any more."""

        def detach(t: Transaction) -> None:
            _row_of_session(t, topic, consumer, session)
            t.execute(
                "UPDATE consumers SET state = 'detached', seen = ? WHERE path = ? AND id = ?",
                t.now, topic.path, consumer,
            )  # fmt: skip
            self._changed(t, topic.path)

        self._ledger.change(detach)

    def remove(self, topic: Topic, consumer: str) -> None:
        """Forget a consumer; its dead rows stay."""

        def remove(t: Transaction) -> None:
            if not t.execute(
                "DELETE FROM consumers WHERE path = ? AND id = ? AND journal = ?", topic.path, consumer, topic.journal
            ):
                raise NotFound(f"{topic.path} has no consumer {consumer[:40]}")
            self._changed(t, topic.path)

        self._ledger.change(remove)

    def of(self, topic: Topic) -> list[ConsumerState]:
        """Return the consumers of a topic, the one with the most rows to read first."""
        rows = self._ledger.database.rows(
            "SELECT * FROM consumers WHERE path = ? AND journal = ?", topic.path, topic.journal
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

    def present_since(self) -> float:
        """Return the time at which consumers were seen last that aren't absent; 0 until each had time to be seen."""
        return self._ledger.now() - ABSENT if self._steady() - self._began >= ABSENT else 0.0

    def warn(self, topics: Iterable[Topic]) -> None:
        """Log each consumer of these topics that is absent and holds rows or acks, once until it is seen."""
        absent = [(topic.path, each) for topic in topics for each in self.of(topic) if each.absent]
        for path, each in absent:
            if (path, each.consumer) not in self._warned:
                log.warning(
                    "consumer %s of %s was not seen for %s, and holds %s (%s): start it again, or end it with "
                    "penstock rm consumer/%s/%s", each.consumer, path, format_age(self._ledger.now() - each.seen),
                    counted(each.lag_rows, "row"), format_size(each.lag_bytes), path, each.consumer,
                )  # fmt: skip
        self._warned = {(path, each.consumer) for path, each in absent}

    def _consumer(self, topic: Topic, row: sqlite3.Row, dead_rows: int) -> ConsumerState:
        position = to_position(row["position"])
        behind = self._topics.behind(topic, position)
        is_absent = (
            row["state"] == "live"
            and row["seen"] < self.present_since()
            and behind.rows > 0
            and (
                self.age(behind) > topic.keep_seconds
                or topic.bytes > (topic.keep_bytes or math.inf)
                or self._holds_acks(self._ledger.database, topic.path)
            )
        )
        return ConsumerState(
            row["id"], row["state"], position, row["seen"], behind.rows, behind.bytes, self.age(behind), dead_rows,
            is_absent, _members(row, since=self._ledger.now() - ALONE),
        )  # fmt: skip


def floors(reader: Reader, path: str, *, seen_since: float = 0.0) -> dict[int, int]:
    """Return the lowest position of a topic's live consumers in each shard, and of the looks for their dead rows:
    retention ends there. Consumers that weren't seen since a time don't count.
    """
    lowest: dict[int, int] = {}
    rows = reader.rows(
        "SELECT position FROM consumers JOIN topics ON topics.path = consumers.path"
        " WHERE consumers.path = ? AND consumers.journal = topics.journal AND state = 'live' AND seen >= ?",
        path, seen_since,
    )  # fmt: skip
    for position in (*(to_position(row["position"]) for row in rows), *dead.floors(reader, path)):
        for shard in journal.shard_numbers(reader, path):
            offset = position.get(shard, 0)  # a shard that came after the last commit
            lowest[shard] = min(lowest.get(shard, offset), offset)
    return lowest


def check_within(topic: Topic, position: Mapping[int, int]) -> None:
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


def check_room(t: Transaction, topic: Topic, row: sqlite3.Row | None) -> None:
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
    """Reject a name under which a query has a position in another topic."""
    other = t.row(
        "SELECT path FROM consumers WHERE id = ? AND path <> ? AND state <> 'detached' AND holders IS NULL"
        " AND journal IN (SELECT journal FROM topics)",
        consumer, topic.path,
    )  # fmt: skip
    if other is not None:
        raise AlreadyExists(
            f"consumer {consumer[:40]} reads {other['path']}: a name is for one topic. Choose another "
            f"for {topic.path}, or detach it there first"
        )


def forget_detached(t: Transaction, topic: Topic) -> None:
    """Keep only the last ones: more are not worth a line."""
    t.execute(
        "DELETE FROM consumers WHERE path = ?1 AND id IN (SELECT id FROM consumers WHERE path = ?1 AND journal = ?2"
        " AND state = 'detached' ORDER BY seen DESC LIMIT -1 OFFSET ?3)",
        topic.path, topic.journal, MOST,
    )  # fmt: skip


def log_return(topic: Topic, row: sqlite3.Row) -> None:
    """Log that a consumer is back that had expired."""
    if row["state"] == "expired":
        log.warning("consumer %s of %s is back after it had expired", row["id"], topic.path)


def _row_of_session(t: Transaction, topic: Topic, consumer: str, session: str) -> sqlite3.Row:
    row = find(t, topic, consumer)
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


def find(reader: Reader, topic: Topic, consumer: str) -> sqlite3.Row | None:
    """Return the row of a consumer, None without one."""
    return reader.row(
        "SELECT * FROM consumers WHERE path = ? AND id = ? AND journal = ?", topic.path, consumer, topic.journal
    )


def remove_older(t: Transaction, topic: Topic, consumer: str) -> None:
    """Remove the consumer of this name that a topic had which was at the path before."""
    t.execute("DELETE FROM consumers WHERE path = ? AND id = ?", topic.path, consumer)


def _members(row: sqlite3.Row, *, since: float) -> dict[str, list[int]] | None:
    """Return the shards of each member of a group, none if it wasn't seen since a time; None of a query."""
    if row["holders"] is None:
        return None
    members: dict[str, list[int]] = {}
    for shard, member in json.loads(row["holders"]).items() if row["seen"] >= since else ():
        members.setdefault(member, []).append(int(shard))
    return members


def to_text(position: Mapping[int, int]) -> str:
    """Return a position as the ledger keeps it."""
    return json.dumps(Position(position).to_json())


def to_position(text: str) -> Position:
    """Return a position that the ledger keeps."""
    return Position({int(shard): offset for shard, offset in json.loads(text).items()})
