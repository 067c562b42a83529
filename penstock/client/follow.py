"""A topic as it grows: the loop behind `for batch in c.follow("topic/x"): …`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.arguments import Start, check_read, to_start
from penstock.client.connection import Connection, translate_errors
from penstock.client.get import open_stream, read_info
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import Expired, TimedOut, Unavailable
from penstock.rows import slices
from penstock.wire.actions import ASK_OFFSETS, AskOffsets
from penstock.wire.position import Position
from penstock.wire.read import EndpointNote, Entry, ReadCommand

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two requests for more rows: the first after rows have come, the last while none do."""
_STOP_CHECK = 0.1
"""Seconds between two looks at `stop`, while the follower waits."""


def follow(
    connection: Connection, path: str, start: Start | None, columns: Sequence[str] | None, filter: str | None
) -> Follower:
    """Return the rows of a topic from `start` on; without one from now on."""
    command = to_command(path, columns, filter)
    position, since = to_start(start)
    topic = connection.call(ASK_OFFSETS, AskOffsets(path, start=position, since=since))
    begin = topic.next if start is None else topic.start
    return Follower(connection, replace(command, journal=topic.journal), begin)


def to_command(path: str, columns: Sequence[str] | None, filter: str | None) -> ReadCommand:
    """Return the command of a read, whose arguments are checked."""
    check_read(path, columns, filter)
    return ReadCommand(path, None if columns is None else tuple(columns), filter=filter)


class Follower(Iterator[pa.RecordBatch]):
    """The rows of a topic as they come, each once, those of a shard in their order. `next` waits for some.

    After an error, or Ctrl-C, `next` may be called again: it continues behind the rows that it has returned.
    """

    def __init__(self, connection: Connection, command: ReadCommand, position: Position) -> None:
        """`command` names what to read, `position` where to begin."""
        self._connection = connection
        self._command, self._position = command, position
        self._retry_for = connection.settings.retry_seconds(LONG_RETRY_FOR)
        self._endpoints: deque[tuple[EndpointNote, bytes]] = deque()
        self._batches: deque[tuple[pa.RecordBatch, int, int]] = deque()
        """Batches to return, each with its shard and the offset behind it."""
        self._stopped = False  # a bare flag: a signal's handler may set it, which must not take a lock
        self._pause = _SHORTEST_PAUSE

    @property
    def position(self) -> Position:
        """The next offset of each shard, behind the returned rows: pass it as `start` to continue later."""
        return self._position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            self._wait_for_batches()
            if not self._stopped:
                batch, shard, behind = self._take()
                self._position = self._position.moved(shard, behind)
                return batch
        except BaseException:
            self._endpoints.clear()  # their rows were not returned: the next request begins at `position`
            self._batches.clear()
            raise
        raise StopIteration

    def _take(self) -> tuple[pa.RecordBatch, int, int]:
        """Take the next batch to return, with its shard and the offset behind it."""
        return self._batches.popleft()

    def stop(self) -> None:
        """End the loop behind the present batch, from any thread; a follower that waits ends within a moment."""
        self._stopped = True

    def _wait_for_batches(self) -> None:
        """Return when there are batches, or at `stop`."""
        give_up: float | None = None
        while not (self._batches or self._stopped):
            try:
                self._fetch_more()
                give_up = None
            except (Unavailable, TimedOut, Expired) as error:
                self._endpoints.clear()
                now = time.monotonic()
                give_up = give_up or now + self._retry_for
                if now > give_up:
                    raise type(error)(
                        f"{self._command.path} could not be followed for {self._retry_for:g} s: {error}"
                    ) from error
                self._sleep(error.retry_after or 0.0)

    def _fetch_more(self) -> None:
        """Fetch the batches of one endpoint, of new ones if none is left; sleep if there is none."""
        if not self._endpoints:
            command = self._next_command()
            if command is None:
                self._sleep(0.0)
                return
            info = self._info(command)
            self._position = Position(self._position, Entry.decode(info.app_metadata).life)
            self._endpoints.extend((EndpointNote.decode(e.app_metadata), e.ticket.ticket) for e in info.endpoints)
            if not self._endpoints:
                self._sleep(0.0)
                return
        note, ticket = self._endpoints.popleft()
        batches: list[pa.RecordBatch] = []
        try:
            batches.extend(self._fetch(ticket))
        except (Unavailable, TimedOut):
            if self._command.filter is not None or not batches:
                raise
            self._endpoints.clear()  # the batches that have come count, the rest is requested again
        self._pause = _SHORTEST_PAUSE
        self._add(note, batches)

    def _next_command(self) -> ReadCommand | None:
        """Return the command for the rows behind those that were returned; None if there is none to be read now."""
        return replace(self._command, start=self._position)

    def _add(self, note: EndpointNote, batches: list[pa.RecordBatch]) -> None:
        assert note.shard is not None
        assert note.start is not None
        end = note.start + note.rows
        if self._command.filter is None:
            behind = note.start
            for batch in batches:
                behind += batch.num_rows
                self._batches.append((batch, note.shard, behind))
        elif batches:  # which rows the filter kept isn't known: the position moves with the last batch, past them all
            *most, last = slices.together(batches)
            self._batches.extend((batch, note.shard, note.start) for batch in most)
            self._batches.append((last, note.shard, end))
        else:
            self._position = self._position.moved(note.shard, end)

    def _info(self, command: ReadCommand) -> flight.FlightInfo:
        with translate_errors():
            return read_info(self._connection, command)

    def _fetch(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        return open_stream(self._connection, ticket)

    def _sleep(self, at_least: float) -> None:
        until = time.monotonic() + max(self._pause, at_least)
        while not self._stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _STOP_CHECK))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
