"""What reads messages from Pub/Sub: a StreamingPull or unary Pulls, opened again as often as they end."""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import grpc

from penstock.errors import PenstockError
from penstock.queue.pubsub.transport import PubSub, StreamingPullRequest, is_retried, translate

_log = logging.getLogger(__name__)

PULLED_SECONDS = 10.0
"""How long a unary Pull leases at least: the shortest deadline that a subscription can have, as nobody tells it."""
_MOST_PULLED = 1_000
_PULL_TIMEOUT = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
"""Seconds until a stream is opened again: the first time, and at most; as soon as a response comes they begin anew."""
_LONG = 1.0  # seconds without reading after which responses may have waited in the transport's buffers
_BUFFERED = 16 << 20  # the most that these hold


_HEARTBEAT = 30.0
"""Seconds between two heartbeats on a stream."""
EXPECTED_WITHIN, SILENCE = 90.0, 600.0
"""Seconds without a response after which a stream is opened again: where one must come, and anywhere."""


@dataclass(frozen=True, slots=True)
class Response:
    """Messages that came together."""

    received: Sequence[Any]
    size: int
    arrived: float
    """When at the earliest they were leased to this process."""
    seconds: float
    """For how long they are leased."""
    exactly_once: bool = False


class Owner(Protocol):
    """What a reader needs of its puller; safe to call from any thread."""

    stopping: threading.Event

    def lease_seconds(self) -> int:
        """Return how long a stream is to lease."""

    def wait_for_room(self) -> None:
        """Wait until more messages may be read, or until `stopping`."""

    def take(self, response: Response) -> None:
        """Take what has come."""

    def broken(self) -> None:
        """A connection has broken."""

    def fail(self, error: PenstockError) -> None:
        """Stop all, with this cause."""


class Reader:
    """One thread that reads messages until its puller stops."""

    def __init__(self, pubsub: PubSub, owner: Owner, name: str) -> None:
        self._pubsub, self._owner = pubsub, owner
        self._random = Random()  # noqa: S311  # jitter, no secret
        self._pause = _SHORTEST_PAUSE
        self._call: Any = None
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-pull-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """End the call that is under way."""
        self._cancelled, call = True, self._call
        if call is not None:
            call.cancel()

    def join(self, timeout: float) -> bool:
        """Wait for the thread; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def tend(self, now: float, *, expecting: bool) -> None:
        """Do what is due from time to time; `expecting`: messages are known to be there."""

    def _run(self) -> None:
        while not self._owner.stopping.is_set():
            try:
                self._read()
                continue
            except grpc.RpcError as error:
                failure: grpc.RpcError = error
            except grpc.FutureCancelledError:
                continue  # by `cancel`
            if self._cancelled or self._owner.stopping.is_set():
                self._cancelled = False
                continue
            if not (is_retried(failure) or failure.code() is grpc.StatusCode.CANCELLED):  # which proxies make of resets
                self._owner.fail(translate(failure, self._pubsub.subscription))
                return
            self._owner.broken()
            seconds = self._pause * self._random.uniform(0.5, 1.0)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            level = logging.WARNING if self._pause >= 2.0 else logging.INFO  # Pub/Sub ends streams now and then
            _log.log(level, "%s; again in %.1f s", translate(failure, self._pubsub.subscription), seconds)
            self._owner.stopping.wait(seconds)

    @abstractmethod
    def _read(self) -> None:
        """Read until the call ends, or raise its error."""

    def _take(self, response: Response) -> None:
        self._pause = _SHORTEST_PAUSE
        self._owner.take(response)


class PullReader(Reader):
    """Reads by unary Pulls, one after the other."""

    def _read(self) -> None:
        self._owner.wait_for_room()
        if self._owner.stopping.is_set():
            return
        began = time.monotonic()
        self._call = self._pubsub.pull(_MOST_PULLED, _PULL_TIMEOUT)
        if self._owner.stopping.is_set():  # `cancel` may have come just before this call
            self._call.cancel()
        try:
            response, size = self._call.result()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return  # no message came
            raise
        received = response.received_messages
        if received:
            self._take(Response(received, size, time.monotonic(), PULLED_SECONDS))
        elif time.monotonic() - began < _SHORTEST_PAUSE:
            self._owner.stopping.wait(_SHORTEST_PAUSE)


class StreamReader(Reader):
    """Reads a StreamingPull."""

    def __init__(self, pubsub: PubSub, owner: Owner, name: str, *, client: str, most_leases: int) -> None:
        super().__init__(pubsub, owner, name)
        self._client, self._most_leases = client, most_leases
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watchdog = Watchdog(time.monotonic())
        self._waits_for_room = False
        self._beat = 0.0
        self._seconds = 0
        """For how long the stream leases."""

    def tend(self, now: float, *, expecting: bool) -> None:
        """Send a heartbeat; open a stream again that says nothing any more."""
        if self._waits_for_room:
            self._watchdog.heard(now, empty=False)
        if now - self._beat > _HEARTBEAT:
            self._beat = now
            self._requests.put(StreamingPullRequest())
        if self._watchdog.stalled(now, expecting=expecting):
            _log.warning("%s: the stream has said nothing for too long, it is opened again", self._pubsub.subscription)
            self._watchdog = Watchdog(now)
            self.cancel()

    def _read(self) -> None:
        self._beat = time.monotonic()
        self._watchdog = Watchdog(self._beat)
        self._requests = queue.SimpleQueue()
        self._seconds = self._owner.lease_seconds()
        self._requests.put(
            StreamingPullRequest(
                subscription=self._pubsub.subscription,
                stream_ack_deadline_seconds=self._seconds,
                client_id=self._client,
                max_outstanding_messages=self._most_leases,
                protocol_version=1,  # the server answers heartbeats, where it knows of them
            )
        )
        self._call = call = self._pubsub.stream(iter(self._requests.get, None))
        try:
            if self._owner.stopping.is_set():  # `cancel` may have come just before this call
                call.cancel()
            self._read_responses(iter(call))
        finally:
            self._requests.put(None)  # ends the thread of gRPC that sends these
            call.cancel()

    def _read_responses(self, responses: Iterator[Any]) -> None:
        stale, unread = 0.0, 0
        while True:
            began = time.monotonic()
            self._waits_for_room = True
            self._owner.wait_for_room()
            self._waits_for_room = False
            asked = time.monotonic()
            if asked - began > _LONG:  # what comes next may have been leased all that time
                stale, unread = began, _BUFFERED
            answer = next(responses, None)
            if answer is None:
                self._owner.stopping.wait(_SHORTEST_PAUSE)
                return
            (response, size), now = answer, time.monotonic()
            if now - asked > _LONG / 20:  # the buffers were empty
                unread = 0
            self._watchdog.heard(now, empty=not response.received_messages)
            exactly_once = response.subscription_properties.exactly_once_delivery_enabled
            if response.received_messages:
                arrived = stale if unread > 0 else now
                self._take(Response(response.received_messages, size, arrived, self._seconds, exactly_once))
            unread -= size


class Watchdog:
    """Says when a stream that merely looks open is to be opened again."""

    def __init__(self, now: float) -> None:
        self._heard = now
        self._answers = False

    def heard(self, now: float, *, empty: bool) -> None:
        """Take a response; one without messages answers a heartbeat, so that any silence means something."""
        self._heard = now
        self._answers = self._answers or empty

    def stalled(self, now: float, *, expecting: bool) -> bool:
        """Tell whether nothing has come for too long; `expecting`: messages are known to be there."""
        return now - self._heard > (EXPECTED_WITHIN if self._answers or expecting else SILENCE)
