"""What the fake does beyond the emulator: load, limits of the real service, and faults."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest

from tests.kit.clock import Clock
from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import PubSub, ack_id_failures, connected
from tests.kit.pubsub.emulator import Names
from tests.kit.pubsub.fake import FakePubSub, fake_process, served
from tests.kit.wait import eventually

LOAD = "projects/test/subscriptions/load"


@pytest.fixture
def subscription(faked: PubSub, pubsub_names: Names) -> str:
    """A subscription of the fake, of a topic without messages."""
    faked.create_topic(pubsub_names.topic)
    faked.create_subscription(pubsub_names.subscription, pubsub_names.topic, deadline=60)
    return pubsub_names.subscription


def refused(client: PubSub, request: Any) -> tuple[str, str]:
    """Return the code and the details of a call that must fail."""
    with pytest.raises(grpc.RpcError) as failed:
        client.call(request)
    return failed.value.code().name, failed.value.details()


def contents(received: list[Any]) -> dict[str, tuple[Any, ...]]:
    return {
        message.message_id: (message.data, message.publish_time.ToNanoseconds(), message.ordering_key)
        for message in (each.message for each in received)
    }


# --- load ---------------------------------------------------------------------------------------


def test_generated_messages_are_whole_and_unique(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 2_345, size=100, attributes=2, each=500, dead_letter=True)
    with faked.stream(LOAD) as stream:
        received = stream.wait_for(2_345)
    assert [len(response.received_messages) for response in stream.responses] == [500, 500, 500, 500, 345]
    assert [each.message.data for each in received] == [b"%016d" % number + b"." * 84 for number in range(2_345)]
    assert len({each.message.message_id for each in received}) == len({each.ack_id for each in received}) == 2_345
    assert {len(each.ack_id) for each in received} == {184}
    times = [each.message.publish_time.ToNanoseconds() / 1e9 for each in received]
    assert times == sorted(times)
    assert time.time() - 60 < times[0] <= times[-1] < time.time()
    assert times[-1] - times[0] == pytest.approx(2_344e-6, abs=2e-6)
    attributes = {"attribute-0": "value of 0", "attribute-1": "value of 1"}
    assert all(dict(each.message.attributes) == attributes for each in received)
    assert {each.delivery_attempt for each in received} == {1}


def test_a_generated_message_comes_again_as_it_was(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 3_000)
    first = faked.pull_all(LOAD, 3_000)
    faked.acknowledge(LOAD, [each.ack_id for each in first[:1_000]])
    assert fake_pubsub.expire(LOAD) == 2_000
    again = faked.pull_all(LOAD, 2_000)
    assert contents(again) == contents(first[1_000:])
    assert not {each.ack_id for each in again} & {each.ack_id for each in first}
    faked.acknowledge(LOAD, [each.ack_id for each in first])  # stale
    totals = fake_pubsub.totals(LOAD)
    expected = {"acked": 1_000, "leased": 2_000, "deliveries": 5_000, "expired": 2_000, "stale": 3_000, "acks": 4_000}
    assert {name: totals[name] for name in expected} == expected


def test_generated_keys_take_turns_and_keep_their_order(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 700, keys=7, each=100)
    with faked.stream(LOAD, stream_ack_deadline_seconds=60) as stream:
        received = stream.wait_for(700)
    for key in range(7):
        numbers = [int(each.message.data[:16]) for each in received if int(each.message.ordering_key) == key]
        assert numbers == list(range(key, 700, 7))


def test_a_rate_publishes_messages_as_time_passes(clock: Clock) -> None:
    fake = FakePubSub(clock=clock.now)
    with served(fake) as address, connected(address) as client:
        fake.load(LOAD, 1_000, rate=100.0)
        assert client.pull(LOAD, within=0.2) == []
        eventually(lambda: fake.totals(LOAD)["pulls"] == 0)
        clock.advance(2.0)
        received = client.pull_all(LOAD, 200)
        assert received[-1].message.publish_time.ToNanoseconds() / 1e9 == pytest.approx(1_000_001.99)
        assert client.pull(LOAD, within=0.2) == []
        eventually(lambda: fake.totals(LOAD)["pulls"] == 0)
        clock.advance(20.0)
        assert len(client.pull_all(LOAD, 800)) == 800


@pytest.mark.process
def test_a_fake_in_a_process_of_its_own_is_controlled() -> None:
    with fake_process("--ack-id-bytes", "500") as fake, connected(fake.address) as client:
        fake("load", LOAD, 10_000, size=200, each=1_000)
        with client.stream(LOAD, stream_ack_deadline_seconds=60) as stream:
            received = stream.wait_for(10_000)
            client.acknowledge(LOAD, [each.ack_id for each in received])
        assert fake("totals", LOAD)["acked"] == 10_000
        assert fake("requests")["Acknowledge"]["most_ids"] == 1_000
        assert fake("requests")["Acknowledge"]["most_bytes"] > 500_000
        assert fake.process.stdin is not None
        fake.process.stdin.close()
        assert fake.process.wait(30) == 0


# --- limits of the real service -----------------------------------------------------------------


def test_a_stream_has_no_more_than_it_may(fake_pubsub: FakePubSub, faked: PubSub, subscription: str) -> None:
    """Neither messages nor bytes; acks, nacks and leases that end make room."""
    fake_pubsub.load(LOAD, 1_000, each=10)
    with faked.stream(LOAD, max_outstanding_messages=25) as stream:
        received = stream.wait_for(25)
        faked.acknowledge(LOAD, [each.ack_id for each in received[:5]])
        stream.wait_for(30)
        faked.modify(LOAD, [each.ack_id for each in received[5:7]], 0)
        stream.wait_for(32)
        fake_pubsub.expire(LOAD)
        stream.wait_for(57)
        time.sleep(0.1)
        assert len(stream.received) == 57
    with faked.stream(LOAD, max_outstanding_bytes=1_000) as stream:
        stream.wait_for(5)
        time.sleep(0.1)
        sizes = [each.message.ByteSize() for each in stream.received]
        assert sum(sizes[:-1]) < 1_000 <= sum(sizes)


def test_a_stream_is_capped(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.stream_bytes_per_second = 1e6
    fake_pubsub.load(LOAD, 2_000, each=100)
    began = time.monotonic()
    with faked.stream(LOAD) as stream:
        stream.wait_for(2_000)
        size = sum(response.ByteSize() for response in stream.responses[:-1])
    assert time.monotonic() - began > size / 1e6 * 0.7  # a stream catches up with 0.1 s


def test_requests_of_acks_have_a_limit(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 3_000)
    ids = [each.ack_id for each in faked.pull_all(LOAD, 3_000)]
    for request in (
        pb.AcknowledgeRequest(subscription=LOAD, ack_ids=ids),
        pb.ModifyAckDeadlineRequest(subscription=LOAD, ack_ids=ids, ack_deadline_seconds=60),
    ):
        assert refused(faked, request) == (
            "INVALID_ARGUMENT", "Request payload size exceeds the limit: 524288 bytes.",
        )  # fmt: skip
    assert fake_pubsub.totals(LOAD)["acks"] == 0


@pytest.mark.parametrize(
    "messages",
    [
        [pb.PubsubMessage(data=b"x", ordering_key=key) for key in "ab"],
        [pb.PubsubMessage(data=b"x" * 5_000_000)] * 2,
        [pb.PubsubMessage(data=b"x", attributes={"k" * 257: ""})],
        [pb.PubsubMessage(data=b"x", attributes={"k": "v" * 1_025})],
        [pb.PubsubMessage(data=b"x", attributes={str(number): "" for number in range(101)})],
    ],
    ids=["two keys", "10 MB", "long key", "long value", "many attributes"],
)
def test_publishing_has_limits(faked: PubSub, pubsub_names: Names, subscription: str, messages: list[Any]) -> None:
    request = pb.PublishRequest(topic=pubsub_names.topic, messages=messages)
    assert refused(faked, request)[0] == "INVALID_ARGUMENT"
    assert faked.pull(subscription, within=0.1) == []


def test_a_message_of_a_key_brings_the_later_ones(faked: PubSub, pubsub_names: Names) -> None:
    """In order, acked ones too; other keys are left alone."""
    faked.create_topic(pubsub_names.topic)
    faked.create_subscription(pubsub_names.subscription, pubsub_names.topic, deadline=60, ordering=True)
    for key in "ab":
        faked.publish(pubsub_names.topic, [pb.PubsubMessage(data=b"%d" % n, ordering_key=key) for n in range(5)])
    received = faked.pull_all(pubsub_names.subscription, 10)
    of = {each.message.ordering_key + each.message.data.decode(): each for each in received}
    faked.acknowledge(pubsub_names.subscription, [of["a3"].ack_id])
    faked.modify(pubsub_names.subscription, [of["a2"].ack_id], 0)
    again = faked.pull_all(pubsub_names.subscription, 3)
    assert [each.message.ordering_key + each.message.data.decode() for each in again] == ["a2", "a3", "a4"]
    assert faked.pull(pubsub_names.subscription, within=0.1) == []


def test_a_key_goes_to_one_stream_while_it_is_out(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    """Then to any; messages of other keys do not wait for it."""
    fake_pubsub.load(LOAD, 100, keys=2, each=1)
    with faked.stream(LOAD, max_outstanding_messages=1) as one:
        [first] = one.wait_for(1)
        with faked.stream(LOAD) as other:
            received = other.wait_for(50)
            assert {int(each.message.ordering_key) for each in received} == {1}
            faked.acknowledge(LOAD, [first.ack_id])
            eventually(lambda: len(one.received) + len(other.received) >= 52)


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["UNAVAILABLE", "PERMISSION_DENIED", "NOT_FOUND", "RESOURCE_EXHAUSTED", "INTERNAL"])
def test_streams_are_reset_with_any_code(fake_pubsub: FakePubSub, faked: PubSub, subscription: str, code: str) -> None:
    """Open ones, and then those that are opened."""
    with faked.stream(subscription) as one, faked.stream(subscription) as other:
        eventually(lambda: fake_pubsub.totals(subscription)["streams"] == 2)
        assert fake_pubsub.reset_streams(subscription, code) == 2
        assert one.ended.wait(10)
        assert other.ended.wait(10)
        assert (one.code, other.code) == (code, code)
    fake_pubsub.fail("StreamingPull", code, resource=subscription)
    with faked.stream(subscription) as stream:
        assert stream.ended.wait(10)
        assert stream.code == code


def test_a_stalled_stream_is_open_and_silent(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 10)
    fake_pubsub.stall(LOAD)
    with faked.stream(LOAD) as stream:
        assert not stream.ended.wait(0.2)
        assert (stream.received, faked.pull(LOAD, within=0.1)) == ([], [])
        eventually(lambda: fake_pubsub.totals(LOAD)["pulls"] == 0)
        fake_pubsub.resume(LOAD)
        stream.wait_for(10)


def test_an_answer_may_be_lost_after_its_effect(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    """Or be OK without one."""
    fake_pubsub.load(LOAD, 2)
    first, second = (
        pb.AcknowledgeRequest(subscription=LOAD, ack_ids=[each.ack_id]) for each in faked.pull_all(LOAD, 2)
    )
    fake_pubsub.fail("Acknowledge", "OK", times=1)
    faked.call(first)
    assert fake_pubsub.totals(LOAD)["acked"] == 0
    fake_pubsub.fail("Acknowledge", "DEADLINE_EXCEEDED", applied=True)
    assert refused(faked, first) == ("DEADLINE_EXCEEDED", "injected")
    assert fake_pubsub.totals(LOAD)["acked"] == 1
    fake_pubsub.fail("Acknowledge", "PERMISSION_DENIED", resource=LOAD, times=-1)
    for _ in range(3):
        assert refused(faked, second)[0] == "PERMISSION_DENIED"
    fake_pubsub.heal()
    faked.call(second)
    assert fake_pubsub.totals(LOAD)["acked"] == 2


def test_ack_ids_fail_with_any_reason(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    """The ids of a request that do not fail have their effect; those that failed may be sent again."""
    fake_pubsub.load(LOAD, 5, exactly_once=True)
    ids = [each.ack_id for each in faked.pull_all(LOAD, 5)]
    fake_pubsub.fail_ack_ids(LOAD, "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE", count=2)
    with pytest.raises(grpc.RpcError) as failed:
        faked.acknowledge(LOAD, ids)
    assert ack_id_failures(failed.value) == dict.fromkeys(ids[:2], "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE")
    assert fake_pubsub.totals(LOAD)["acked"] == 3
    faked.acknowledge(LOAD, ids[:2])
    assert fake_pubsub.totals(LOAD)["acked"] == 5


def test_many_failed_ids_fit_into_an_answer(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    """A thousand reasons are 240 kB of metadata; gRPC's default is 8 kB."""
    fake_pubsub.load(LOAD, 1_000, exactly_once=True)
    ids = [each.ack_id for each in faked.pull_all(LOAD, 1_000)]
    fake_pubsub.expire(LOAD)
    with pytest.raises(grpc.RpcError) as failed:
        faked.acknowledge(LOAD, ids)
    assert ack_id_failures(failed.value) == dict.fromkeys(ids, "PERMANENT_FAILURE_INVALID_ACK_ID")


def test_a_message_is_delivered_twice_on_purpose(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 10)
    with faked.stream(LOAD) as stream:
        first = stream.wait_for(10)
        assert fake_pubsub.deliver_again(LOAD) == 10
        again = stream.wait_for(20)[10:]
    assert contents(again) == contents(first)
    faked.acknowledge(LOAD, [each.ack_id for each in first])
    assert fake_pubsub.totals(LOAD)["acked"] == 0
    faked.acknowledge(LOAD, [each.ack_id for each in again])
    assert fake_pubsub.totals(LOAD)["acked"] == 10


def test_calls_are_counted_by_message(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 2)
    first, second = faked.pull_all(LOAD, 2)
    faked.modify(LOAD, [first.ack_id, second.ack_id], 30)
    faked.modify(LOAD, [second.ack_id], 0)
    faked.acknowledge(LOAD, [first.ack_id])
    counts = fake_pubsub.counts(LOAD)
    assert abs(counts[first.message.message_id].pop("acked_at") - time.time()) < 60
    assert counts == {
        first.message.message_id: {"deliveries": 1, "acks": 1, "modacks": 1, "nacks": 0},
        second.message.message_id: {"deliveries": 1, "acks": 0, "modacks": 1, "nacks": 1, "acked_at": 0.0},
    }


def test_a_delayed_call_has_its_effect_later(fake_pubsub: FakePubSub, faked: PubSub) -> None:
    fake_pubsub.load(LOAD, 1)
    [received] = faked.pull_all(LOAD, 1)
    fake_pubsub.delay("Acknowledge", 0.2)
    future = faked.begin(pb.AcknowledgeRequest(subscription=LOAD, ack_ids=[received.ack_id]))
    assert fake_pubsub.totals(LOAD)["acked"] == 0
    future.result()
    assert fake_pubsub.totals(LOAD)["acked"] == 1


def test_a_push_subscription_cannot_be_pulled(faked: PubSub, pubsub_names: Names) -> None:
    faked.create_topic(pubsub_names.topic)
    about = pb.Subscription(name=pubsub_names.subscription, topic=pubsub_names.topic)
    about.push_config.push_endpoint = "https://example.com/push"
    faked.call(about)
    assert faked.call(pb.GetSubscriptionRequest(subscription=about.name)).push_config.push_endpoint
    assert refused(faked, pb.PullRequest(subscription=about.name, max_messages=1))[0] == "FAILED_PRECONDITION"
    with faked.stream(about.name) as stream:
        assert stream.ended.wait(10)
        assert stream.code == "FAILED_PRECONDITION"


def test_a_fake_at_the_same_port_has_forgotten_everything(pubsub_names: Names) -> None:
    """And gives the same ids again, as the emulator does after a restart."""
    published = []
    port = 0
    for _ in range(2):
        with served(FakePubSub(), port=port) as address, connected(address) as client:
            port = int(address.rpartition(":")[2])
            client.create_topic(pubsub_names.topic)
            client.create_subscription(pubsub_names.subscription, pubsub_names.topic)
            published += client.publish(pubsub_names.topic, [b"x"])
            [received] = client.pull_all(pubsub_names.subscription, 1)
            assert received.message.message_id == published[-1]
    assert published[0] == published[1]
