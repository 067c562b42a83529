"""KafkaQueue: queues of work in the ledger, those of them that were made so as records of Kafka's topics."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.errors import InvalidRequest
from penstock.ledger.ledger import Ledger
from penstock.queue.kafka.link import KafkaLink
from penstock.queue.work import records
from penstock.queue.work.lease_queue import LEASE
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.queue.work.messages import FullPartitions
from penstock.wire.kafka import KafkaAddress
from penstock.wire.queue import QueueCounts


class KafkaQueue(LedgerQueue):
    """A LeaseQueue whose queues may have topics of one broker; every verb is the ledger's, the link does the rest."""

    def __init__(
        self,
        ledger: Ledger,
        address: KafkaAddress,
        *,
        lease: float = LEASE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ledger, lease=lease, now=now)
        self.link = KafkaLink(ledger, address)

    def create(self, path: str, address: KafkaAddress) -> QueueCounts:
        """Make a queue whose messages are records of a topic; again, it changes nothing."""
        if address.broker != self.link.address.broker:
            raise InvalidRequest(
                f"{path}: this server's Kafka is {self.link.address}, not {address}: name that one, or start the "
                f"server with --kafka kafka://{address.broker}"
            )
        self._ledger.change(lambda t: records.set_topic(t, path, str(address.of_queue(path))))
        return self.counts(path)

    def _full_partitions(self, path: str) -> FullPartitions | None:
        return self.link.full_partitions(path)

    def finish(self, path: str) -> QueueCounts:
        """Note that clients push no more, once all is read that the topic has by now."""
        if records.topic_of(self._ledger.database, path) is not None:
            self.link.catch_up(path)
        return super().finish(path)
