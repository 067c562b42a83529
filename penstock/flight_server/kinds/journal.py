"""What all kinds whose paths are journals have in common: reading ranges of offsets, and consumers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.flight as flight

from penstock.decode.decoding import SCHEMA_FORMATS
from penstock.errors import InvalidRequest, Lost
from penstock.flight_server import endpoints
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.kind import Kind
from penstock.flight_server.selection import Selection, select, with_meta
from penstock.flight_server.state import State
from penstock.queue.topics.topic import Topic
from penstock.rows import schemas
from penstock.wire.actions import Description, LogLine, ShardOffsets, SubscriptionFigures
from penstock.wire.paths import Path
from penstock.wire.position import Position
from penstock.wire.read import Entry, ReadCommand


class JournalKind(Kind):
    """A kind whose paths are journals."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.topics, self.consumers = state.journals.topics, state.journals.consumers

    def journal(self, path: Path) -> Topic:
        """Return the journal at a path, for a consumer."""
        return self.topics.topic(str(path))

    def consumers_changed(self, path: Path) -> None:
        """Called once a change of a path's consumers is durable."""

    def figures(self, path: Path) -> SubscriptionFigures | None:
        """Return how a subscription does."""
        return None

    def warned(self, path: Path, number: int) -> tuple[LogLine, ...]:
        """Return what the log warns of a subscription behind the line of this number; 0: its last line."""
        return ()

    # --- reading ----------------------------------------------------------------------------

    def info(
        self, call: Call, path: Path, command: ReadCommand, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        topic = self.topics.topic(str(path))
        check_journal(topic, command.journal)
        selection = self._select(topic, command)
        if command.start is not None and command.since is not None:
            raise InvalidRequest(f"{path}: expected `start` or `since`, not both")
        begin = {} if command.since is None else self.topics.at(topic, command.since)
        start = self.topics.complete_position(topic, command.start, begin)
        end = self.topics.complete_position(topic, command.end, topic.latest())
        if selection.decoding is not None and selection.decoding.writer is None:
            self.state.journals.revisions.check_settled(topic, end)
        self.topics.complete_position(topic, Position(dict.fromkeys(command.shards or (), 0)), {})  # they exist
        expires = self.state.ticket_expiry()
        pieces = self.topics.range(topic, start, end, shards=command.shards, ticketed_until=expires)
        entry = replace(self._entry(topic), life=self.topics.labelled(topic, topic.latest()).life)
        return endpoints.readable(self.state, call, descriptor, selection, pieces, entry, expires)

    def schema(self, path: Path, command: ReadCommand) -> pa.Schema:
        return self._select(self.topics.topic(str(path)), command).schema

    def _select(self, topic: Topic, command: ReadCommand) -> Selection:
        """Return what is read, and what is made of it."""
        said = command.decoding
        if said is None:
            return _select(topic, command)
        if said.format not in SCHEMA_FORMATS:
            raise InvalidRequest(f"decode={said.format[:80]!r}: its reader decodes it, expected {SCHEMA_FORMATS}")
        if command.columns is not None:
            raise InvalidRequest(f"{topic.path}: with a decoding its schema names the columns: leave `columns` out")
        available = with_meta(topic.schema)
        decoding = self.state.journals.revisions.decoding(topic.path, topic.journal, available, said)
        decoding.reading(available)
        selection = _select(topic, replace(command, columns=decoding.columns))
        said = replace(said, schema=schemas.encode(decoding.schema))
        return replace(selection, schema=decoding.schema, decoding=said, journal=topic.journal)

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        """List the journals below a folder, at any depth: they have no lines for folders."""
        below = self.topics.below(str(folder))
        for topic in below or ([self.topics.topic(str(folder))] if folder.key else []):
            yield endpoints.listed(self._entry(topic), topic.schema)

    def describe(self, path: Path) -> Description:
        topic = self.topics.topic(str(path))
        return Description(
            self.name, topic.path, topic.rows, topic.bytes, topic.part_count, topic.changed,
            schemas.to_json(topic.schema), journal=topic.journal, epoch=topic.epoch, key=topic.key,
            keep_seconds=topic.keep_seconds, keep_bytes=topic.keep_bytes,
            keep_absent=None if topic.keep_absent else False,
            shards=tuple(ShardOffsets(shard.number, shard.first, shard.next) for shard in topic.shards),
            oldest=self.consumers.age(self.topics.behind(topic, {})),
            queries=self.state.ledger.last_epochs(topic.path),
            consumers=tuple(self.consumers.of(topic)),
        )  # fmt: skip

    def _entry(self, topic: Topic) -> Entry:
        count = len(topic.shards)
        state = f"{count} shards by {topic.key}" if topic.key else "1 shard" if count == 1 else f"{count} shards"
        return Entry(
            topic.path, self.name, topic.rows, topic.bytes, topic.part_count, topic.changed, state, self.state.local
        )


def check_journal(topic: Topic, journal: str | None) -> None:
    """Reject offsets of another journal: the topic was deleted and made again."""
    if journal not in (None, topic.journal):
        raise Lost(
            f"{topic.path} was deleted and made again since: the offsets are of journal {str(journal)[:12]}, the topic "
            f"has {topic.journal[:12]} now. Start again from earliest or latest; a Spark query needs a new checkpoint"
        )


def _select(topic: Topic, command: ReadCommand) -> Selection:
    if command.part is not None:
        kind = topic.path.partition("/")[0]
        raise InvalidRequest(f"{topic.path} is a {kind} and has no numbered parts: name a range with start and end")
    return select(command, topic.path, topic.schema, meta=True)
