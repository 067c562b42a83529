"""The recorder before Pub/Sub: it sees each delivery and each ack, and fails calls when told to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.kit.pubsub.client import PubSub, ack_id_failures, connected
from tests.kit.pubsub.emulator import unique_names
from tests.kit.pubsub.fake import FakePubSub, served
from tests.kit.pubsub.recorder import Recorder, recording
from tests.kit.wait import eventually

NAMES = unique_names()


@contextmanager
def recorded(count: int) -> Iterator[tuple[Recorder, PubSub]]:
    """A recorder before a fake with so many messages, and a client of the recorder."""
    with served(FakePubSub()) as address, recording(address) as (recorder, before), connected(before) as client:
        client.create_topic(NAMES.topic)
        client.create_subscription(NAMES.subscription, NAMES.topic)
        client.publish(NAMES.topic, [b"x"] * count)
        yield recorder, client


def test_deliveries_and_acks_are_noted() -> None:
    with recorded(10) as (recorder, client):
        received = client.pull_all(NAMES.subscription, 10)
        assert (recorder.delivered, len(recorder.unsettled()), recorder.acks) == (10, 10, [])
        began = time.time()
        client.acknowledge(NAMES.subscription, [each.ack_id for each in received[2:]])
        assert {ack.message.id for ack in recorder.acks} == {each.message.message_id for each in received[2:]}
        assert all(began <= ack.at <= time.time() for ack in recorder.acks)
        assert {message.id for message in recorder.unsettled()} == {each.message.message_id for each in received[:2]}


def test_an_ack_id_that_was_not_given_out_is_noted() -> None:
    with recorded(1) as (recorder, client):
        [received] = client.pull_all(NAMES.subscription, 1)
        recorder.forget()
        client.acknowledge(NAMES.subscription, [received.ack_id])
        assert (recorder.acks, recorder.unknown) == ([], [received.ack_id])


def test_acks_that_are_refused_with_all_else_are_not_noted() -> None:
    with recorded(1) as (recorder, client):
        [received] = client.pull_all(NAMES.subscription, 1)
        with recorder.refusing("UNAVAILABLE"), pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            client.acknowledge(NAMES.subscription, [received.ack_id])
        assert (recorder.acks, recorder.unknown) == ([], [])


def test_a_stream_is_served_and_refused() -> None:
    with recorded(250) as (recorder, client), client.stream(NAMES.subscription) as stream:
        assert len({each.message.message_id for each in stream.wait_for(250)}) == 250
        assert recorder.delivered == 250
        with recorder.refusing("PERMISSION_DENIED"):
            eventually(stream.ended.is_set)
        assert stream.code == "PERMISSION_DENIED"


@pytest.mark.parametrize(("how", "left"), [("before", 6), ("after", 0), ("refused", 2)])
def test_acks_fail_as_told(how: str, left: int) -> None:
    """Without an effect; after it; for some ids."""
    with recorded(6) as (recorder, client):
        ids = [each.ack_id for each in client.pull_all(NAMES.subscription, 6)]
        recorder.failing.append((how, "INTERNAL"))  # type: ignore[arg-type]
        with pytest.raises(grpc.RpcError) as failed:
            client.acknowledge(NAMES.subscription, ids)
        assert len(recorder.unsettled()) == left
        assert len(recorder.acks) == 6
        assert ack_id_failures(failed.value) == (dict.fromkeys(ids[::3], "INTERNAL") if how == "refused" else {})
