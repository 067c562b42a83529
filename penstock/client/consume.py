"""A member of a group: the loop behind `with c.consume("topic/x", group="g") as rows: for batch in rows: …`."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.client.arguments import Start, to_start
from penstock.client.connection import Connection
from penstock.client.follow import Follower, to_command
from penstock.errors import Fenced, InvalidRequest, Lost, PenstockError
from penstock.rows import slices
from penstock.wire.actions import SHARE_SHARDS, ShareShards
from penstock.wire.position import Position
from penstock.wire.read import EndpointNote, ReadCommand

log = logging.getLogger("penstock")
_LOOK = 1.0
"""Seconds between two looks at the member's share while no rows come."""
_WAIT = 0.1
"""The same of a member that has no shard."""
_QUICK = 0.05
"""Seconds: where a batch is used within them, the next one has twice as much."""
_LEAST, _MOST = 2 << 20, 32 << 20
"""Bytes of a batch: as they are sent, and an endpoint's."""
_LEAVE = 5.0
"""Seconds for which a member that ends tries to say so; later its lease ends."""


class Consumer(Follower):
    """The rows of a group's shards that this member has, each once, those of a shard in their order.

    A batch is committed when the next one is asked for, or the block ends; not if it ends by an exception. After an
    error `next` may be called again: behind a Fenced, which says that other members have had the shards, it begins
    with those that the member gets then.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        group: str,
        start: Start | None,
        columns: Sequence[str] | None,
        filter: str | None,
        *,
        auto_commit: bool,
    ) -> None:
        super().__init__(connection, to_command(path, columns, filter), Position({}))
        position, since = to_start(start)
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:40]
        member = f"{host}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._request = ShareShards(path, group, member, Position({}), start=position, since=since)
        self._auto_commit = auto_commit
        self._most, self._returned_at = _LEAST, 0.0
        """The bytes of a batch at most, if several were sent; when the last one was returned."""
        self._in_hand = False
        """Whether rows were returned since the last commit."""
        self._closed = threading.Event()
        self._lock = threading.Lock()  # all that follows; its owner makes the member's only call
        self._held: dict[int, int] = {}
        """The member's shards, each with the offset behind the rows that are done for good."""
        self._committed: dict[int, int] = {}
        """The same as the server has answered last."""
        self._surplus = 0
        self._called, self._lease = 0.0, _LOOK
        self._fenced: Fenced | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise InvalidRequest(f"{self._request.path}: this consumer was entered already: consume again")
        with self._lock:
            self._share({}, retry_for=self._connection.settings.retry_seconds())
        self._thread = threading.Thread(target=self._keep_lease, name="penstock-consume", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._closed.set()
        self._thread.join()
        try:
            if kind is None and self._auto_commit:
                self.commit()
        finally:
            leave = replace(self._request, held=Position({}), leave=True)
            try:
                self._connection.call(SHARE_SHARDS, leave, retry_for=_LEAVE)
            except PenstockError as away:
                log.debug("%s: its lease ends, as it can't be given back: %s", self._request.session, away)

    def __next__(self) -> pa.RecordBatch:
        if self._thread is None or self._closed.is_set():
            raise InvalidRequest(f"{self._request.path}: read in a block: with c.consume(…) as rows: for batch in rows")
        with self._lock:
            self._check_lease()
            if self._auto_commit:
                self._commit()
            if self._surplus:
                self._look()
        quick = time.monotonic() - self._returned_at < _QUICK
        self._most = min(max(_LEAST, self._most * 2 if quick else self._most // 2), _MOST)
        try:
            batch = super().__next__()
        except Lost as gone:
            group = f"consumer/{self._request.path}/{self._request.consumer}"
            raise Lost(f"{gone}; `penstock rm {group}` lets the group begin anew") from gone
        self._in_hand, self._returned_at = True, time.monotonic()
        return batch

    def _take(self) -> tuple[pa.RecordBatch, int, int]:
        """Take as much as is used quickly: each batch costs a commit, which is waited for."""
        first = self._batches.popleft()
        batch, shard, behind = first
        pieces, size = [first], slices.size_of(batch)
        while self._batches and self._batches[0][1] == shard and self._batches[0][0].schema == batch.schema:
            size += slices.size_of(self._batches[0][0])
            if size > self._most:
                break
            pieces.append(self._batches.popleft())
        try:
            return (slices.as_one([piece for piece, *_ in pieces]) if pieces[1:] else batch), shard, pieces[-1][2]
        except pa.ArrowException:  # dictionaries that don't fit into one
            self._batches.extendleft(reversed(pieces[1:]))
            return batch, shard, behind

    def commit(self) -> None:
        """Commit the rows that were returned, the present batch included."""
        with self._lock:
            self._check_lease()
            self._commit()

    def _next_command(self) -> ReadCommand | None:
        with self._lock:
            self._check_lease()
            if self._surplus or not self._held or time.monotonic() - self._called >= _LOOK:
                self._look()
            self._adopt()
        if not self._position:
            self._pause = min(self._pause, _WAIT)
        return replace(self._command, start=self._position, shards=tuple(self._position)) if self._position else None

    def _add(self, note: EndpointNote, batches: list[pa.RecordBatch]) -> None:
        if self._command.filter is not None and batches:  # one, as the rows between two have no offset
            with suppress(pa.ArrowException):  # dictionaries that don't fit into one
                batches = [slices.as_one(batches)]
        super()._add(note, batches)

    # --- with the lock, in the loop's thread --------------------------------------------------

    def _commit(self) -> None:
        returned = self._returned()
        if returned != self._committed:
            self._call(returned)
        self._in_hand = False

    def _look(self) -> None:
        """Give back what others are to have, but for shards with rows in hand, and take what is free."""
        returned = self._returned()
        done = self._held if self._in_hand else returned  # a filter may have passed over rows since the last commit
        idle = [shard for shard, offset in done.items() if returned[shard] == offset]
        given = idle[len(idle) - min(self._surplus, len(idle)) :]
        self._call({shard: offset for shard, offset in done.items() if shard not in given})
        self._adopt()

    def _returned(self) -> dict[int, int]:
        """Return the member's shards, each with the offset behind the rows that were returned."""
        return {shard: self._position.get(shard, offset) for shard, offset in self._held.items()}

    def _adopt(self) -> None:
        """Read the shards that the member holds now, and no others."""
        if self._position.keys() != self._held.keys():
            self._position = Position(self._returned(), self._position.life)
            self._endpoints = deque(each for each in self._endpoints if each[0].shard in self._held)
            self._batches = deque(each for each in self._batches if each[1] in self._held)

    def _call(self, held: Mapping[int, int]) -> None:
        with suppress(Fenced):
            self._share(held, retry_for=self._retry_for)
        self._check_lease()

    def _check_lease(self) -> None:
        """Raise Fenced, once, if others have had the shards; the member then holds none, and begins anew."""
        if self._fenced is not None:
            fenced, self._fenced = self._fenced, None
            self._held, self._committed, self._surplus, self._called = {}, {}, 0, 0.0
            self._in_hand = False
            self._adopt()
            raise fenced

    # --- with the lock, in any thread ---------------------------------------------------------

    def _share(self, held: Mapping[int, int], *, retry_for: float) -> None:
        """Say what the member holds and has done, which is so also if this fails; note what it holds then."""
        self._held = dict(held)
        request = replace(self._request, held=Position(held, self._position.life))
        try:
            answer = self._connection.call(SHARE_SHARDS, request, retry_for=retry_for, waits_for_room=retry_for > 0)
        except Fenced as fenced:
            self._fenced = fenced
            raise
        self._held, self._committed = dict(answer.held), dict(answer.held)
        self._surplus, self._lease, self._called = answer.surplus, answer.lease_seconds, time.monotonic()
        self._request = replace(self._request, journal=answer.journal)
        self._command = replace(self._command, journal=answer.journal)

    def _keep_lease(self) -> None:
        """Say that the member lives while a batch is in use, until the block ends."""
        while not self._closed.wait(self._lease / 3):
            with self._lock:
                if self._fenced is None and time.monotonic() - self._called > self._lease / 4:
                    self._beat()

    def _beat(self) -> None:
        """Say that the member lives."""
        try:
            self._share(self._held, retry_for=0)
        except PenstockError as error:
            log.debug("%s: its lease isn't extended now: %s", self._request.session, error)
