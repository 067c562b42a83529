"""What can go wrong with Spark Connect; each is a PenstockError, too.

    Unavailable
    └── Transport         the server can't be reached, or the connection broke for longer than `retry_for`
    PenstockError
    └── Remote            Spark refused the query, or it failed there: error_class, sql_state, parameters say why
        └── SessionLost   the session is gone, with its settings and temporary views: connect again
    InvalidRequest
    ├── InvalidPlan       refused here, before anything was sent: mend the expression or the call
    └── Unsupported       this server, or this client, has no such thing
    Lost
    └── CorruptResponse   an answer doesn't hold what it says: nothing of it was used

A wrong token is `penstock.errors.Denied`; a deadline that passed `TimedOut`; too large a result `LimitExceeded`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidRequest, Lost, PenstockError, Unavailable
from penstock.text import suggest


class Transport(Unavailable):
    """The server can't be reached, or the connection to it broke and stayed so."""


class InvalidPlan(InvalidRequest):
    """An expression or a call that is wrong whatever the server has; nothing was sent."""


class Unsupported(InvalidRequest):
    """This server, or this client, has no such thing."""


class NoSuchName(Unsupported, AttributeError):
    """A name that an object doesn't have; `hasattr` wants an AttributeError."""


def no_such_name(subject: str, of: object, name: str, elsewhere: Mapping[str, str], hint: str = "") -> AttributeError:
    """Return the error for a name that an object doesn't have: where it is, or the nearest one.

    `elsewhere` has the way for names that pyspark has; a name that Python or a notebook looks for is just absent.
    """
    if name.startswith("_"):
        return AttributeError(name)
    if name in elsewhere:
        return NoSuchName(f"{subject} no {name} here: {elsewhere[name]}")
    known = [each for each in dir(of) if not each.startswith("_")]
    return NoSuchName(f"{subject} no {name}: {suggest(name, known)}{hint}")


class CorruptResponse(Lost):
    """An answer of the server doesn't hold what it says; nothing of it was used."""


@dataclass(frozen=True, slots=True)
class QueryContext:
    """The place in a query that an error is about."""

    fragment: str
    """The text, or the call, that is wrong."""
    start: int
    """Its first character in the query, from 0; -1 where Spark doesn't know."""
    stop: int
    """Its last character."""
    summary: str
    """Spark's own drawing of the place."""
    object_type: str = ""
    """What the fragment is part of, such as VIEW; empty for the query itself."""
    object_name: str = ""


class Remote(PenstockError):
    """Spark refused a query, or it failed there."""

    code = "remote"

    def __init__(
        self,
        message: str,
        *,
        error_class: str | None = None,
        sql_state: str | None = None,
        parameters: dict[str, str] | None = None,
        query_contexts: tuple[QueryContext, ...] = (),
        causes: tuple[str, ...] = (),
        operation_id: str | None = None,
    ) -> None:
        super().__init__(message, request=operation_id)
        self.error_class = error_class
        """Spark's name of the error, such as UNRESOLVED_COLUMN.WITH_SUGGESTION."""
        self.sql_state = sql_state
        self.parameters = parameters or {}
        """What the message was made of, such as objectName."""
        self.query_contexts = query_contexts
        self.causes = causes
        """The messages of the server's exceptions below this one, outermost first."""

    @property
    def operation_id(self) -> str | None:
        """The id of the query at the server."""
        return self.request

    def __reduce__(self) -> tuple[Any, ...]:
        details = {
            name: getattr(self, name)
            for name in ("error_class", "sql_state", "parameters", "query_contexts", "causes", "operation_id")
        }
        return _restore, (type(self), str(self), details)


class SessionLost(Remote):
    """The session is gone at the server: released, expired or the server was restarted."""

    code = "session-lost"


def _restore(kind: type[Remote], message: str, details: dict[str, Any]) -> Remote:
    return kind(message, **details)
