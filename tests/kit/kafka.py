"""A Kafka broker for each of xdist's workers, topics of its own for each test, and foreign clients."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.queue.destinations import DESTINATIONS, TABLES
from penstock.queue.kafka.kafka_queue import KafkaQueue
from penstock.queue.work import work_queues
from penstock.queue.work.lease_queue import Claim, Forward, NewMessage
from penstock.queue.work.messages import Bind
from penstock.store.database import Database
from penstock.wire.kafka import KafkaAddress
from penstock.wire.queue import LeaseOutcome, QueueCounts, QueueRoom
from scripts import kafka_broker
from tests.kit.clock import Clock
from tests.kit.wait import eventually

LEFT_SOCKETS = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
"""The filter for what kafka-python leaves open when a broker is slow to answer."""


class KafkaBroker:
    """A running broker. It listens at the same `address` after a restart, and has forgotten nothing."""

    def __init__(self, folder: Path, program: ModuleType = kafka_broker) -> None:
        self._folder, self._program, self._process = folder, program, ExitStack()
        self.address, self.pid = self._process.enter_context(program.running(folder))

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def kill(self) -> None:
        """End it with kill -9."""
        self._process.close()

    def start(self) -> None:
        port = int(self.address.rpartition(":")[2])
        _, self.pid = self._process.enter_context(self._program.running(self._folder, port=port))

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    # --- foreign clients --------------------------------------------------------------------

    def records(self, topic: str) -> list[Any]:
        """Return all committed records of a topic."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.address, isolation_level="read_committed")
        try:
            numbers = consumer.partitions_for_topic(topic)
            if not numbers:
                return []
            places = [TopicPartition(topic, number) for number in sorted(numbers)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            ends, records = consumer.end_offsets(places), []
            while any(consumer.position(place) < ends[place] for place in places):
                records += [record for batch in consumer.poll(200).values() for record in batch]
            return records
        finally:
            consumer.close()

    def ids(self, topic: str) -> list[str]:
        """Return the message ids of a topic's committed records."""
        return [json.loads(record.value)["message_id"] for record in self.records(topic)]

    def done(self, topic: str, group: str) -> set[str]:
        """Return the ids of the records that a group has committed as done, as anybody can read it."""
        from kafka import KafkaConsumer, TopicPartition

        from penstock.queue.kafka.window import done_beyond

        consumer = KafkaConsumer(bootstrap_servers=self.address, group_id=group, enable_auto_commit=False)
        try:
            committed = consumer.committed(TopicPartition(topic, 0), metadata=True)
        finally:
            consumer.close()
        if committed is None:
            return set()
        beyond = done_beyond(committed.offset, committed.metadata or "")  # Tansu says None for none
        return {
            json.loads(record.value)["message_id"]
            for record in self.records(topic)
            if record.offset < committed.offset or record.offset in beyond
        }

    def send(self, topic: str, *values: bytes, partition: int | None = None) -> None:
        """Send records as a foreign producer."""
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.address)
        for value in values:
            producer.send(topic, value, partition=partition)
        producer.flush()
        producer.close()

    def make_topic(self, topic: str, configs: dict[str, str]) -> None:
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        admin.create_topics([NewTopic(topic, 1, -1, topic_configs=configs)])
        admin.close()

    def set_topic(self, topic: str, configs: dict[str, str]) -> None:
        from kafka import KafkaAdminClient
        from kafka.admin import ConfigResource, ConfigResourceType

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
        admin.close()

    def add_partition(self, topic: str) -> None:
        """Give a topic of one partition a second one."""
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        admin.create_partitions({topic: 2})
        eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 2)
        admin.close()

    def delete_topic(self, topic: str) -> None:
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics())
        admin.close()


@contextmanager
def broker_process(program: ModuleType = kafka_broker) -> Iterator[KafkaBroker]:
    """Run a broker of one's own; the test is skipped where it lacks something."""
    if (lack := program.missing()) is not None:
        pytest.skip(lack)
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
        broker = KafkaBroker(Path(folder), program)
        try:
            yield broker
        finally:
            broker.kill()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A broker that tests share: their topics have names of their own."""
    with broker_process() as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """The beginning of topics that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}"


class QueuesOnTopics(KafkaQueue):
    """A ledger's queues, each of which has a topic from its first message on."""

    def __init__(self, folder: Path, broker: KafkaBroker, topic: str, clock: Clock) -> None:
        self.database = Database(folder / "ledger.db", *TABLES)
        super().__init__(
            Ledger(self.database, DESTINATIONS, work_queues, now=clock.now), KafkaAddress.parse(broker.url),
            now=clock.now,
        )  # fmt: skip
        self.broker, self.topic = broker, topic
        self.link.start()

    @property
    def group(self) -> str:
        return f"penstock-{self.database.id[:16]}"

    def close(self) -> None:
        self.link.close()
        self.database.close()

    def topic_of(self, path: str) -> str:
        return f"{self.topic}.{path.rpartition('/')[2]}"

    def _make(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.create(path, KafkaAddress(self.link.address.broker, self.topic_of(path)))

    def push(self, new: Sequence[NewMessage], *, bind: Bind = lambda index, t: None) -> int:
        self._make(each.queue for each in new)
        return super().push(new, bind=bind)

    def claim(
        self, path: str, claim: str, *, worker: str, most: int = 1, to: Sequence[str] = (),
        room: QueueRoom | None = None,
    ) -> Claim:  # fmt: skip
        self._make(to)
        return super().claim(path, claim, worker=worker, most=most, to=to, room=room)

    def forward(self, forwards: Sequence[Forward], *, bind: Bind = lambda index, t: None) -> list[LeaseOutcome]:
        self._make(output.queue for forward in forwards for output in forward.outputs)
        return super().forward(forwards, bind=bind)

    def finish(self, path: str) -> QueueCounts:
        self._make([path])
        return super().finish(path)

    def settle(self) -> None:
        """Wait until Kafka has what the ledger says."""
        to_do = "unsent OR offset IS NOT NULL AND (acked = 2 OR acked = 0 AND state IN ('done', 'dead'))"
        eventually(lambda: self.database.row(f"SELECT 1 FROM messages WHERE {to_do}") is None)

    def check(self) -> None:
        """Check that Kafka has each message once, and that its group has committed those that are done."""
        self.check_records()
        for counts in self.below("queue/"):
            done = {row["message_id"] for row in self._rows(counts.path) if row["state"] in ("done", "dead")}
            assert done <= self.broker.done(self.topic_of(counts.path), self.group)

    def check_records(self) -> None:
        """Check that the broker has each message once."""
        self.settle()
        for counts in self.below("queue/"):
            ids = sorted(row["message_id"] for row in self._rows(counts.path))
            assert sorted(self.broker.ids(self.topic_of(counts.path))) == ids

    def _rows(self, path: str) -> list[sqlite3.Row]:
        return self.database.rows(
            "SELECT message_id, messages.state FROM messages JOIN queues ON queues.id = queue WHERE path = ?", path
        )
