"""Which failures of a call pass by themselves, and how long to wait for that."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from penstock.spark.failures import details_of, status_of
from penstock.spark.protos import message

_DISCONNECTED = "INVALID_CURSOR.DISCONNECTED"
"""Another call reads the same operation's responses: so does ours, if its connection broke unseen by the server."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call that failed for a passing reason is made again. Times are seconds."""

    retry_for: float = 600.0
    """For so long after the first failure; the time begins anew whenever an answer arrives."""
    first_wait: float = 0.05
    factor: float = 2.0
    longest_wait: float = 5.0
    longest_server_wait: float = 60.0
    """The most that is waited when the server names a delay (google.rpc.RetryInfo)."""


class Retries:
    """The waits between the attempts of one call."""

    def __init__(self, policy: RetryPolicy, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._policy, self._sleep = policy, sleep
        self._wait = policy.first_wait
        self._give_up: float | None = None

    def wait(self, delay: float | None = None) -> bool:
        """Wait before the next attempt, at least the delay that the server named; False once the time is over."""
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + self._policy.retry_for
        wait = self._wait * random.uniform(0.5, 1.0)  # noqa: S311  # so that clients don't return at once
        wait = max(wait, min(delay or 0.0, self._policy.longest_server_wait))
        if now + wait > self._give_up:
            return False
        self._wait = min(self._wait * self._policy.factor, self._policy.longest_wait)
        self._sleep(wait)
        return True


def is_transient(error: grpc.RpcError) -> bool:
    """Return whether a failure passes by itself; what Spark says of a query never does."""
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return True
    if code is grpc.StatusCode.INTERNAL and _DISCONNECTED in (error.details() or ""):
        return True
    return server_delay(error) is not None


def server_delay(error: grpc.RpcError) -> float | None:
    """Return the seconds after which the server wants the call again, if it says so."""
    status = status_of(error)
    info = None if status is None else details_of(status, message("google.rpc.RetryInfo"))
    return None if info is None else info.retry_delay.seconds + info.retry_delay.nanos / 1e9
