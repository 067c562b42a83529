"""One operation at the server: its responses in order, each once, over as many connections as that takes."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.errors import TimedOut
from penstock.spark import protos
from penstock.spark.client import Client
from penstock.spark.errors import CorruptResponse, Transport
from penstock.spark.failures import error_class_of
from penstock.spark.responses import Response, parse_response
from penstock.spark.retries import is_transient, server_delay

SEGMENT = 600.0
"""Seconds that one stream may last; the server itself ends one after two minutes, or 1 GB, and waits for the next."""
RELEASE_EVERY = 8 << 20
"""Bytes of used responses after which the server is told that it may drop them. A call for each response costs more
than a batch of 1,000 rows itself."""
CHUNK = 4 << 20
"""The server cuts a larger batch into pieces of this size, so that little is lost with a connection."""
LASTED = 1.0
"""Seconds after which the end of a stream is no failure of it: a query that computes has nothing to send."""
_NOT_THERE = ("INVALID_HANDLE.OPERATION_NOT_FOUND", "INVALID_HANDLE.SESSION_NOT_FOUND")


@dataclass(frozen=True, slots=True)
class Position:
    """What another process needs to go on with an operation."""

    operation_id: str
    response_id: str
    """The last response that was used."""
    rows: int
    """The rows up to and with it."""


class Execution:
    """The responses of one operation. For one thread; `interrupt` may be called by another.

    1. ExecutePlan starts the operation under an id of ours; responses are read.
    2. A stream that breaks for a passing reason, or ends before `result_complete`, is followed by ReattachExecute after
       the last response read. If the operation never reached the server, ExecutePlan is sent again.
    3. Responses are released once they are used, by bytes; at the end all that is left. From a checkpoint on only those
       before the newest one are, and the operation isn't interrupted: another process may go on with it.
    """

    def __init__(
        self, client: Client, plan: bytes, *, tags: tuple[str, ...] = (), timeout: float | None = None
    ) -> None:
        """`plan` is a serialized Plan: parsed again it could have 100 levels at most."""
        self.operation_id = str(uuid.uuid4())
        self._start(client, timeout)
        self._request: Any = protos.ExecutePlanRequest(operation_id=self.operation_id, tags=tags)
        self._plan = plan
        self._request.request_options.add().reattach_options.reattachable = True
        chunking = self._request.request_options.add().result_chunking_options
        chunking.allow_arrow_batch_chunking, chunking.preferred_arrow_chunk_size = True, CHUNK
        self._stream = self._open(begin=True)

    @classmethod
    def resumed(cls, client: Client, position: Position, *, timeout: float | None = None) -> Execution:
        """Return the rest of an operation, behind a position."""
        self = cls.__new__(cls)
        self.operation_id = position.operation_id
        self._start(client, timeout)
        self._request = None
        self.has_checkpoint = True
        self._last_response = position.response_id
        self._stream = self._open()
        return self

    def _start(self, client: Client, timeout: float | None) -> None:
        self.reattaches = 0
        self.is_complete = False
        self.has_checkpoint = False
        self._client = client
        self._last_response = ""
        self._released = ""
        self._unreleased = 0
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._retries = client.retries()

    def __next__(self) -> Response:
        while not self.is_complete:
            try:
                raw = next(self._stream)
            except StopIteration:
                self._go_on()
            except grpc.RpcError as error:
                self._recover(error)
            else:
                return self._accept(parse_response(raw))
        raise StopIteration

    def use(self, response_id: str, size: int) -> None:
        """Note that the caller is done with all responses up to this one."""
        self._unreleased += size
        if self._unreleased >= RELEASE_EVERY and response_id != self._released:
            self._released, self._unreleased = response_id, 0
            until = protos.ReleaseExecuteRequest.ReleaseUntil(response_id=response_id)
            self._client.call_later(
                "ReleaseExecute", protos.ReleaseExecuteRequest(operation_id=self.operation_id, release_until=until)
            )

    def close(self) -> None:
        """Interrupt the operation, unless it is complete or has a checkpoint; wait until the server has been told."""
        if not self._end():
            self._client.call_once("Interrupt", self._interrupt_request(), timeout=10.0)
            self._release_all()

    def abandon(self) -> None:
        """The same, without waiting: for a destructor."""
        if not self._end():
            self._client.call_later("Interrupt", self._interrupt_request())
            self._release_all()

    def _end(self) -> bool:
        """Read no more; whether the server need not be told."""
        was_complete, self.is_complete = self.is_complete, True
        self._stream.cancel()
        return was_complete or self.has_checkpoint

    def _interrupt_request(self) -> Any:
        return protos.InterruptRequest(
            interrupt_type=protos.InterruptRequest.INTERRUPT_TYPE_OPERATION_ID, operation_id=self.operation_id
        )

    def _release_all(self) -> None:
        everything = protos.ReleaseExecuteRequest.ReleaseAll()
        self._client.call_later(
            "ReleaseExecute", protos.ReleaseExecuteRequest(operation_id=self.operation_id, release_all=everything)
        )

    def _accept(self, response: Response) -> Response:
        self._client.check(response.message)
        if response.message.operation_id != self.operation_id:
            raise CorruptResponse(f"a response is of another operation, {response.message.operation_id!r:.60}")
        if not response.message.response_id or response.message.response_id == self._last_response:
            raise CorruptResponse("a response has no id of its own")
        self._last_response = response.message.response_id
        self._retries = self._client.retries()  # anew, and for longer once the server has answered
        if response.message.HasField("result_complete"):
            self.is_complete = True
            if not self.has_checkpoint:
                self._release_all()
        return response

    def _open(self, *, begin: bool = False) -> Any:
        self._opened = time.monotonic()
        segment = SEGMENT
        if self._deadline is not None:
            segment = min(segment, max(self._deadline - time.monotonic(), 0.001))
        if begin:
            return self._client.stream("ExecutePlan", self._request, segment, plan=self._plan)
        request = protos.ReattachExecuteRequest(operation_id=self.operation_id)
        if self._last_response:
            request.last_response_id = self._last_response
        return self._client.stream("ReattachExecute", request, segment)

    def _recover(self, error: grpc.RpcError) -> None:
        """Go on after a failure that passes; else raise it."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._check_deadline(error)
            self._go_on()
        elif is_transient(error):
            self._wait(server_delay(error), error)
            self._reattach()
        elif self._never_arrived(error):
            self._wait(None, error)
            self._stream = self._open(begin=True)
        else:
            self.is_complete = True
            self._release_all()
            raise self._client.failure(error, self.operation_id) from error

    def _never_arrived(self, error: grpc.RpcError) -> bool:
        """Return whether the server doesn't know the operation because ExecutePlan was lost on its way."""
        return (
            self._request is not None
            and bool(self.reattaches)
            and not self._last_response
            and error_class_of(error).startswith(_NOT_THERE)
        )

    def _go_on(self) -> None:
        """Follow a stream that ended by itself."""
        if time.monotonic() - self._opened < LASTED:
            self._wait(None, None)
        else:
            self._check_deadline(None)
            self._retries = self._client.retries()
        self._reattach()

    def _reattach(self) -> None:
        self.reattaches += 1
        self._stream = self._open()

    def _wait(self, delay: float | None, cause: grpc.RpcError | None) -> None:
        self._check_deadline(cause)
        if not self._retries.wait(delay):
            self.is_complete = True
            if cause is not None:
                raise self._client.failure(cause, self.operation_id) from cause
            raise Transport(f"{self._client.uri} ends each stream of operation {self.operation_id} without an answer")

    def _check_deadline(self, cause: grpc.RpcError | None) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.has_checkpoint = False  # the timeout is for all who read it
            self.close()
            raise TimedOut(f"the query took more than timeout={self._timeout:g} s, and was interrupted") from cause
