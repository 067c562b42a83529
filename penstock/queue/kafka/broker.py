"""A Kafka broker, as a link to it needs it: the one module that imports kafka-python."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock import steps
from penstock.errors import InvalidRequest, Unavailable

try:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic
    from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError, UnknownError
    from kafka.protocol.api_key import ApiKey
    from kafka.structs import OffsetAndMetadata
except ImportError as missing:
    raise InvalidRequest("queues on Kafka need kafka-python: pip install 'penstock-flight[kafka]'") from missing

log = logging.getLogger("penstock")
_TIMES = {
    "request_timeout_ms": 10_000, "retry_backoff_ms": 5, "reconnect_backoff_max_ms": 1_000,
    "metadata_max_age_ms": 30_000,
}  # fmt: skip
"""A transaction's first request is refused while the one before ends, for a few ms: kafka-python waits 100 ms."""
_TRANSACTIONS = {
    ApiKey.InitProducerId, ApiKey.AddPartitionsToTxn, ApiKey.AddOffsetsToTxn, ApiKey.EndTxn, ApiKey.TxnOffsetCommit,
}  # fmt: skip
"""What a broker with transactions answers: Tansu begins one, and has no end for it."""
_CONFIGS = {"message.timestamp.type": "LogAppendTime"}
"""Of topics that are made here: records whose time is an hour ahead of the broker's clock are refused by others."""
_MOST_READ = 2_000  # records of one poll
_NEW = 10.0  # seconds until the partitions of a new topic have leaders
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_SENT = 30.0  # seconds until records are sent
_BATCH = 512 << 10
"""Bytes of one batch of records: kafka-python's 16 KiB are 60 messages, and each batch is a request."""
_LINGER = 1_000  # ms; a flush sends what there is, and until then its thread needn't wake up for the first record


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Output:
    """A record to be sent."""

    topic: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was read."""

    offset: int
    value: bytes


class RecordsRefused(Exception):
    """Records are larger than the broker, or the topic, takes; the broker's clients are of no use any more."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("records are too large for the broker")
        self.reasons = reasons
        """By the index of their outputs. None where a transaction failed, which says so of all that it has."""


class Broker:
    """Clients of a broker under a name of their own: of a consumer group, and of a transactional producer.

    A later producer of that name ends the open transaction of an earlier one, whose process has died, and fences it.
    Every error of the broker is Unavailable. One thread uses it; another one may close it.
    """

    def __init__(self, address: str, name: str) -> None:
        self.address, self._group = address, name
        self._admin: Any = None
        self._consumer: Any = None
        self._producer: Any = None
        with self._translated():
            try:
                self._connect(name)
            except BaseException:
                self.close()
                raise

    def _connect(self, name: str) -> None:
        own: dict[str, Any] = {"bootstrap_servers": self.address, "client_id": name, **_TIMES}
        self._admin = KafkaAdminClient(**own)
        self._consumer = KafkaConsumer(
            group_id=self._group, enable_auto_commit=False, isolation_level="read_committed",
            auto_offset_reset="none", max_poll_records=_MOST_READ, allow_auto_create_topics=False, **own,
        )  # fmt: skip
        own |= {"acks": "all", "max_block_ms": 10_000, "delivery_timeout_ms": 20_000}
        own |= {"linger_ms": _LINGER, "batch_size": _BATCH}
        own["allow_auto_create_topics"] = False
        self.has_transactions = self._admin.api_versions().keys() >= _TRANSACTIONS
        if self.has_transactions:
            self._producer = KafkaProducer(transactional_id=name, **own)
            self._producer.init_transactions()
        else:
            self._producer = KafkaProducer(enable_idempotence=False, **own)

    def close(self) -> None:
        """End the clients; what waits for the broker fails."""
        for client, options in (
            (self._producer, {"timeout": 1}),
            (self._consumer, {"timeout_ms": 1000}),
            (self._admin, {}),
        ):
            if client is not None:
                try:
                    client.close(**options)
                except Exception as error:  # the broker is away, or the thread that uses it is at work
                    log.debug("closing a client of %s: %r", self.address, error)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (KafkaError, OSError, AssertionError) as error:
            raise Unavailable(f"kafka://{self.address}: {type(error).__name__}: {error}"[:500]) from error

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        """Return the partitions that topics have now; a topic that isn't there is made, with one."""
        partitions = []
        with self._translated():
            existing = self._consumer.topics()
            for topic in topics:
                if topic not in existing:
                    self._admin.create_topics([NewTopic(topic, 1, -1, topic_configs=_CONFIGS)])
                    log.info("made the topic kafka://%s/%s", self.address, topic)
                numbers = self._consumer.partitions_for_topic(topic) or {0}
                partitions += [Partition(topic, number) for number in sorted(numbers)]
        return partitions

    def committed(self, partition: Partition) -> tuple[int, str] | None:
        """Return the group's committed offset and its metadata."""
        with self._translated():
            committed = self._consumer.committed(TopicPartition(*partition), metadata=True)
        return None if committed is None else (committed.offset, committed.metadata or "")

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Return the first offset of each partition, and the one after its last committed record."""
        places, give_up = [TopicPartition(*each) for each in partitions], time.monotonic() + _NEW
        while True:
            try:
                with self._translated():
                    firsts, ends = self._consumer.beginning_offsets(places), self._consumer.end_offsets(places)
                return {each: (firsts[place], ends[place]) for each, place in zip(partitions, places, strict=True)}
            except KeyError as unknown:  # kafka-python's, where a new partition has no leader yet
                if time.monotonic() > give_up:
                    raise Unavailable(f"kafka://{self.address}: no leader for {unknown} within {_NEW:g} s") from None
                time.sleep(0.05)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from now on, from these offsets on."""
        with self._translated():
            self._consumer.assign([TopicPartition(*each) for each in positions])
            for each, offset in positions.items():
                self._consumer.seek(TopicPartition(*each), offset)

    def read(self, seconds: float) -> dict[Partition, tuple[list[Record], int]]:
        """Return the next records of each partition, and the offset to read on from: behind aborted ones, too."""
        with self._translated():
            batches = self._consumer.poll(timeout_ms=round(seconds * 1000))
            return {
                Partition(*place): (
                    [Record(record.offset, record.value or b"") for record in batches.get(place, ())],
                    self._consumer.position(place),
                )
                for place in self._consumer.assignment()
            }

    def skip(self, partition: Partition, offset: int) -> None:
        """Read on from an offset."""
        with self._translated():
            self._consumer.seek(TopicPartition(*partition), offset)

    def commit(
        self, outputs: Sequence[Output], offsets: Mapping[Partition, tuple[int, str]]
    ) -> list[tuple[Partition, int]]:
        """Send records, and commit the group's offsets: one transaction, or without such the records first.

        Returns where each record lies. RecordsRefused if some are too large: nothing is committed then.
        """
        commits = {TopicPartition(*each): OffsetAndMetadata(*commit, -1) for each, commit in offsets.items()}
        with self._translated():
            if self.has_transactions:
                self._producer.begin_transaction()
            records = self._send(outputs)
            steps.passed("kafka.sent")
            if self.has_transactions:
                if commits:
                    self._producer.send_offsets_to_transaction(commits, self._group)
                self._producer.commit_transaction()
            elif commits:
                self._consumer.commit(commits)
        return [(Partition(record.topic, record.partition), record.offset) for record in records]

    def _send(self, outputs: Sequence[Output]) -> list[Any]:
        """Send records, and return what Kafka says of them."""
        futures, reasons = [], {}
        for number, each in enumerate(outputs):
            try:
                futures.append((number, self._producer.send(each.topic, each.value, key=each.key)))
            except _TOO_LARGE as error:  # for the producer itself
                reasons[number] = str(error)
        self._flush()
        failures = {number: future.exception for number, future in futures if future.failed()}
        refused = {number: error for number, error in failures.items() if isinstance(error, _TOO_LARGE)}
        if not self.has_transactions or len(outputs) == 1:
            reasons |= {number: str(error) for number, error in refused.items()}
        if reasons or refused:
            raise RecordsRefused(reasons)
        return [future.get(timeout=0) for _, future in futures]

    def _flush(self) -> None:
        """Wait until all is sent."""
        give_up = time.monotonic() + _SENT
        while True:
            try:
                self._producer.flush(timeout=_SENT)
                return
            except UnknownError:  # kafka-python's, where it splits a batch that was too large, and sends both halves
                if time.monotonic() > give_up:
                    raise
