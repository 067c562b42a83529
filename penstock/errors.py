"""What can go wrong, one class per thing a caller would do differently.

    PenstockError
    ├── InvalidRequest        the call is malformed: mend it
    │   ├── SchemaMismatch    the rows have another schema than the dataset: the message has the difference
    │   └── LimitExceeded     one stream is larger than this server takes: send less, or raise the limit
    ├── NotFound              nothing of that name
    ├── AlreadyExists         the path is taken: choose mode append or overwrite
    ├── WriteEnded            the write is finished, aborted or expired: open a new one
    ├── Expired               the ticket or what it names is past its time: read again
    ├── Fenced                another session goes on in this one's place: stop this one
    ├── LeaseLost             the lease is over, and the message may be another worker's: drop what was made of it
    ├── JobFailed             a job can't go on: mend its cause, then run it again
    ├── Lost                  the bytes are gone or corrupt; named, never served as fewer rows
    ├── Denied                no token, a wrong one, or a ticket that isn't ours
    ├── Unavailable           not now (draining, too many streams, unreachable): try again, after `retry_after` seconds
    │   ├── StoreFull         no room for the bytes: free some, then try again
    │   └── QueueFull         the queue's workers are behind, and drain it: try again for as long as they do
    ├── TimedOut              the deadline passed; what happened to the call isn't known
    └── Internal              our fault: the request id finds it in the server's log

Each crosses the wire as one Flight error (`FLIGHT_CLASSES`) with its code in `extra_info`.
KeyError, ValueError and NotImplementedError would fit some of them better, but pyarrow
sends those with file paths and without `extra_info`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pyarrow.flight as flight

MAX_TEXT = 1_000
"""Characters of a message on the wire: grpcio clients break at about 3,000, and the text is sent three times."""


class PenstockError(Exception):
    """Any error of penstock's own. `request` is the id that the server's log has too."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, request: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.request = request
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), str(self), self.request, self.retry_after)


class InvalidRequest(PenstockError):
    """The call is malformed."""

    code = "invalid"


class SchemaMismatch(InvalidRequest):
    """The rows have another schema than the dataset."""

    code = "schema"


class LimitExceeded(InvalidRequest):
    """One stream, batch or key is larger than this server takes."""

    code = "limit"


class NotFound(PenstockError):
    """Nothing of that name."""

    code = "not-found"


class AlreadyExists(PenstockError):
    """The path is taken."""

    code = "exists"


class WriteEnded(PenstockError):
    """The write is finished, aborted or expired."""

    code = "write-ended"


class Expired(PenstockError):
    """The ticket, or the bytes that it names, are past their time."""

    code = "expired"


class Fenced(PenstockError):
    """Another session goes on in this one's place."""

    code = "fenced"


class LeaseLost(PenstockError):
    """The lease is over; what was made of its message doesn't count."""

    code = "lease-lost"


class JobFailed(PenstockError):
    """A job can't go on."""

    code = "job-failed"


class Lost(PenstockError):
    """The bytes are gone or corrupt."""

    code = "lost"


class Denied(PenstockError):
    """No token, a wrong one, or a ticket that isn't this server's."""

    code = "denied"


class Unavailable(PenstockError):
    """Not now; `retry_after` says when."""

    code = "unavailable"


class StoreFull(Unavailable):
    """No room for the bytes."""

    code = "full"


class QueueFull(Unavailable):
    """No room in a queue that its workers drain."""

    code = "queue-full"


class TimedOut(PenstockError):
    """The deadline passed."""

    code = "timed-out"


class Internal(PenstockError):
    """The server's own fault."""

    code = "internal"


_KINDS: tuple[type[PenstockError], ...] = (
    InvalidRequest, SchemaMismatch, LimitExceeded, NotFound, AlreadyExists, WriteEnded, Expired,
    Fenced, LeaseLost, JobFailed, Lost, Denied, Unavailable, StoreFull, QueueFull, TimedOut, Internal,
)  # fmt: skip
_BY_CODE: dict[str, type[PenstockError]] = {kind.code: kind for kind in _KINDS}

FLIGHT_CLASSES: dict[str, str] = {
    "denied": "FlightUnauthenticatedError",
    "unavailable": "FlightUnavailableError",
    "full": "FlightUnavailableError",
    "queue-full": "FlightUnavailableError",
    "timed-out": "FlightTimedOutError",
    "internal": "FlightInternalError",
}
"""Our code -> pyarrow's class; what isn't here is a FlightServerError. The codes alone tell them apart."""

_FOREIGN: dict[str, type[PenstockError]] = {
    "FlightUnauthenticatedError": Denied,
    "FlightUnauthorizedError": Denied,
    "FlightUnavailableError": Unavailable,
    "FlightTimedOutError": TimedOut,
    "FlightCancelledError": Unavailable,
}


def to_flight(error: PenstockError) -> flight.FlightError:
    """The one form in which an error leaves the server."""
    import pyarrow.flight as flight

    extra = {"code": error.code, "request": error.request, "retry_after": error.retry_after}
    text = str(error)
    if error.request:
        text = f"{text[: MAX_TEXT - 24]} [request {error.request}]"
    kind = getattr(flight, FLIGHT_CLASSES.get(error.code, "FlightServerError"))
    result: flight.FlightError = kind(text[:MAX_TEXT], extra_info=json.dumps(extra).encode())
    return result


def of_code(code: str, text: str, *, request: str | None = None, retry_after: float | None = None) -> PenstockError:
    """A typed error for a code; Internal for one that this version doesn't know."""
    return _BY_CODE.get(code, Internal)(text, request=request, retry_after=retry_after)


def from_flight(error: Exception) -> PenstockError:
    """A typed error for what pyarrow raised at the client; also for a server that isn't penstock."""
    extra = _extra(getattr(error, "extra_info", b""))
    text = _own_words(str(error))
    kind, request, retry_after = (extra.get(name) for name in ("code", "request", "retry_after"))
    if isinstance(kind, str) and kind in _BY_CODE:
        return of_code(
            kind,
            text,
            request=request if isinstance(request, str) else None,
            retry_after=float(retry_after) if isinstance(retry_after, int | float) else None,
        )
    if "Server Threadpool Exhausted" in text:  # arrives as ArrowInvalid, yet passes by itself
        return Unavailable(f"the server has no thread left: {text}", retry_after=1.0)
    return _FOREIGN.get(type(error).__name__, Internal)(text)


def _extra(raw: bytes) -> dict[str, Any]:
    try:
        extra = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return extra if isinstance(extra, dict) else {}


def _own_words(text: str) -> str:
    """Our sentence without gRPC's wrapping ('Flight error: … . Detail: …. gRPC client debug context: …')."""
    for wrapping in (". gRPC client debug context:", ". Client context:", ". Detail:"):
        text = text.split(wrapping, 1)[0]
    return text.partition("with message: ")[2] or text if text.startswith("Flight returned ") else text


def _restore(kind: type[PenstockError], message: str, request: str | None, retry_after: float | None) -> PenstockError:
    return kind(message, request=request, retry_after=retry_after)
