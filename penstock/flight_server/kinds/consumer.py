"""consumer/…: who reads a journal and commits positions, by journal and name: consumer/topic/orders/billing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow.flight as flight

from penstock.errors import InvalidRequest, NotFound
from penstock.flight_server import endpoints
from penstock.flight_server.consumer_actions import ConsumerActions
from penstock.flight_server.kinds.journal import JournalKind
from penstock.flight_server.kinds.kind import Handlers, Kind
from penstock.queue.topics.topic import Topic
from penstock.wire.actions import ConsumerState, Deleted, Description
from penstock.wire.paths import Path, parse, parse_folder
from penstock.wire.read import Entry


class ConsumerKind(Kind):
    """Consumers of topics and subscriptions: queries and groups."""

    name = "consumer"

    def deciding(self, path: Path) -> Path:
        """Return the journal's path, below which the consumer's name is: topic/x/c is not asked of topic/x's c."""
        return parse_folder(path.key.rpartition("/")[0] or path.key) if path.key else path

    def actions(self) -> Handlers:
        return ConsumerActions(self.state).handlers()

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        """List the consumers below a folder, at any depth: they have no lines for folders."""
        topics = self.state.journals.topics
        below = f"{folder}/" if folder.key else str(folder)
        for topic in chain(topics.below("topic/"), topics.below("subscription/")):
            for consumer in self.state.journals.consumers.of(topic):
                path = _path_of(topic, consumer)
                if path == str(folder) or path.startswith(below):
                    yield endpoints.listed(
                        Entry(path, self.name, consumer.lag_rows, consumer.lag_bytes, 0, consumer.seen, consumer.state)
                    )

    def describe(self, path: Path) -> Description:
        topic, consumer = self._find(path)
        return Description(
            self.name, str(path), consumer.lag_rows, consumer.lag_bytes, 0, consumer.seen, journal=topic.journal,
            consumers=(consumer,),
        )  # fmt: skip

    def delete(self, path: Path) -> Deleted:
        """Remove a consumer: it holds no rows any more, and begins anew if it comes back."""
        topic, consumer = self._find(path)
        self.state.journals.consumers.remove(topic, consumer.consumer)
        kind, _ = self.state.locate(topic.path)
        if isinstance(kind, JournalKind):
            kind.consumers_changed(parse(topic.path))
        return Deleted(str(path), consumer.lag_rows, consumer.lag_bytes, 0)

    def _find(self, path: Path) -> tuple[Topic, ConsumerState]:
        journal, _, name = path.key.rpartition("/")
        if not journal.startswith(("topic/", "subscription/")):
            raise InvalidRequest(f"{path}: expected consumer/topic/… and a name: penstock ls consumer/ lists all")
        topic = self.state.journals.topics.topic(journal)
        for consumer in self.state.journals.consumers.of(topic):
            if consumer.consumer == name:
                return topic, consumer
        raise NotFound(
            f"{topic.path} has no consumer {name[:80]}: penstock ls consumer/{topic.path} lists what there is"
        )


def _path_of(topic: Topic, consumer: ConsumerState) -> str:
    return f"consumer/{topic.path}/{consumer.consumer}"
