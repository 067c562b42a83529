"""The sign of life of a driver whose write has a queue: workers wait for it, so the server fails one that is silent."""

from __future__ import annotations

import logging
import threading
import weakref

from penstock.client.connection import Connection
from penstock.errors import PenstockError, TimedOut, Unavailable
from penstock.spark_plugin.worker.open_put import OpenPut
from penstock.wire.actions import TOUCH_WRITE, TouchWrite

log = logging.getLogger(__name__)
_EVERY = 60.0
"""Seconds between two signs: the server waits for ten minutes."""


class Heartbeat:
    """A thread that touches an open write until it is closed, or nobody has it any more."""

    def __init__(self, connection: Connection, put: OpenPut, *, every: float = _EVERY) -> None:
        self._ended = threading.Event()
        if put.repeated:
            return
        weakref.finalize(self, self._ended.set)
        arguments = (connection, put, every, self._ended)
        threading.Thread(target=_run, args=arguments, name="penstock-heartbeat", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()


def _run(connection: Connection, put: OpenPut, every: float, ended: threading.Event) -> None:
    while not ended.wait(every):
        try:
            connection.call(TOUCH_WRITE, TouchWrite(put.ticket))
        except (Unavailable, TimedOut) as away:
            log.info("write/%s: no sign of life reached the server: %s", put.write, away)
        except PenstockError:  # the write has ended, or a task of it will say what is wrong
            return
