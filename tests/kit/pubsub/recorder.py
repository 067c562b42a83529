"""A gRPC proxy before the emulator: it notes which messages were delivered, acked and published, and fails calls.

It serves StreamingPull by unary Pulls: the emulator leases to the streams of killed clients again and again, for five
deadlines, and no client would ever see these leases.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import grpc

from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.client import SIZES
from tests.kit.pubsub.fake import Refused, abort

_MOST = 1_000
_LONGEST_PULL = 60.0
_CALLS = 64
_CHANNEL = [
    *SIZES, ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200),
]  # fmt: skip
Fails = Literal["before", "after", "refused"]
"""How an Acknowledge fails: it has no effect; it has one, and its answer is lost; some of its ids are refused."""


class Message(NamedTuple):
    """What names a message: a restarted emulator gives the same ids again."""

    id: str
    micros: int
    """When it was published."""


class Ack(NamedTuple):
    """An ack that was asked for, whatever came of it; not while all calls were refused."""

    message: Message
    at: float


@dataclass
class Publish:
    """A request to publish."""

    peer: str
    """Its connection."""
    messages: list[Any]
    is_answered: bool = False


class Recorder:
    """The proxy's record and controls. Safe between threads."""

    def __init__(self, target: str) -> None:
        self.acks: list[Ack] = []
        self.unknown: list[str] = []
        """Ack ids that were never given out, or before `forget`: they might ack another message."""
        self.delivered = 0
        self.failing: deque[tuple[Fails, str]] = deque()
        """How the next Acknowledges fail, each with a status."""
        self.publishes: list[Publish] = []
        """In the order in which they came."""
        self.taken: list[Any] = []
        """The messages that the emulator has taken, as it has answered."""
        self.failing_publishes: deque[tuple[Fails, str]] = deque()
        """How the next Publishes fail."""
        self._refusal: str | None = None
        self._messages: dict[str, Message] = {}
        self._latest: dict[Message, str] = {}
        """The newest ack id of messages that were delivered and not acked with it."""
        self._lock = threading.Lock()  # all but failing and _refusal
        self._open: set[Any] = set()
        self._channel = grpc.insecure_channel(target, _CHANNEL)

    def forget(self) -> None:
        """Forget what was delivered: the subscription is gone, and its ack ids may be given out again."""
        with self._lock:
            self._messages.clear()
            self._latest.clear()

    def unsettled(self) -> set[Message]:
        """Return the messages whose newest ack id was not acknowledged; an older one may have had its effect."""
        with self._lock:
            return set(self._latest)

    @contextmanager
    def refusing(self, code: str) -> Iterator[None]:
        """Fail every call with a status, also those that are under way."""
        self._refusal = code
        try:
            with self._lock:
                calls = list(self._open)
            for call in calls:
                call.cancel()
            yield
        finally:
            self._refusal = None

    def close(self) -> None:
        self._channel.close()

    # --- calls ------------------------------------------------------------------------------

    def call(self, method: str, request: bytes, context: Any) -> bytes:
        """Pass a unary call on."""
        name = method.rpartition("/")[2]
        if name == "Publish":
            return self._publish(method, request, context)
        fails = None
        if name == "Acknowledge":
            request, fails = self._acknowledge(request)
        answer = self._forward(method, request, context, context.time_remaining())
        if name == "Acknowledge":
            self._settle(request)
        if fails is not None:
            raise fails
        if name == "Pull":
            self._note(answer)
        return answer

    def stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Serve a StreamingPull by Pulls."""
        subscription = pb.StreamingPullRequest.FromString(next(requests)).subscription
        threading.Thread(target=self._read, args=(requests,), name="recorder-requests", daemon=True).start()
        pull = pb.PullRequest(subscription=subscription, max_messages=_MOST).SerializeToString()
        while context.is_active():
            try:
                answer = self._forward(_PULL, pull, context, _LONGEST_PULL)
            except Refused as refused:
                if refused.code == "DEADLINE_EXCEEDED":
                    continue
                raise
            if self._note(answer):
                yield answer  # a StreamingPullResponse has its messages in the same field
            else:
                time.sleep(0.02)

    def _publish(self, method: str, request: bytes, context: Any) -> bytes:
        publish = Publish(context.peer(), list(pb.PublishRequest.FromString(request).messages))
        with self._lock:
            self._refuse()
            self.publishes.append(publish)
            how, code = self.failing_publishes.popleft() if self.failing_publishes else (None, "")
        if how == "before":
            raise Refused(code, "the recorder fails it")
        answer = self._forward(method, request, context, context.time_remaining())
        with self._lock:
            self.taken += publish.messages
        if how is not None:
            raise Refused(code, "the recorder lost the answer")
        publish.is_answered = context.is_active()
        return answer

    def _read(self, requests: Iterator[bytes]) -> None:
        """Read a stream's heartbeats; our pullers send no acks there."""
        with suppress(Exception):  # the client is gone
            for request in requests:
                self._note_acks(pb.StreamingPullRequest.FromString(request).ack_ids)

    def _acknowledge(self, request: bytes) -> tuple[bytes, Refused | None]:
        """Note acks. Return what is to be passed on, and how the call ends after that, if it fails."""
        asked = pb.AcknowledgeRequest.FromString(request)
        self._note_acks(asked.ack_ids)
        try:
            how, code = self.failing.popleft()
        except IndexError:
            return request, None
        if how == "before":
            raise Refused(code, "the recorder fails it")
        if how == "after":
            return request, Refused(code, "the recorder lost the answer")
        ids = asked.ack_ids
        if len(ids) == 1:
            raise Refused("FAILED_PRECONDITION", "the id is refused", {ids[0]: code})
        refused, others = ids[::3], [each for at, each in enumerate(ids) if at % 3]
        request = pb.AcknowledgeRequest(subscription=asked.subscription, ack_ids=others).SerializeToString()
        return request, Refused("FAILED_PRECONDITION", "some ids are refused", dict.fromkeys(refused, code))

    def _settle(self, request: bytes) -> None:
        """Note that the emulator has taken acks."""
        with self._lock:
            for ack_id in pb.AcknowledgeRequest.FromString(request).ack_ids:
                message = self._messages.get(ack_id)
                if message is not None and self._latest.get(message) == ack_id:
                    del self._latest[message]

    def _note_acks(self, ack_ids: Any) -> None:
        at = time.time()
        with self._lock:
            self._refuse()  # before a `forget` that comes while all is refused, or not at all
            for ack_id in ack_ids:
                message = self._messages.get(ack_id)
                if message is None:
                    self.unknown.append(ack_id)
                else:
                    self.acks.append(Ack(message, at))

    def _note(self, answer: bytes) -> int:
        """Note what a Pull has brought; return how many messages."""
        received = pb.PullResponse.FromString(answer).received_messages
        with self._lock:
            for each in received:
                about = each.message
                micros = about.publish_time.seconds * 1_000_000 + about.publish_time.nanos // 1_000
                message = Message(about.message_id, micros)
                self._messages[each.ack_id], self._latest[message] = message, each.ack_id
            self.delivered += len(received)
        return len(received)

    def _refuse(self) -> None:
        if (refusal := self._refusal) is not None:
            raise Refused(refusal, "the recorder refuses it")

    def _code_of_cancelled(self) -> str:
        return "CANCELLED" if self._refusal is None else self._refusal

    def _forward(self, method: str, request: bytes, context: Any, timeout: float | None) -> bytes:
        self._refuse()
        call = self._channel.unary_unary(method).future(request, timeout=timeout)
        with self._lock:
            self._open.add(call)
        try:
            if not context.add_callback(call.cancel):  # what a dead client has asked for would be leased to nobody
                call.cancel()
            answer: bytes = call.result()
        except grpc.FutureCancelledError as cancelled:
            code = self._code_of_cancelled()
            raise Refused(code, "the call was cancelled") from cancelled
        except grpc.RpcError as error:
            raise Refused(error.code().name, str(error.details())) from error
        finally:
            with self._lock:
                self._open.discard(call)
        return answer


_PULL = next(method.path for method in pb.METHODS if method.request is pb.PullRequest)


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def service(self, details: Any) -> Any:
        method = details.method
        if method == pb.STREAMING_PULL:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._call(method, request, context))

    def _call(self, method: str, request: bytes, context: Any) -> bytes:
        try:
            return self._recorder.call(method, request, context)
        except Refused as refused:
            abort(context, refused)

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            yield from self._recorder.stream(requests, context)
        except Refused as refused:
            abort(context, refused)


@contextmanager
def recording(target: str) -> Iterator[tuple[Recorder, str]]:
    """Serve a proxy before the emulator at host:port; yields it and its own host:port."""
    recorder = Recorder(target)
    server = grpc.server(
        ThreadPoolExecutor(_CALLS, thread_name_prefix="recorder"),
        handlers=[_Handlers(recorder)],
        options=[*SIZES, ("grpc.so_reuseport", 0)],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield recorder, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
        recorder.close()
