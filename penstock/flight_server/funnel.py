"""The error funnel: what a handler raises leaves the server as one clean Flight error, and as a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import Internal, LimitExceeded, PenstockError, to_flight
from penstock.flight_server.gate import Call
from penstock.text import printable

log = logging.getLogger("penstock")
_T = TypeVar("_T")


@contextmanager
def funnel(call: Call) -> Iterator[None]:
    """Translate a handler's error. No traceback, file path or secret reaches the caller; the request id finds them."""
    try:
        yield
    except Exception as error:
        known = _translate(error, call)
        known.request = call.id
        call.code = known.code
        raise to_flight(known) from None


def funnelled(call: Call, stream: Iterable[_T]) -> Iterator[_T]:
    """Translate the errors of a stream, which come after its handler has returned."""
    with funnel(call):
        yield from stream


class Frameless(Exception):
    """An error of get_schema, the one verb whose Flight errors pyarrow sends as Python's, traceback and all.

    This one can't be formatted, and so its text is sent alone.
    """

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]  # a traceback begins with reading this
        raise AttributeError


def _translate(error: Exception, call: Call) -> PenstockError:
    if isinstance(error, PenstockError):
        log.info("%s %s: %s: %s", call.id, call.verb, error.code, printable(str(error)))
        return error
    if isinstance(error, MemoryError | pa.ArrowMemoryError):
        log.warning("%s %s: out of memory: %s", call.id, call.verb, error)
        return LimitExceeded(
            "the call needs more memory than this server may take: send smaller batches, or raise --memory-limit"
        )
    if isinstance(error, flight.FlightCancelledError):
        log.info("%s %s: the caller cancelled", call.id, call.verb)
        return Internal("the caller cancelled")
    log.error("%s %s failed", call.id, call.verb, exc_info=error)
    return Internal("this call failed inside penstock; the server's log has the cause under the request id")
