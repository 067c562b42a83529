"""The connections of a worker process, kept from task to task: a new one costs 0.7 ms, and with TLS 2.5."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.client.connection import Connection
from penstock.client.settings import ConnectSettings

_MAX_CONNECTIONS = 4
_MAX_IDLE = 60.0
"""Seconds after which a connection isn't used again: firewalls drop silent connections without a word."""


class ConnectionCache:
    """Connections by their settings. Safe to share between threads.

    A connection that is removed isn't closed, as another thread may use it: its channel closes with its last reference.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start_empty()
        self._of_parents: list[OrderedDict[ConnectSettings, tuple[Connection, float]]] = []

    @contextmanager
    def connect(self, settings: ConnectSettings) -> Iterator[Connection]:
        """Lend the connection of these settings; one whose task failed isn't lent again, as it may be broken."""
        connection = self._lend(settings)
        try:
            yield connection
        except Exception:
            self._remove(settings, connection)
            raise

    def _lend(self, settings: ConnectSettings) -> Connection:
        if self._process != os.getpid():
            # In a forked child a call on the parent's channel hangs and breaks the parent's calls, closing one hangs
            self._of_parents.append(self._connections)
            self._start_empty()
        with self._lock:
            connection, used = self._connections.pop(settings, (None, 0.0))
            if connection is None or self._now() - used > _MAX_IDLE:
                connection = Connection(settings)
            self._connections[settings] = connection, self._now()
            if len(self._connections) > _MAX_CONNECTIONS:
                self._connections.popitem(last=False)
        return connection

    def _remove(self, settings: ConnectSettings, connection: Connection) -> None:
        with self._lock:
            if self._connections.get(settings, (None, 0.0))[0] is connection:
                del self._connections[settings]

    def _start_empty(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # _connections
        self._connections: OrderedDict[ConnectSettings, tuple[Connection, float]] = OrderedDict()


CONNECTIONS = ConnectionCache()
"""The connections of this process."""
