"""Who may call: the token, the count of open calls, and a call's id, before any handler runs."""

from __future__ import annotations

import base64
import binascii
import hmac
import itertools
import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow.flight as flight

from penstock.errors import Denied, InvalidRequest, PenstockError, to_flight
from penstock.flight_server.limits import Streams
from penstock.flight_server.metrics import Metrics

log = logging.getLogger("penstock")
_STREAMS = {flight.FlightMethod.DO_GET, flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE}
_UPWARD = {flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE}
"""Their handlers begin at the first message from the caller, and wait for it without end."""
_OLD_WORK = {flight.FlightMethod.DO_ACTION, flight.FlightMethod.LIST_ACTIONS, flight.FlightMethod.HANDSHAKE}
"""Let in while the server drains: a write whose puts are over may still be finished."""
_VERBS = {method: (method.name.lower(), method in _STREAMS, method not in _OLD_WORK) for method in flight.FlightMethod}
"""By method: its name here, whether it is a stream, whether it begins new work."""
KEY = "access"


def read_token(file: Path) -> str:
    """The token in a file: one line, and nobody else may read it."""
    text = file.read_text().strip()
    if len(text) < 16:
        raise InvalidRequest(
            f"the token in {file} has {len(text)} characters: at least 16 are needed (openssl rand -hex 32)"
        )
    if file.stat().st_mode & 0o077:
        raise InvalidRequest(f"the token in {file} can be read by others: chmod 600 {file}")
    return text


class Call(flight.ServerMiddleware):
    """One call: who makes it, its id in errors and log, and what it came to."""

    def __init__(self, gate: Gate, verb: str, *, stream: bool, known: bool, unheard: bool, answer_token: bool) -> None:
        self.id = gate.next_id()
        self.verb = verb
        self.known = known
        """Whether the caller showed the token; without one configured everybody is known."""
        self.code: str | None = None
        self._gate = gate
        self._stream = stream
        self._unheard = unheard
        self._answer_token = answer_token
        self._began = time.perf_counter()

    def heard(self) -> None:
        """Its handler begins, which checks a stranger's ticket first."""
        if self._unheard:
            self._unheard = False
            self._gate.streams.heard()

    def must_be_known(self) -> None:
        """Refuse a caller who has only tickets, or nothing."""
        if not self.known:
            raise Denied("this call needs the server's token: set PENSTOCK_TOKEN, or pass token=")

    def sending_headers(self) -> dict[str, str]:
        """After a login by name and password, the bearer token to go on with, as ADBC and JDBC do."""
        return {"authorization": f"Bearer {self._gate.token}"} if self._answer_token else {}

    def call_completed(self, exception: BaseException | None) -> None:
        """The last word of every call that was let in."""
        self.heard()
        self._gate.streams.leave(stream=self._stream)
        code = self.code or ("internal" if exception else None)
        self._gate.metrics.called(self.verb, time.perf_counter() - self._began, code)


class Gate(flight.ServerMiddlewareFactory):
    """Lets calls in, or refuses them."""

    def __init__(self, token: str | None, streams: Streams, metrics: Metrics) -> None:
        self.token = token
        self.streams = streams
        self.metrics = metrics
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        """An id that the caller's error and the log share."""
        return f"{self._prefix}-{next(self._numbers):x}"

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Call:
        """1. Who is it? 2. Is there room? Errors here are clean: no handler has run."""
        verb, stream, is_new_work = _VERBS[info.method]
        try:
            known, by_password = self._check(headers)
            unheard = not known and info.method in _UPWARD
            self.streams.enter(stream=stream, is_new_work=is_new_work, unheard=unheard)
        except PenstockError as refused:
            refused.request = self.next_id()
            log.info("%s %s: %s: %s", refused.request, verb, refused.code, refused)
            self.metrics.called(verb, 0.0, refused.code)
            raise to_flight(refused) from None
        return Call(self, verb, stream=stream, known=known, unheard=unheard, answer_token=by_password)

    def _check(self, headers: Mapping[str, list[str]]) -> tuple[bool, bool]:
        """Whether the caller is known, and whether by password. No header at all is left to the handlers: tickets."""
        if self.token is None:
            return True, False
        given = next(
            (values[0] for name, values in headers.items() if name.lower() == "authorization" and values), None
        )
        if given is None:
            return False, False
        scheme, _, value = given.partition(" ")
        by_password = scheme.lower() == "basic"
        shown = _password(value) if by_password else value
        if not hmac.compare_digest(shown.encode(), self.token.encode()):
            raise Denied("the token is wrong")
        return True, by_password


class OpenHandshake(flight.ServerAuthHandler):
    """Lets Handshake through to the middleware: without a handler Arrow answers it with UNIMPLEMENTED."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """The middleware has looked at the headers already."""

    def is_valid(self, token: bytes) -> bytes:
        """Every call; the middleware decides."""
        return b""


def _password(value: str) -> str:
    """The password of a Basic header; the user's name may be anything."""
    try:
        padded = value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4)  # Go's clients, ADBC too, send it without
        return base64.b64decode(padded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
