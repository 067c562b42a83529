"""The sweep: retired parts lose their bytes, idle writes expire, small parts are merged, and what a crash left goes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock import steps
from penstock.errors import PenstockError, StoreFull
from penstock.ledger.ledger import Ledger
from penstock.ledger.merging import Compactor
from penstock.store.payloads import Store

log = logging.getLogger("penstock")
_BATCH = 1_000  # parts or schemas forgotten in one transaction
_PAUSE = 0.2
"""Seconds between two sweeps: one follows every put, and there may be 1,000 a second."""
TEND_EVERY = 60.0
"""Seconds between calls of `tend`."""
Tend = Callable[[Callable[[], bool]], None]
"""Regular work of the kinds of paths, such as retention; it is given what says that it should stop."""


def _tend_nothing(stop: Callable[[], bool]) -> None:
    """Do nothing: there are datasets only."""


def free(ledger: Ledger, store: Store) -> int:
    """Delete the bytes of retired parts that no ticket names any more, and return how many parts.

    1. The bytes. 2. Then their rows. A crash in between leaves rows of parts that are gone and that nothing shows: the
    next sweep drops them.
    """
    with ledger.freeing:
        names = ledger.freeable()
        for start in range(0, len(names), _BATCH):
            some = names[start : start + _BATCH]
            store.discard(some)  # 1.
            steps.passed("sweep.deleted")
            ledger.forget(some)  # 2.
        return len(names)


def make_room(ledger: Ledger, store: Store) -> bool:
    """Let what is kept for `undelete` go, as a put needs its room; False if there is nothing of that."""
    try:
        return ledger.give_up_deleted() > 0 and free(ledger, store) > 0
    except StoreFull:  # the ledger itself has no room to note it
        return False


def drop_schemas(ledger: Ledger) -> None:
    """Drop schemas that nothing refers to any more, of up to 4 MiB each.

    1. Find them, without holding up changes. 2. Drop those that no change since 1. refers to again.
    """
    unused = ledger.unused_schemas(_BATCH)  # 1.
    steps.passed("sweep.schemas")
    if unused:
        ledger.forget_schemas(unused)  # 2.


def recover(ledger: Ledger, store: Store) -> int:
    """End, at start, the puts that a crash cut, and set the parts aside that no row names; return how many.

    Then free what nobody may read any more. A full disk stops none of that for good: the next sweeps, or starts, do it.
    """
    ledger.abort_own()
    orphans = store.orphans(ledger.part_names())
    try:
        store.set_aside(orphans)
        free(ledger, store)
    except StoreFull as full:
        log.warning("recovery waits for room on the disk: %s", full)
    return len(orphans)


class Sweeper:
    """One thread that sweeps every `every` seconds, and sooner after something was retired."""

    def __init__(self, ledger: Ledger, store: Store, tend: Tend = _tend_nothing, *, every: float = 60.0) -> None:
        self._ledger = ledger
        self._store = store
        self._tend = tend
        self._compactor = Compactor(ledger, store)
        self._every = every
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._tended = -TEND_EVERY
        self._thread = threading.Thread(target=self._run, name="penstock-sweep", daemon=True)

    def start(self) -> None:
        """Start sweeping."""
        self._thread.start()

    def soon(self) -> None:
        """Sweep in a moment: something was retired."""
        self._wake.set()

    def close(self) -> None:
        """Stop sweeping, and wait for the thread."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._sweep()
            except PenstockError as error:  # a full or failing disk: the next sweep may do better
                log.warning("sweep: %s", error)
            except Exception:
                log.exception("this sweep failed; the next one tries again")
            self._wake.wait(self._every)
            self._stop.wait(_PAUSE)
            self._wake.clear()

    def _sweep(self) -> None:
        try:
            for write in self._ledger.expire():
                log.warning("write/%s was idle for too long and has expired", write)
            for dataset in self._ledger.delete_expired():
                log.info("%s was past its time to live: its %d rows are deleted", dataset.path, dataset.rows)
        finally:  # on a full disk, too: the bytes that go make room
            freed = free(self._ledger, self._store)
            if freed:
                log.info("swept %d parts", freed)
        is_due = time.monotonic() - self._tended >= TEND_EVERY
        if is_due:
            self._tended = time.monotonic()
            dropped = self._store.drop_set_aside()
            if dropped:
                log.info("deleted %d orphans", dropped)
            drop_schemas(self._ledger)
            self._tend(self._stop.is_set)
        if self._compactor.compact(self._stop.is_set, everywhere=is_due):
            self.soon()  # the parts before may be free, and the new ones worth it again
