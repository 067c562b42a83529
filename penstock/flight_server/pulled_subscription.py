"""Whether a subscription is pulled: its pullers run, or its queries are told why they can't, until that is mended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import Denied, InvalidRequest, NotFound, PenstockError
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.pullers import Pullers, pullers_of

if TYPE_CHECKING:
    from penstock.queue.pubsub.subscription import Subscription

log = logging.getLogger("penstock")
_MEND = 20.0
"""Seconds between looks whether a subscription that was refused can be pulled again."""


class PulledSubscription:
    """Ticks one owner and watches its pullers. For one thread, whose children they are."""

    def __init__(
        self, owner: Subscription, config: ServerConfig, port: int, check_source: Callable[[str], object]
    ) -> None:
        """`check_source` raises why Pub/Sub doesn't let the subscription of a path be pulled."""
        self.owner = owner
        self._config, self._port, self._check_source = config, port, check_source
        self._pullers: Pullers | None = None
        self._is_failed = False
        self._mended = 0.0

    def look(self, now: float) -> None:
        """Do what is due: `now` is a clock that never jumps."""
        self.owner.tick(now)
        if not (self.owner.is_ready and self._watch(now)):
            return
        error = self.owner.state().error
        self._is_failed = self._is_failed or error is not None
        if self._is_failed and now - self._mended >= _MEND:
            self._mended = now
            if error is None or self._is_mended():  # None: another puller brings messages
                self._is_failed = False
                self.owner.recover()
                if self._pullers is not None:
                    self._pullers.start_again()

    def _watch(self, now: float) -> bool:
        """Start and end pullers; return False if none could get in."""
        state, path = self.owner.state(), self.owner.path
        wanted = wanted_pullers(state.record.pullers, self._config)
        if self._pullers is None:
            if not wanted:
                return True
            try:
                self._pullers = pullers_of(path, self._config, self._port)
            except InvalidRequest as refused:
                self.owner.fail(refused)
                return False
        code = self._pullers.watch(now, wanted)
        if code is not None and state.error is None:
            self.owner.fail(InvalidRequest(f"{path}: its puller was refused (exit code {code}), the log has the cause"))
        return True

    def _is_mended(self) -> bool:
        """Tell whether Pub/Sub lets the subscription be pulled again."""
        try:
            self._check_source(self.owner.path)
        except (NotFound, Denied, InvalidRequest) as refused:
            self.owner.fail(refused)
            return False
        except PenstockError as away:
            log.debug("%s: %s", self.owner.path, away)
            return False
        return True

    def close(self) -> None:
        """End the pullers."""
        if self._pullers is not None:
            self._pullers.close()


def wanted_pullers(said: int | None, config: ServerConfig) -> int:
    """Return how many pullers to start, from what a subscription says."""
    return config.pullers if said is None else said
