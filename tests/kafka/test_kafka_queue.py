"""Queues on Kafka keep what a LeaseQueue promises, and others read and write them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from penstock import steps
from penstock.client.client import connect
from penstock.errors import AlreadyExists, InvalidRequest, LimitExceeded
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import Job, Stage, WriteDataset
from penstock.queue.kafka.broker import Broker
from penstock.queue.kafka.window import FULL, MOST_METADATA, Window, done_beyond
from penstock.queue.work import records
from penstock.queue.work.lease_queue import Forward, LeaseQueue, NewMessage
from penstock.wire.kafka import KafkaAddress
from penstock.wire.message import QueueMessage
from penstock.wire.queue import Failure
from tests.kit.clock import Clock
from tests.kit.faults import crash_at
from tests.kit.jobs import double
from tests.kit.kafka import LEFT_SOCKETS, KafkaBroker, QueuesOnTopics
from tests.kit.wait import eventually
from tests.kit.work.contract import LeaseQueueContract
from tests.kit.work.queues import IN, OUT, claim, claimed, names, new

pytestmark = [pytest.mark.process, pytest.mark.timeout(300), pytest.mark.filterwarnings(LEFT_SOCKETS)]


@pytest.fixture
def start(tmp_path: Path, kafka: KafkaBroker, topic: str, clock: Clock) -> Iterator[Callable[[], QueuesOnTopics]]:
    """Open the queues as a process that has just started does."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(QueuesOnTopics(tmp_path, kafka, topic, clock)))


@pytest.fixture
def queue(start: Callable[[], QueuesOnTopics]) -> QueuesOnTopics:
    return start()


SEED = (
    b'{"message_id": "spark_stage_0", "split_id": "spark_p0_b0", "payload_key": "spark_stage_spark_p0_b0",'
    b' "metadata": {"source_stage": "spark_stage", "num_records": 1000}, "timestamp": 1702234567.123}'
)
"""The message of the format's own description, as Solstice writes it."""


class TestKafkaQueue(LeaseQueueContract):
    """Each test ends with what Kafka has: every message once, and as done what is done."""

    @pytest.fixture
    def queue(self, start: Callable[[], QueuesOnTopics]) -> Iterator[LeaseQueue]:
        opened = start()
        yield opened
        opened.check()


# --- records -------------------------------------------------------------------------------


def test_foreign_consumers_read_our_messages(queue: QueuesOnTopics, kafka: KafkaBroker) -> None:
    queue.push([NewMessage(IN, QueueMessage.decode(SEED))])
    queue.settle()
    (record,) = kafka.records(queue.topic_of(IN))
    assert (record.value, record.key) == (SEED, b"spark_p0_b0")


def test_foreign_messages_are_claimed_once(queue: QueuesOnTopics, kafka: KafkaBroker) -> None:
    queue.finish(IN)
    kafka.send(queue.topic_of(IN), SEED, SEED)
    eventually(lambda: queue.counts(IN).pushed == 1)
    assert queue.counts(IN).state == "open"
    (lease,) = claim(queue, IN, 9).leases
    assert lease.message == QueueMessage.decode(SEED)
    queue.ack([lease.key])
    queue.settle()
    eventually(lambda: queue.counts(IN).state == "complete")
    assert queue.counts(IN).pushed == 1


def test_a_record_that_is_no_message_is_dead(queue: QueuesOnTopics, kafka: KafkaBroker) -> None:
    queue.push(new(IN, "a"))
    kafka.send(queue.topic_of(IN), b"\xff no JSON", b'{"message_id": "b"}', b'{"split_id": "", "message_id": 1}')
    eventually(lambda: queue.counts(IN).pushed == 4)
    assert queue.counts(IN).dead == 3
    (first, *_) = queue.peek(IN, dead=True)
    assert (first.message.metadata["value"], first.failure and first.failure.error) == (
        "\ufffd no JSON",
        "InvalidRequest",
    )
    queue.ack(claimed(queue, IN))
    queue.settle()
    assert queue.finish(IN).state == "complete"


def test_a_finish_counts_what_others_have_sent(queue: QueuesOnTopics, kafka: KafkaBroker) -> None:
    queue.push(new(IN, "a"))
    kafka.send(queue.topic_of(IN), *(QueueMessage(f"f{number}", "s", "").encode() for number in range(3_000)))
    assert queue.finish(IN).pushed == 3_001


def test_a_clock_that_is_wrong_keeps_no_message_from_its_topic(
    queue: QueuesOnTopics, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3 * 3600)
    queue.push(new(IN, "a"))
    queue.settle()
    monkeypatch.setattr(time, "time", lambda: now() - 3 * 3600)
    queue.push(new(IN, "b"))
    queue.settle()
    assert kafka.ids(queue.topic_of(IN)) == ["a", "b"]


def test_a_message_with_a_timestamp_of_its_own_stays_whole(queue: QueuesOnTopics) -> None:
    message = QueueMessage("ä", "s", "", {"n": [1, {"x": None}], "ü": "\u2028"}, 1.25)
    queue.push([NewMessage(IN, message)])
    queue.settle()
    assert QueueMessage.decode(queue.broker.records(queue.topic_of(IN))[0].value) == message


def test_a_message_too_large_for_kafka_is_refused(queue: QueuesOnTopics) -> None:
    large = QueueMessage("big", "s", "", {"plan": "x" * 1_000_000})
    queue.push(new(IN, "a"))
    with pytest.raises(LimitExceeded, match=r"message big .* put what is large into its payload"):
        queue.push([NewMessage(IN, large)])
    leases = claimed(queue, IN, to=[OUT])
    [outcome] = queue.forward([Forward(tuple(leases), (NewMessage(OUT, large),))])
    assert (outcome.code, queue.counts(IN).claimed) == ("limit", 1)


@pytest.mark.parametrize("producer_takes", [1 << 20, 2_000])
def test_a_record_that_the_topic_refuses_holds_up_no_other(
    producer_takes: int, queue: QueuesOnTopics, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The broker says so, or the producer does."""
    kafka.make_topic(queue.topic_of(IN), {"max.message.bytes": "3000"})
    queue.push(new(OUT, "b"))
    queue.settle()
    assert queue.link._broker is not None
    queue.link._broker._producer.config["max_request_size"] = producer_takes
    large = NewMessage(IN, QueueMessage("big", "s", "", {"plan": "x" * 4_000}))
    queue.push([*new(IN, "a"), large, *new(IN, "c"), *new(OUT, "d")])
    queue.settle()
    assert (kafka.ids(queue.topic_of(IN)), kafka.ids(queue.topic_of(OUT))) == (["a", "c"], ["b", "d"])
    [dead] = queue.peek(IN, dead=True)
    assert dead.message.message_id == "big"
    assert "raise the topic's max.message.bytes and redrive it" in str(dead.failure)
    assert "is away" not in caplog.text


def test_a_refused_message_is_sent_when_it_is_redriven(queue: QueuesOnTopics, kafka: KafkaBroker) -> None:
    kafka.make_topic(queue.topic_of(IN), {"max.message.bytes": "3000"})
    queue.push([NewMessage(IN, QueueMessage("big", "s", "", {"plan": "x" * 4_000}))])
    lease = claimed(queue, IN)
    eventually(lambda: queue.counts(IN).dead == 1)
    assert [outcome.code for outcome in queue.ack(lease)] == ["lease-lost"]
    kafka.set_topic(queue.topic_of(IN), {"max.message.bytes": "9000"})
    assert queue.redrive(IN) == 1
    queue.settle()
    assert kafka.ids(queue.topic_of(IN)) == ["big"]
    queue.ack(claimed(queue, IN))
    queue.check()


# --- restarts ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("step", ["kafka.sent", "kafka.committed", "kafka.noted"])
def test_a_crash_of_the_link_sends_nothing_twice(
    queue: QueuesOnTopics, start: Callable[[], QueuesOnTopics], kafka: KafkaBroker, step: str
) -> None:
    queue.push(new(IN, "a", "b"))
    queue.settle()
    a, _ = claimed(queue, IN, 2, to=[OUT])
    passed = crash_at(step)
    with mock.patch.object(steps, "passed", passed):
        queue.forward([Forward((a,), tuple(new(OUT, "a/0", "a/1")))])
        eventually(lambda: not queue.link._thread.is_alive())
    assert kafka.done(queue.topic_of(IN), queue.group) <= {"a"}
    if "a" in kafka.done(queue.topic_of(IN), queue.group):
        assert kafka.ids(queue.topic_of(OUT)) == ["a/0", "a/1"]
    queue.close()
    queue = start()
    queue.check()
    assert names(claim(queue, OUT, 9)) == ["a/0", "a/1"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_of_the_link_reads_nothing_twice(
    queue: QueuesOnTopics, start: Callable[[], QueuesOnTopics], kafka: KafkaBroker
) -> None:
    queue.push(new(IN, "first"))
    queue.settle()
    with mock.patch.object(steps, "passed", crash_at("kafka.read")):
        kafka.send(queue.topic_of(IN), QueueMessage("a", "a", "").encode())
        eventually(lambda: not queue.link._thread.is_alive())
    queue.close()
    queue = start()
    queue.push(new(IN, "b"))
    queue.settle()
    assert names(claim(queue, IN, 9)) == ["first", "a", "b"]


def test_records_of_others_between_ours_are_read(queue: QueuesOnTopics, kafka: KafkaBroker) -> None:
    """What is sent isn't read back where it follows what was read."""
    queue.push(new(IN, "a"))
    queue.settle()
    broker = queue.link._broker
    assert broker is not None
    commit = broker.commit

    def send_and_commit(*arguments: Any) -> Any:
        kafka.send(queue.topic_of(IN), QueueMessage("foreign", "f", "").encode())
        return commit(*arguments)

    with mock.patch.object(broker, "commit", side_effect=send_and_commit):
        queue.push(new(IN, "b", "c"))
        queue.settle()
    queue.push(new(IN, "d"))
    queue.settle()
    eventually(lambda: queue.counts(IN).pushed == 5)
    assert sorted(names(claim(queue, IN, 9))) == ["a", "b", "c", "d", "foreign"]
    queue.check()


def test_what_kafka_calls_done_is_done_in_an_older_folder(
    queue: QueuesOnTopics, start: Callable[[], QueuesOnTopics]
) -> None:
    """A data folder was put back: its ledger has forgotten acks that the group has."""
    queue.push(new(IN, *"abcd"))
    queue.settle()
    _, b, c, d = claimed(queue, IN, 4)
    queue.ack([b, d])
    queue.drop([c], Failure("E"))
    queue.settle()
    assert queue.redrive(IN) == 1
    queue.link.close()
    for sql in (
        "UPDATE messages SET state = 'pending', acked = 0 WHERE message_id IN ('b', 'd')",
        "UPDATE queues SET done = done - 2",
    ):
        queue._ledger.change(lambda t, sql=sql: t.execute(sql))  # type: ignore[misc]
    queue.close()
    queue = start()
    eventually(lambda: queue.counts(IN).done == 2)
    assert [lease.message_id for lease in claimed(queue, IN, 9)] == ["c"]


def test_an_older_folder_does_and_sends_nothing_again(start: Callable[[], QueuesOnTopics], tmp_path: Path) -> None:
    """It lacks records that the group has committed, and has a message that it hasn't sent."""
    queue = start()
    queue.push(new(IN, "a"))
    queue.settle()
    queue.link.close()
    queue.push(new(IN, "b"))
    queue.close()
    older = {file: file.read_bytes() for file in tmp_path.iterdir()}
    queue = start()
    queue.push(new(IN, *"cde"))
    queue.settle()
    a, b, _, d, e = claimed(queue, IN, 5)
    queue.ack([a, b, d, e])
    queue.settle()
    queue.close()
    for file in tmp_path.iterdir():
        file.unlink()
    for file, content in older.items():
        file.write_bytes(content)
    queue = start()
    eventually(lambda: (queue.counts(IN).pushed, queue.counts(IN).done) == (5, 4))
    assert names(claim(queue, IN, 9)) == ["c"]
    queue.check()


def test_a_removed_queue_takes_no_record(queue: QueuesOnTopics) -> None:
    queue.push(new(IN, "a"))
    queue.settle()
    queue.link.close()
    (removed,) = records.on_topics(queue.database)
    queue.remove(IN)
    message = QueueMessage("b", "b", "").encode()
    queue._ledger.change(lambda t: records.take(t, removed, 0, [(7, message)], 8, lambda offset: False))
    assert queue.below("queue/") == []


def test_a_new_queue_on_its_topic_begins_after_a_removed_one(queue: QueuesOnTopics, kafka: KafkaBroker) -> None:
    queue.push(new(IN, "a", "b"))
    queue.settle()
    queue.remove(IN)
    queue.push(new(IN, "c"))
    queue.settle()
    assert names(claim(queue, IN, 9)) == ["c"]
    assert kafka.ids(queue.topic_of(IN)) == ["a", "b", "c"]


def test_a_partition_that_is_added_is_read(
    queue: QueuesOnTopics, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.kafka.link._LOOK_AGAIN", 0.1)
    queue.push(new(IN, "a"))
    queue.settle()
    kafka.add_partition(queue.topic_of(IN))
    kafka.send(queue.topic_of(IN), QueueMessage("b", "b", "").encode(), partition=1)
    eventually(lambda: queue.counts(IN).pushed == 2)
    queue.ack(claimed(queue, IN, 2))
    queue.settle()


def test_a_topic_that_has_fewer_partitions_goes_on(start: Callable[[], QueuesOnTopics], kafka: KafkaBroker) -> None:
    queue = start()
    queue.push(new(IN, "a"))
    queue.settle()
    queue.close()
    kafka.add_partition(queue.topic_of(IN))
    kafka.send(queue.topic_of(IN), QueueMessage("b", "b", "").encode(), partition=1)
    queue = start()
    eventually(lambda: queue.counts(IN).pushed == 2)
    leases = claimed(queue, IN, 2)
    queue.close()
    kafka.delete_topic(queue.topic_of(IN))
    queue = start()
    queue.ack(leases)
    queue.push(new(IN, "c"))
    queue.settle()
    assert kafka.ids(queue.topic_of(IN)) == ["c"]
    assert names(claim(queue, IN, 9)) == ["c"]


def test_a_topic_that_was_made_again_loses_no_message(
    queue: QueuesOnTopics, start: Callable[[], QueuesOnTopics], kafka: KafkaBroker
) -> None:
    queue.push(new(IN, "a", "b"))
    queue.settle()
    queue.close()
    kafka.delete_topic(queue.topic_of(IN))
    queue = start()
    queue.push(new(IN, "c"))
    queue.settle()
    assert names(claim(queue, IN, 9)) == ["a", "b", "c"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_transactions_outputs_come_before_their_acks(
    start: Callable[[], QueuesOnTopics], kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The broker is asked at the start what it has; `make test-tansu` tries one that has none."""
    monkeypatch.setattr("penstock.queue.kafka.broker._TRANSACTIONS", {10_000})
    with caplog.at_level(logging.WARNING, "penstock"):
        queue = start()
        queue.push(new(IN, "a"))
        queue.settle()
    assert "the broker has no transactions" in caplog.text
    leases = claimed(queue, IN, to=[OUT])
    with mock.patch.object(steps, "passed", crash_at("kafka.sent")):
        queue.forward([Forward(tuple(leases), tuple(new(OUT, "a/0")))])
        eventually(lambda: not queue.link._thread.is_alive())
    assert (kafka.ids(queue.topic_of(OUT)), kafka.done(queue.topic_of(IN), queue.group)) == (["a/0"], set())
    queue.close()
    queue = start()
    queue.check()
    assert names(claim(queue, OUT, 9)) == ["a/0"]


# --- the window ----------------------------------------------------------------------------


def test_a_window_says_what_is_done() -> None:
    window = Window(0)
    window.read(range(10), 12)
    window.end([0, 1, 3, 9])
    first, metadata = window.commit()
    assert (first, done_beyond(first, metadata)) == (2, {3, 9})
    window.end([2, 4, 5, 6, 7, 8])
    assert window.commit() == (12, "")


def test_a_full_window_waits_for_its_first_message() -> None:
    window = Window(0)
    window.read(range(40_000), 40_000)
    window.end(range(1, FULL + 1))
    before = window.is_full
    window.end(range(FULL + 1, 30_000))
    first, metadata = window.commit()
    assert (before, window.is_full) == (False, True)
    assert len(metadata) <= MOST_METADATA
    assert done_beyond(first, metadata) < set(range(1, 30_000))
    window.end([0])
    assert window.commit() == (30_000, "")


def test_only_its_first_is_claimed_while_a_window_is_full(
    start: Callable[[], QueuesOnTopics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker may have died; a start knows it, too, and a repeated claim is answered."""
    monkeypatch.setattr("penstock.queue.kafka.window.FULL", 2)
    queue = start()
    queue.push(new(IN, *"abcdef"))
    queue.settle()
    (a,) = queue.claim(IN, "again", worker="w").leases
    queue.ack(claimed(queue, IN, 4))
    queue.settle()
    assert names(claim(queue, IN)) == []
    assert queue.claim(IN, "again", worker="w").leases == (a,)
    queue.release([a.key])
    queue.close()
    queue = start()
    eventually(lambda: queue.link.full_partitions(IN) is not None)
    (lease,) = claim(queue, IN, 9).leases
    assert lease.message.message_id == "a"
    queue.ack([lease.key])
    queue.settle()
    assert names(claim(queue, IN)) == ["f"]


def test_a_full_window_holds_back_its_own_partition(
    queue: QueuesOnTopics, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.kafka.window.FULL", 2)
    monkeypatch.setattr("penstock.queue.kafka.link._LOOK_AGAIN", 0.1)
    queue.push(new(IN, "a"))
    queue.settle()
    kafka.add_partition(queue.topic_of(IN))
    for partition, ids in enumerate(("bcdef", "xy")):
        values = (QueueMessage(name, name, "").encode() for name in ids)
        kafka.send(queue.topic_of(IN), *values, partition=partition)
    eventually(lambda: queue.counts(IN).pushed == 8)
    leases = {lease.message_id: lease for lease in claimed(queue, IN, 8)}
    queue.ack([leases[name] for name in "bcde"])
    queue.settle()
    queue.release([leases[name] for name in "afxy"])
    assert sorted(names(claim(queue, IN, 9))) == ["a", "x", "y"]


def test_what_is_due_is_committed_in_parts(queue: QueuesOnTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    """After hours without a broker there may be millions."""
    monkeypatch.setattr("penstock.queue.kafka.link._MOST_SENT", 2)
    queue.push(new(IN, *"abcde"))
    queue.settle()
    leases = claimed(queue, IN, 5)
    with mock.patch.object(records, "note_acked", side_effect=records.note_acked) as note_acked:
        queue.ack(leases)
        queue.settle()
    assert [len(call.args[1]) for call in note_acked.call_args_list] == [2, 2, 1]
    assert queue.broker.done(queue.topic_of(IN), queue.group) == set("abcde")


def test_an_ack_waits_for_more_outputs_than_one_transaction(
    queue: QueuesOnTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.kafka.link._MOST_SENT", 2)
    queue.push(new(IN, "a"))
    queue.settle()
    leases = claimed(queue, IN, to=[OUT])
    with mock.patch.object(Broker, "commit", autospec=True, side_effect=Broker.commit) as commit:
        queue.forward([Forward(tuple(leases), tuple(new(OUT, "a/0", "a/1", "a/2")))])
        queue.settle()
    assert [(len(call.args[1]), len(call.args[2])) for call in commit.call_args_list] == [(2, 0), (1, 1)]


# --- a server ------------------------------------------------------------------------------


def test_a_server_has_queues_on_its_own_broker_alone(
    make_server: Callable[..., PenstockServer], kafka: KafkaBroker, topic: str
) -> None:
    with connect(make_server(kafka=kafka.url).url, retry_for=60) as c:
        c.create_queue("queue/a", f"{kafka.url}/{topic}")
        c.create_queue("queue/a", f"{kafka.url}/{topic}")
        with pytest.raises(AlreadyExists, match="has the messages of queue/a"):
            c.create_queue("queue/b", f"{kafka.url}/{topic}")
        with pytest.raises(AlreadyExists, match="queue/a is on kafka://"):
            c.create_queue("queue/a", kafka.url)
        with pytest.raises(InvalidRequest, match=r"start the server with --kafka kafka://10\.0\.0\.1:9092"):
            c.create_queue("queue/c", "kafka://10.0.0.1:9092/x")
        c.push("queue/d", pa.table({"x": [1]}))
        with pytest.raises(AlreadyExists, match="queue/d is on the server itself"):
            c.create_queue("queue/d", kafka.url)


def test_a_server_without_kafka_says_how_to_have_it(make_server: Callable[..., PenstockServer]) -> None:
    with connect(make_server().url, retry_for=60) as c, pytest.raises(InvalidRequest, match="penstock serve --kafka"):
        c.create_queue("queue/a", "kafka://127.0.0.1:9092")


def test_payloads_go_through_topics_to_workers(
    make_server: Callable[..., PenstockServer], kafka: KafkaBroker, topic: str
) -> None:
    with connect(make_server(kafka=kafka.url).url, retry_for=60) as c:
        for name in ("in", "out"):
            c.create_queue(f"queue/{name}", f"{kafka.url}/{topic}.{name}")
        c.push("queue/in", [pa.table({"x": [number]}) for number in range(5)], finish=True)
        for lease in c.claim("queue/in", to=["queue/out"]):
            with lease as split:
                lease.forward("queue/out", split.payload.data)
        rows = []
        for lease in c.claim("queue/out"):
            with lease as split:
                rows += split.payload.data["x"].to_pylist()
        assert sorted(rows) == [0, 1, 2, 3, 4]
        eventually(lambda: len(kafka.ids(f"{topic}.out")) == 5)
        (message, *_) = map(json.loads, (record.value for record in kafka.records(f"{topic}.out")))
        assert message["metadata"] == {"source_stage": "in", "num_records": 1}


def test_a_job_has_its_queues_on_a_broker(
    make_server: Callable[..., PenstockServer], kafka: KafkaBroker, topic: str
) -> None:
    server = make_server(kafka=kafka.url)
    job = Job(topic, queue=kafka.url, url=server.url)
    job.stage(Stage("in", [pa.table({"x": [number]}) for number in range(5)]))
    job.stage(Stage("twice", double, workers=2), after="in")
    job.stage(Stage("out", WriteDataset(f"store/{topic}")), after="twice")
    job.run(progress=False)
    with connect(server.url, retry_for=60) as c:
        assert sorted(c.get(f"store/{topic}").read_all()["x"].to_pylist()) == [0, 2, 4, 6, 8]
    eventually(lambda: len(kafka.ids(f"{topic}.twice")) == len(kafka.ids(f"{topic}.out")) == 5)


@pytest.mark.parametrize("text", ["kafka://", "kafka://host", "http://h:1/t", "kafka://h:1/a/b", "kafka://h:1/ä"])
def test_an_address_that_names_no_topic_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"expected kafka://host:port"):
        KafkaAddress.parse(text)
