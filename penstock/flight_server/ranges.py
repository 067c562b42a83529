"""get_flight_info of a topic: a range of offsets, shard by shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest, Lost
from penstock.flight_server.columns import Columns
from penstock.flight_server.endpoints import Endpoints
from penstock.queue.topics.topic import Topic
from penstock.queue.topics.topics import Topics
from penstock.wire.position import Position
from penstock.wire.read import Entry, ReadCommand


@dataclass(frozen=True, slots=True)
class Ranges:
    """What cutting a topic into tickets needs of the server."""

    topics: Topics
    endpoints: Endpoints
    local: str | None

    def info(self, command: ReadCommand, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """The range's schema, size and endpoints, each some rows of one shard; their bytes stay for a ticket's life."""
        topic = self.topics.topic(command.path)
        must_be(topic, command.journal)
        columns = _checked(topic, command)
        expires = self.endpoints.expiry()
        start, end = self._ends(topic, command)
        laid = self.topics.range(topic, start, end, ticketed_until=expires)
        return self.endpoints.info(descriptor, command, columns, laid, self.entry(topic), expires)

    def schema(self, command: ReadCommand) -> pa.Schema:
        """What `info` would say of the columns."""
        return _checked(self.topics.topic(command.path), command).schema(command)

    def entry(self, topic: Topic) -> Entry:
        """The topic as a line of a listing."""
        shards = len(topic.shards)
        state = f"{shards} shards by {topic.key}" if topic.key else "1 shard" if shards == 1 else f"{shards} shards"
        return Entry(topic.path, "topic", topic.rows, topic.bytes, topic.part_count, topic.changed, state, self.local)

    def _ends(self, topic: Topic, command: ReadCommand) -> tuple[Mapping[int, int], Mapping[int, int]]:
        if command.start is not None and command.since is not None:
            raise InvalidRequest(f"{topic.path}: start at offsets, or at a time, not both")
        start = {} if command.since is None else self.topics.at(topic, command.since)
        return completed(topic, command.start, start), completed(topic, command.end, topic.latest())


def must_be(topic: Topic, journal: str | None) -> None:
    """Refuse offsets of a journal that isn't this topic's any more."""
    if journal not in (None, topic.journal):
        raise Lost(
            f"{topic.path} was deleted and made again since: the offsets are of journal {str(journal)[:12]}, this is "
            f"{topic.journal[:12]}. Start again from earliest or latest; a query of Spark does with a new checkpoint"
        )


def completed(topic: Topic, position: Position | None, default: Mapping[int, int]) -> Position:
    """Return the position with an offset for every shard: the default's where it names none."""
    for shard in position or ():
        if not shard < len(topic.shards):
            raise InvalidRequest(
                f"{topic.path} has no shard {shard}: expected an offset for each of the shards 0 to "
                f"{len(topic.shards) - 1}"
            )
    return Position({**default, **(position or {})})


def _checked(topic: Topic, command: ReadCommand) -> Columns:
    if command.part is not None:
        raise InvalidRequest(f"{topic.path} is a topic: name a range of it by start and end, not a part")
    columns = Columns.of(topic)
    columns.check(command)
    return columns
