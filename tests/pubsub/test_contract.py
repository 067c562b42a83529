"""What the emulator and the fake do alike: a test that holds on the fake is believed as far as this goes."""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import pytest

from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import ack_id_failures, connected
from tests.kit.pubsub.emulator import Emulator, unique_names
from tests.kit.pubsub.fixtures import Broker
from tests.kit.wait import eventually

DEADLINE = 10
PAST = DEADLINE + 1.0
NOTHING = 1.5  # seconds in which nothing comes


def ids(received: list[Any]) -> list[str]:
    return [each.message.message_id for each in received]


def ack_ids(received: list[Any]) -> list[str]:
    return [each.ack_id for each in received]


def data(received: list[Any]) -> list[bytes]:
    return [each.message.data for each in received]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_emulator_does_all_that_the_fake_does(pubsub_emulator: Emulator) -> None:
    """Every test here, side by side, as each waits for leases to end; errors are told by name."""

    def run(test: Callable[[Broker], None]) -> None:
        with connected(pubsub_emulator.address) as client:
            test(Broker(client, unique_names(), pubsub_emulator.address, time.sleep))

    tests = dict(cases_of_brokers())
    with ThreadPoolExecutor(len(tests)) as pool:
        runs = {name: pool.submit(run, test) for name, test in tests.items()}
    errors = {name: error for name, run in runs.items() if (error := run.exception()) is not None}
    assert not errors, "\n".join(f"{name}: {error!r}" for name, error in errors.items())
    assert len(runs) > 25


def cases_of_brokers() -> Iterator[tuple[str, Callable[[Broker], None]]]:
    """Return the tests of this file, with each set of their parameters."""
    for name, test in globals().items():
        if not name.startswith("test_") or "broker" not in inspect.signature(test).parameters:
            continue
        cases: list[dict[str, Any]] = [{}]
        for mark in getattr(test, "pytestmark", []):
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            cases = [dict(zip(names, values if len(names) > 1 else [values], strict=True)) for values in mark.args[1]]
        yield from ((f"{name} {case or ''}", partial(test, **case)) for case in cases)


def test_a_message_comes_as_it_was_published(broker: Broker) -> None:
    broker.create()
    message = pb.PubsubMessage(data=b"\x00\xff", attributes={"a": "1", "ü": "€"}, ordering_key="k")
    [message_id] = broker.client.publish(broker.names.topic, [message])
    [received] = broker.client.pull_all(broker.names.subscription, 1)
    assert received.message.message_id == message_id
    assert (received.message.data, dict(received.message.attributes)) == (b"\x00\xff", {"a": "1", "ü": "€"})
    assert received.message.ordering_key == "k"
    assert abs(received.message.publish_time.seconds - time.time()) < 60
    assert received.delivery_attempt == 0


def test_each_subscription_has_what_came_after_it(broker: Broker) -> None:
    """And a seek back brings no more."""
    client, names = broker.client, broker.names
    client.create_topic(names.topic)
    before = client.publish(names.topic, [b"before"])
    first, second = f"{names.subscription}-1", f"{names.subscription}-2"
    for subscription in (first, second):
        client.create_subscription(subscription, names.topic)
    published = client.publish(names.topic, [b"%d" % number for number in range(2_500)])
    assert not set(before) & set(published)
    for subscription in (first, second):
        received = client.pull_all(subscription, 2_500)
        assert sorted(ids(received)) == sorted(published)
        assert len(set(ack_ids(received))) == 2_500
        client.acknowledge(subscription, ack_ids(received))
    client.seek(first, time.time() - 3_600)
    again = client.pull_all(first, 2_500)
    assert sorted(ids(again)) == sorted(published)
    client.acknowledge(first, ack_ids(again))
    assert client.pull(first, within=NOTHING) == []


def test_a_lease_that_ends_brings_a_new_ack_id(broker: Broker) -> None:
    """What was acked does not come again; what was extended comes later."""
    broker.create(deadline=DEADLINE)
    client, subscription = broker.client, broker.names.subscription
    client.publish(broker.names.topic, [b"acked", b"extended", b"left"])
    of = {each.message.data: each for each in client.pull_all(subscription, 3)}
    client.acknowledge(subscription, [of[b"acked"].ack_id])
    client.modify(subscription, [of[b"extended"].ack_id], 2 * DEADLINE)
    broker.let_pass(PAST)
    [again] = client.pull_all(subscription, 1)
    assert (again.message, again.ack_id != of[b"left"].ack_id) == (of[b"left"].message, True)
    client.acknowledge(subscription, [of[b"left"].ack_id])  # stale: answered with OK, and without effect
    client.modify(subscription, [of[b"left"].ack_id], 600)
    broker.let_pass(PAST)
    assert sorted(data(client.pull_all(subscription, 2))) == [b"extended", b"left"]


def test_an_ack_after_the_lease_counts_until_redelivery(broker: Broker) -> None:
    broker.create(deadline=DEADLINE)
    client, subscription = broker.client, broker.names.subscription
    client.publish(broker.names.topic, [b"late"])
    [received] = client.pull_all(subscription, 1)
    broker.let_pass(PAST)
    client.acknowledge(subscription, [received.ack_id])
    assert client.pull(subscription, within=NOTHING) == []


def test_a_nack_brings_the_message_at_once(broker: Broker) -> None:
    broker.create(deadline=60)
    client, subscription = broker.client, broker.names.subscription
    client.publish(broker.names.topic, [b"a", b"b"])
    first, second = client.pull_all(subscription, 2)
    client.modify(subscription, [first.ack_id], 0)
    [again] = client.pull_all(subscription, 1)
    assert (again.message, again.ack_id != first.ack_id) == (first.message, True)
    client.acknowledge(subscription, ack_ids([again, second]))
    assert client.pull(subscription, within=NOTHING) == []


def test_exactly_once_names_ids_that_are_stale(broker: Broker) -> None:
    """The other ids of the request have their effect."""
    broker.create(deadline=60, exactly_once=True)
    client, subscription = broker.client, broker.names.subscription
    client.publish(broker.names.topic, [b"a", b"b"])
    stale, current = client.pull_all(subscription, 2)
    client.modify(subscription, [stale.ack_id], 0)
    [again] = client.pull_all(subscription, 1)
    for call in (client.acknowledge, lambda name, ids: client.modify(name, ids, 30)):
        with pytest.raises(grpc.RpcError) as failed:
            call(subscription, ack_ids([stale, current]))
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        failures = ack_id_failures(failed.value)
        assert failures[stale.ack_id] == "PERMANENT_FAILURE_INVALID_ACK_ID"
        assert (current.ack_id in failures) == (call != client.acknowledge)  # acked by the first call
    client.acknowledge(subscription, [again.ack_id])
    assert client.pull(subscription, within=NOTHING) == []


@pytest.mark.parametrize("exactly_once", [False, True])
def test_an_id_that_is_malformed_is_refused(broker: Broker, *, exactly_once: bool) -> None:
    broker.create(exactly_once=exactly_once)
    for call in (broker.client.acknowledge, lambda name, ids: broker.client.modify(name, ids, 30)):
        for wrong in ("nonsense", ""):
            with pytest.raises(grpc.RpcError, match="Invalid ack id") as failed:
                call(broker.names.subscription, [wrong])
            assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert ack_id_failures(failed.value) == {}


def test_keys_come_in_order_at_first(broker: Broker) -> None:
    broker.create(ordering=True, deadline=60)
    client, names = broker.client, broker.names
    messages = [pb.PubsubMessage(data=b"%d" % number, ordering_key=f"k{number % 3}") for number in range(600)]
    for key in range(3):
        client.publish(names.topic, messages[key::3])
    with client.stream(names.subscription) as stream:
        by_key = defaultdict(list)
        for each in stream.wait_for(600):
            by_key[each.message.ordering_key].append(int(each.message.data))
    assert by_key == {f"k{key}": list(range(key, 600, 3)) for key in range(3)}


def test_a_seek_back_brings_what_was_acked(broker: Broker) -> None:
    broker.create(deadline=60)
    client, names = broker.client, broker.names
    [first] = client.publish(names.topic, [b"first"])
    broker.let_pass(1.1)
    later = client.publish(names.topic, [b"second", b"third"])
    received = client.pull_all(names.subscription, 3)
    client.acknowledge(names.subscription, ack_ids(received))
    [second, *_] = [each.message.publish_time for each in received if each.message.message_id != first]
    client.seek(names.subscription, second.ToMicroseconds() / 1e6 - 0.5)
    again = client.pull_all(names.subscription, 2)
    assert sorted(ids(again)) == sorted(later)
    client.modify(names.subscription, ack_ids(again), 0)
    client.seek(names.subscription, second.ToMicroseconds() / 1e6 + 3600)
    assert client.pull(names.subscription, within=NOTHING) == []


def test_a_seek_acks_all_that_was_published_before(broker: Broker) -> None:
    """Also a seek back, and also what nobody has pulled yet, or has and didn't ack."""
    broker.create(deadline=DEADLINE)
    client, names = broker.client, broker.names
    client.publish(names.topic, [b"pulled"])
    [pulled] = client.pull_all(names.subscription, 1)
    client.publish(names.topic, [b"waits"])
    broker.let_pass(4.1)
    client.publish(names.topic, [b"later"])
    client.seek(names.subscription, pulled.message.publish_time.ToMicroseconds() / 1e6 + 4.0)
    assert data(client.pull_all(names.subscription, 1)) == [b"later"]
    broker.let_pass(PAST)
    assert data(client.pull_all(names.subscription, 1)) == [b"later"]
    assert client.pull(names.subscription, within=NOTHING) == []


def test_attempts_are_counted_with_a_dead_letter_topic(broker: Broker) -> None:
    broker.client.create_topic(broker.names.dead_letters)
    broker.create(deadline=60, dead_letter=broker.names.dead_letters)
    broker.client.publish(broker.names.topic, [b"x"])
    for attempt in (1, 2, 3):
        [received] = broker.client.pull_all(broker.names.subscription, 1)
        assert received.delivery_attempt == attempt
        broker.client.modify(broker.names.subscription, [received.ack_id], 0)


# --- streams ------------------------------------------------------------------------------------


def test_two_streams_share_a_subscription(broker: Broker) -> None:
    broker.create(deadline=60)
    client, names = broker.client, broker.names
    settings = {"stream_ack_deadline_seconds": 60}
    with client.stream(names.subscription, **settings) as one, client.stream(names.subscription, **settings) as other:
        published = client.publish(names.topic, [b"%d" % number for number in range(1_000)])
        eventually(lambda: len(one.received) + len(other.received) >= 1_000)
        received = one.received + other.received
    assert sorted(ids(received)) == sorted(published)


def test_the_deadline_of_a_stream_is_its_own(broker: Broker) -> None:
    broker.create(deadline=60)
    client, names = broker.client, broker.names
    with client.stream(names.subscription, stream_ack_deadline_seconds=10) as stream:
        client.publish(names.topic, [b"x"])
        [first] = stream.wait_for(1)
        broker.let_pass(PAST)
        again = stream.wait_for(2)[1]
        assert (again.message, again.ack_id != first.ack_id) == (first.message, True)


def test_a_stream_takes_acks_and_extensions(broker: Broker) -> None:
    broker.create(deadline=DEADLINE)
    client, names = broker.client, broker.names
    with client.stream(names.subscription) as stream:
        client.publish(names.topic, [b"acked", b"extended", b"nacked"])
        of = {each.message.data: each.ack_id for each in stream.wait_for(3)}
        stream.requests.put(
            pb.StreamingPullRequest(
                ack_ids=[of[b"acked"]],
                modify_deadline_ack_ids=[of[b"extended"], of[b"nacked"]],
                modify_deadline_seconds=[60, 0],
            )
        )
        assert stream.wait_for(4)[3].message.data == b"nacked"
        broker.let_pass(PAST)
        assert stream.wait_for(5)[4].message.data == b"nacked"
        broker.let_pass(1.0)
        assert len(stream.received) == 5


@pytest.mark.parametrize("deadline", [9, 601])
def test_a_stream_has_a_deadline_within_limits(broker: Broker, deadline: int) -> None:
    broker.create()
    with broker.client.stream(broker.names.subscription, stream_ack_deadline_seconds=deadline) as stream:
        assert stream.ended.wait(10)
        assert stream.code == "INVALID_ARGUMENT"


def test_a_stream_tells_why_it_ends(broker: Broker) -> None:
    """Of a subscription that is missing, named twice or deleted; one that the client ends is right."""
    broker.create()
    client, subscription = broker.client, broker.names.subscription
    with client.stream(f"{subscription}-missing") as stream:
        assert stream.ended.wait(10)
        assert stream.code == "NOT_FOUND"
    with client.stream(subscription) as stream:
        stream.requests.put(pb.StreamingPullRequest(subscription=subscription))
        assert stream.ended.wait(10)
        assert stream.code == "INVALID_ARGUMENT"
    with client.stream(subscription) as stream:
        stream.requests.put(None)
        assert stream.ended.wait(10)
        assert stream.code == "OK"
    with client.stream(subscription) as stream:
        client.publish(broker.names.topic, [b"it is open"])
        stream.wait_for(1)
        client.delete_subscription(subscription)
        assert stream.ended.wait(10)
        assert stream.code == "NOT_FOUND"


def test_streams_say_what_the_subscription_is(broker: Broker) -> None:
    broker.create(exactly_once=True, ordering=True)
    with broker.client.stream(broker.names.subscription) as stream:
        broker.client.publish(broker.names.topic, [b"x"])
        stream.wait_for(1)
        assert stream.responses[0].subscription_properties.exactly_once_delivery_enabled
        assert stream.responses[0].subscription_properties.message_ordering_enabled


# --- errors -------------------------------------------------------------------------------------

SUBSCRIPTION, TOPIC = "projects/test/subscriptions/missing", "projects/test/topics/missing"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (pb.GetSubscriptionRequest(subscription=SUBSCRIPTION), "NOT_FOUND"),
        (pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), "NOT_FOUND"),
        (pb.PullRequest(subscription=SUBSCRIPTION, max_messages=1), "NOT_FOUND"),
        (pb.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=["x:1"]), "NOT_FOUND"),
        (pb.Subscription(name=SUBSCRIPTION, topic=TOPIC), "NOT_FOUND"),
        (pb.GetTopicRequest(topic=TOPIC), "NOT_FOUND"),
        (pb.DeleteTopicRequest(topic=TOPIC), "NOT_FOUND"),
        (pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"x")]), "NOT_FOUND"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_what_is_missing_is_not_found(broker: Broker, wrong: Any, code: str) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        broker.client.call(wrong)
    assert failed.value.code().name == code


def test_wrong_requests_are_refused(broker: Broker) -> None:
    broker.create()
    topic, subscription = broker.names.topic, broker.names.subscription
    one = pb.PubsubMessage(data=b"x")
    for wrong, code in (
        (pb.Topic(name=topic), "ALREADY_EXISTS"),
        (pb.Subscription(name=subscription, topic=topic), "ALREADY_EXISTS"),
        (pb.PublishRequest(topic=topic), "INVALID_ARGUMENT"),
        (pb.PublishRequest(topic=topic, messages=[pb.PubsubMessage()]), "INVALID_ARGUMENT"),
        (pb.PublishRequest(topic=topic, messages=[one] * 1_001), "INVALID_ARGUMENT"),
        (pb.PullRequest(subscription=subscription), "INVALID_ARGUMENT"),
        (pb.AcknowledgeRequest(subscription=subscription), "INVALID_ARGUMENT"),
        (pb.ModifyAckDeadlineRequest(subscription=subscription, ack_deadline_seconds=9), "INVALID_ARGUMENT"),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            broker.client.call(wrong)
        assert failed.value.code().name == code, wrong


def test_a_subscription_is_told_with_its_settings(broker: Broker) -> None:
    broker.create(deadline=33, ordering=True, exactly_once=True)
    request = pb.GetSubscriptionRequest(subscription=broker.names.subscription)
    about = broker.client.call(request)
    assert (about.name, about.topic) == (broker.names.subscription, broker.names.topic)
    assert (about.ack_deadline_seconds, about.enable_message_ordering) == (33, True)
    assert about.enable_exactly_once_delivery
    broker.client.delete_topic(broker.names.topic)
    assert broker.client.call(request).topic == "_deleted-topic_"
