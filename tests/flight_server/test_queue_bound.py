"""A put that fills a queue waits while the queue is full."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.errors import QueueFull, Unavailable
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.queue_bound import QueueBound
from penstock.flight_server.server import PenstockServer
from penstock.wire.actions import FINISH_WRITE, OPEN_WRITE, FinishWrite, OpenWrite
from tests.kit.clock import Clock

IN, OUT = "queue/j/in", "queue/j/out"
TABLE = pa.table({"id": [1]})
LIMITS = ServerLimits(queue_messages=2)


@pytest.fixture
def server(make_server: Callable[..., PenstockServer]) -> PenstockServer:
    return make_server(limits=LIMITS)


@pytest.fixture
def client(server: PenstockServer) -> Iterator[Client]:
    with connect(server.url, retry_for=0.3) as client:
        yield client


@pytest.fixture
def bound(server: PenstockServer, clock: Clock) -> QueueBound:
    return QueueBound(server.state.ledger, LIMITS, now=clock.now)


def claim(client: Client, name: str) -> list[dict[str, str]]:
    answer = client.call("queue.claim", {"path": IN, "claim": name, "worker": "w", "most": 9})
    return [
        {"queue": IN, "message_id": each["message"]["message_id"], "token": each["token"]}
        for each in answer["messages"]
    ]


def test_a_put_waits_until_workers_have_drained_the_queue(client: Client) -> None:
    """The attempt of a write and a client's push wait for longer than `retry_for`, and then go through."""
    client.push(IN, [TABLE, TABLE])
    leases = claim(client, "c")
    write = client.call(OPEN_WRITE, OpenWrite("store/j/in", queue=IN))
    attempts: list[str] = []

    def put() -> None:
        with connect(client.settings.url, retry_for=0.3) as other, other.attempt(write.ticket, TABLE.schema) as writer:
            writer.write(TABLE)
        attempts.append(writer.close().attempt)

    threads = [threading.Thread(target=put), threading.Thread(target=lambda: client.push(IN, [TABLE]))]
    for thread in threads:
        thread.start()
    threads[0].join(3)
    assert all(thread.is_alive() for thread in threads)
    client.call("queue.ack", {"leases": leases})
    for thread in threads:
        thread.join(30)
    client.call(FINISH_WRITE, FinishWrite(write.ticket, tuple(attempts)))
    assert len(claim(client, "d")) == 2


def test_a_queue_with_nothing_to_do_has_room_for_any_put(client: Client) -> None:
    client.push(IN, [TABLE] * 20)
    client.call("queue.ack", {"leases": claim(client, "c") + claim(client, "d") + claim(client, "e")})
    client.push(IN, [TABLE] * 20)


def test_dead_messages_keep_nobody_waiting(client: Client) -> None:
    client.push(IN, [TABLE] * 5)
    client.call("queue.drop", {"leases": claim(client, "c"), "failure": {"error": "E"}})
    client.push(IN, [TABLE])


def test_a_queue_that_nobody_drains_is_said_to_be_stalled(client: Client, bound: QueueBound, clock: Clock) -> None:
    client.push(IN, [TABLE] * 4)
    for _ in range(3):
        with pytest.raises(QueueFull, match=r"queue/j/in is full: 4 messages of .* wait for its workers, 0 are dead"):
            bound.admit(IN)
        clock.advance(250)
    clock.advance(1)
    with pytest.raises(Unavailable, match="Nobody has drained it for 13 min: start workers") as stalled:
        bound.admit(IN)
    assert not isinstance(stalled.value, QueueFull)

    leases = claim(client, "c")  # a worker that computes for long drains it, too
    clock.advance(1_000)
    with pytest.raises(QueueFull):
        bound.admit(IN)
    client.call("queue.ack", {"leases": leases[:3]})
    bound.admit(IN)


def test_the_bytes_of_a_queue_are_bound_too(client: Client, server: PenstockServer) -> None:
    client.push(IN, [pa.table({"id": range(1_000)})])
    with pytest.raises(QueueFull, match=r"the server takes 10,000,000 of 1.0 kB in all"):
        QueueBound(server.state.ledger, ServerLimits(queue_bytes=1_000)).admit(IN)


def test_a_worker_that_forwards_never_waits(client: Client) -> None:
    client.push(OUT, [TABLE] * 4)
    client.push(IN, [TABLE, TABLE], finish=True)
    for lease in client.claim(IN, to=[OUT]):
        with lease as split:
            lease.forward(OUT, split.payload)
    assert client.info(OUT).rows == 6
