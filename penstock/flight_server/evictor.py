"""Eviction: a store that is a cache makes room within its quota."""

from __future__ import annotations

import logging

from penstock.flight_server.metrics import Metrics
from penstock.ledger.ledger import Ledger
from penstock.ledger.sweep import free
from penstock.store.payloads import Store
from penstock.text import format_size

log = logging.getLogger("penstock")


class Evictor:
    """Deletes what was used longest ago and nobody needs. Called by any thread that stores something."""

    def __init__(self, ledger: Ledger, store: Store, metrics: Metrics) -> None:
        self._ledger, self._store = ledger, store
        self._evicted = metrics.counter("penstock_evictions_total", "Datasets that were deleted to make room.")

    def evict(self, size: int) -> bool:
        """Make room for so many bytes; False if what may be deleted isn't enough."""
        evicted = self._ledger.evict(size)
        for dataset in evicted:
            self._evicted.inc()
            log.info("%s is evicted: %d rows, %s", dataset.path, dataset.rows, format_size(dataset.bytes))
        free(self._ledger, self._store)
        return bool(evicted)
