"""get_flight_info of a topic: a range of offsets, shard by shard, as tickets."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock import filters, projection
from penstock.errors import InvalidRequest, Lost
from penstock.flight_server.columns import check_columns
from penstock.queue.topics import META, Laid, Topic, Topics
from penstock.tickets import ReadTicket, Signer
from penstock.wire import EndpointNote, Entry, ReadCommand

RUN_BYTES = 32 << 20
RUN_PARTS = 64
"""How much one endpoint has at most, of a topic or a dataset, if no single part has more."""
_MOST = 2**63
"""An offset is less: the ledger keeps it in 64 bits."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """What cutting a topic into tickets needs of the server."""

    topics: Topics
    signer: Signer
    ticket_life: float
    location: str | None

    def info(self, command: ReadCommand, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """The range's schema, size and endpoints, each some rows of one shard; their bytes stay for a ticket's life."""
        topic = self.topics.topic(command.path)
        must_be(topic, command.journal)
        check(topic, command)
        expires = time.time() + self.ticket_life
        start, end = self._ends(topic, command)
        laid = _first_rows(self.topics.range(topic, start, end, ticketed_until=expires), command)
        runs = list(_runs(laid))
        filtered = command.filter is not None
        return flight.FlightInfo(
            projection.select(all_columns(topic.schema), command.columns or topic.schema.names),
            descriptor,
            [self._endpoint(topic, run, command, expires) for run in runs],
            -1 if filtered else sum(run.rows for run in runs),
            -1 if filtered else sum(run.bytes for run in runs),
            ordered=True,
            app_metadata=entry(topic).encode(),
        )

    def schema(self, command: ReadCommand) -> pa.Schema:
        """What `info` would say of the columns."""
        topic = self.topics.topic(command.path)
        check(topic, command)
        return projection.select(all_columns(topic.schema), command.columns or topic.schema.names)

    def _ends(self, topic: Topic, command: ReadCommand) -> tuple[Mapping[int, int], Mapping[int, int]]:
        if command.start is not None and command.since is not None:
            raise InvalidRequest(f"{topic.path}: start at offsets, or at a time, not both")
        start = {} if command.since is None else self.topics.at(topic, command.since)
        return offsets(topic, command.start, start), offsets(topic, command.end, topic.latest())

    def _endpoint(self, topic: Topic, run: _Run, command: ReadCommand, expires: float) -> flight.FlightEndpoint:
        first, last = run.laid[0], run.laid[-1]
        narrower = not first.schema.equals(topic.schema)
        wanted = set(command.columns or ()) | _mentioned(command, topic)
        ticket = ReadTicket(
            tuple(laid.part for laid in run.laid),
            topic.path,
            round(expires, 3),
            command.columns or tuple(topic.schema.names),
            command.limit if command.filter is not None else None,
            base64.b64encode(topic.schema.serialize()).decode() if narrower else None,
            command.filter,
            skip=first.skip or None,
            rows=run.rows if not last.to_its_end else None,
            shard=first.shard if wanted & {"_shard", "_offset"} else None,
            offset=first.first + first.skip if "_offset" in wanted else None,
            since=tuple(laid.since for laid in run.laid) if "_time" in wanted else None,
        )
        return flight.FlightEndpoint(
            self.signer.sign(ticket),
            [self.location] if self.location else [],
            pa.scalar(int(expires * 1e6), pa.timestamp("us", "UTC")),
            EndpointNote(run.rows, run.bytes, len(run.laid), first.shard, first.first + first.skip).encode(),
        )


def must_be(topic: Topic, journal: str | None) -> None:
    """Refuse offsets of a journal that isn't this topic's any more."""
    if journal not in (None, topic.journal):
        raise Lost(
            f"{topic.path} was deleted and made again since: the offsets are of journal {str(journal)[:12]}, this is "
            f"{topic.journal[:12]}. Start again from earliest or latest; a query of Spark does with a new checkpoint"
        )


def entry(topic: Topic) -> Entry:
    """The topic as a line of a listing."""
    shards = len(topic.shards)
    state = f"{shards} shards by {topic.key}" if topic.key else "1 shard" if shards == 1 else f"{shards} shards"
    return Entry(topic.path, "topic", topic.rows, topic.bytes, topic.part_count, topic.changed, state)


def all_columns(schema: pa.Schema) -> pa.Schema:
    """A topic's columns, and behind them what the server adds for who asks."""
    own = [field for field in schema if field.name not in META.names]  # a part that was compacted holds `_time`
    return pa.schema([*own, *META], metadata=schema.metadata)


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


def check(topic: Topic, command: ReadCommand) -> None:
    """Refuse columns and a filter that don't fit, before a ticket is given for them."""
    if command.part is not None:
        raise InvalidRequest(f"{topic.path} is a topic: name a range of it by start and end, not a part")
    whole = all_columns(topic.schema)
    if command.columns is not None:
        check_columns(topic.path, whole, command.columns)
    if command.filter is not None:
        filters.parse(command.filter, whole).check(whole, command.columns)


def _mentioned(command: ReadCommand, topic: Topic) -> set[str]:
    if command.filter is None:
        return set()
    whole = all_columns(topic.schema)
    return set(filters.parse(command.filter, whole).needed(whole, command.columns or topic.schema.names))


def _first_rows(laid: list[Laid], command: ReadCommand) -> Iterator[Laid]:
    left = command.limit if command.filter is None else None
    for each in laid:
        if left is None:
            yield each
        elif left > 0:
            taken = min(left, each.rows)
            yield replace(each, rows=taken, bytes=each.bytes * taken // max(1, each.rows))
            left -= taken


@dataclass(slots=True)
class _Run:
    """Rows of one shard that follow each other, in one schema."""

    laid: list[Laid] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def takes(self, next_one: Laid) -> bool:
        """Whether the next rows may join."""
        if not self.laid:
            return True
        small = self.bytes + next_one.bytes <= RUN_BYTES and len(self.laid) < RUN_PARTS
        same = self.laid[0].shard == next_one.shard
        return small and same and self.laid[0].schema.equals(next_one.schema, check_metadata=True)


def _runs(laid: Iterator[Laid]) -> Iterator[_Run]:
    run = _Run()
    for each in laid:
        if not run.takes(each):
            yield run
            run = _Run()
        run.laid.append(each)
        run.rows += each.rows
        run.bytes += each.bytes
    if run.laid:
        yield run
