"""A Pub/Sub server of our own, for load and for faults: `python -m tests.kit.pubsub.fake` prints its host:port.

A real gRPC server without TLS. `FakePubSub` is its state and its controls, for tests in this process; where it runs in
a process of its own, `RemoteFake` calls the same methods, and it ends when its stdin does.

It does what the emulator does (tests/pubsub/test_contract.py runs on both), and on purpose differs in this:

- StreamingPull is fast: as many messages in a response as `each` says, bytes that are made without an object for each
  where `load` made the backlog; the emulator gives 1-2 k messages/s in responses of 100. A stream is capped at
  `stream_bytes_per_second` if told so: 10 MB/s, as at the real service.
- max_outstanding_messages and _bytes are honoured, as at the real service; the emulator ignores them.
- The limits of the real service that the emulator lacks: 512 KiB for an Acknowledge or ModifyAckDeadline, one ordering
  key in a publish request, 10 MB (there the emulator hangs), 100 attributes of 256 and 1,024 bytes.
- With ordering, a key's messages go to one stream while any is outstanding, and a message that comes again brings all
  that were delivered after it with its key, acked ones too; the emulator redelivers that one, in any order.
- Cancelled and killed clients leave leases, which end once; the emulator may lease to a dead stream again.
- Ack ids are as long as at the real service (`ack_id_bytes`); message ids have 16 digits, and are never reused within
  one server. A fake started at the same port is an emulator restarted: nothing is known, and ids begin as they did.
- Schemas and their revisions; a message to a topic with a schema is said to be of the newest one, and isn't validated.
- Not there: dead letters are counted (delivery_attempt) and not forwarded; filters, snapshots, push, IAM.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import SIZES
from tests.kit.pubsub.log import CountedLog, GeneratedLog, Log, PublishedLog
from tests.kit.pubsub.subscription import PULL, UNLIMITED, Outstanding, Subscription

CONTROL = "/penstock.tests.FakePubSub/Call"
REQUEST_LIMIT = 524_288
"""Bytes of an Acknowledge or ModifyAckDeadline."""
PUBLISH_LIMIT = 10_000_000
ACK_ID_BYTES = 184
"""As the real ones have had since 2020."""
_LONGEST_PULL = 60.0  # seconds until an empty answer
_WAIT = 0.02  # seconds after which streams look again: leases end and clocks move without a notice
_BURST = 0.1  # seconds of a stream's rate that it may catch up with: sleeps take longer on a busy machine
_STREAMS = 256


class Refused(Exception):
    """A call ends with a status."""

    def __init__(self, code: str, message: str, ids: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.ids = code, ids or {}


@dataclass
class _Fault:
    """What happens to the next calls of a method."""

    code: str
    message: str
    times: int
    applied: bool


@dataclass
class _Stream:
    """An open StreamingPull."""

    number: int
    subscription: str
    seconds: float
    ended: Refused | None = None
    closed: bool = False


class FakePubSub:
    """Topics, subscriptions, streams and injected faults. All methods may be called by any thread."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        ack_id_bytes: int = ACK_ID_BYTES,
        stream_bytes_per_second: float | None = None,
        shortest_deadline: int = 10,
    ) -> None:
        self.stream_bytes_per_second = stream_bytes_per_second
        self.changed = threading.Condition()
        """Held wherever state is read or written; notified when there may be something to deliver."""
        self._clock, self._ack_id_bytes, self._shortest_deadline = clock, ack_id_bytes, shortest_deadline
        self._serial = 1_000
        self._topics: dict[str, Log] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._schemas: dict[str, list[Any]] = {}
        """The revisions of each, the newest last."""
        self._settings: dict[str, Any] = {}
        """By topic: its schema, and the encoding."""
        self._streams: dict[int, _Stream] = {}
        self._stream_number = PULL
        self._faults: dict[tuple[str, str], deque[_Fault]] = defaultdict(deque)
        self._delays: dict[str, float] = {}
        self._requests: dict[str, dict[str, int]] = {}
        self._pulls: defaultdict[str, int] = defaultdict(int)  # by subscription: those that wait

    # --- controls: arguments and results are JSON ---

    def load(
        self,
        subscription: str,
        count: int,
        *,
        size: int = 100,
        attributes: int = 0,
        keys: int = 0,
        each: int = 1_000,
        rate: float | None = None,
        deadline: int = 60,
        exactly_once: bool = False,
        dead_letter: bool = False,
    ) -> None:
        """Create a subscription with so many messages, published at a rate or there at once, and a topic of its name.

        Data begins with the message's number in 16 digits; with `keys`, ordering is on and the keys take turns.
        """
        topic = subscription.replace("/subscriptions/", "/topics/")
        about = pb.Subscription(
            name=subscription,
            topic=topic,
            ack_deadline_seconds=deadline,
            enable_message_ordering=keys > 0,
            enable_exactly_once_delivery=exactly_once,
        )
        if dead_letter:
            about.dead_letter_policy.dead_letter_topic = f"{topic}-dead"
        with self.changed:
            log = GeneratedLog(
                self._new_serial(), count=count, size=size, attributes=attributes, keys=keys, rate=rate,
                now=self._clock(), ack_id_bytes=self._ack_id_bytes,
            )  # fmt: skip
            self._topics[topic] = log
            self._subscriptions[subscription] = self._new_subscription(about, log, first=0)
            self._subscriptions[subscription].each = each
            self.changed.notify_all()

    def count(self, topic: str) -> None:
        """Create a topic whose messages are counted, and not kept."""
        with self.changed:
            self._topics[topic] = CountedLog(self._new_serial())

    def counted(self, topic: str) -> int:
        """Return how many messages such a topic was sent."""
        with self.changed:
            log = self._topics[topic]
            assert isinstance(log, CountedLog)
            return log.count

    def totals(self, subscription: str) -> dict[str, int]:
        """Count messages by state, deliveries, acks, modacks, nacks, expired leases, stale ids, streams and pulls.

        A pull whose client has given up is counted until the server has heard of it: till then it takes messages.
        """
        with self.changed:
            return {**self._subscription(subscription).totals(), "pulls": self._pulls[subscription]}

    def published(self, topic: str) -> list[Any]:
        """Return a topic's messages, in the order in which they were published. For tests in this process."""
        with self.changed:
            log = self._topics[topic]
            assert isinstance(log, PublishedLog)
            return log.messages()

    def counts(self, subscription: str) -> dict[str, dict[str, float]]:
        """Return deliveries, acks, modacks, nacks and the time of the ack by message id."""
        with self.changed:
            return self._subscription(subscription).counts()

    def acked_at(self, subscription: str, every: int = 1) -> list[float]:
        """Return when each `every`-th message was acked (0: never), in the order of their numbers."""
        with self.changed:
            return self._subscription(subscription).acked_at(every)

    def requests(self) -> dict[str, dict[str, int]]:
        """Return for each method how often it was called, and the most bytes and ack ids of a request."""
        with self.changed:
            return json.loads(json.dumps(self._requests))  # type: ignore[no-any-return]

    def expire(self, subscription: str) -> int:
        """End all leases now, and return how many there were."""
        with self.changed:
            self.changed.notify_all()
            return self._subscription(subscription).expire()

    def deliver_again(self, subscription: str) -> int:
        """Deliver what is leased once more, though its lease holds: the ids of before are stale then."""
        with self.changed:
            self.changed.notify_all()
            return self._subscription(subscription).deliver_again()

    def stall(self, subscription: str) -> None:
        """Deliver nothing, and leave streams open, until `resume`."""
        with self.changed:
            self._subscription(subscription).stalled = True

    def resume(self, subscription: str) -> None:
        with self.changed:
            self._subscription(subscription).stalled = False
            self.changed.notify_all()

    def reset_streams(self, subscription: str, code: str = "UNAVAILABLE", message: str = "injected") -> int:
        """End the open streams with a status, and return how many there were."""
        with self.changed:
            streams = [each for each in self._streams.values() if each.subscription == subscription]
            for stream in streams:
                stream.ended = Refused(code, message)
            self.changed.notify_all()
            return len(streams)

    def fail(
        self,
        method: str,
        code: str = "UNAVAILABLE",
        *,
        message: str = "injected",
        resource: str = "",
        times: int = 1,
        applied: bool = False,
    ) -> None:
        """Let the next calls of a method end with a status, for a topic or a subscription or for all.

        `applied`: they have their effect all the same, as where an answer is lost. With the code OK they are answered
        and have none. `StreamingPull` fails as it opens. Times -1 is until `heal`.
        """
        with self.changed:
            self._faults[method, resource].append(_Fault(code, message, times, applied))

    def fail_ack_ids(self, subscription: str, reason: str, *, count: int, method: str = "Acknowledge") -> None:
        """Let the next ids fail with a reason, such as TRANSIENT_FAILURE_SERVICE_UNAVAILABLE; exactly-once only."""
        with self.changed:
            self._subscription(subscription).failing[method].extend([reason] * count)

    def delay(self, method: str, seconds: float) -> None:
        """Let calls of a unary method wait before they have their effect."""
        with self.changed:
            self._delays[method] = seconds

    def heal(self) -> None:
        """Forget all faults and delays."""
        with self.changed:
            self._faults.clear()
            self._delays.clear()
            for subscription in self._subscriptions.values():
                subscription.stalled = False
                for reasons in subscription.failing.values():
                    reasons.clear()
            self.changed.notify_all()

    # --- the service ---

    def call(self, method: str, request: Any) -> Any:
        """Answer a unary call; raises `Refused`."""
        resource = _resource(request)
        with self.changed:
            self._note(method, request)
            delay = self._delays.get(method, 0.0)
        if delay:
            time.sleep(delay)
        with self.changed:
            fault = self._next_fault(method, resource)
            if fault and not fault.applied:
                if fault.code == "OK":
                    return next(each.response for each in pb.METHODS if each.path.endswith(f"/{method}"))()
                raise Refused(fault.code, fault.message)
            answer = getattr(self, f"_{method}")(request)
            self.changed.notify_all()
            if fault:
                raise Refused(fault.code, fault.message)
            return answer

    def pull(self, request: Any, is_active: Callable[[], bool]) -> bytes:
        """Answer a unary Pull, with nothing after a minute without messages."""
        with self.changed:
            self._note("Pull", request)
            if fault := self._next_fault("Pull", request.subscription):
                raise Refused(fault.code, fault.message)
            if request.max_messages <= 0:
                raise Refused("INVALID_ARGUMENT", "No max_messages specified")
            give_up = time.monotonic() + (0 if request.return_immediately else _LONGEST_PULL)
            self._pulls[request.subscription] += 1
            try:
                while is_active():
                    subscription = self._subscription(request.subscription)
                    most, seconds = min(1_000, request.max_messages), subscription.about.ack_deadline_seconds
                    if (response := subscription.take(PULL, seconds, most)) is not None:
                        return response
                    if time.monotonic() >= give_up:
                        break
                    self.changed.wait(_WAIT)
            finally:
                self._pulls[request.subscription] -= 1
        return b""

    def stream(self, requests: Iterator[Any], on_end: Callable[[Callable[[], None]], bool]) -> Iterator[bytes]:
        """Answer a StreamingPull; raises `Refused`. `on_end` is told what to call when the client has gone."""
        first = next(requests, None)
        if first is None:
            return
        stream = self._open(first)
        try:
            on_end(lambda: self._close(stream))
            threading.Thread(target=self._listen, args=(stream, requests), daemon=True).start()
            rate, free_at = self.stream_bytes_per_second, time.monotonic()
            while (response := self._next_response(stream)) is not None:
                yield response
                if rate:
                    free_at = max(free_at, time.monotonic() - _BURST) + len(response) / rate
                    time.sleep(max(0.0, free_at - time.monotonic()))
        finally:
            with self.changed:
                del self._streams[stream.number]
                if subscription := self._subscriptions.get(stream.subscription):
                    subscription.streams.pop(stream.number, None)

    def _open(self, first: Any) -> _Stream:
        with self.changed:
            self._note("StreamingPull", first)
            if fault := self._next_fault("StreamingPull", first.subscription):
                raise Refused(fault.code, fault.message)
            if not self._shortest_deadline <= first.stream_ack_deadline_seconds <= 600:
                raise Refused("INVALID_ARGUMENT", "stream_ack_deadline_seconds must be between 10 and 600 seconds")
            subscription = self._subscription(first.subscription)
            self._stream_number += 1
            limits = Outstanding(first.max_outstanding_messages, first.max_outstanding_bytes)
            limits.max_messages = limits.max_messages if limits.max_messages > 0 else UNLIMITED
            limits.max_bytes = limits.max_bytes if limits.max_bytes > 0 else UNLIMITED
            subscription.streams[self._stream_number] = limits
            stream = _Stream(self._stream_number, first.subscription, first.stream_ack_deadline_seconds)
            self._streams[stream.number] = stream
            return stream

    def _next_response(self, stream: _Stream) -> bytes | None:
        """Wait for messages; None when the client has gone or has ended its side."""
        with self.changed:
            while not stream.closed:
                if stream.ended:
                    raise stream.ended
                subscription = self._subscription(stream.subscription)
                if response := subscription.take(stream.number, stream.seconds, subscription.each):
                    return response + _properties(subscription.about)
                self.changed.wait(_WAIT)
        return None

    def _listen(self, stream: _Stream, requests: Iterator[Any]) -> None:
        """Do what a client asks for on its stream."""
        try:
            for request in requests:
                with self.changed:
                    self._hear(stream, request)
        except Refused as refused:
            stream.ended = refused
        except Exception:  # grpc's own, when the client has gone
            self._close(stream)
        else:
            self._close(stream)

    def _hear(self, stream: _Stream, request: Any) -> None:
        if request.subscription:
            raise Refused("INVALID_ARGUMENT", "subscription may only be set in first message")
        if request.max_outstanding_messages or request.max_outstanding_bytes:
            raise Refused("INVALID_ARGUMENT", "flow control may only be set in first message")
        stream.seconds = request.stream_ack_deadline_seconds or stream.seconds
        subscription = self._subscription(stream.subscription)
        if request.ack_ids:
            _checked(lambda: subscription.acknowledge(request.ack_ids))
        for ack_id, seconds in zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True):
            _checked(lambda: subscription.modify([ack_id], seconds))  # noqa: B023
        self.changed.notify_all()

    def _close(self, stream: _Stream) -> None:
        with self.changed:
            stream.closed = True
            self.changed.notify_all()

    # --- its unary methods, by their names on the wire ---

    def _CreateTopic(self, topic: Any) -> Any:  # noqa: N802
        if topic.name in self._topics:
            raise Refused("ALREADY_EXISTS", "Topic already exists")
        self._topics[topic.name] = PublishedLog(self._new_serial())
        if topic.HasField("schema_settings"):
            self._settings[topic.name] = topic.schema_settings
        return topic

    def _GetTopic(self, request: Any) -> Any:  # noqa: N802
        self._topic(request.topic)
        return pb.Topic(name=request.topic, schema_settings=self._settings.get(request.topic))

    def _DeleteTopic(self, request: Any) -> Any:  # noqa: N802
        self._topic(request.topic)
        del self._topics[request.topic]
        for subscription in self._subscriptions.values():
            if subscription.about.topic == request.topic:
                subscription.about.topic = "_deleted-topic_"
        return pb.Empty()

    def _Publish(self, request: Any) -> Any:  # noqa: N802
        log, messages = self._topic(request.topic), request.messages
        if not isinstance(log, PublishedLog):
            raise Refused("FAILED_PRECONDITION", "the messages of this topic are generated")
        for wrong, message in (
            (not messages, "No messages to publish"),
            (len(messages) > 1_000, "Too many messages to publish"),
            (request.ByteSize() > PUBLISH_LIMIT, f"Request payload size exceeds the limit: {PUBLISH_LIMIT} bytes."),
            (any(not (each.data or each.attributes) for each in messages), "Some messages are empty"),
            (len({each.ordering_key for each in messages}) > 1, "Messages in a request must have one ordering key"),
            (any(_too_large(each) for each in messages), "Some attributes are too large or too many"),
        ):
            if wrong:
                raise Refused("INVALID_ARGUMENT", message)
        if (settings := self._settings.get(request.topic)) is not None:
            self._stamp(messages, settings)
        return pb.PublishResponse(message_ids=log.publish(messages, self._clock()))

    def _CreateSubscription(self, about: Any) -> Any:  # noqa: N802
        if about.name in self._subscriptions:
            raise Refused("ALREADY_EXISTS", "Subscription already exists")
        if about.topic not in self._topics:
            raise Refused("NOT_FOUND", "Subscription topic does not exist")
        about.ack_deadline_seconds = about.ack_deadline_seconds or 10
        if not self._shortest_deadline <= about.ack_deadline_seconds <= 600:
            raise Refused("INVALID_ARGUMENT", "ack_deadline_seconds must be between 10 and 600 seconds")
        log = self._topics[about.topic]
        self._subscriptions[about.name] = self._new_subscription(about, log, first=log.length(self._clock()))
        return about

    def _GetSubscription(self, request: Any) -> Any:  # noqa: N802
        return self._subscription(request.subscription, pulls=False).about

    def _DeleteSubscription(self, request: Any) -> Any:  # noqa: N802
        self._subscription(request.subscription, pulls=False)
        del self._subscriptions[request.subscription]
        return pb.Empty()

    def _Acknowledge(self, request: Any) -> Any:  # noqa: N802
        subscription = self._subscription(request.subscription)
        _check_ids(request)
        _checked(lambda: subscription.acknowledge(request.ack_ids))
        return pb.Empty()

    def _ModifyAckDeadline(self, request: Any) -> Any:  # noqa: N802
        subscription = self._subscription(request.subscription)
        _check_ids(request)
        if not 0 <= request.ack_deadline_seconds <= 600:
            raise Refused("INVALID_ARGUMENT", "ack_deadline_seconds must be between 0 and 600 seconds")
        _checked(lambda: subscription.modify(request.ack_ids, request.ack_deadline_seconds))
        return pb.Empty()

    def _Seek(self, request: Any) -> Any:  # noqa: N802
        if not request.HasField("time"):
            raise Refused("UNIMPLEMENTED", "snapshots are not there in this fake")
        self._subscription(request.subscription).seek(request.time.ToMicroseconds() / 1e6)
        return pb.SeekResponse()

    def _CreateSchema(self, request: Any) -> Any:  # noqa: N802
        name = f"{request.parent}/schemas/{request.schema_id}"
        if name in self._schemas:
            raise Refused("ALREADY_EXISTS", "Schema already exists")
        self._schemas[name] = []
        return self._new_revision(name, request.schema)

    def _CommitSchema(self, request: Any) -> Any:  # noqa: N802
        self._revisions(request.name)
        return self._new_revision(request.name, request.schema)

    def _GetSchema(self, request: Any) -> Any:  # noqa: N802
        name, _, revision = request.name.partition("@")
        known = [each for each in self._revisions(name) if revision in ("", each.revision_id)]
        if not known:
            raise Refused("NOT_FOUND", f"Resource not found (resource={request.name})")
        return known[-1]

    def _DeleteSchema(self, request: Any) -> Any:  # noqa: N802
        self._revisions(request.name)
        del self._schemas[request.name]
        return pb.Empty()

    # --- parts ---

    def _new_revision(self, name: str, schema: Any) -> Any:
        revision = pb.Schema(name=name, type_=schema.type_, definition=schema.definition)
        revision.revision_id = f"{self._new_serial():08x}"
        revision.revision_create_time.FromMicroseconds(int(self._clock() * 1e6) + self._serial)
        self._schemas[name].append(revision)
        return revision

    def _revisions(self, name: str) -> list[Any]:
        if name not in self._schemas:
            raise Refused("NOT_FOUND", f"Resource not found (resource={name})")
        return self._schemas[name]

    def _stamp(self, messages: Any, settings: Any) -> None:
        """Give messages the attributes of a topic with a schema."""
        for message in messages:
            message.attributes["googclient_schemaname"] = settings.schema
            message.attributes["googclient_schemarevisionid"] = self._revisions(settings.schema)[-1].revision_id
            message.attributes["googclient_schemaencoding"] = "JSON" if settings.encoding == 1 else "BINARY"

    def _topic(self, name: str) -> Log:
        if (log := self._topics.get(name)) is None:
            raise Refused("NOT_FOUND", "Topic not found")
        return log

    def _subscription(self, name: str, *, pulls: bool = True) -> Subscription:
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise Refused("NOT_FOUND", f"Subscription does not exist (resource={name.rpartition('/')[2]})")
        if pulls and (subscription.about.push_config.push_endpoint or subscription.about.detached):
            raise Refused("FAILED_PRECONDITION", "the subscription is a push subscription, or is detached")
        return subscription

    def _new_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _new_subscription(self, about: Any, log: Log, *, first: int) -> Subscription:
        serial, width = self._new_serial(), self._ack_id_bytes
        return Subscription(about, serial, log, first=first, clock=self._clock, ack_id_bytes=width)

    def _next_fault(self, method: str, resource: str) -> _Fault | None:
        for faults in (self._faults[method, resource], self._faults[method, ""]):
            if faults:
                faults[0].times -= 1
                return faults.popleft() if faults[0].times == 0 else faults[0]
        return None

    def _note(self, method: str, request: Any) -> None:
        seen = self._requests.setdefault(method, {"calls": 0, "most_bytes": 0, "most_ids": 0})
        seen["calls"] += 1
        seen["most_bytes"] = max(seen["most_bytes"], request.ByteSize())
        seen["most_ids"] = max(seen["most_ids"], len(getattr(request, "ack_ids", ())))


def _resource(request: Any) -> str:
    """Return the topic or subscription that a request is about."""
    names = (getattr(request, field, "") for field in ("subscription", "name", "topic"))
    return next(filter(None, names), "")


def _too_large(message: Any) -> bool:
    sizes = [(len(key.encode()), len(value.encode())) for key, value in message.attributes.items()]
    return len(sizes) > 100 or any(key > 256 or value > 1_024 for key, value in sizes)


def _check_ids(request: Any) -> None:
    if request.ByteSize() > REQUEST_LIMIT:
        raise Refused("INVALID_ARGUMENT", f"Request payload size exceeds the limit: {REQUEST_LIMIT} bytes.")
    if not request.ack_ids:
        raise Refused("INVALID_ARGUMENT", "No ack ids specified.")


def _checked(work: Callable[[], dict[str, str]]) -> None:
    """Ack or modify, and raise what failed; the other ids of the request have had their effect."""
    try:
        failed = work()
    except ValueError as malformed:
        raise Refused("INVALID_ARGUMENT", f"Invalid ack id (ack_id={malformed})") from None
    if failed:
        raise Refused("INVALID_ARGUMENT", "Some acknowledgement ids in the request failed", failed)


def _properties(about: Any) -> bytes:
    """Return the rest of a stream's response: fields of one message may follow each other in pieces."""
    response = pb.StreamingPullResponse()
    response.subscription_properties.exactly_once_delivery_enabled = about.enable_exactly_once_delivery
    response.subscription_properties.message_ordering_enabled = about.enable_message_ordering
    return bytes(response.SerializeToString())


# --- on the wire --------------------------------------------------------------------------------


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a method's path."""

    def __init__(self, fake: FakePubSub) -> None:
        self._fake = fake
        self._handlers = {method.path: self._unary(method) for method in pb.METHODS}
        self._handlers[pb.STREAMING_PULL] = grpc.stream_stream_rpc_method_handler(
            self._stream, request_deserializer=pb.StreamingPullRequest.FromString
        )
        self._handlers[CONTROL] = grpc.unary_unary_rpc_method_handler(self._control)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)

    def _unary(self, method: pb.Method) -> Any:
        name = method.path.rpartition("/")[2]

        def answer(request: Any, context: Any) -> Any:
            try:
                if name == "Pull":
                    return self._fake.pull(request, context.is_active)
                return self._fake.call(name, request).SerializeToString()
            except Refused as refused:
                abort(context, refused)

        return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=method.request.FromString)

    def _stream(self, requests: Iterator[Any], context: Any) -> Iterator[bytes]:
        try:
            yield from self._fake.stream(requests, context.add_callback)
        except Refused as refused:
            abort(context, refused)

    def _control(self, request: bytes, context: Any) -> bytes:
        verb, positional, named = json.loads(request)
        try:
            return json.dumps(getattr(self._fake, verb)(*positional, **named)).encode()
        except Refused as refused:
            abort(context, refused)


def abort(context: Any, refused: Refused) -> NoReturn:
    code = grpc.StatusCode[refused.code]
    status = status_pb2.Status(code=code.value[0], message=str(refused))
    if refused.ids:
        detail = any_pb2.Any()
        detail.Pack(
            error_details_pb2.ErrorInfo(
                reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=refused.ids
            )
        )
        status.details.append(detail)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, str(refused))
    raise AssertionError("abort raises")


@contextmanager
def served(fake: FakePubSub, *, port: int = 0) -> Iterator[str]:
    """Serve a fake in this process; yields host:port."""
    server = grpc.server(
        ThreadPoolExecutor(_STREAMS, thread_name_prefix="fake-pubsub"),
        handlers=[_Handlers(fake)],
        options=[*SIZES, ("grpc.so_reuseport", 0)],
    )
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


class RemoteFake:
    """The controls of a fake in another process: `fake("expire", subscription)` is its `expire(subscription)`."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address, self.process = address, process
        self._channel = grpc.insecure_channel(address, [*SIZES, ("grpc.use_local_subchannel_pool", 1)])
        self._call = self._channel.unary_unary(CONTROL)

    def __call__(self, verb: str, *positional: Any, **named: Any) -> Any:
        return json.loads(self._call(json.dumps([verb, positional, named]).encode(), timeout=60))

    def close(self) -> None:
        self._channel.close()


@contextmanager
def fake_process(*arguments: str) -> Iterator[RemoteFake]:
    """Run a fake in a process of its own, with arguments of its command line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.pubsub.fake", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the fake did not start"
        fake = RemoteFake(address, process)
        try:
            yield fake
        finally:
            fake.close()
            process.kill()


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description="A Pub/Sub server for tests; prints host:port, ends with its stdin.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ack-id-bytes", type=int, default=ACK_ID_BYTES)
    parser.add_argument("--shortest-deadline", type=int, default=10, help="seconds; the real service has 10")
    parser.add_argument("--stream-bytes-per-second", type=float, help="the real service has 10e6; default: no cap")
    options = parser.parse_args()
    fake = FakePubSub(
        ack_id_bytes=options.ack_id_bytes,
        stream_bytes_per_second=options.stream_bytes_per_second,
        shortest_deadline=options.shortest_deadline,
    )
    with served(fake, port=options.port) as address:
        print(address, flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main()
