"""A client of Pub/Sub through raw stubs, for the emulator and the fake alike: publish, pull, ack and look."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from tests.kit.pubsub import messages as pb

IDS_EACH = 1_000
"""Ids in a request; Pub/Sub takes 512 KiB."""
SIZES = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 4 << 20),  # ack ids that failed, with exactly-once delivery
]
_TIMEOUT = 60.0


class PubSub:
    """A client of host:port. Topics and subscriptions are full names; every call may raise `grpc.RpcError`."""

    def __init__(self, address: str) -> None:
        # a channel shares its connection with others of the same address and options: this one is its own
        self.channel = grpc.insecure_channel(address, [*SIZES, ("grpc.use_local_subchannel_pool", 1)])
        self._calls = {
            method.request: self.channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            for method in pb.METHODS
        }

    def close(self) -> None:
        self.channel.close()

    def call(self, request: Any, timeout: float = _TIMEOUT) -> Any:
        """Call the method that takes this request."""
        return self._calls[type(request)](request, timeout=timeout)

    def begin(self, request: Any, timeout: float = _TIMEOUT) -> Any:
        """Call the method that takes this request, and return a future."""
        return self._calls[type(request)].future(request, timeout=timeout)

    def create_topic(self, topic: str) -> None:
        self.call(pb.Topic(name=topic))

    def create_subscription(
        self,
        subscription: str,
        topic: str,
        *,
        deadline: int = 10,
        ordering: bool = False,
        exactly_once: bool = False,
        dead_letter: str = "",
        attempts: int = 5,
    ) -> None:
        """Create a subscription; after so many attempts a message goes to the topic `dead_letter`."""
        request = pb.Subscription(
            name=subscription,
            topic=topic,
            ack_deadline_seconds=deadline,
            enable_message_ordering=ordering,
            enable_exactly_once_delivery=exactly_once,
            retain_acked_messages=True,  # a seek may go back to them
        )
        if dead_letter:
            request.dead_letter_policy.dead_letter_topic = dead_letter
            request.dead_letter_policy.max_delivery_attempts = attempts
        self.call(request)

    def delete_subscription(self, subscription: str) -> None:
        self.call(pb.DeleteSubscriptionRequest(subscription=subscription))

    def delete_topic(self, topic: str) -> None:
        self.call(pb.DeleteTopicRequest(topic=topic))

    def publish(self, topic: str, messages: Iterable[Any], *, each: int = 1_000, in_flight: int = 8) -> list[str]:
        """Publish messages (`PubsubMessage`, or the bytes of their data) and return their ids, in their order.

        Requests hold neighbours with the same ordering key, as Pub/Sub demands. With keys, one request is in flight.
        """
        every = [pb.PubsubMessage(data=each) if isinstance(each, bytes) else each for each in messages]
        runs = [list(run) for _, run in groupby(every, key=lambda message: message.ordering_key)]
        chunks = [run[first : first + each] for run in runs for first in range(0, len(run), each)]
        limit = 1 if any(message.ordering_key for message in every) else in_flight
        ids: list[str] = []
        flying: deque[Any] = deque()
        for chunk in chunks:
            if len(flying) == limit:
                ids += flying.popleft().result().message_ids
            flying.append(self.begin(pb.PublishRequest(topic=topic, messages=chunk)))
        for future in flying:
            ids += future.result().message_ids
        return ids

    def pull(self, subscription: str, most: int = 1_000, *, within: float = 5.0) -> list[Any]:
        """Return the messages of the first answer that has some; none if no message came within so many seconds."""
        give_up = time.monotonic() + within
        while (left := give_up - time.monotonic()) > 0:
            try:
                answer = self.call(pb.PullRequest(subscription=subscription, max_messages=most), timeout=left)
            except grpc.RpcError as failed:
                if failed.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                break
            if answer.received_messages:
                return list(answer.received_messages)
        return []

    def pull_all(self, subscription: str, count: int, *, within: float = 30.0) -> list[Any]:
        """Pull until so many messages have come, without acks."""
        give_up, received = time.monotonic() + within, list[Any]()
        while len(received) < count:
            assert time.monotonic() < give_up, f"{len(received)} of {count} messages came within {within:g} s"
            received += self.pull(subscription, count - len(received), within=give_up - time.monotonic())
        return received

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> None:
        for ids in _chunks(ack_ids):
            self.call(pb.AcknowledgeRequest(subscription=subscription, ack_ids=ids))

    def modify(self, subscription: str, ack_ids: Sequence[str], seconds: int) -> None:
        """Let leases last so many seconds from now; 0 gives the messages back."""
        for ids in _chunks(ack_ids):
            request = pb.ModifyAckDeadlineRequest(subscription=subscription, ack_ids=ids, ack_deadline_seconds=seconds)
            self.call(request)

    def seek(self, subscription: str, seconds: float) -> None:
        """Seek to a time since the epoch: messages published at or after it are unacked, those before it acked."""
        request = pb.SeekRequest(subscription=subscription)
        request.time.FromNanoseconds(int(seconds * 1e6) * 1_000)
        self.call(request)

    def unacked(self, subscription: str, deadline: float, *, deadlines: float = 1.5) -> set[str]:
        """Return the ids of messages that come within so many ack deadlines; they are given back at once.

        After a killed StreamingPull client 5 deadlines are right on the emulator: it leases to the dead stream again.
        """
        give_up, ids = time.monotonic() + deadline * deadlines, set[str]()
        while (left := give_up - time.monotonic()) > 0:
            received = self.pull(subscription, within=left)
            new = {each.message.message_id for each in received} - ids
            if received and not new:
                break  # all that there is has come again
            ids |= new
        return ids

    @contextmanager
    def stream(self, subscription: str, **settings: Any) -> Iterator[Stream]:
        """Open a StreamingPull; settings are those of its first request."""
        stream = Stream(self.channel, subscription, settings)
        try:
            yield stream
        finally:
            stream.cancel()


class Stream:
    """A StreamingPull whose messages are collected by a thread."""

    def __init__(self, channel: grpc.Channel, subscription: str, settings: dict[str, Any]) -> None:
        settings.setdefault("stream_ack_deadline_seconds", 10)
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """What is put here is sent; None ends this side."""
        self.requests.put(pb.StreamingPullRequest(subscription=subscription, **settings))
        self.responses: list[Any] = []
        self.error: grpc.RpcError | None = None
        self.ended = threading.Event()
        call = channel.stream_stream(
            pb.STREAMING_PULL,
            request_serializer=pb.StreamingPullRequest.SerializeToString,
            response_deserializer=pb.StreamingPullResponse.FromString,
        )
        self._call = call(iter(self.requests.get, None))
        self._thread = threading.Thread(target=self._collect, name="test-streaming-pull", daemon=True)
        self._thread.start()

    @property
    def received(self) -> list[Any]:
        """The messages that have come so far."""
        return [each for response in list(self.responses) for each in response.received_messages]

    def wait_for(self, count: int, *, within: float = 20.0) -> list[Any]:
        """Wait until at least so many messages have come."""
        give_up = time.monotonic() + within
        while len(received := self.received) < count:
            assert not self.ended.is_set(), f"the stream ended: {self.error}"
            assert time.monotonic() < give_up, f"{len(received)} of {count} messages came within {within:g} s"
            time.sleep(0.01)
        return received

    @property
    def code(self) -> str:
        """How an ended stream ended: OK, or a status."""
        return "OK" if self.error is None else str(self.error.code().name)

    def cancel(self) -> None:
        self.requests.put(None)
        self._call.cancel()
        self._thread.join(10)

    def _collect(self) -> None:
        try:
            for response in self._call:
                self.responses.append(response)
        except grpc.RpcError as failed:
            self.error = failed
        finally:
            self.ended.set()


def ack_id_failures(failed: grpc.RpcError) -> dict[str, str]:
    """Return the reasons by ack id that a failed call carries, where exactly-once delivery is on."""
    failures: dict[str, str] = {}
    for key, value in failed.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.reason == "EXACTLY_ONCE_ACKID_FAILURE":
                    failures.update(info.metadata)
    return failures


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), IDS_EACH):
        yield ids[first : first + IDS_EACH]


@contextmanager
def connected(address: str) -> Iterator[PubSub]:
    """Connect to host:port."""
    client = PubSub(address)
    try:
        yield client
    finally:
        with suppress(grpc.RpcError):
            client.close()
