"""The gate: checks the token, counts open calls and numbers them, before any handler runs."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

import pyarrow.flight as flight

from penstock.errors import PenstockError, Unavailable, to_flight
from penstock.flight_server.metrics import Metrics
from penstock.flight_server.tickets import Signer, WriteTicket
from penstock.flight_server.tokens import Tokens
from penstock.text import printable
from penstock.wire.paths import Path
from penstock.wire.rights import Right

log = logging.getLogger("penstock")
Stranger = Literal["silent", "reading"]
"""A caller without the token, until its do_put has sent something; or whose do_get has a ticket at most."""
_STRANGERS: dict[flight.FlightMethod, Stranger] = {
    flight.FlightMethod.DO_PUT: "silent",
    flight.FlightMethod.DO_EXCHANGE: "silent",
    flight.FlightMethod.DO_GET: "reading",
}
"""Whether a method's handler starts only at the first message from the caller, and waits for it without end."""
_STREAMS = {*_STRANGERS, flight.FlightMethod.LIST_FLIGHTS}
_ENDS_WORK = {flight.FlightMethod.DO_ACTION, flight.FlightMethod.LIST_ACTIONS, flight.FlightMethod.HANDSHAKE}
"""Methods that are admitted while the server drains: a write whose puts are done may still be finished."""
_VERBS = {method: (method.name.lower(), method in _STREAMS, method not in _ENDS_WORK) for method in flight.FlightMethod}
"""By method: its name here, whether it is a stream, whether it starts new work."""
_MOST_LOGGED = 600
"""Characters of a path in the log."""
KEY = "access"
"""The name of the middleware."""


def _do_nothing() -> None:
    """Do nothing at the end of a call."""


class Call(flight.ServerMiddleware):
    """One call: who calls, its id in errors and log, and how it ended."""

    ticket: WriteTicket
    """The write ticket of an action that needs one; `actions` sets it before the handler runs."""
    set_waiting: Callable[[bool], None]
    """To be called with True before each wait for the caller to read, and with False after it; the watch sets it."""
    at_end: Callable[[], None] = staticmethod(_do_nothing)
    """Called when the call has ended; the watch sets it."""

    def __init__(
        self, gate: Gate, verb: str, *, stream: bool, who: str | None, stranger: Stranger | None, login: str | None
    ) -> None:
        self.id = gate.next_id()
        self.verb = verb
        self.who = who
        """The caller's id, `tokens` knows whose; None without a token, unless the server wants none."""
        self.code: str | None = None
        self._gate = gate
        self._stream = stream
        self._stranger = stranger
        self._login = login
        self._began = time.perf_counter()
        self._subject = ""

    def set_subject(self, peer: str, subject: flight.FlightDescriptor | str) -> None:
        """Note who calls, and about what, for the access log. A ticket is never noted."""
        if log.isEnabledFor(logging.DEBUG):
            self._subject = printable(f" {peer} {subject if isinstance(subject, str) else _path_of(subject)}".rstrip())

    def heard(self) -> None:
        """Note that the first message has come: the handler runs, and checks the ticket of a caller without token."""
        if self._stranger == "silent":
            self._gate.streams.stranger_ended("silent")
            self._stranger = None

    @property
    def known(self) -> bool:
        """Whether the caller has a token; true for everybody if the server wants none."""
        return self.who is not None

    def check_known(self) -> None:
        """Reject a caller without a token."""
        self._gate.tokens.of(self.who)

    def check(self, right: Right, path: Path) -> None:
        """Reject a caller who lacks a right at a path."""
        self._gate.tokens.check(self.who, right, path)

    def check_body(self, body: bytes, signer: Signer) -> None:
        """Reject, before anything parses it, the body of a caller without the token that carries no write ticket."""
        if not self.known and signer.open_carried(body) is None:
            self.check_known()

    def sending_headers(self) -> dict[str, str]:
        """Return the bearer token after a login by name and password, as ADBC and JDBC expect."""
        return {} if self._login is None else {"authorization": f"Bearer {self._login}"}

    def call_completed(self, exception: BaseException | None) -> None:
        """Count the call out; pyarrow calls this once for every call that was admitted."""
        self.at_end()
        if self._stranger is not None:
            self._gate.streams.stranger_ended(self._stranger)
        self._gate.streams.leave(stream=self._stream)
        code, seconds = self.code or ("internal" if exception else None), time.perf_counter() - self._began
        self._gate.metrics.call_ended(self.verb, seconds, code)
        log.debug("%s %s%s: %s in %.1f ms", self.id, self.verb, self._subject, code or "ok", seconds * 1e3)


class Gate(flight.ServerMiddlewareFactory):
    """Admits calls, or refuses them."""

    def __init__(self, tokens: Tokens, streams: Streams, metrics: Metrics) -> None:
        self.tokens = tokens
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
            who, login = self._identify(headers)
            stranger = None if who is not None else _STRANGERS.get(info.method)
            self.streams.enter(stream=stream, is_new_work=is_new_work, stranger=stranger)
        except PenstockError as refused:
            refused.request = self.next_id()
            log.info("%s %s: %s: %s", refused.request, verb, refused.code, printable(str(refused)))
            self.metrics.call_ended(verb, 0.0, refused.code)
            raise to_flight(refused) from None
        return Call(self, verb, stream=stream, who=who, stranger=stranger, login=login)

    def _identify(self, headers: Mapping[str, list[str]]) -> tuple[str | None, str | None]:
        """Return who calls, and the token of a login by password. Without a header, handlers look for a ticket."""
        if self.tokens.is_open:
            return self.tokens.identify(None), None
        header = next(
            (values[0] for name, values in headers.items() if name.lower() == "authorization" and values), None
        )
        if header is None:
            return self.tokens.identify(None), None
        scheme, _, value = header.partition(" ")
        by_password = scheme.lower() == "basic"
        token = _password(value) if by_password else value
        return self.tokens.identify(token), token if by_password else None


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
        self._limit_each = max(1, limit // 2)
        """Streams of strangers of one sort: at most half of all, but always one, as a task has a ticket alone."""
        self._limit_strangers = max(1, limit * 3 // 4)
        """Streams of all strangers: those who read can't keep the others from putting, nor both the known callers."""
        self._changed = threading.Condition()  # all that follows
        self.state: Literal["starting", "serving", "draining"] = "starting"
        self.open_streams = 0
        self.strangers: dict[Stranger, int] = {"silent": 0, "reading": 0}
        self._calls = 0

    def enter(self, *, stream: bool, is_new_work: bool, stranger: Stranger | None = None) -> None:
        """Count a call that begins; Unavailable if it may not.

        A do_put without the token may send nothing and never reach its handler; pyarrow does not tell its address
        before the first message, so it can't be cut, only counted, until it is heard. A do_get is counted to its end.
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
            if stranger is not None:
                if self.strangers[stranger] >= self._limit_each:
                    what = "have sent nothing yet" if stranger == "silent" else "are reading"
                    raise _too_many_strangers(self.strangers[stranger], what)
                if sum(self.strangers.values()) >= self._limit_strangers:
                    raise _too_many_strangers(self._limit_strangers, "are reading, or have sent nothing yet")
                self.strangers[stranger] += 1
            self._calls += 1
            self.open_streams += stream

    def stranger_ended(self, stranger: Stranger) -> None:
        """Note that the first message of a silent call has come, or that a stranger's call has ended."""
        with self._changed:
            self.strangers[stranger] -= 1

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


def _too_many_strangers(calls: int, what: str) -> Unavailable:
    return Unavailable(
        f"{calls} calls without the server's token {what}, the limit: try again, or set the token", retry_after=0.5
    )


def _path_of(descriptor: flight.FlightDescriptor) -> str:
    """Return the path that a descriptor names; nothing of one that has a ticket alone."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return b"/".join(descriptor.path).decode(errors="replace")[:_MOST_LOGGED]
    with suppress(ValueError, RecursionError):
        command = json.loads(descriptor.command)
        return str(command.get("path", ""))[:_MOST_LOGGED] if isinstance(command, dict) else ""
    return ""


def _password(value: str) -> str:
    """Return the password of a Basic header; the user's name is ignored."""
    try:
        padded = value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4)  # Go's clients, also ADBC, send no padding
        return base64.b64decode(padded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
