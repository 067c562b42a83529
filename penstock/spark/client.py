"""The calls of one session: their headers, deadlines, retries and errors."""

from __future__ import annotations

import logging
import platform
import queue
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

try:
    import grpc
except ModuleNotFoundError as missing:
    raise ImportError("Spark Connect needs grpcio: pip install 'penstock-flight[connect]'") from missing

from penstock.errors import InvalidRequest, PenstockError
from penstock.spark import protos
from penstock.spark.errors import CorruptResponse, Remote, SessionLost
from penstock.spark.failures import translate
from penstock.spark.responses import encode_varint
from penstock.spark.retries import Retries, RetryPolicy, is_transient, server_delay
from penstock.spark.uri import ConnectUri

log = logging.getLogger("penstock")
CALL_TIMEOUT = 600.0
"""Seconds for a call that isn't a stream: to analyse a plan Spark may list the files of a lake."""
FIRST_RETRY_FOR = 30.0
"""Seconds for which a server that has never answered is tried again: its address may be wrong."""
RETRY_FOR: ContextVar[float | None] = ContextVar("penstock-connect-retry-for", default=None)
"""In place of a session's `retry_for`, where nobody waits so long."""
_SERVICE = "/spark.connect.SparkConnectService/"
_OBSERVED = "client_observed_server_side_session_id"
_OPTIONS = [
    # A message is a batch, or a piece of 4 MiB of one; before Spark 4.1 one row may be larger than that.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Without these gRPC takes more than 10 MB off a slow consumer's connection, and of what it has sent the server
    # keeps only 10 MB to send again: 7 of 8 cut connections ended a query.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose calls these are: the server finds a session by both."""

    session_id: str
    user_id: str


class Client:
    """The calls of one session. Safe to share between threads; must not cross a fork, as gRPC's channels don't."""

    def __init__(
        self, uri: ConnectUri, *, ca: str | None = None, retry_for: float | None = None, timeout: float = CALL_TIMEOUT
    ) -> None:
        self.uri = uri
        self.identity = Identity(
            uri.session_id or str(uuid.uuid4()), "penstock" if uri.user_id is None else uri.user_id
        )
        self.settings: dict[str, str] = {}
        """What was set in the session, as it is lost with it."""
        self.closed = False
        self._ca, self._retry_for, self._timeout = ca, retry_for, timeout
        self._channel = _open_channel(uri, ca)
        self._server_session = ""  # the server's own id of the session; written by the first answer
        self._metadata = [*uri.headers, *([("authorization", f"Bearer {uri.token}")] if uri.token else [])]
        agent = f"{uri.user_agent} penstock" if uri.user_agent else "penstock"
        self._agent = f"{agent} spark/{protos.SPARK} python/{platform.python_version()}"
        self._calls = {
            name: self._channel.unary_unary(
                f"{_SERVICE}{name}", request_serializer=_serialize, response_deserializer=response.FromString
            )
            for name, response in _unary_calls().items()
        }
        self._streams = {
            name: self._channel.unary_stream(f"{_SERVICE}{name}") for name in ("ExecutePlan", "ReattachExecute")
        }
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()  # safe in a destructor
        self._lock = threading.Lock()  # _thread
        self._thread: threading.Thread | None = None  # from the first call on, until `close` or the client is forgotten
        self._end_tasks = weakref.finalize(self, self._tasks.put, None)
        self._end_tasks.atexit = False

    def derived(self, identity: Identity) -> Client:
        """Return a client of another session of the same server."""
        uri = replace(self.uri, session_id=identity.session_id, user_id=identity.user_id)
        return Client(uri, ca=self._ca, retry_for=self._retry_for, timeout=self._timeout)

    def close(self) -> None:
        """End the calls that are under way, and the connection."""
        self.closed = True
        self._end_tasks()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(10)
        self._channel.close()

    def retries(self) -> Retries:
        """Return the waits of a call that begins now."""
        default = RetryPolicy().retry_for if self._server_session else FIRST_RETRY_FOR
        chosen = (each for each in (RETRY_FOR.get(), self._retry_for, default) if each is not None)
        return Retries(RetryPolicy(retry_for=next(chosen)))

    def call(self, name: str, request: Any) -> Any:
        """Make a call, again while its failure passes by itself, and return the checked answer."""
        retries = self.retries()
        while True:
            try:
                return self._attempt(name, self.prepared(request), self._timeout)
            except grpc.RpcError as error:
                if not (is_transient(error) and retries.wait(server_delay(error))):
                    raise self.failure(error) from error

    def call_once(self, name: str, request: Any, *, timeout: float) -> None:
        """Make a call whose failure changes nothing for the caller."""
        try:
            self._attempt(name, self.prepared(request), timeout)
        except (grpc.RpcError, PenstockError, ValueError) as error:
            log.debug("%s: %s failed: %s", self.uri, name, error)

    def call_later(self, name: str, request: Any) -> None:
        """Let the session's own thread make such a call. Safe while Python collects garbage."""
        options = {"timeout": 5.0, "metadata": self._metadata}
        request = self.prepared(request)
        if name in self._streams:
            self._tasks.put(partial(_read_all, self._streams[name], _serialize(request), **options))
        else:
            self._tasks.put(partial(self._calls[name], request, **options))

    def stream(self, name: str, request: Any, timeout: float, *, plan: bytes = b"") -> Any:
        """Begin a stream of raw responses; the request's field `plan` is serialized already."""
        self._check_open()
        raw = _serialize(self.prepared(request))
        if plan:
            raw += b"\x1a" + encode_varint(len(plan)) + plan  # field 3, with its length
        return self._streams[name](raw, timeout=timeout, metadata=self._metadata)

    def prepared(self, request: Any) -> Any:
        """Fill in whose call it is, and which of the server's sessions it means."""
        request.session_id = self.identity.session_id
        request.user_context.user_id = self.identity.user_id
        request.client_type = self._agent
        if self._server_session and _OBSERVED in request.DESCRIPTOR.fields_by_name:
            setattr(request, _OBSERVED, self._server_session)
        return request

    def check(self, response: Any) -> None:
        """Reject an answer to another session, or of a session that began anew at the server."""
        if response.session_id not in ("", self.identity.session_id):  # FetchErrorDetails leaves it out
            raise CorruptResponse(f"{self.uri} answered for another session, {response.session_id!r:.60}")
        theirs = response.server_side_session_id
        if theirs and self._server_session and theirs != self._server_session:
            raise self._explained(SessionLost(f"{self.uri} has begun the session anew"))
        self._server_session = self._server_session or theirs

    def failure(self, error: grpc.RpcError, operation_id: str | None = None) -> PenstockError:
        """Return the typed error for a call that failed."""
        failed = translate(error, str(self.uri), operation_id=operation_id, details=self._error_details)
        return self._explained(failed) if isinstance(failed, SessionLost) else failed

    def _explained(self, lost: SessionLost) -> SessionLost:
        """Say what was lost with the session."""
        names = f" ({', '.join(self.settings)})" if self.settings else ""
        return SessionLost(
            f"{lost}; session {self.identity.session_id} is lost with its temporary views, cached tables and "
            f"settings{names}: connect again, and set up what you need of them",
            error_class=lost.error_class, sql_state=lost.sql_state, parameters=lost.parameters,
            operation_id=lost.operation_id,
        )  # fmt: skip

    def _attempt(self, name: str, request: Any, timeout: float) -> Any:
        self._check_open()
        response = self._calls[name](request, timeout=timeout, metadata=self._metadata)
        self.check(response)
        return response

    def _check_open(self) -> None:
        if self.closed:
            raise SessionLost(
                f"session {self.identity.session_id} was released: connect again",
                error_class="INVALID_HANDLE.SESSION_CLOSED",
            )
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_run_tasks, args=(self._tasks, self._channel), name="penstock-connect-tasks", daemon=True
                )
                self._thread.start()

    def _error_details(self, error_id: str) -> Any:
        try:
            return self._attempt(
                "FetchErrorDetails", self.prepared(protos.FetchErrorDetailsRequest(error_id=error_id)), 10.0
            )
        except (grpc.RpcError, Remote, CorruptResponse, ValueError) as error:
            log.debug("%s: no details of an error: %s", self.uri, error)
            return None


def _run_tasks(tasks: queue.SimpleQueue[Callable[[], object] | None], channel: grpc.Channel) -> None:
    """Make the calls that nobody waits for, then close the channel; the client itself may be forgotten before."""
    while (task := tasks.get()) is not None:
        try:
            task()
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed
            log.debug("a call that nobody waits for failed: %s", error)
    channel.close()


def _read_all(stream: grpc.UnaryStreamMultiCallable, request: bytes, **options: Any) -> None:
    deque(stream(request, **options), maxlen=0)


def _open_channel(uri: ConnectUri, ca: str | None) -> grpc.Channel:
    options: list[tuple[str, Any]] = [*_OPTIONS]
    if uri.keepalive is not None:
        options += [
            ("grpc.keepalive_time_ms", uri.keepalive[0]),
            ("grpc.keepalive_timeout_ms", uri.keepalive[1]),
            ("grpc.keepalive_permit_without_calls", int(uri.keepalive_idle)),
        ]
    if not uri.tls:
        if ca is not None:
            raise InvalidRequest(f"ca={ca!r:.80} without TLS: add use_ssl=true to the URI")
        options.append(("grpc.enable_http_proxy", 0))  # which would read the token
        return grpc.insecure_channel(uri.target, options=options)
    try:
        roots = None if ca is None else Path(ca).read_bytes()
    except OSError as wrong:
        raise InvalidRequest(f"ca={ca!r:.80}: {wrong}; expected a file of certificates (PEM)") from wrong
    return grpc.secure_channel(uri.target, grpc.ssl_channel_credentials(roots), options=options)


def _serialize(request: Any) -> bytes:
    serialized: bytes = request.SerializeToString()
    return serialized


def _unary_calls() -> dict[str, Any]:
    """Return the responses of the calls that are used."""
    return {
        "AnalyzePlan": protos.AnalyzePlanResponse,
        "Config": protos.ConfigResponse,
        "Interrupt": protos.InterruptResponse,
        "ReleaseExecute": protos.ReleaseExecuteResponse,
        "ReleaseSession": protos.ReleaseSessionResponse,
        "FetchErrorDetails": protos.FetchErrorDetailsResponse,
        "CloneSession": protos.CloneSessionResponse,
    }
