"""The actions of a topic's consumers: offsets, positions, and sessions that commit them."""

from __future__ import annotations

import re
from functools import partial

from penstock.errors import InvalidRequest
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.journal import JournalKind, check_journal
from penstock.flight_server.kinds.kind import Handler, Handlers
from penstock.flight_server.kinds.publish import PublishKind
from penstock.flight_server.selection import with_meta
from penstock.flight_server.state import State
from penstock.queue.topics.dead import check_writable
from penstock.queue.topics.topic import Topic
from penstock.wire import actions as wire
from penstock.wire.paths import Path, of_dead
from penstock.wire.position import Position
from penstock.wire.read import PayloadSchema

_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_Request = wire.AttachConsumer | wire.AskOffsets | wire.CommitPosition | wire.DetachConsumer | wire.ShareShards


class ConsumerActions:
    """The actions `consumer.…`, for all kinds of journals."""

    def __init__(self, state: State) -> None:
        self._state, self.topics, self.consumers = state, state.journals.topics, state.journals.consumers

    def handlers(self) -> Handlers:
        """Return the actions with their methods."""
        yield Handler(wire.ATTACH_CONSUMER, self.attach)
        yield Handler(wire.ASK_OFFSETS, self.offsets)
        yield Handler(wire.COMMIT_POSITION, self.commit)
        yield Handler(wire.DETACH_CONSUMER, self.detach)
        yield Handler(wire.SHARE_SHARDS, self.share)
        yield Handler(wire.REDRIVE_ROWS, self.redrive)

    def attach(self, call: Call, request: wire.AttachConsumer) -> wire.AttachedConsumer:
        """Make a session the one that speaks for its consumer."""
        kind, path, topic = self._find(request)
        initial = self.topics.complete_position(topic, request.initial, topic.earliest())
        position = self.topics.complete_position(topic, request.position, initial)
        known = None if request.known is None else self.topics.complete_position(topic, request.known, position)
        decoding = self._check_decoding(path, topic, request)
        self._state.journals.dead.catch_up(topic.path, request.consumer)
        committed = self.consumers.attach(
            topic, request.consumer, request.session, initial=initial, position=position, known=known,
            decoding=decoding,
        )  # fmt: skip
        kind.consumers_changed(path)
        return wire.AttachedConsumer(topic.journal, topic.epoch, self.topics.labelled(topic, committed))

    def offsets(self, call: Call, request: wire.AskOffsets) -> wire.Offsets:
        """Return where a topic begins and ends, and where a batch from `start` on would end."""
        kind, path, topic = self._find(request)
        if request.consumer is not None and request.session is not None:
            self.consumers.heard(topic, request.consumer, request.session)
        begin = topic.earliest() if request.since is None else self.topics.at(topic, request.since)
        start = self.topics.complete_position(topic, request.start, begin)
        until = self.topics.complete_position(topic, request.until, topic.latest())
        end = self.topics.ahead(topic, start, until, rows=request.max_rows, size=request.max_bytes)
        behind = self.topics.behind(topic, start)
        return wire.Offsets(
            topic.journal, topic.epoch, Position(topic.earliest()), self.topics.labelled(topic, topic.latest()),
            self.topics.labelled(topic, start), self.topics.labelled(topic, end), behind.rows, behind.bytes,
            behind.oldest, topic.key, kind.figures(path) if request.figures else None,
            () if request.log is None else kind.warned(path, request.log),
            0 if request.consumer is None else self.consumers.dead(topic, request.consumer),
        )  # fmt: skip

    def commit(self, call: Call, request: wire.CommitPosition) -> wire.CommittedPosition:
        """Move a consumer's position."""
        kind, path, topic = self._find(request)
        position = self.topics.complete_position(topic, request.position, dict.fromkeys(topic.latest(), 0))
        committed = self.consumers.commit(topic, request.consumer, request.session, position)
        kind.consumers_changed(path)
        self._state.journals.dead.look()
        return wire.CommittedPosition(self.topics.labelled(topic, committed))

    def detach(self, call: Call, request: wire.DetachConsumer) -> wire.Nothing:
        """Remove a consumer that will not return."""
        kind, path, topic = self._find(request)
        self.consumers.detach(topic, request.consumer, request.session)
        kind.consumers_changed(path)
        return wire.Nothing()

    def share(self, call: Call, request: wire.ShareShards) -> wire.SharedShards:
        """Commit what a member of a group has done, and let it have its share of the shards."""
        kind, path, topic = self._find(request)
        if request.start is not None and request.since is not None:
            raise InvalidRequest(f"{path}: expected `start` or `since`, not both")
        oldest = topic.earliest() if request.since is None else self.topics.at(topic, request.since)
        share = self._state.journals.groups.share(
            topic, request.consumer, request.session, self.topics.complete_position(topic, request.held, {}),
            begin=self.topics.complete_position(topic, request.start, oldest), leave=request.leave,
        )  # fmt: skip
        if share.changed:
            kind.consumers_changed(path)
        return wire.SharedShards(topic.journal, share.position, share.surplus, self._state.journals.groups.lease)

    def redrive(self, call: Call, request: wire.RedriveRows) -> wire.RedrivenRows:
        """Append a consumer's dead rows to another topic, or publish them."""
        _check_name("id", request.id)
        path, (kind, to) = self._state.locate(request.path)[1], self._state.locate(request.to)
        dead = self._state.journals.dead
        if isinstance(kind, PublishKind):
            return dead.publish(str(path), request.consumer, str(to), partial(kind.publish, to), request.id)
        if to.kind != "topic":
            raise InvalidRequest(
                f"{to} can't take dead rows: expected topic/…, which a query reads beside {path}, or publish/…"
            )
        check_writable(to)
        return dead.redrive(str(path), request.consumer, str(to), request.id)

    def _check_decoding(self, path: Path, topic: Topic, request: wire.AttachConsumer) -> PayloadSchema | None:
        """Return how the consumer decodes, if that is something; its dead rows are kept unless it reads such."""
        if request.decoding is None:
            return None
        columns = with_meta(topic.schema)
        self._state.journals.revisions.decoding(topic.path, topic.journal, columns, request.decoding).reading(columns)
        return None if request.decoding.mode == "FAILFAST" or of_dead(path) is not None else request.decoding

    def _find(self, request: _Request) -> tuple[JournalKind, Path, Topic]:
        """Return the journal of a request, whose names are checked, with its kind and path."""
        for field, name in (("consumer", request.consumer), ("session", request.session)):
            _check_name(field, name)
        kind, path = self._state.locate(request.path)
        if not isinstance(kind, JournalKind):
            names = " or ".join(
                f"{name}/…" for name, each in self._state.kinds.items() if isinstance(each, JournalKind)
            )
            raise InvalidRequest(f"{path} has no offsets: expected {names}")
        topic = kind.journal(path)
        check_journal(topic, request.journal)
        return kind, path, topic


def _check_name(field: str, name: str | None) -> None:
    """Reject a name that logs, tables and metrics could not show as it is."""
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field} {name[:40]!a}: expected 1 to 80 characters of A-Z a-z 0-9 . _ -, got {len(name)}"
        )
