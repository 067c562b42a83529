"""do_action: one place decodes a request, checks access, calls the action's handler and encodes the answer."""

from __future__ import annotations

import json
import time
from itertools import chain

import penstock
from penstock import steps
from penstock.errors import InvalidRequest, NotFound, StoreFull
from penstock.flight_server.flights import NO_SQL
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.kind import Handler
from penstock.flight_server.state import State
from penstock.flight_server.tokens import ALL
from penstock.wire.actions import (
    DELETE,
    DESCRIBE,
    HEALTH,
    UNDELETE,
    Deleted,
    DeleteTarget,
    Description,
    Health,
    Nothing,
    Target,
)

_FLIGHT_SQL = frozenset(
    ("CreatePreparedStatement", "CreatePreparedSubstraitPlan", "BeginTransaction", "BeginSavepoint", "CancelQuery")
)
"""The actions with which clients of Flight SQL begin."""
_NO_BODY = b'{"v":1}'


class Actions:
    """The table of actions: those of every kind, and the server's own."""

    def __init__(self, state: State) -> None:
        self._state = state
        own = (
            Handler(DELETE, self.delete), Handler(UNDELETE, self.undelete), Handler(DESCRIBE, self.describe),
            Handler(HEALTH, self.health),
        )  # fmt: skip
        handlers = chain.from_iterable((*(kind.actions() for kind in state.kinds.values()), own))
        self._handlers = {handler.action.name: handler for handler in handlers}

    def run(self, call: Call, name: str, body: bytes) -> bytes:
        """Carry out an action: check access, decode the request, call the handler, encode the answer."""
        handler = self._handlers.get(name)
        if handler is None:
            if name in _FLIGHT_SQL:
                raise InvalidRequest(NO_SQL)
            raise NotFound(f"no action {name[:80]!r}: there are {', '.join(self._handlers)}")
        action = handler.action
        if action.access == "ticket":
            call.check_body(body, self._state.signer)
        elif action.access != "anyone":
            call.check_known()
        elif not call.known:
            body = b""  # what a stranger sends isn't parsed
        request = action.request.decode(body or _NO_BODY)
        if action.access == "ticket":
            call.ticket = self._state.signer.open_write(request.ticket.encode())
            call.who = call.ticket.by or ALL  # what else the request names is checked for who got the ticket
        elif action.access != "anyone":
            for right, path in action.access(request):
                self._state.check(call, right, path)
        return json.dumps(handler.run(call, request).to_json()).encode()

    def sentences(self) -> list[tuple[str, str]]:
        """Return every action with its sentence, for list_actions."""
        return [(name, handler.action.sentence) for name, handler in self._handlers.items()]

    def describe(self, call: Call, request: Target) -> Description:
        """Return all that is known of the thing at a path."""
        kind, path = self._state.locate(request.path, splits=True)
        return kind.describe(path)

    def delete(self, call: Call, request: DeleteTarget) -> Deleted:
        """Delete the thing at a path."""
        kind, path = self._state.locate(request.path)
        if request.delete:
            kind.delete_source(path)
        delete = kind.delete_now if request.now else kind.delete
        try:
            deleted = delete(path)
        except StoreFull:
            if not self._state.reserve.give():
                raise
            deleted = delete(path)
        steps.passed("delete.done")
        self._state.sweeper.soon()
        return deleted

    def undelete(self, call: Call, request: Target) -> Description:
        """Make what was deleted what it was."""
        kind, path = self._state.locate(request.path)
        return kind.undelete(path)

    def health(self, call: Call, request: Nothing) -> Health:
        """Return the server's state, and its figures to a caller with the token."""
        state = self._state
        if not call.known:
            return Health(state.streams.state)
        ticketed, until = state.ledger.held_by_tickets()
        return Health(
            state.streams.state,
            penstock.__version__,
            state.store.url.partition(":")[0],
            round(time.monotonic() - state.began, 1),
            state.streams.open_streams,
            state.store.used,
            len(state.store.medium.quarantined()),
            **state.totals(),
            ticketed_bytes=ticketed,
            ticketed_until=until if ticketed else None,
        )
