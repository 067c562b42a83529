"""A connection to a server: one gRPC channel, the headers and deadlines of its calls, and which of them are retried."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.settings import ConnectSettings
from penstock.errors import InvalidRequest, QueueFull, StoreFull, TimedOut, Unavailable, from_flight
from penstock.wire.body import VERSION

if TYPE_CHECKING:
    from penstock.wire.actions import Action, AnswerT, RequestT

log = logging.getLogger("penstock")
_KEEPALIVE = [("grpc.keepalive_time_ms", 310_000), ("grpc.http2.ping_timeout_ms", 20_000)]
"""A stream whose other end has vanished breaks after so long, not at its deadline: a task may have 12 hours. gRPC's
servers take more than one ping in 300 s for an attack."""
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 2_000)]
"""While a server is away, a channel tries to reach it so often: by gRPC's default every two minutes in the end, and
calls in between fail without an attempt."""
_ALONE = [("grpc.use_local_subchannel_pool", 1)]
_LONGEST_PAUSE = 3.0
"""Seconds between two attempts of a call. With the channel's backoff a server that returns is reached within 6 s."""
_T = TypeVar("_T")
Explain = Callable[[ConnectSettings], InvalidRequest | None]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise pyarrow's errors as penstock's."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise from_flight(error) from error


class Connection:
    """A channel to one server. Safe to share between threads; must not cross a fork, as gRPC's channels don't."""

    def __init__(
        self, settings: ConnectSettings, *, alone: bool = False, explain: Explain = lambda settings: None
    ) -> None:
        """`alone`: on a socket of its own, as the server cuts whole sockets. `explain` is called once a call has not
        reached the server, and may return an error that no retry mends.
        """
        self.settings = settings
        self._explain = explain
        pem = settings.read_pems()
        try:
            self.flight = flight.connect(
                settings.url, tls_root_certs=pem.get("ca"), cert_chain=pem.get("cert"), private_key=pem.get("key"),
                override_hostname=settings.server_name,
                generic_options=_KEEPALIVE + _RECONNECT + (_ALONE if alone else []),
            )  # fmt: skip
        except (pa.ArrowException, flight.FlightError) as wrong:
            raise InvalidRequest(f"url {settings.url!r}: expected grpc://host:port or grpc+tls://host:port") from wrong

    def close(self) -> None:
        """Close the channel. Streams that are still open end with an error."""
        self.flight.close()

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        """Return the headers and the deadline of a call."""
        token = self.settings.token
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        return flight.FlightCallOptions(timeout=timeout or self.settings.timeout, headers=headers)

    def call(
        self, action: Action[RequestT, AnswerT], request: RequestT, *, retry_for: float | None = None,
        waits_for_room: bool = False,
    ) -> AnswerT:  # fmt: skip
        """Call an action."""
        answer = self.call_raw(action.name, request.to_json(), retry_for=retry_for, waits_for_room=waits_for_room)
        return action.answer.from_json(answer)

    def call_raw(
        self, name: str, fields: Mapping[str, Any], *, retry_for: float | None = None, waits_for_room: bool = False
    ) -> dict[str, Any]:
        """Call an action by its name, with the fields of its JSON body."""
        action = flight.Action(name, json.dumps({"v": VERSION, **fields}).encode())

        def once() -> dict[str, Any]:
            [result] = self.flight.do_action(action, self.options())
            return json.loads(result.body.to_pybytes())  # type: ignore[no-any-return]

        repeatable = name not in ("delete", "write.open") or fields.get("run") is not None
        return self.retry(
            once, safe=lambda refused: refused or repeatable, retry_for=retry_for, waits_for_room=waits_for_room
        )

    def retry(
        self, call: Callable[[], _T], *, safe: Callable[[bool], bool] = lambda refused: True,
        retry_for: float | None = None, waits_for_room: bool = False,
    ) -> _T:  # fmt: skip
        """Return the call's result; retry while the server is busy, late or away, where that can't do anything twice.

        `safe` is evaluated after each failure, with whether the server itself refused the call: then the call never
        began there.
        """
        retry_for = self.settings.retry_seconds() if retry_for is None else retry_for
        give_up = time.monotonic() + retry_for
        pause, is_told, is_explained = 0.05, False, False
        while True:
            try:
                with translate_errors():
                    return call()
            except (Unavailable, TimedOut) as error:
                late = isinstance(error, TimedOut)
                refused = not late and (error.request is not None or error.retry_after is not None)
                if not (late or refused or is_explained):
                    is_explained = True
                    if (wrong := self._explain(self.settings)) is not None:
                        raise wrong from error
                if (isinstance(error, StoreFull) and not waits_for_room) or not safe(refused):
                    raise
                pause = min(pause * 2, _LONGEST_PAUSE)
                spread = (1 + os.urandom(1)[0] / 256) / 2  # clients that failed together shouldn't retry together
                wait = max(error.retry_after or 0, pause) * spread
                if isinstance(error, QueueFull):  # its workers make room, however long that takes
                    give_up = time.monotonic() + wait + retry_for
                if time.monotonic() + wait > give_up:
                    if late:
                        raise
                    raise type(error)(self._why(error, retry_for, refused), request=error.request) from error
                if isinstance(error, StoreFull | QueueFull) and not is_told:
                    is_told = True
                    log.warning("waiting for room: %s", error)
                time.sleep(wait)

    def _why(self, error: Unavailable | TimedOut, retry_for: float, refused: bool) -> str:
        url = self.settings.url
        if refused:
            return f"{url} stayed busy for {retry_for:g} s: {error}"
        cure = "Is the server running? (penstock serve; penstock doctor)"
        if url.startswith("grpc+tls:") and self.settings.cert is None:
            cure += " Does it ask for a client's certificate? (PENSTOCK_CERT and PENSTOCK_KEY)"
        return f"could not reach {url} within {retry_for:g} s: {error}. {cure}"
