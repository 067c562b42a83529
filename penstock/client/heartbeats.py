"""Heartbeats: one thread of a client that extends its leases, all of them in one call, at a third of their time."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from penstock.client.connection import Connection
from penstock.errors import LeaseLost, PenstockError
from penstock.wire.actions import EXTEND_LEASES
from penstock.wire.queue import ExtendLeases, LeaseKey

log = logging.getLogger("penstock")
_RETRY = 1.0
"""Seconds before leases are extended again that couldn't be: the server is away."""


class Extendable(Protocol):
    """A lease, as heartbeats see it."""

    key: LeaseKey

    def end_by_server(self, text: str) -> bool:
        """Note that the server says that the lease is over; False while the client itself is about to end it."""
        ...


class Heartbeats:
    """Extends leases until they are settled, or nobody has them any more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changed = threading.Condition()  # all that follows
        self._due: weakref.WeakKeyDictionary[Extendable, float] = weakref.WeakKeyDictionary()
        """When each lease is extended next: one that its worker has dropped is forgotten, and ends by itself."""
        self._every = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, lease: Extendable, seconds: float) -> None:
        """Extend a new lease, which lasts for so many seconds, from now on."""
        with self._changed:
            self._every = seconds / 3
            self._due[lease] = time.monotonic() + self._every
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="penstock-heartbeats", daemon=True)
                self._thread.start()

    def forget(self, lease: Extendable) -> None:
        """Extend a lease no more: it is settled."""
        with self._changed:
            self._due.pop(lease, None)

    def close(self) -> None:
        """End the thread; leases that are left end by themselves."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (leases := self._wait_until_due()) is not None:
            if leases:
                self._extend(leases)

    def _wait_until_due(self) -> list[Extendable] | None:
        """Return the leases to extend now; None, at the end of the thread, when there have been none for a while."""
        with self._changed:
            was_idle = not self._due
            now = time.monotonic()
            self._changed.wait_for(lambda: self._closed, min(self._due.values(), default=now + self._every) - now)
            if self._closed or (was_idle and not self._due):
                self._thread = None
                return None
            soon = time.monotonic() + self._every / 4  # those that were claimed about then go along
            leases = [lease for lease, due in self._due.items() if due <= soon]
            for lease in leases:
                self._due[lease] = time.monotonic() + self._every
            return leases

    def _extend(self, leases: list[Extendable]) -> None:
        try:
            request = ExtendLeases(tuple(lease.key for lease in leases))
            outcomes = self._connection.call(EXTEND_LEASES, request, retry_for=0).outcomes
        except PenstockError as error:
            log.debug("leases can't be extended now: %s", error)
            with self._changed:
                for lease in leases:
                    if lease in self._due:
                        self._due[lease] = time.monotonic() + min(_RETRY, self._every)
            return
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome.code == LeaseLost.code and lease.end_by_server(outcome.text or ""):
                self.forget(lease)
