"""One reader's way through a topic: which offsets come next, and what counts as committed. Without Spark.

Spark tells a source little. `commit(X)` comes one batch late and never for the last batch; from 4.2 on `latestOffset`
is given the last offset of the commit log, which says it in time; before that its being asked says that the batch
which was planned last is done. `partitions(X, X)` after a restart says no such thing: X is the end of the last batch
in the offset log, which may be still to come. With async progress tracking the offset runs ahead of the disk, and
isn't believed any more once that shows.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.client.client import Client
from penstock.errors import InvalidRequest, Lost, NotFound, PenstockError, StoreFull
from penstock.spark_plugin.offsets import Limits, Offset, check_start, gaps, starting

log = logging.getLogger("penstock")


class Consumption:
    """A session of a consumer, from the first offset that Spark asks for to the end of its process."""

    def __init__(self, client: Client, path: str, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.limits = limits
        self._client = client
        self._now = now
        self._session = uuid.uuid4().hex
        self._first: Offset | None = None
        self._known: Offset | None = None
        """The end of the batch that was planned last, for Sparks that don't tell it."""
        self._next: Offset | None = None
        """The end of the batch that comes next."""
        self._attached: tuple[str, str] | None = None
        self._committed: dict[str, int] | None = None
        self._told: tuple[str, dict[str, int]] | None = None
        """The journal, and the position in it, that the server has from this session."""
        self._warned = ""
        """What was warned of last: Spark asks for the same range more than once."""
        self._planned: tuple[Offset, Offset] | None = None
        """The batch that was planned last."""
        self._believed = True
        self._pinned: dict[str, int] | None = None
        self._ordered: bool | None = None
        self._since = -math.inf
        """When the last batch was planned: the first one waits for no rows."""

    def is_ordered(self) -> bool:
        """Whether the rows of a shard have an order that a task is to keep."""
        if self._ordered is None:
            self._ordered = self._ask().get("key") is not None
        return self._ordered

    def initial(self) -> Offset:
        """Where a new query starts, and its name from now on. Asked again it's the same."""
        if self._first is None:
            at = self._ask(**starting(self.limits.starting))
            check_start(self.path, at)
            self._first = Offset(at["journal"], at["epoch"], uuid.uuid4().hex, at["start"], at["start"])
        return self._first

    def latest(self, start: Offset | None = None, *, everything: bool = False) -> Offset:
        """Where the next batch ends. What lies before `start` is done, as far as that is to be believed."""
        start = start or self._known or self.initial()
        self._known = start
        self._attach(start)
        if self._believed and start.shards != start.initial:
            self._commit(start)
        limits = Limits() if everything else self.limits
        at = self._reached(start, limits)
        self._next, end = start, at["end"]
        if at["journal"] != start.journal:
            self._next = replace(start, journal=at["journal"], initial=at["start"], shards=at["start"])
        few = sum(end.values()) - sum(at["start"].values()) < (limits.min_rows or 0)
        if few and self._pinned is None and self._now() - self._since < limits.max_delay:
            return start
        self._next = replace(self._next, epoch=at["epoch"], shards=end)
        return self._next

    def planned(self, start: Offset, end: Offset) -> tuple[Offset, Offset]:
        """The range of a batch that Spark plans. The end is the word of the checkpoint, and so is its consumer's name.

        Spark asks for the initial offset again where the first batch is repeated: then the start is a new one's. An
        empty batch is what a restarted Spark plans first: it has planned up to there, no more is said. The same batch
        comes again where a query scans its stream twice, as in a union with itself.
        """
        if start.consumer != end.consumer:
            self._check_own(start)
            start = replace(end, shards=end.initial)
        if start.shards == end.shards:
            self._known = end
            return start, end
        begin, until = self._still_there(start, end)
        self._attach(begin, end)
        if self._planned is None and start.shards != start.initial:
            self._commit(start)
        if self._planned not in (None, (start, end)) and start.shards != self._committed:
            self._believed = False  # async progress tracking: Spark goes on before its commit is on disk
        self._planned = start, end
        self._since = self._now()
        self._known = end
        return begin, until

    def committed(self, end: Offset) -> None:
        """Spark has this in its commit log."""
        self._attach(end)
        self._committed = end.shards
        self._commit(end)

    def pin(self) -> None:
        """For AvailableNow: what is there now is all that this run will read."""
        self._pinned = self._ask()["next"]

    def behind(self) -> dict[str, Any] | None:
        """How much lies behind the next batch, for Spark's progress."""
        if self._next is None:
            return None
        at = self._ask(start=self._next.shards)
        age = max(0.0, time.time() - at["oldest"]) if "oldest" in at else 0.0
        behind = {"rows": at["rows"], "bytes": at["bytes"], "oldest_seconds": round(age, 3)}
        return {"shards": at["next"], "behind": behind}

    # --- within -----------------------------------------------------------------------------

    def _reached(self, start: Offset, limits: Limits) -> dict[str, Any]:
        """Where the batch from `start` on ends; what is gone before it is an error, or a gap that is told."""
        most = {"max_rows": limits.max_rows, "max_bytes": limits.max_bytes, "until": self._pinned}
        try:
            found = self._place(start, most)
        except Lost as gone:
            self._tell(gone)
            if self._pinned is not None:
                self.pin()  # anew, as it was of a journal that is gone
            return self._ask(**most | {"until": self._pinned})
        self._check_end(start, found["next"])
        if gap := gaps(start.shards, found["first"]):
            found = self._ask(start=self._over(start.shards, found["first"], gap), **most)
        return found

    def _check_own(self, start: Offset) -> None:
        """Only this session's first offset stands for the one that the checkpoint began with."""
        if start != self._first:
            raise InvalidRequest(
                f"{self.path}: this batch begins at the place of another consumer than the one it ends with, as Spark "
                "asked for the end before it said where this query is. Set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled to false, and remove the newest file from the "
                "checkpoint's folder `offsets`: nothing of that batch was read"
            )

    def _check_end(self, start: Offset, ends: Mapping[str, int]) -> None:
        beyond = [f"shard {s}: {at} of {ends[s]}" for s, at in start.shards.items() if at > ends[s]]
        if beyond:
            self._tell(
                Lost(
                    f"{self.path} ends before this query's place ({', '.join(beyond)}): the server was put back to an "
                    "older state, and rows that come now have offsets that this query has read"
                )
            )

    def _place(self, start: Offset, most: dict[str, Any]) -> dict[str, Any]:
        asked = {"start": start.shards, "journal": start.journal, "consumer": start.consumer, "session": self._session}
        try:
            return self._ask(**asked, **most)
        except NotFound:  # of the consumer, which a server that was put back to an older state doesn't know
            self._attached = None
            self._attach(start)
            return self._ask(**asked, **most)

    def _still_there(self, start: Offset, end: Offset) -> tuple[Offset, Offset]:
        """The range, without what is gone of it, if that is to be let pass."""
        began = self._attached == (end.consumer, end.journal)  # then another session's having begun is told
        who = {"consumer": end.consumer, "session": self._session} if began else {}
        try:
            first = self._ask(journal=end.journal, **who)["first"]
        except NotFound:  # of the consumer: it is attached again where this batch begins, as the batch is still to come
            if not began:
                raise
            self._attached = None
            return self._still_there(start, end)
        except Lost as gone:
            self._tell(gone)
            return end, end
        if start.journal != end.journal:  # the topic was made again before this was planned, and that was let pass
            start = replace(end, shards=first)
        asked = {shard: end.shards[shard] for shard in end.shards if start.shards[shard] < end.shards[shard]}
        gap = {shard: rows for shard, rows in gaps(start.shards, first).items() if shard in asked}
        begin = self._over(start.shards, first, gap) if gap else start.shards
        begin = {shard: max(offset, first[shard]) for shard, offset in begin.items()}
        until = {shard: max(offset, begin[shard]) for shard, offset in end.shards.items()}
        return replace(start, shards=begin), replace(end, shards=until)

    def _over(self, start: Mapping[str, int], first: Mapping[str, int], gap: Mapping[str, int]) -> dict[str, int]:
        """The position behind rows that are gone."""
        told = ", ".join(f"shard {shard}: offsets {start[shard]} to {first[shard]}" for shard in gap)
        self._tell(Lost(f"{self.path}: {sum(gap.values()):,} rows are gone that this query hasn't read ({told})"))
        return {shard: max(offset, first[shard]) for shard, offset in start.items()}

    def _tell(self, gone: Lost) -> None:
        """End the query, with the cure; or warn, once, and go on."""
        text = _plain(gone)
        if self.limits.fail_on_loss:
            raise Lost(
                f"{text}. To go on without them: failOnDataLoss=false; to start elsewhere: a new checkpointLocation "
                "and startingOffsets, as a query's place is kept in its checkpoint",
                request=gone.request,
            ) from gone
        self._warn(f"{text}. The query goes on behind them, as failOnDataLoss is false")

    def _warn(self, text: str) -> None:
        if self._warned != text:
            self._warned = text
            log.warning("%s", text)

    def _attach(self, *known: Offset) -> None:
        """Speak for the consumer that the checkpoint names, from now on; an older session is told to stop."""
        offset = known[-1]
        if self._attached == (offset.consumer, offset.journal):
            return
        about = {"initial": offset.initial, "position": known[0].shards, "known": offset.shards}
        if not self._call("consumer.attach", offset, **about):  # an older copy, or an older server: that is let pass
            ends = self._ask()["next"]
            capped = [
                {shard: min(at, ends.get(shard, at)) for shard, at in each.items()}
                for each in (offset.initial, known[0].shards)
            ]
            self._call("consumer.attach", offset, initial=capped[0], position=capped[1])
        self._attached, self._told = (offset.consumer, offset.journal), None

    def _commit(self, offset: Offset) -> None:
        """An idle query says it once, as each saying is an fsync."""
        if self._told == (offset.journal, offset.shards):
            return
        try:
            self._call("consumer.commit", offset, position=offset.shards)
        except NotFound:  # the server was put back to an older state, or the consumer had expired and was forgotten
            self._attached = None
            self._attach(offset)
        except StoreFull as full:  # a position that comes late loses nothing, and the next batch has another
            self._warn(f"{self.path}: its position can't be noted for now: {_plain(full)}")
            return
        self._told = offset.journal, offset.shards

    def _call(self, name: str, offset: Offset, **more: Any) -> dict[str, Any] | None:
        """The server's answer; what it hasn't any more is told."""
        about = {"journal": offset.journal, "consumer": offset.consumer, "session": self._session}
        try:
            return self._client.call(name, {"path": self.path, **about, **more})
        except Lost as gone:
            self._tell(gone)
            return None

    def _ask(self, **about: Any) -> dict[str, Any]:
        asked = {name: value for name, value in about.items() if value is not None}
        return self._client.call("consumer.offsets", {"path": self.path, **asked})


def _plain(error: PenstockError) -> str:
    """What it says, without the request's number: each request has another."""
    return str(error).partition(" [request ")[0]
