"""Pub/Sub's methods by raw gRPC stubs: channel, credentials, and which errors are tried again.

Google's own subscriber acks 100 messages per round trip and wraps each; these calls take and return upb messages.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google.auth
import google.auth.exceptions
import google.auth.impersonated_credentials
import google.auth.transport.grpc
import google.auth.transport.requests
import grpc
from google.oauth2 import service_account
from google.protobuf import empty_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from penstock.errors import Denied, InvalidRequest, NotFound, PenstockError, TimedOut, Unavailable

_log = logging.getLogger(__name__)

ENDPOINT = "pubsub.googleapis.com:443"
EMULATOR_VARIABLE = "PUBSUB_EMULATOR_HOST"
CALL_TIMEOUT = 20.0
"""Seconds for one ack or extension: a lease has 10 at least, and what is late is sent again."""
_PUBLISH_TIMEOUT = 60.0
"""Seconds for one request of at most 10 MB."""
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
_PLATFORM_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)  # of the source of an impersonation
_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),  # finds a half-open connection: nothing else would on an idle stream
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.max_reconnect_backoff_ms", 10_000),  # else up to 120 s, for which every call fails at once
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 4 << 20),  # where the failures of 1,000 ids come
    ("grpc.use_local_subchannel_pool", 1),  # each channel has a connection of its own
)
RETRIED = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)
"""The codes after which a call is repeated; all others end the puller with their cause."""
_ERRORS: Mapping[grpc.StatusCode, type[PenstockError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.PERMISSION_DENIED: Denied,
    grpc.StatusCode.UNAUTHENTICATED: Denied,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
    **dict.fromkeys(RETRIED - {grpc.StatusCode.DEADLINE_EXCEEDED}, Unavailable),
}
_REMEDIES: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.NOT_FOUND: "create it, or check the name and the project",
    grpc.StatusCode.PERMISSION_DENIED: "grant roles/pubsub.subscriber on it",
    grpc.StatusCode.UNAUTHENTICATED: "pass the key of a service account, or run gcloud auth application-default login",
    grpc.StatusCode.FAILED_PRECONDITION: "it has to be a pull subscription that is attached to a topic",
}

_TOPIC_REMEDIES = {
    **_REMEDIES,
    grpc.StatusCode.PERMISSION_DENIED: "grant roles/pubsub.publisher on it",
    grpc.StatusCode.FAILED_PRECONDITION: "see what the topic demands of its messages",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Where Pub/Sub is, and as whom it is called."""

    credentials: str | None = field(default=None, repr=False)
    """A service account's key: a file, or its JSON. None: the environment's (ADC)."""
    impersonate: str | None = None
    """The email of a service account, as which these credentials act."""
    endpoint: str | None = None
    """host:port, such as a region's; None: Google's global one."""
    allow_emulator: bool = False
    """Call the emulator at `endpoint` or PUBSUB_EMULATOR_HOST: without TLS and credentials."""


class PubSub:
    """The methods of a subscription that a puller calls. Safe to share between threads."""

    def __init__(self, access: Access, subscription: str) -> None:
        self.subscription = subscription
        """Its full name: projects/p/subscriptions/s."""
        self.emulated = access.allow_emulator
        self._channel = open_channel(access, subscription)
        self._metadata = (("x-goog-request-params", f"subscription={subscription}"),)
        self._streaming_pull = self._channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=StreamingPullRequest.SerializeToString,
            response_deserializer=_sized(_StreamingPullResponse),
        )
        self._pull = self._unary("Pull", _PullRequest, _sized(_PullResponse))
        self._acknowledge = self._unary("Acknowledge", _AcknowledgeRequest, empty_pb2.Empty.FromString)
        self._modify = self._unary("ModifyAckDeadline", _ModifyRequest, empty_pb2.Empty.FromString)

    def _unary(self, name: str, request: Any, deserializer: Callable[[bytes], Any]) -> Any:
        return self._channel.unary_unary(
            f"/google.pubsub.v1.Subscriber/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=deserializer,
        )

    def stream(self, requests: Iterator[Any]) -> Any:
        """Open a StreamingPull; return its call, which iterates over responses, each with its bytes."""
        return self._streaming_pull(requests, metadata=self._metadata)

    def pull(self, most: int, timeout: float) -> Any:
        """Begin a Pull; return its future, of a response with its bytes."""
        request = _PullRequest(subscription=self.subscription, max_messages=most)
        return self._pull.future(request, timeout=timeout, metadata=self._metadata)

    def acknowledge(self, ack_ids: Sequence[str]) -> Any:
        """Begin an Acknowledge; return its future."""
        request = _AcknowledgeRequest(subscription=self.subscription, ack_ids=ack_ids)
        return self._acknowledge.future(request, timeout=CALL_TIMEOUT, metadata=self._metadata)

    def modify(self, ack_ids: Sequence[str], seconds: int) -> Any:
        """Begin a ModifyAckDeadline; return its future."""
        request = _ModifyRequest(subscription=self.subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds)
        return self._modify.future(request, timeout=CALL_TIMEOUT, metadata=self._metadata)

    def close(self) -> None:
        """Close the channel; calls that are under way end with CANCELLED."""
        self._channel.close()


class Topic:
    """A topic, to which a publisher publishes."""

    def __init__(self, access: Access, name: str) -> None:
        self.name = name
        """Its full name: projects/p/topics/t."""
        self._channel = open_channel(access, name)
        self._metadata = (("x-goog-request-params", f"topic={name}"),)
        self._publish = self._channel.unary_unary("/google.pubsub.v1.Publisher/Publish")

    def publish(self, request: bytes, *, compressed: bool = False) -> Any:
        """Begin a Publish; return its future."""
        compression = grpc.Compression.Gzip if compressed else None
        return self._publish.future(request, timeout=_PUBLISH_TIMEOUT, metadata=self._metadata, compression=compression)

    def close(self) -> None:
        """Close the channel; calls that are under way end with CANCELLED."""
        self._channel.close()


StreamingPullRequest: Any = types.StreamingPullRequest.pb()
_StreamingPullResponse: Any = types.StreamingPullResponse.pb()
_PullRequest: Any = types.PullRequest.pb()
_PullResponse: Any = types.PullResponse.pb()
_AcknowledgeRequest: Any = types.AcknowledgeRequest.pb()
_ModifyRequest: Any = types.ModifyAckDeadlineRequest.pb()


def _sized(response: Any) -> Callable[[bytes], tuple[Any, int]]:
    """Return a deserializer that keeps the size: upb would serialize the message again to know it."""
    return lambda raw: (response.FromString(raw), len(raw))


def open_channel(access: Access, name: str) -> grpc.Channel:
    """Open a channel for what `name` is called in the log. Credentials that are refused fail here, not at each call."""
    if access.allow_emulator:
        if access.credentials or access.impersonate:
            raise InvalidRequest("the emulator takes no credentials: leave them out, or the permission to use it")
        address = access.endpoint or os.environ.get(EMULATOR_VARIABLE)
        if not address:
            raise InvalidRequest(f"the emulator's address is missing: set {EMULATOR_VARIABLE}, or pass --endpoint")
        _log.warning("%s: calls the emulator at %s, not Google", name, address)
        return grpc.insecure_channel(address, _OPTIONS)
    if stray := os.environ.get(EMULATOR_VARIABLE):
        _log.warning("%s: ignores %s=%s without --allow-emulator", name, EMULATOR_VARIABLE, stray)
    request = google.auth.transport.requests.Request()
    credentials = load_credentials(access)
    try:
        credentials.refresh(request)
    except google.auth.exceptions.RefreshError as refused:
        raise Denied(f"{name}: Google refused the credentials: {_text(refused)}") from refused
    except google.auth.exceptions.GoogleAuthError as failed:
        raise Unavailable(f"{name}: no token for Pub/Sub: {_text(failed)}") from failed
    target = access.endpoint or ENDPOINT
    channel: grpc.Channel = google.auth.transport.grpc.secure_authorized_channel(
        credentials, request, target, options=_OPTIONS
    )
    return channel


def load_credentials(access: Access) -> Any:
    """Return the credentials of a service account's key, or the environment's, perhaps to act as another account.

    Other kinds of files name programs to run and addresses to ask, so only the environment may choose them.
    """
    scopes = _PLATFORM_SCOPES if access.impersonate else _SCOPES
    if access.credentials is None:
        try:
            credentials, _ = google.auth.default(scopes=scopes)
        except google.auth.exceptions.DefaultCredentialsError as missing:
            raise Denied(
                "no Google credentials here: pass --pubsub-credentials, set GOOGLE_APPLICATION_CREDENTIALS, or run "
                "gcloud auth application-default login"
            ) from missing
    else:
        key = _read_key(access.credentials)
        try:
            credentials = service_account.Credentials.from_service_account_info(key, scopes=scopes)
        except (ValueError, TypeError, google.auth.exceptions.GoogleAuthError):  # whose text may hold the key
            raise InvalidRequest("the Pub/Sub credentials are no key of a service account: make a new one") from None
    if access.impersonate is None:
        return credentials
    return google.auth.impersonated_credentials.Credentials(credentials, access.impersonate, _SCOPES)


def _read_key(text: str) -> dict[str, Any]:
    """Return a key from its JSON, or from a file of it. No error shows it."""
    named = "as text"
    if not text.lstrip().startswith("{"):
        named = text
        try:
            with open(text, encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise InvalidRequest(f"Pub/Sub credentials {named}: expected a service account's key, {reason}") from error
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    kind = key.get("type") if isinstance(key, dict) else None
    if not isinstance(key, dict) or kind != "service_account":
        kind = f", got type {str(kind)[:40]!r}" if kind else ""
        raise InvalidRequest(
            f"Pub/Sub credentials {named}: expected a service account's key in JSON{kind}; name other kinds in "
            "GOOGLE_APPLICATION_CREDENTIALS"
        )
    return key


def is_retried(error: grpc.RpcError) -> bool:
    """Tell whether the call is to be repeated."""
    return error.code() in RETRIED


def failures_of(error: grpc.RpcError) -> dict[str, str]:
    """Return the failures of single ids, which only subscriptions with exactly-once delivery tell."""
    try:
        status = rpc_status.from_call(error)
    except (ValueError, NotImplementedError):
        return {}
    failures: dict[str, str] = {}
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
            failures |= {name: text for name, text in info.metadata.items() if "_FAILURE_" in text}
    return failures


def translate(error: grpc.RpcError, name: str, remedies: Mapping[grpc.StatusCode, str] = _REMEDIES) -> PenstockError:
    """Return Pub/Sub's error as penstock's, with a remedy."""
    code = error.code()
    remedy = remedies.get(code)
    text = f"{name}: Pub/Sub says {code.name}: {str(error.details())[:300]}"
    return _ERRORS.get(code, InvalidRequest)(f"{text}; {remedy}" if remedy else text)


def translate_publish(error: grpc.RpcError, topic: str) -> PenstockError:
    """Return Pub/Sub's error about a topic that is published to."""
    return translate(error, topic, _TOPIC_REMEDIES)


def _text(error: Exception) -> str:
    """Return an error's first argument: the others hold whole responses."""
    return str(error.args[0] if error.args else error)[:300]
