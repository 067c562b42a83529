"""The actions of a topic's consumers: where it stands, who reads, how far each has come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flight_server.gate import Call
from penstock.flight_server.metrics import Sample
from penstock.flight_server.ranges import completed, must_be
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.topic import Topic
from penstock.queue.topics.topics import Topics
from penstock.wire import paths
from penstock.wire.actions import AskOffsets, AttachConsumer, CommitPosition, DetachConsumer
from penstock.wire.position import Position

_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True, slots=True)
class Desk:
    """Where consumers ask and report."""

    topics: Topics
    consumers: Consumers

    def read_by(self, topic: Topic) -> dict[str, Any]:
        """A topic's consumers, and the age of its oldest row."""
        oldest = self.consumers.age(self.topics.behind(topic, {})) if topic.rows else None
        return {
            "oldest": oldest,
            "consumers": [asdict(each) | {"position": each.position.to_json()} for each in self.consumers.of(topic)],
        }

    def attach(self, call: Call, body: bytes) -> dict[str, Any]:
        """consumer.attach."""
        call.must_be_known()
        asked = AttachConsumer.decode(body)
        _check_names(asked.consumer, asked.session)
        topic = self._topic(asked.path, asked.journal)
        initial = completed(topic, asked.initial, topic.earliest())
        position = completed(topic, asked.position, initial)
        known = None if asked.known is None else completed(topic, asked.known, position)
        held = self.consumers.attach(
            topic, asked.consumer, asked.session, initial=initial, position=position, known=known
        )
        return {"journal": topic.journal, "epoch": topic.epoch, "position": Position(held).to_json()}

    def offsets(self, call: Call, body: bytes) -> dict[str, Any]:
        """consumer.offsets."""
        call.must_be_known()
        asked = AskOffsets.decode(body)
        _check_names(asked.consumer, asked.session)
        topic = self._topic(asked.path, asked.journal)
        if asked.consumer is not None and asked.session is not None:
            self.consumers.heard(topic, asked.consumer, asked.session)
        begin = topic.earliest() if asked.since is None else self.topics.at(topic, asked.since)
        start = completed(topic, asked.start, begin)
        until = completed(topic, asked.until, topic.latest())
        behind = self.topics.behind(topic, start)
        return {
            "journal": topic.journal,
            "epoch": topic.epoch,
            "key": topic.key,
            "first": Position(topic.earliest()).to_json(),
            "next": Position(topic.latest()).to_json(),
            "start": start.to_json(),
            "end": Position(
                self.topics.ahead(topic, start, until, rows=asked.max_rows, size=asked.max_bytes)
            ).to_json(),
            "rows": behind.rows,
            "bytes": behind.bytes,
            "oldest": behind.oldest,
        }

    def commit(self, call: Call, body: bytes) -> dict[str, Any]:
        """consumer.commit."""
        call.must_be_known()
        asked = CommitPosition.decode(body)
        _check_names(asked.consumer, asked.session)
        topic = self._topic(asked.path, asked.journal)
        moved = self.consumers.commit(
            topic, asked.consumer, asked.session, completed(topic, asked.position, dict.fromkeys(topic.latest(), 0))
        )
        return {"position": Position(moved).to_json()}

    def detach(self, call: Call, body: bytes) -> dict[str, Any]:
        """consumer.detach."""
        call.must_be_known()
        asked = DetachConsumer.decode(body)
        _check_names(asked.consumer, asked.session)
        self.consumers.detach(self._topic(asked.path, asked.journal), asked.consumer, asked.session)
        return {}

    def _topic(self, text: str, journal: str | None) -> Topic:
        path = paths.parse(text)
        if path.kind != "topic":
            raise InvalidRequest(f"{path} has no offsets: expected topic/…")
        topic = self.topics.topic(str(path))
        must_be(topic, journal)
        return topic


TABLE: dict[str, tuple[str, Callable[[Desk, Call, bytes], dict[str, Any]]]] = {
    "consumer.attach": (
        "Read a topic as a consumer from now on: {path, journal, consumer, session, initial, …} -> its journal.",
        Desk.attach,
    ),
    "consumer.offsets": (
        "Where a topic begins and ends, and a batch from a start on: {path, start, since, max_rows, …} -> offsets.",
        Desk.offsets,
    ),
    "consumer.commit": (
        "What lies below is done for good: {path, journal, consumer, session, position} -> where it stands.",
        Desk.commit,
    ),
    "consumer.detach": (
        "This consumer won't come again: {path, journal, consumer, session} -> {}.",
        Desk.detach,
    ),
}
"""The actions' sentences and handlers."""


def _check_names(consumer: str | None, session: str | None) -> None:
    """They are shown in logs, tables and metrics as they are."""
    for what, name in (("consumer", consumer), ("session", session)):
        if name is not None and not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{what} {name[:40]!a}: expected 1 to 80 characters of A-Z a-z 0-9 . _ - ({len(name)} came)"
            )


def journal_gauges(topics: Topics, consumers: Consumers) -> Iterator[Sample]:
    """What /metrics shows of topics and their live consumers."""
    for topic in topics.below("topic/"):
        labels = f'topic="{topic.path}"'
        yield "penstock_topic_rows", labels, topic.rows
        yield "penstock_topic_bytes", labels, topic.bytes
        yield "penstock_topic_oldest_seconds", labels, consumers.age(topics.behind(topic, {}))
        for each in consumers.of(topic):
            if each.state == "live":
                labels = f'topic="{topic.path}",consumer="{each.consumer}"'
                yield "penstock_consumer_lag_rows", labels, each.lag_rows
                yield "penstock_consumer_lag_bytes", labels, each.lag_bytes
                yield "penstock_consumer_lag_seconds", labels, each.lag_seconds
