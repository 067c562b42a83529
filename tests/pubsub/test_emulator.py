"""The emulator and the client of tests: names apart, everything acked or found again, and a restart that forgets."""

from __future__ import annotations

import grpc
import pytest

from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import PubSub, connected
from tests.kit.pubsub.emulator import Names, emulator_process

pytestmark = pytest.mark.process


def test_what_is_published_is_pulled_and_acked(emulated: PubSub, pubsub_names: Names) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic, deadline=10)
    ids = emulated.publish(pubsub_names.topic, [b"%d" % number for number in range(5_000)])
    assert len(set(ids)) == 5_000
    received = emulated.pull_all(pubsub_names.subscription, 5_000)
    assert {each.message.message_id: each.message.data for each in received} == {
        each: b"%d" % number for number, each in enumerate(ids)
    }
    emulated.acknowledge(pubsub_names.subscription, [each.ack_id for each in received[7:]])
    left = emulated.unacked(pubsub_names.subscription, 10)
    assert left == {each.message.message_id for each in received[:7]}


def test_streaming_pull_gives_messages(emulated: PubSub, pubsub_names: Names) -> None:
    emulated.create_topic(pubsub_names.topic)
    emulated.create_subscription(pubsub_names.subscription, pubsub_names.topic)
    with emulated.stream(pubsub_names.subscription) as stream:
        ids = emulated.publish(pubsub_names.topic, [pb.PubsubMessage(data=b"x", attributes={"a": "b"})] * 250)
        received = stream.wait_for(250)
    assert {each.message.message_id for each in received} == set(ids)
    assert received[0].message.attributes["a"] == "b"


def test_a_restarted_emulator_has_forgotten_everything(pubsub_names: Names) -> None:
    """Message ids begin at 1 again: an id alone says nothing about which message it is."""
    with emulator_process(heap="256m") as emulator, connected(emulator.address) as client:
        client.create_topic(pubsub_names.topic)
        first = client.publish(pubsub_names.topic, [b"old"])
        emulator.restart()
        with connected(emulator.address) as after:
            with pytest.raises(grpc.RpcError) as failed:
                after.publish(pubsub_names.topic, [b"new"])
            assert failed.value.code() == grpc.StatusCode.NOT_FOUND
            after.create_topic(pubsub_names.topic)
            assert after.publish(pubsub_names.topic, [b"new"]) == first
