"""A topic as it grows: `for batch in c.follow("topic/x"): …`. What the client does behind that loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import Expired, InvalidRequest, TimedOut, Unavailable
from penstock.rows import slices
from penstock.wire.position import Position
from penstock.wire.read import EndpointNote, ReadCommand

_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two questions for more: the first after rows have come, the last while none do."""
_NOTICED = 0.1
"""Seconds within which `stop` is noticed."""
Call = Callable[[str, Mapping[str, Any]], dict[str, Any]]
Info = Callable[[ReadCommand], flight.FlightInfo]
Fetch = Callable[[bytes], Iterator[pa.RecordBatch]]


def offsets(position: object, name: str) -> Position | None:
    """A position as the wire has it; refuses by the argument's name what is none."""
    if position is None:
        return None
    if not isinstance(position, Mapping):
        time = ", or a time (datetime.datetime)" if name == "start" else ""
        raise InvalidRequest(f"{name}={position!r:.80}: expected offsets by shard, such as {{0: 500}}{time}")
    try:
        return Position({int(shard): offset.__index__() for shard, offset in position.items()})
    except (TypeError, ValueError, AttributeError) as wrong:
        raise InvalidRequest(f"{name}={position!r:.80}: expected a whole number for each shard: {{0: 500}}") from wrong


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a topic, and whose: which journal the offsets are of."""

    journal: str
    offsets: dict[int, int]


def place(call: Call, path: str, where: Mapping[int, int] | datetime | None) -> Place:
    """Where in a topic that is, for each of its shards: offsets, a time, or its end as it is now (None)."""
    since = where.timestamp() if isinstance(where, datetime) else None
    start = None if isinstance(where, datetime) else offsets(where, "start")
    asked = {"since": since, "start": None if start is None else start.to_json()}
    topic = call("consumer.offsets", {"path": path, **{name: said for name, said in asked.items() if said is not None}})
    found = topic["next"] if where is None else topic["start"]
    return Place(topic["journal"], {int(shard): offset for shard, offset in found.items()})


class Follower(Iterator[pa.RecordBatch]):
    """The rows of a topic as they come, each once, those of a shard in their order. `next` waits for some.

    An error ends nothing, nor does Ctrl-C: the next `next` goes on behind the rows that were given last.
    """

    def __init__(
        self, path: str, at: Place, columns: Sequence[str] | None, filter: str | None,
        *, info: Info, fetch: Fetch, patience: float,
    ) -> None:  # fmt: skip
        self.position = dict(at.offsets)
        """The next offset of each shard, behind the rows that were given: `start` for who goes on later."""
        self._asked = ReadCommand(path, None if columns is None else tuple(columns), filter=filter, journal=at.journal)
        self._info, self._fetch, self._patience = info, fetch, patience
        self._found: deque[tuple[EndpointNote, bytes]] = deque()
        self._held: deque[tuple[pa.RecordBatch, int, int]] = deque()
        self._stopped = False  # a bare flag: a signal's handler may set it, which must not take a lock
        self._pause = _SHORTEST

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            self._come()
            if not self._stopped:
                batch, shard, behind = self._held.popleft()
                self.position[shard] = behind
                return batch
        except BaseException:
            self._found.clear()  # what is on its way was given to nobody: the next question begins at `position`
            self._held.clear()
            raise
        raise StopIteration

    def _come(self) -> None:
        """Wait until rows are held, or `stop`."""
        patient_until: float | None = None
        while not (self._held or self._stopped):
            try:
                self._ask()
                patient_until = None
            except (Unavailable, TimedOut, Expired) as away:
                self._found.clear()
                now = time.monotonic()
                patient_until = patient_until or now + self._patience
                if now > patient_until:
                    raise type(away)(
                        f"{self._asked.path} can't be followed for {self._patience:g} s now: {away}"
                    ) from away
                self._wait(getattr(away, "retry_after", None) or 0.0)

    def stop(self) -> None:
        """End the loop behind the batch that it is at, from whatever thread; one that waits ends within a moment."""
        self._stopped = True

    def _ask(self) -> None:
        """Hold the rows of one endpoint, or look for endpoints; wait if there is none."""
        if not self._found:
            found = self._info(replace(self._asked, start=Position(self.position)))
            self._found.extend((EndpointNote.decode(e.app_metadata), e.ticket.ticket) for e in found.endpoints)
            if not self._found:
                self._wait(0.0)
                return
        note, ticket = self._found.popleft()
        batches: list[pa.RecordBatch] = []
        try:
            batches.extend(self._fetch(ticket))
        except (Unavailable, TimedOut):
            if self._asked.filter is not None or not batches:
                raise
            self._found.clear()  # what has come counts, the rest is asked for anew
        self._pause = _SHORTEST
        self._hold(note, batches)

    def _hold(self, note: EndpointNote, batches: list[pa.RecordBatch]) -> None:
        assert note.shard is not None
        assert note.start is not None
        end = note.start + note.rows
        if self._asked.filter is None:
            behind = note.start
            for batch in batches:
                behind += batch.num_rows
                self._held.append((batch, note.shard, behind))
        elif batches:  # which of its rows were kept isn't known, but behind the last that is kept all are seen
            *most, last = slices.together(batches)
            self._held.extend((batch, note.shard, note.start) for batch in most)
            self._held.append((last, note.shard, end))
        else:
            self.position[note.shard] = end

    def _wait(self, at_least: float) -> None:
        until = time.monotonic() + max(self._pause, at_least)
        while not self._stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _NOTICED))
        self._pause = min(self._pause * 2, _LONGEST)
