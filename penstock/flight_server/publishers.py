"""The processes that publish: one for each topic that is written to, and for a while afterwards."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.errors import InvalidRequest, PenstockError
from penstock.flight_server.pullers import Pullers, close_all, publishers_of
from penstock.flight_server.state import State
from penstock.ledger import publications
from penstock.ledger.tables import Transaction

log = logging.getLogger("penstock")
_LOOK = 0.5
"""Seconds between looks after publishers and what they are wanted for."""
_IDLE = 120.0
"""Seconds after the last write to a topic for which its publisher stays: a start takes one or two."""

_MOST = 32
"""Publishers at a time, as each takes 80 MB: further topics wait."""


class Publishers:
    """Starts, watches and ends publishers, which are children of its thread."""

    def __init__(self, state: State, changed: Callable[[], None]) -> None:
        self._state, self._changed = state, changed
        self._lock = threading.Lock()  # _wanted, _asked
        self._wanted: dict[str, float] = {}
        """Until when each topic's publisher is wanted, by the monotonic clock."""
        self._asked: set[str] = set()
        """The topics that were wanted since the last look."""
        self._stopped = threading.Event()
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="penstock-publishers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the publishers: each waits for Pub/Sub's answers, and notes them. Again, it does nothing."""
        self._stopped.set()
        self._soon.set()
        self._thread.join()

    def want(self, path: str) -> None:
        """Have a topic's publisher run from now on, and for a while; one that was refused is tried again."""
        with self._lock:
            self._asked.add(path)
            self._wanted[path] = time.monotonic() + _IDLE
        self._soon.set()

    def _look_after(self) -> None:
        running: dict[str, Pullers] = {}
        while not self._stopped.is_set():
            self._soon.wait(_LOOK)
            self._soon.clear()
            try:
                self._look(running)
            except Exception:  # the children would be killed with this thread
                log.exception("looking after publishers failed, and is tried again")
        close_all([*running.values()])

    def _look(self, running: dict[str, Pullers]) -> None:
        """Start, watch and end what is due."""
        wanted = self._wanted_now()
        with self._lock:
            asked, self._asked = self._asked, set()
        for path in wanted - running.keys():
            try:
                running[path] = publishers_of(path, self._state.config, self._state.port)
            except InvalidRequest as refused:
                self._fail(path, refused)
        for path in running.keys() - wanted:
            running.pop(path).close()
        for path, each in running.items():
            if path in asked:
                each.try_again()
            if (code := each.watch(time.monotonic(), 1)) is not None:
                self._fail(path, InvalidRequest(f"{path}: its publisher was refused: {each.said or code}"))

    def _wanted_now(self) -> set[str]:
        """Return the topics that need a publisher, those with messages to publish before others."""
        now = time.monotonic()
        unfinished = publications.unfinished(self._state.ledger.database)
        under_way = dict.fromkeys(each.path for each in unfinished if each.code is None)
        with self._lock:
            for path in under_way:
                self._wanted[path] = now + _IDLE
            self._wanted = {path: until for path, until in self._wanted.items() if until > now}
            return {*[*under_way, *(path for path in self._wanted if path not in under_way)][:_MOST]}

    def _fail(self, path: str, error: PenstockError) -> None:
        """Fail what is under way to a topic whose publisher can't start."""

        def fail(t: Transaction) -> None:
            for each in publications.unfinished(t):
                if each.path == path and each.code is None:
                    publications.fail(t, each.write, error.code, str(error))

        self._state.ledger.change(fail)
        self._changed()
