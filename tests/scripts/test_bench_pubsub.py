"""The peers of Pub/Sub's bench receive what there is, and build the columns that a subscription has."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.queue.pubsub.registry import MESSAGES
from scripts.bench import pubsub as bench
from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import connected
from tests.kit.pubsub.fake import FakePubSub, served


def test_columns_are_the_messages() -> None:
    first = pb.ReceivedMessage(ack_id="1", delivery_attempt=3)
    first.message.message_id, first.message.data, first.message.ordering_key = "17", b"\xff", "k"
    first.message.attributes["a"] = "b"
    first.message.publish_time.FromMicroseconds(1_795_119_543_415_001)
    second = pb.ReceivedMessage(ack_id="2")
    batch = bench.columns([first, second])
    batch.validate(full=True)
    assert batch.schema == MESSAGES
    assert batch.to_pylist() == [
        {
            "message_id": "17",
            "publish_time": datetime(2026, 11, 19, 20, 19, 3, 415_001, UTC),
            "ordering_key": "k",
            "attributes": [("a", "b")],
            "delivery_attempt": 3,
            "data": b"\xff",
        },
        {
            "message_id": "",
            "publish_time": datetime(1970, 1, 1, tzinfo=UTC),
            "ordering_key": "",
            "attributes": [],
            "delivery_attempt": None,
            "data": b"",
        },
    ]


@pytest.mark.parametrize("peer", ["stream", "pull", "subscribe"])
def test_a_peer_receives_so_many_messages(peer: str) -> None:
    names = [f"projects/p/subscriptions/s{number}" for number in range(2 if peer == "pull" else 1)]
    fake = FakePubSub()
    with served(fake) as address, connected(address):
        for name in names:
            fake.load(name, 20_000, attributes=1, each=300)
        bench.PEERS[peer](address, 5_000, *names)
    delivered = sum(fake.totals(name)["delivered"] for name in names)
    assert delivered >= 5_000
    assert sum(at > 0 for name in names for at in fake.acked_at(name)) == sum(
        fake.totals(name)["acked"] for name in names
    )
    if peer != "stream":
        assert sum(fake.totals(name)["acked"] for name in names) >= 4_000


@pytest.mark.process
def test_a_peer_runs_in_a_process_of_its_own() -> None:
    with bench.fake("--ack-id-bytes", "100") as (address, control):
        control("load", "projects/p/subscriptions/s", 50_000)
        figures = bench.run_peer("stream", address, 10_000, "projects/p/subscriptions/s")
    assert min(figures["seconds"], figures["processor"]) > 0
