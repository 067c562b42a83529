"""A query's reading of a topic, without Spark: the calls to the server between the decisions of `offsets`."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.client.client import Client
from penstock.errors import InvalidRequest, Lost, NotFound, PenstockError, StoreFull
from penstock.spark_plugin import offsets, subscriptions
from penstock.spark_plugin.offsets import Progress, StreamOffset, StreamOptions
from penstock.spark_plugin.options import Bound, bound
from penstock.text import printable
from penstock.wire import actions
from penstock.wire.actions import LogLine, Offsets
from penstock.wire.position import Position
from penstock.wire.read import PayloadSchema

log = logging.getLogger("penstock")


class Consumption:
    """A query's reading of a topic, from the first offset that Spark requests to the end of its process."""

    def __init__(
        self,
        client: Client,
        path: str,
        options: StreamOptions,
        now: Callable[[], float] = time.monotonic,
        *,
        decoding: PayloadSchema | None = None,
    ) -> None:
        self.path = path
        self.options = options
        self._session = ConsumerSession(client, path, fail_on_loss=options.fail_on_loss, decoding=decoding)
        self._now = now
        self._progress = Progress()
        self._initial: StreamOffset | None = None
        self._next: StreamOffset | None = None
        """The end of the next batch; its start, while it waits for rows."""
        self._pinned: Position | None = None
        self._ordered: bool | None = None

    def is_ordered(self) -> bool:
        """Whether the rows of a shard have an order that a task must keep."""
        if self._ordered is None:
            self._ordered = self._session.offsets().key is not None
        return self._ordered

    def initial(self) -> StreamOffset:
        """Return the offset at which a new query starts, with a name for its consumer; the same at each call."""
        if self._initial is None:
            topic = start_offsets(self._session.client, self.path, self.options.starting)
            start = topic.start
            self._initial = StreamOffset(topic.journal, topic.epoch, self._new_name(), start, start)
        return self._initial

    def _new_name(self) -> str:
        """Return a consumer's name that no other checkpoint has."""
        name = self.options.name
        return uuid.uuid4().hex if name is None else f"{name}-{uuid.uuid4().hex[:12]}"

    def latest(self, start: StreamOffset | None = None, *, everything: bool = False) -> StreamOffset:
        """Return the end of the next batch; commit its start if that proves the batches before to be done."""
        start = start or self._progress.known or self.initial()
        self._progress = self._progress.after_request(start)
        self._session.attach(start)
        if self._progress.is_done(start):
            self._session.commit(start)
        options = StreamOptions() if everything else self.options
        self._next, topic = self._offsets_from(start, options)
        end = replace(self._next, epoch=topic.epoch, position=topic.end)
        since_last = self._now() - self._progress.planned_at
        if self._pinned is None and offsets.waits_for_rows(topic, options, since_last):
            return start
        self._next = end
        return end

    def planned(self, start: StreamOffset, end: StreamOffset) -> tuple[StreamOffset, StreamOffset]:
        """Return the range of a batch that Spark plans, without rows that were removed, if those may be lost."""
        start = offsets.actual_start(self.path, start, end, self._initial)
        if start.position == end.position:  # a restarted Spark plans an empty batch first
            self._progress = self._progress.after_request(end)
            return start, end
        begin, until = self._still_there(start, end)
        self._session.attach(end, begin.position)
        if self._progress.is_done_by_plan(start):
            self._session.commit(start)
        self._progress = self._progress.after_plan(start, end, self._now())
        return begin, until

    def committed(self, end: StreamOffset) -> None:
        """Commit a batch that Spark has in its commit log."""
        self._session.attach(end)
        self._progress = self._progress.after_commit(end)
        self._session.commit(end)

    def pin(self) -> None:
        """End the query at the journal's present end: AvailableNow. A subscription has to settle first."""
        subscriptions.wait_until_settled(self._session.client, self.path, self.options.settle)
        self._pinned = self._session.offsets().next

    def behind(self) -> dict[str, Any] | None:
        """Return how many rows follow the next batch, for Spark's progress."""
        if self._next is None:
            return None
        topic = self._session.offsets(start=self._next.position, figures=True, consumer=self._next.consumer)
        age = 0.0 if topic.oldest is None else max(0.0, time.time() - topic.oldest)
        behind = {"rows": topic.rows, "bytes": topic.bytes, "oldest_seconds": round(age, 3)}
        subscription = {} if topic.figures is None else {"subscription": topic.figures.to_json()}
        dead = {"dead": topic.dead} if self._session.decodes else {}
        return {"shards": Position(topic.next).to_json(), "behind": behind, **dead, **subscription}

    def _offsets_from(self, start: StreamOffset, options: StreamOptions) -> tuple[StreamOffset, Offsets]:
        """Return the start of the next batch, and the offsets from there on.

        Rows that were removed unread are an error, or skipped.
        """
        limits = {"max_rows": options.max_rows, "max_bytes": options.max_bytes}
        try:
            topic = self._session.consumer_offsets(start, start=start.position, until=self._pinned, **limits)
        except Lost as lost:  # the topic was created again, or the server was put back to an older state
            self._session.report(lost)
            if self._pinned is not None:
                self.pin()
            topic = self._session.offsets(until=self._pinned, **limits)
            return offsets.begin_again(start, topic), topic
        if text := offsets.beyond_end(self.path, start.position, topic.next):
            self._session.report(Lost(text))
        if text := offsets.gap(self.path, start.position, topic.first):
            self._session.report(Lost(text))
            behind = offsets.skip_to(start.position, topic.first)
            return start, self._session.offsets(start=behind, until=self._pinned, **limits)
        return start, topic

    def _still_there(self, start: StreamOffset, end: StreamOffset) -> tuple[StreamOffset, StreamOffset]:
        try:
            first = self._session.first_offsets(end)
        except Lost as lost:
            self._session.report(lost)
            return end, end
        if start.journal != end.journal:  # the topic was created again before this was planned, and the query continued
            start = replace(end, position=first)
        if text := offsets.gap(self.path, start.position, first, end.position):
            self._session.report(Lost(text))
        begin, until = offsets.remaining(start.position, end.position, first)
        return replace(start, position=begin), replace(end, position=until)


class ConsumerSession:
    """The calls of one session of a consumer, which the checkpoint names, about its topic.

    A server that was put back to an older state doesn't know the consumer: it is attached again.
    """

    def __init__(self, client: Client, path: str, *, fail_on_loss: bool, decoding: PayloadSchema | None = None) -> None:
        self.client = client
        self._decoding = decoding
        self._path = path
        self._fail_on_loss = fail_on_loss
        self._id = uuid.uuid4().hex
        self._attached: tuple[str, str] | None = None
        """The consumer and the journal that this session is attached to."""
        self._committed: tuple[str, Position] | None = None
        """The journal, and the position in it, that this session has committed last."""
        self._warned = ""
        self._logged = 0
        """The last line of the server's log that this session knows; 0 before its first call."""

    @property
    def decodes(self) -> bool:
        """Whether rows may be dead."""
        return self._decoding is not None

    def offsets(self, **fields: Any) -> Offsets:
        """Return the topic's offsets."""
        return self.client.call(actions.ASK_OFFSETS, actions.AskOffsets(self._path, **fields))

    def consumer_offsets(self, offset: StreamOffset, **fields: Any) -> Offsets:
        """Return the topic's offsets as the consumer: the session counts as alive, or is fenced by a newer one."""
        fields |= {"journal": offset.journal, "consumer": offset.consumer, "session": self._id, "log": self._logged}
        try:
            topic = self.offsets(**fields)
        except NotFound:
            self._attached = None
            self.attach(offset)
            topic = self.offsets(**fields)
        self._log(topic.log)
        return topic

    def first_offsets(self, end: StreamOffset) -> Position:
        """Return the first offsets that a batch can read; a consumer that isn't attached begins with that batch."""
        if self._attached == (end.consumer, end.journal):
            try:
                return self.offsets(journal=end.journal, consumer=end.consumer, session=self._id).first
            except NotFound:
                self._attached = None
        return self.offsets(journal=end.journal).first

    def attach(self, offset: StreamOffset, position: Position | None = None) -> None:
        """Attach to the offset's consumer, once; an older session is fenced. A consumer that is new to the server
        begins at `position`, or at the offset's own.
        """
        if self._attached == (offset.consumer, offset.journal):
            return
        about, begin = (self._path, offset.journal, offset.consumer, self._id), position or offset.position
        request = actions.AttachConsumer(*about, offset.initial, begin, offset.position, self._decoding)
        try:
            self.client.call(actions.ATTACH_CONSUMER, request)
        except Lost as lost:  # the checkpoint is an older copy, or the server's state is older
            self.report(lost)
            ends = self.offsets().next
            capped = (Position({s: min(at, ends.get(s, at)) for s, at in p.items()}) for p in (offset.initial, begin))
            with contextlib.suppress(Lost):
                initial, begin = capped
                again = actions.AttachConsumer(*about, initial, begin, decoding=self._decoding)
                self.client.call(actions.ATTACH_CONSUMER, again)
        self._attached, self._committed = (offset.consumer, offset.journal), None

    def commit(self, offset: StreamOffset) -> None:
        """Commit a position, once: each call is an fsync, and an idle query would make a hundred a second."""
        if self._committed == (offset.journal, offset.position):
            return
        request = actions.CommitPosition(self._path, offset.journal, offset.consumer, self._id, offset.position)
        try:
            self.client.call(actions.COMMIT_POSITION, request)
        except Lost as lost:
            self.report(lost)
        except NotFound:  # or the consumer had expired, and was forgotten
            self._attached = None
            self.attach(offset)
        except StoreFull as full:  # a position that is committed late loses nothing, and the next batch has another
            self._warn(f"{self._path}: its position can't be committed for now: {_without_request(full)}")
            return
        self._committed = offset.journal, offset.position

    def report(self, lost: Lost) -> None:
        """End the query, with the cure; or warn, once, and continue."""
        text = _without_request(lost)
        if self._fail_on_loss:
            raise Lost(
                f"{text}. To continue without them: failOnDataLoss=false; to start elsewhere: a new checkpointLocation "
                "and startingOffsets, as a query's position is kept in its checkpoint",
                request=lost.request,
            ) from lost
        self._warn(f"{text}. The query continues behind them, as failOnDataLoss is false")

    def _log(self, lines: tuple[LogLine, ...]) -> None:
        """Log what the server and its pullers have warned of since the last call; what was before isn't the query's."""
        if self._logged:
            for line in lines:
                level = logging.ERROR if line.level == "error" else logging.WARNING
                logging.getLogger(actions.SERVER_LOG).log(level, "%s", printable(line.text))
        self._logged = max(1, self._logged, *(line.number for line in lines))

    def _warn(self, text: str) -> None:
        """Log a warning, once: Spark requests the same range more than once."""
        if self._warned != text:
            self._warned = text
            log.warning("%s", text)


def start_offsets(client: Client, path: str, starting: str) -> Offsets:
    """Return the offsets at which a read starts, of an option `startingOffsets`."""
    topic = _offsets_from(client, path, bound(path, starting, "startingOffsets"))
    offsets.check_start(path, topic)
    return topic


def end_offsets(client: Client, path: str, ending: str, ends: Position) -> dict[int, int]:
    """Return the offsets at which a read ends, of an option `endingOffsets`; unnamed shards end at `ends`."""
    until = bound(path, ending, "endingOffsets")
    if until is None:
        raise InvalidRequest("endingOffsets='earliest': no rows lie before it; expected latest, a time or offsets")
    last = _offsets_from(client, path, until).start
    named = until if isinstance(until, dict) else map(str, ends)
    return {**ends, **{shard: last[shard] for shard in map(int, named)}}


def _offsets_from(client: Client, path: str, start: Bound) -> Offsets:
    """Return the topic's offsets from a start on; of shards with times, the first rows since."""
    if not isinstance(start, dict):
        return client.call(actions.ASK_OFFSETS, actions.AskOffsets(path, since=start))
    named: dict[str, Any] = dict(start)
    for since in {at for at in start.values() if isinstance(at, float)}:
        first = client.call(actions.ASK_OFFSETS, actions.AskOffsets(path, since=since)).start.to_json()
        named |= {s: first.get(s, 0) for s, at in start.items() if isinstance(at, float) and at == since}
    return client.call(actions.ASK_OFFSETS, actions.AskOffsets(path, start=Position.from_json(named)))


def _without_request(error: PenstockError) -> str:
    """Return the message without the request's number, which differs each time."""
    return str(error).partition(" [request ")[0]
