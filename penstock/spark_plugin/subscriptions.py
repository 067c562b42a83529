"""What a query says of a Pub/Sub subscription before it reads its journal, and what AvailableNow waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.client.client import Client
from penstock.errors import InvalidRequest
from penstock.wire import actions
from penstock.wire.paths import of_acks, parse

log = logging.getLogger("penstock")
_KIND = "subscription"
_OPTIONS = ("create", "ack", "settle")
_LONGEST = 300.0
"""Seconds for which AvailableNow waits until a subscription has settled."""
_LOOK = 0.5


def attach(client: Client, values: Mapping[str, str]) -> None:
    """Attach the subscription that a query reads, by its options; a topic or a dataset has none of these."""
    path = parse(values["path"])
    named = [name for name in _OPTIONS if name in values]
    if path.kind != _KIND or of_acks(path) is not None:
        if named:
            raise InvalidRequest(f"the option '{named[0]}' is for a subscription, this reads {path}: leave it out")
        return
    fields: dict[str, Any] = {name: values.get(name) for name in ("create", "ack") if name in values}
    request = actions.AttachSubscription.from_json({"path": str(path), **fields})
    client.call(actions.ATTACH_SUBSCRIPTION, request)


def wait_until_settled(
    client: Client,
    path: str,
    settle: float,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until no message that was published before now has come for `settle` seconds; for a topic not at all.

    Until then the backlog is still on its way: a run that began at once would find an empty journal at its first start.
    """
    if parse(path).kind != _KIND:
        return
    began = clock()
    while (waited := clock() - began) < _LONGEST:
        quiet = min(client.call(actions.ASK_QUIET, actions.AskQuiet(path, began)).seconds, waited)
        if quiet >= settle:  # Pub/Sub takes some time to hand over what was published a moment ago
            return
        sleep(min(max(settle - quiet, 0.05), _LOOK, _LONGEST - waited))
    log.warning("%s has older messages coming still after %g s: this run ends before them", path, _LONGEST)
