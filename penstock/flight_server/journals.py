"""What topics and subscriptions share: their journals and consumers, the one committer, the compactor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from penstock.flight_server.dead_rows import DeadRows
from penstock.flight_server.metrics import Gauge, Metrics
from penstock.flight_server.revisions import Revisions
from penstock.ledger.ledger import Ledger
from penstock.queue.pubsub import registry
from penstock.queue.topics.append import Appender
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.groups import Groups
from penstock.queue.topics.retention import retain
from penstock.queue.topics.topic import Topic
from penstock.queue.topics.topics import Topics
from penstock.store.payloads import Store


class Journals:
    """The journals of a server, whatever kind fills them."""

    def __init__(self, ledger: Ledger, store: Store, metrics: Metrics) -> None:
        self._append_seconds = metrics.histogram(
            "penstock_append_seconds", "Duration of a group of small puts, by step: its fsync, its transaction.", "step"
        )
        self._appended = metrics.counter("penstock_appended_puts_total", "Small puts to topics that were committed.")
        self._gap = metrics.counter(
            "penstock_gap_rows_total", "Rows that were removed before a consumer read them, which went on.", "topic"
        )
        self._ledger = ledger
        self.topics = Topics(ledger, store)
        self.consumers = Consumers(
            ledger, self.topics, lambda path, rows: self._gap.labels(path).inc(rows), changed=registry.release,
            holds_acks=registry.waits_for_consumers,
        )  # fmt: skip
        self.groups = Groups(ledger, registry.release)
        self.appender = Appender(ledger, store, self._count_group)
        self.revisions = Revisions(ledger)
        self.dead = DeadRows(ledger, store, self.topics, self.appender, self.revisions)
        self._compactor = Compactor(ledger, store)
        metrics.gauges(self._gauges)

    def start(self) -> None:
        """Start the committer, and the look for dead rows."""
        self.appender.start()
        self.dead.start()

    def close(self) -> None:
        """Commit what waits, and end the committer."""
        self.dead.close()
        self.appender.close()

    def tend(self, stop: Callable[[], bool]) -> None:
        """Expire consumers, remove rows, make large parts of small ones."""
        self.consumers.expire()
        self.consumers.warn(self._all())
        self.groups.tend()
        retain(self._ledger, present_since=self.consumers.present_since())
        self._compactor.compact(stop)

    def _gauges(self) -> Iterator[Gauge]:
        for topic in self._all():
            labels, age = {"topic": topic.path}, self.consumers.age(self.topics.behind(topic, {}))
            yield Gauge("penstock_topic_rows", "Rows that can be read, by topic.", topic.rows, labels)
            yield Gauge("penstock_topic_bytes", "Bytes of these rows, by topic.", topic.bytes, labels)
            yield Gauge("penstock_topic_oldest_seconds", "Age of the oldest of these rows, by topic.", age, labels)
            for each in self.consumers.of(topic):
                if each.dead:
                    labels = {"topic": topic.path, "consumer": each.consumer}
                    yield Gauge("penstock_dead_rows", "Committed rows that did not decode.", each.dead, labels)
                if each.state == "live":
                    labels = {"topic": topic.path, "consumer": each.consumer}
                    yield Gauge("penstock_consumer_lag_rows", "Rows not committed.", each.lag_rows, labels)
                    yield Gauge("penstock_consumer_lag_bytes", "Bytes of these rows.", each.lag_bytes, labels)
                    yield Gauge("penstock_consumer_lag_seconds", "Age of the oldest row.", each.lag_seconds, labels)
                    what = "1 if rows or acks wait for a consumer that was not seen for ten minutes, else 0."
                    yield Gauge("penstock_consumer_absent", what, int(each.absent), labels)

    def _all(self) -> Iterator[Topic]:
        return chain(self.topics.below("topic/"), self.topics.below("subscription/"))

    def _count_group(self, step: str, seconds: float, puts: int) -> None:
        self._append_seconds.labels(step).observe(seconds)
        if step == "ledger":
            self._appended.inc(puts)
