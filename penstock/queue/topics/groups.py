"""Groups: consumers whose members share the shards of a journal, each shard read by one of them at a time.

A group is a consumer whose row has `holders`, too: which member has which shard. A member calls `share` with the shards
that it has and how far it is done with each; the answer says which it has from then on. Only its own calls give it a
shard, and only a free one: one that its member has given back, or whose member was silent for the time of a lease. So
what one member has not committed is read by another only if the first has died, or as good as.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import AlreadyExists, Fenced
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.topics import consumers, journal
from penstock.queue.topics.topic import Topic
from penstock.wire.position import Position

LEASE = 30.0
"""Seconds of silence after which a member's shards are free; after a start of the server each has its full time."""
_SEEN = 60.0
"""Seconds between notes that a group is alive which commits nothing, as each note is an fsync."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a member has: its shards with the group's positions, and how many of them others are to have."""

    position: Position
    surplus: int
    changed: bool
    """Whether the ledger has changed."""


class Groups:
    """The groups of a ledger's journals. One object of a process, as leases are in its memory."""

    def __init__(
        self,
        ledger: Ledger,
        changed: Callable[[Transaction, str], None] = lambda t, path: None,
        *,
        lease: float = LEASE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called in each transaction that has changed the consumers of a path."""
        self._ledger, self._changed, self.lease, self._now = ledger, changed, lease, now
        self._lock = threading.Lock()  # _deadlines
        self._deadlines: dict[tuple[str, str], dict[str, float]] = {}
        """When each member of a group, by its journal and name, is silent for too long."""

    def share(
        self,
        topic: Topic,
        group: str,
        member: str,
        held: Mapping[int, int],
        *,
        begin: Mapping[int, int],
        leave: bool = False,
    ) -> Share:
        """Commit what a member has done of the shards that it holds, and return what it holds from now on.

        Repeated it changes nothing more. A group that is unknown begins at `begin`. In one transaction:
        1. Each shard of `held` is the member's own, or Fenced. 2. The group's position moves up to `held`. 3. Shards of
        the member that it doesn't name are free, and those of members whose lease is over. 4. Free ones are its own, up
        to its share; one that leaves has none.
        """
        self._hear(topic, group, member)
        row = consumers.find(self._ledger.database, topic, group)
        if row is not None and row["state"] == "live" and self._ledger.now() - row["seen"] < _SEEN:
            _check_group(topic, row)
            holders, position, surplus = self._decide(topic, row, member, held, leave)
            if (holders, position) == (_holders(row), consumers.to_position(row["position"])):
                return _share(holders, position, member, surplus, changed=False)

        def share(t: Transaction) -> Share:
            row = consumers.find(t, topic, group)
            if row is None and held:
                raise Fenced(f"{topic.path} has no group {group} any more, as it was removed: it may begin anew")
            row = row or self._register(t, topic, group, begin)
            _check_group(topic, row)
            consumers.check_room(t, topic, row)
            consumers.log_return(topic, row)
            holders, position, surplus = self._decide(topic, row, member, held, leave)
            consumers.check_within(topic, position)
            t.execute(
                "UPDATE consumers SET position = ?, holders = ?, seen = ?, state = 'live' WHERE path = ? AND id = ?",
                consumers.to_text(position), json.dumps(holders), t.now, topic.path, group,
            )  # fmt: skip
            self._changed(t, topic.path)
            return _share(holders, position, member, surplus, changed=True)

        share_ = self._ledger.change(share)
        if leave:
            with self._lock:
                self._deadlines.get((topic.journal, group), {}).pop(member, None)
        return share_

    def tend(self) -> None:
        """Forget groups whose members are all silent."""
        with self._lock:
            now = self._now()
            for key in [key for key, each in self._deadlines.items() if max(each.values(), default=0.0) < now]:
                del self._deadlines[key]

    def _hear(self, topic: Topic, group: str, member: str) -> None:
        with self._lock:
            self._deadlines.setdefault((topic.journal, group), {})[member] = self._now() + self.lease

    def _live(self, topic: Topic, group: str, holders: Mapping[int, str]) -> set[str]:
        """Return the members whose lease lasts; a holder that isn't known has a new one, as the server has started."""
        with self._lock:
            now = self._now()
            deadlines = self._deadlines.setdefault((topic.journal, group), {})
            for member in holders.values():
                deadlines.setdefault(member, now + self.lease)
            for member in [each for each, deadline in deadlines.items() if deadline < now]:
                if member not in holders.values():
                    del deadlines[member]
            return {member for member, deadline in deadlines.items() if deadline >= now}

    def _register(self, t: Transaction, topic: Topic, group: str, begin: Mapping[int, int]) -> sqlite3.Row:
        consumers.check_room(t, topic, None)
        consumers.check_within(topic, begin)
        consumers.remove_older(t, topic, group)
        oldest = journal.by_path(t, topic.path).earliest()  # retention may have removed rows since
        position = consumers.to_text({shard: max(begin.get(shard, 0), first) for shard, first in oldest.items()})
        t.insert(
            "consumers", id=group, path=topic.path, journal=topic.journal, session="", initial=position,
            position=position, registered=t.now, seen=t.now, state="live", holders="{}",
        )  # fmt: skip
        row = consumers.find(t, topic, group)
        assert row is not None
        return row

    def _decide(
        self, topic: Topic, row: sqlite3.Row, member: str, held: Mapping[int, int], leave: bool
    ) -> tuple[dict[int, str], Position, int]:
        """Return who holds which shard after a member's call, the group's position, and the member's surplus."""
        group, before = row["id"], _holders(row)
        live = self._live(topic, group, before)
        if taken := sorted(shard for shard in held if before.get(shard) != member):
            raise Fenced(
                f"{topic.path}: shards {', '.join(map(str, taken))} aren't those of this member of group {group} any "
                f"more: it was silent for {self.lease:g} s. What it hasn't committed comes again, to another member"
            )
        known = consumers.to_position(row["position"])
        position = {
            shard: max(known.get(shard, first), held.get(shard, 0)) for shard, first in topic.earliest().items()
        }
        if leave:
            live.discard(member)
        holders = {shard: each for shard, each in before.items() if each in live and (each != member or shard in held)}
        if leave:
            return holders, Position(position), 0
        counts = {**dict.fromkeys(live, 0), **Counter(holders.values())}
        quota, mine = _quota(counts, member, len(position)), counts[member]
        free = [shard for shard in sorted(position) if shard not in holders]
        holders |= dict.fromkeys(free[: max(0, quota - mine)], member)
        return holders, Position(position), max(0, mine - quota)


def _quota(counts: Mapping[str, int], member: str, shards: int) -> int:
    """Return how many shards a member may hold: as many as the others; those that hold most have what is left over."""
    each, over = divmod(shards, len(counts))
    order = sorted(counts, key=lambda other: (-counts[other], other))
    return each + (order.index(member) < over)


def _share(holders: Mapping[int, str], position: Position, member: str, surplus: int, *, changed: bool) -> Share:
    own = {shard: position[shard] for shard, each in holders.items() if each == member}
    return Share(Position(own), surplus, changed)


def _holders(row: sqlite3.Row) -> dict[int, str]:
    return {int(shard): member for shard, member in json.loads(row["holders"]).items()}


def _check_group(topic: Topic, row: sqlite3.Row) -> None:
    """Reject the name of a query's consumer."""
    if row["holders"] is None:
        raise AlreadyExists(f"{topic.path}: consumer {row['id']} is a query's: choose another name for the group")
