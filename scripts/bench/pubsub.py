"""Peers of the ways from and to Pub/Sub: Google's clients, and the least that the same costs in Python.

`python -m scripts.bench.pubsub PEER HOST:PORT COUNT SUBSCRIPTION…` is one of these, and prints its figures as JSON.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.queue.pubsub.registry import MESSAGES
from scripts.bench.publisher import message

BATCH = 1_000
"""Messages in a batch of columns, at least, and in a request to publish."""
_IN_FLIGHT = 32
_SUBSCRIBER = "/google.pubsub.v1.Subscriber/"
_CONTROL = "/penstock.tests.FakePubSub/Call"
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_LONGEST = 300.0
"""Seconds that a peer may take."""
_ROOT = Path(__file__).resolve().parents[2]


def subscribe(address: str, count: int, subscription: str) -> None:
    """Receive so many messages by Google's `subscribe()` as it comes; its callback only acks.

    Without the ack it would stop at a thousand messages: its flow control waits for them.
    """
    import grpc
    from google.cloud.pubsub_v1 import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    done, left = threading.Event(), iter(range(count - 1, -1, -1))

    def callback(message: Any) -> None:
        message.ack()
        if not next(left, 0):
            done.set()

    transport = SubscriberGrpcTransport(channel=grpc.insecure_channel(address, _UNLIMITED))
    with SubscriberClient(transport=transport) as client:
        future = client.subscribe(subscription, callback)
        done.wait()
        future.cancel()
        future.result()


def bare_stream(address: str, count: int, subscription: str) -> None:
    """Build columns of so many messages of a StreamingPull, without acks or any thought of leases.

    What it has been sent beyond these stays leased to it: without a limit that may be all, and the next one waits.
    """
    import grpc
    from google.pubsub_v1 import types

    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    first = types.StreamingPullRequest.pb()(
        subscription=subscription, stream_ack_deadline_seconds=600, max_outstanding_messages=count + BATCH
    )
    requests.put(first)
    with grpc.insecure_channel(address, _UNLIMITED) as channel:
        call = channel.stream_stream(
            f"{_SUBSCRIBER}StreamingPull",
            request_serializer=types.StreamingPullRequest.pb().SerializeToString,
            response_deserializer=types.StreamingPullResponse.pb().FromString,
        )(iter(requests.get, None))
        received, gathered = 0, list[Any]()
        for response in call:
            gathered += response.received_messages
            received += len(response.received_messages)
            if len(gathered) >= BATCH or received >= count:
                columns(gathered)
                gathered = []
            if received >= count:
                break
        call.cancel()
        requests.put(None)


def bare_pull(address: str, count: int, *subscriptions: str) -> None:
    """Build columns of so many messages by unary Pull, one in flight for each subscription, each answer acked at once.

    The emulator collapses where messages stay unacked, and where a subscription has two callers.
    """
    import grpc
    from google.protobuf.empty_pb2 import Empty
    from google.pubsub_v1 import types

    pull_request, ack_request = types.PullRequest.pb(), types.AcknowledgeRequest.pb()
    with grpc.insecure_channel(address, _UNLIMITED) as channel:
        pull = channel.unary_unary(
            f"{_SUBSCRIBER}Pull", pull_request.SerializeToString, types.PullResponse.pb().FromString
        )
        acknowledge = channel.unary_unary(f"{_SUBSCRIBER}Acknowledge", ack_request.SerializeToString, Empty.FromString)
        flying: dict[str, Any] = {}
        answered: queue.SimpleQueue[str] = queue.SimpleQueue()  # a Pull of an empty subscription takes a minute

        def begin(name: str) -> None:
            flying[name] = pull.future(pull_request(subscription=name, max_messages=BATCH))
            flying[name].add_done_callback(lambda _: answered.put(name))

        for name in subscriptions:
            begin(name)
        received, gathered, acks = 0, list[Any](), deque[Any]()
        while received < count:
            name = answered.get()
            messages = flying[name].result().received_messages
            if messages:
                ids = [each.ack_id for each in messages]
                acks.append(acknowledge.future(ack_request(subscription=name, ack_ids=ids)))
            begin(name)
            gathered += messages
            received += len(messages)
            if len(gathered) >= BATCH or received >= count:
                columns(gathered)
                gathered = []
            while acks and acks[0].done():
                acks.popleft().result()
        for future in acks:
            future.result()
        for future in flying.values():
            future.cancel()


def publish(address: str, count: int, topic: str) -> None:
    """Publish so many messages by Google's `publish()` as it comes, row by row."""
    import grpc
    from google.cloud.pubsub_v1 import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    client = PublisherClient(transport=PublisherGrpcTransport(channel=grpc.insecure_channel(address, _UNLIMITED)))
    for future in [client.publish(topic, data) for data in map(message, range(count))]:
        future.result()


def bare_publish(address: str, count: int, topic: str) -> None:
    """Send requests of a thousand messages that are ready, 32 at a time."""
    import grpc
    from google.pubsub_v1 import types

    def request(size: int) -> bytes:
        messages = [types.PubsubMessage.pb()(data=message(number)) for number in range(size)]
        ready: bytes = types.PublishRequest.pb()(topic=topic, messages=messages).SerializeToString()
        return ready

    requests = [request(BATCH)] * (count // BATCH) + [request(count % BATCH)] * bool(count % BATCH)
    with grpc.insecure_channel(address, _UNLIMITED) as channel:
        call = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        flying = deque[Any]()
        for body in requests:
            if len(flying) == _IN_FLIGHT:
                flying.popleft().result()
            flying.append(call.future(body))
        for future in flying:
            future.result()


def columns(received: Sequence[Any]) -> pa.RecordBatch:
    """Return the columns of received messages: one comprehension for each."""
    messages = [each.message for each in received]
    attributes = [each.attributes for each in messages]
    offsets = [0]
    for each in attributes:
        offsets.append(offsets[-1] + len(each))
    pairs = list(chain.from_iterable(each.items() for each in attributes)) if offsets[-1] else []
    times = [each.publish_time for each in messages]
    arrays = [
        pa.array([each.message_id for each in messages], pa.string()),
        pa.array([each.seconds * 1_000_000 + each.nanos // 1_000 for each in times], pa.int64()).cast(
            MESSAGES.field("publish_time").type
        ),
        pa.array([each.ordering_key for each in messages], pa.string()),
        pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()),
            pa.array([key for key, _ in pairs], pa.string()),
            pa.array([value for _, value in pairs], pa.string()),
        ),
        pa.array([each.delivery_attempt or None for each in received], pa.int32()),
        pa.array([each.data for each in messages], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


PEERS: Mapping[str, Callable[..., None]] = {
    "subscribe": subscribe, "stream": bare_stream, "pull": bare_pull, "publish": publish, "requests": bare_publish,
}  # fmt: skip


def run_peer(peer: str, address: str, count: int, *subscriptions: str) -> dict[str, float]:
    """Run a peer in a process of its own, and return its seconds, and those of its processor."""
    command = [sys.executable, "-m", "scripts.bench.pubsub", peer, address, str(count), *subscriptions]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, check=True, timeout=_LONGEST)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@contextmanager
def fake(*arguments: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Run the fake server of the tests; yields host:port, and what calls its controls."""
    import grpc

    command = [sys.executable, "-m", "tests.kit.pubsub.fake", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with grpc.insecure_channel(address, _UNLIMITED) as channel:
            call = channel.unary_unary(_CONTROL)
            yield (
                address,
                lambda verb, *positional, **named: json.loads(call(json.dumps([verb, positional, named]).encode())),
            )
        process.kill()


@contextmanager
def publisher(address: str) -> Iterator[Callable[[Sequence[str], int], None]]:
    """Yield what publishes messages of 100 B with two attributes to subscriptions of one topic, made at first."""
    import grpc
    from google.pubsub_v1 import types

    attributes = {"attribute-0": "value of 0", "attribute-1": "value of 1"}
    topics = set[str]()

    with grpc.insecure_channel(address, _UNLIMITED) as channel:

        def call(service: str, method: str, request: Any) -> Any:
            path = f"/google.pubsub.v1.{service}/{method}"
            return channel.unary_unary(path, type(request).SerializeToString).future(request, timeout=60)

        def publish(subscriptions: Sequence[str], count: int) -> None:
            topic = subscriptions[0].replace("/subscriptions/", "/topics/")
            if topic not in topics:
                topics.add(topic)
                call("Publisher", "CreateTopic", types.Topic.pb()(name=topic)).result()
                for name in subscriptions:
                    about = types.Subscription.pb()(name=name, topic=topic, ack_deadline_seconds=60)
                    call("Subscriber", "CreateSubscription", about).result()
            message = types.PubsubMessage.pb()(data=b"." * 100, attributes=attributes)
            sizes = [min(BATCH, count - first) for first in range(0, count, BATCH)]
            requests = [types.PublishRequest.pb()(topic=topic, messages=[message] * size) for size in sizes]
            for future in [call("Publisher", "Publish", request) for request in requests]:
                future.result()

        yield publish


def main() -> None:
    """Be a peer."""
    peer, address, number, *subscriptions = sys.argv[1:]
    PEERS[peer](address, 1, *subscriptions)  # what is imported and connected isn't measured
    began, processor = time.perf_counter(), time.process_time()
    PEERS[peer](address, int(number), *subscriptions)
    print(json.dumps({"seconds": time.perf_counter() - began, "processor": time.process_time() - processor}))


if __name__ == "__main__":
    main()
