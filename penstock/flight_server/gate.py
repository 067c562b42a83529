"""The gate: checks the token, counts open calls and numbers them, before any handler runs."""

from __future__ import annotations

import base64
import binascii
import hmac
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Literal

import pyarrow.flight as flight

from penstock.errors import Denied, PenstockError, Unavailable, to_flight
from penstock.flight_server.metrics import Metrics
from penstock.flight_server.tickets import Signer, WriteTicket

log = logging.getLogger("penstock")
_STREAMS = {flight.FlightMethod.DO_GET, flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE}
_UPWARD = {flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE}
"""Methods whose handler starts at the first message from the caller, and waits for it without end."""
_ENDS_WORK = {flight.FlightMethod.DO_ACTION, flight.FlightMethod.LIST_ACTIONS, flight.FlightMethod.HANDSHAKE}
"""Methods that are admitted while the server drains: a write whose puts are done may still be finished."""
_VERBS = {method: (method.name.lower(), method in _STREAMS, method not in _ENDS_WORK) for method in flight.FlightMethod}
"""By method: its name here, whether it is a stream, whether it starts new work."""
KEY = "access"
"""The name of the middleware."""


class Call(flight.ServerMiddleware):
    """One call: whether its caller is known, its id in errors and log, and how it ended."""

    ticket: WriteTicket
    """The write ticket of an action that needs one; `actions` sets it before the handler runs."""

    def __init__(self, gate: Gate, verb: str, *, stream: bool, known: bool, unheard: bool, answer_token: bool) -> None:
        self.id = gate.next_id()
        self.verb = verb
        self.known = known
        """Whether the caller has the token; true for everybody if the server has none."""
        self.code: str | None = None
        self._gate = gate
        self._stream = stream
        self._unheard = unheard
        self._answer_token = answer_token
        self._began = time.perf_counter()

    def heard(self) -> None:
        """Note that the first message has come: the handler runs, and checks the ticket of a caller without token."""
        if self._unheard:
            self._unheard = False
            self._gate.streams.heard()

    def check_known(self) -> None:
        """Reject a caller without the token."""
        if not self.known:
            raise Denied("this call needs the server's token: set PENSTOCK_TOKEN, or pass token=")

    def check_body(self, body: bytes, signer: Signer) -> None:
        """Reject, before anything parses it, the body of a caller without the token that carries no write ticket."""
        if not self.known and signer.open_carried(body) is None:
            self.check_known()

    def sending_headers(self) -> dict[str, str]:
        """Return the bearer token after a login by name and password, as ADBC and JDBC expect."""
        return {"authorization": f"Bearer {self._gate.token}"} if self._answer_token else {}

    def call_completed(self, exception: BaseException | None) -> None:
        """Count the call out; pyarrow calls this once for every call that was admitted."""
        self.heard()
        self._gate.streams.leave(stream=self._stream)
        code = self.code or ("internal" if exception else None)
        self._gate.metrics.call_ended(self.verb, time.perf_counter() - self._began, code)


class Gate(flight.ServerMiddlewareFactory):
    """Admits calls, or refuses them."""

    def __init__(self, token: str | None, streams: Streams, metrics: Metrics) -> None:
        self.token = token
        self.streams = streams
        self.metrics = metrics
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        """Return a new id, which the caller's error and the log share."""
        return f"{self._prefix}-{next(self._numbers):x}"

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Call:
        """Check the token, then the number of open calls. Errors here are clean: no handler has run."""
        verb, stream, is_new_work = _VERBS[info.method]
        try:
            known, by_password = self._check_token(headers)
            unheard = not known and info.method in _UPWARD
            self.streams.enter(stream=stream, is_new_work=is_new_work, unheard=unheard)
        except PenstockError as refused:
            refused.request = self.next_id()
            log.info("%s %s: %s: %s", refused.request, verb, refused.code, refused)
            self.metrics.call_ended(verb, 0.0, refused.code)
            raise to_flight(refused) from None
        return Call(self, verb, stream=stream, known=known, unheard=unheard, answer_token=by_password)

    def _check_token(self, headers: Mapping[str, list[str]]) -> tuple[bool, bool]:
        """Return whether the caller is known, and whether by password. Without a header, handlers look for a ticket."""
        if self.token is None:
            return True, False
        header = next(
            (values[0] for name, values in headers.items() if name.lower() == "authorization" and values), None
        )
        if header is None:
            return False, False
        scheme, _, value = header.partition(" ")
        by_password = scheme.lower() == "basic"
        token = _password(value) if by_password else value
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise Denied("the token is wrong")
        return True, by_password


class OpenHandshake(flight.ServerAuthHandler):
    """Lets Handshake through to the middleware: without a handler Arrow answers it with UNIMPLEMENTED."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Do nothing: the middleware has checked the headers already."""

    def is_valid(self, token: bytes) -> bytes:
        """Accept every call; the middleware decides."""
        return b""


class Streams:
    """Counts the open calls; refuses those above the limits, all before the start, and new work in the drain."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unheard_limit = max(1, limit // 2)
        """Calls of callers without the token that have sent nothing: at most half of all, but always one, as a task's
        put is one for milliseconds."""
        self._changed = threading.Condition()  # all that follows
        self.state: Literal["starting", "serving", "draining"] = "starting"
        self.open_streams = 0
        self.unheard = 0
        self._calls = 0

    def enter(self, *, stream: bool, is_new_work: bool, unheard: bool = False) -> None:
        """Count a call that begins; Unavailable if it may not.

        `unheard` marks a call without the token until `heard`. Such a do_put may send nothing and never reach its
        handler; pyarrow does not tell its address before the first message, so it can't be cut, only counted.
        """
        with self._changed:
            if self.state == "starting" or (self.state == "draining" and is_new_work):
                raise not_serving()
            if stream and self.open_streams >= self._limit:
                raise Unavailable(
                    f"the server has {self.open_streams} open streams, its limit: try again, or serve "
                    "--limit streams=…",
                    retry_after=0.5,
                )
            if unheard and self.unheard >= self._unheard_limit:
                raise Unavailable(
                    f"{self.unheard} calls without the server's token have sent nothing yet, the limit: "
                    "try again, or set the token",
                    retry_after=0.5,
                )
            self._calls += 1
            self.open_streams += stream
            self.unheard += unheard

    def heard(self) -> None:
        """Note that the first message of an unheard call has come, or that the call has ended."""
        with self._changed:
            self.unheard -= 1

    def leave(self, *, stream: bool) -> None:
        """Count out a call that was admitted."""
        with self._changed:
            self._calls -= 1
            self.open_streams -= stream
            self._changed.notify_all()

    def admit(self) -> None:
        """Admit calls: the server is ready."""
        with self._changed:
            self.state = "serving"

    def drain(self, deadline: float) -> int:
        """Refuse new work and wait for the calls that run; return how many still run after `deadline` seconds."""
        with self._changed:
            self.state = "draining"
            give_up = time.monotonic() + deadline
            while self._calls and (left := give_up - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._calls


def not_serving() -> Unavailable:
    """Return the refusal of new work while the server starts or stops."""
    return Unavailable("the server is starting or shutting down: try again in a moment", retry_after=2)


def _password(value: str) -> str:
    """Return the password of a Basic header; the user's name is ignored."""
    try:
        padded = value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4)  # Go's clients, also ADBC, send no padding
        return base64.b64decode(padded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
