"""get_flight_info of a topic: a range of offsets, shard by shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest, Lost
from penstock.flight_server.columns import Columns
from penstock.flight_server.endpoints import Endpoints
from penstock.queue.topics.topic import Topic
from penstock.queue.topics.topics import Topics
from penstock.wire.read import Entry, ReadCommand

_MOST = 2**63
"""An offset is less: the ledger keeps it in 64 bits."""


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
        return offsets(topic, command.start, start), offsets(topic, command.end, topic.latest())


def must_be(topic: Topic, journal: str | None) -> None:
    """Refuse offsets of a journal that isn't this topic's any more."""
    if journal not in (None, topic.journal):
        raise Lost(
            f"{topic.path} was deleted and made again since: the offsets are of journal {str(journal)[:12]}, this is "
            f"{topic.journal[:12]}. Start again from earliest or latest; a query of Spark does with a new checkpoint"
        )


def offsets(topic: Topic, given: Mapping[str, Any] | None, default: Mapping[int, int]) -> dict[int, int]:
    """A position as it comes over the wire, {shard: offset}; shards that aren't in it have the default."""
    found, known = dict(default), {str(shard.number): shard.number for shard in topic.shards}
    for name, offset in (given or {}).items():
        if name not in known or type(offset) is not int or not 0 <= offset < _MOST:
            raise InvalidRequest(
                f"{topic.path} has no place {name[:20]!r}: {str(offset)[:20]}; expected an offset for each of the "
                f"shards 0 to {len(topic.shards) - 1}"
            )
        found[known[name]] = offset
    return found


def _checked(topic: Topic, command: ReadCommand) -> Columns:
    if command.part is not None:
        raise InvalidRequest(f"{topic.path} is a topic: name a range of it by start and end, not a part")
    columns = Columns.of(topic)
    columns.check(command)
    return columns
