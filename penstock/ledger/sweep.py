"""The sweep: what is retired loses its bytes, what was idle for too long expires, what a crash left is found.

Every minute the journals are tended, too: consumers expire, rows leave, small parts become large ones.
"""

from __future__ import annotations

import logging
import threading
import time

from penstock import steps
from penstock.errors import PenstockError
from penstock.ledger.ledger import Ledger
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.retention import drop_lost, retain
from penstock.queue.topics.topics import Topics
from penstock.store.payloads import SplitPayloadStore

log = logging.getLogger("penstock")
_BATCH = 1_000  # parts forgotten in one transaction
TEND = 60.0
"""Seconds between looks at the journals: a sweep follows every put."""


def free(ledger: Ledger, store: SplitPayloadStore) -> int:
    """Delete the bytes of retired parts whose tickets are over; how many parts.

    1. The bytes go. 2. Then their rows. A crash in between leaves rows of parts that are gone and that nothing
    shows: the next sweep ends it.
    """
    names = ledger.retired()
    for start in range(0, len(names), _BATCH):
        some = names[start : start + _BATCH]
        store.discard(some)  # 1.
        steps.passed("sweep.deleted")
        ledger.forget(some)  # 2.
    return len(names)


def recover(ledger: Ledger, store: SplitPayloadStore) -> int:
    """At start, before anybody can put: end the puts that a crash cut, and remove the bytes that no row names.

    How many parts those were. Rows of topics that went with the memory of the last server leave by name.
    """
    ledger.abort_own()
    drop_lost(ledger)
    orphans = store.orphans(ledger.part_names())
    store.discard(orphans)
    return len(orphans)


class Sweeper:
    """Sweeps every `every` seconds, and soon after something was retired."""

    def __init__(self, ledger: Ledger, store: SplitPayloadStore, *, every: float = 60.0) -> None:
        self._ledger = ledger
        self._store = store
        self._every = every
        self._wake = threading.Event()
        self._stopping = False
        self._consumers = Consumers(ledger, Topics(ledger))
        self._compactor = Compactor(ledger, store)
        self._tended = -TEND
        self._thread = threading.Thread(target=self._run, name="penstock-sweep", daemon=True)

    def start(self) -> None:
        """Begin to sweep."""
        self._thread.start()

    def soon(self) -> None:
        """Something was retired."""
        self._wake.set()

    def close(self) -> None:
        """Sweep no more, and wait for the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._sweep()
            except PenstockError as error:  # a full or failing disk: the next sweep may do better
                log.warning("sweep: %s", error)
            except Exception:
                log.exception("this sweep failed; the next one tries again")
            self._wake.wait(self._every)
            self._wake.clear()

    def _sweep(self) -> None:
        for write in self._ledger.expire():
            log.warning("write/%s was idle for too long and has expired", write)
        freed = free(self._ledger, self._store) + self._store.sweep()
        if freed:
            log.info("swept %d parts", freed)
        if time.monotonic() - self._tended >= TEND:
            self._tended = time.monotonic()
            self._tend()

    def _tend(self) -> None:
        self._consumers.expire()
        retain(self._ledger)
        self._compactor.compact(stop=lambda: self._stopping)
