"""Settling: leases whose blocks have ended are acked by a thread, all that wait in one stream and one transaction.

Meanwhile the worker goes on. Nothing of a lease counts before the server has answered, and until then the lease is
extended: if the worker dies in between, its message comes again.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from penstock.client.connection import Connection
from penstock.client.push import Output, settle, settle_together
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import Denied, LeaseLost, TimedOut, Unavailable, of_code
from penstock.wire.queue import LeaseKey, LeaseOutcome

log = logging.getLogger("penstock")
_STREAM_BYTES, _STREAM_OUTPUTS = 8 << 20, 1_000
"""Of one stream, at most, unless one lease has more: others wait for the next one."""
_FINALIZING_CHECK = 0.2
"""Seconds between two looks at whether Python ends, which freezes threads such as the one that is waited for."""


class Settleable(Protocol):
    """A block that has ended normally: a lease, or several that end together."""

    @property
    def keys(self) -> tuple[LeaseKey, ...]:
        """The leases that end with it, all or none."""
        ...

    @property
    def outputs(self) -> list[Output]:
        """What was forwarded."""
        ...

    def settled(self, outcome: LeaseOutcome | None) -> None:
        """Note what became of the leases; None: the server has not answered, so nobody knows."""
        ...

    def fail(self, error: Exception) -> None:
        """Give the messages back, as what was forwarded can't be stored."""
        ...


class Settler:
    """Acks leases, and pushes what was forwarded, until the loop over a claim has ended."""

    def __init__(self, connection: Connection, *, is_ended: bool) -> None:
        """Settle nothing if the loop `is_ended`: then each lease is acked by its worker."""
        self._connection = connection
        self.changed = threading.Condition()  # all that follows, and what the claim's other thread does
        self._waiting: deque[Settleable] = deque()
        self._settling: list[Settleable] = []
        self.answers = 0
        """How often the server has answered."""
        self.error: Exception | None = None
        """What has ended the thread: the server is away for too long, or lets the worker in no more."""
        self._ended = is_ended
        self._thread = threading.Thread(target=self._run, name="penstock-settle", daemon=True)

    def __len__(self) -> int:
        return sum(len(block.keys) for block in (*self._waiting, *self._settling))

    def add(self, block: Settleable) -> bool:
        """Settle a block soon; False if its worker has to."""
        with self.changed:
            if self._ended:
                return False
            self._waiting.append(block)
            if self._thread.ident is None:
                self._thread.start()
            self.changed.notify_all()
        return True

    def close(self) -> None:
        """Settle what waits: the server has answered for every lease, or there is an error."""
        with self.changed:
            self._ended = True
            self.changed.notify_all()
        while self._thread.is_alive() and not sys.is_finalizing():
            self._thread.join(_FINALIZING_CHECK)

    def _run(self) -> None:
        try:
            while blocks := self._next():
                settle_blocks(self._connection, blocks)
        except Exception as error:
            self.error = error
        finally:
            with self.changed:
                self._ended = True
                left = [*self._settling, *self._waiting]
                self._settling = []
                self._waiting.clear()
                self.changed.notify_all()
            for block in left:
                block.settled(None)

    def _next(self) -> list[Settleable]:
        """Wait for blocks, and return those that go in one stream, one of several leases alone; none at the end."""
        with self.changed:
            self.answers += bool(self._settling)
            self._settling = []
            self.changed.notify_all()
            while not (self._waiting or self._ended):
                self.changed.wait()
            size = number = 0
            while self._waiting and size < _STREAM_BYTES and number < _STREAM_OUTPUTS:
                if self._settling and any(len(each.keys) > 1 for each in (self._settling[0], self._waiting[0])):
                    break
                block = self._waiting.popleft()
                self._settling.append(block)
                size += sum(each.bytes for each in block.outputs)
                number += 1 + len(block.outputs)
            return self._settling


def settle_blocks(connection: Connection, blocks: Sequence[Settleable]) -> None:
    """Settle blocks that have ended normally; one whose outputs can't be stored fails alone."""
    try:
        outcomes = _settle(connection, blocks, connection.settings.retry_seconds(LONG_RETRY_FOR))
    except (Unavailable, TimedOut, Denied):
        raise
    except Exception as refused:
        if len(blocks) == 1:
            blocks[0].fail(refused)
            return
        for block in blocks:
            settle_blocks(connection, [block])
        return
    for block, outcome in zip(blocks, outcomes, strict=True):
        if outcome.code in (None, LeaseLost.code):
            if outcome.code:
                log.warning("%s", outcome.text)
            block.settled(outcome)
        else:
            block.fail(of_code(outcome.code, outcome.text or ""))


def _settle(connection: Connection, blocks: Sequence[Settleable], retry_for: float) -> Sequence[LeaseOutcome]:
    """Return what became of each block."""
    if len(blocks[0].keys) == 1:
        return settle(connection, [(block.keys[0], block.outputs) for block in blocks], retry_for=retry_for)
    [block] = blocks
    try:
        settle_together(connection, block.keys, block.outputs, retry_for=retry_for)
    except LeaseLost as lost:
        return [LeaseOutcome(code=lost.code, text=str(lost))]
    return [LeaseOutcome("done")]
