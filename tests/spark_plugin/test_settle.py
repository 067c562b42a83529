"""An AvailableNow run of a subscription waits until what was published before its start has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.spark_plugin import subscriptions
from penstock.wire import actions


@dataclass
class QuietServer:
    """A server that says for how long no older message has come; its clock moves as the caller sleeps."""

    last: list[float]
    """When older messages come."""
    began: float = 1_000.0
    now: float = 1_000.0
    calls: list[Any] = field(default_factory=list)

    def call(self, action: actions.Action[Any, Any], request: Any) -> Any:
        self.calls.append(request)
        if isinstance(request, actions.AttachSubscription):
            return None
        assert request.published_before == self.began
        return actions.Quiet(self.now - max([0.0, *(at for at in self.last if at <= self.now)]))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, path: str, settle: float) -> float:
        subscriptions.wait_until_settled(self, path, settle, clock=lambda: self.now, sleep=self.sleep)  # type: ignore[arg-type]
        return self.now - self.began


def test_it_waits_for_silence_after_the_last_older_message() -> None:
    assert QuietServer([]).wait("subscription/p/s", 10) == pytest.approx(10, abs=0.1)
    assert QuietServer([990.0]).wait("subscription/p/s", 10) == pytest.approx(10, abs=0.1)
    assert QuietServer([1_004.0, 1_013.0]).wait("subscription/p/s", 10) == pytest.approx(23, abs=0.6)


def test_it_waits_five_minutes_at_most(caplog: pytest.LogCaptureFixture) -> None:
    server = QuietServer([1_000.0 + second for second in range(1_000)])
    assert server.wait("subscription/p/s", 10) == pytest.approx(300, abs=0.1)
    assert "this run ends before them" in caplog.text


def test_a_topic_has_nothing_to_settle() -> None:
    server = QuietServer([])
    assert server.wait("topic/x", 10) == 0
    assert not server.calls


def test_options_of_a_subscription_are_refused_for_others() -> None:
    server: Any = QuietServer([])
    for name in ("create", "ack", "settle"):
        with pytest.raises(InvalidRequest, match=rf"the option '{name}' is for a subscription, this reads topic/x"):
            subscriptions.attach(server, {"path": "topic/x", name: "1"})
    subscriptions.attach(server, {"path": "topic/x"})
    assert not server.calls
    with pytest.raises(InvalidRequest, match="ack: expected 'commit' or 'journal', got 'no'"):
        subscriptions.attach(server, {"path": "subscription/p/s", "ack": "no"})
    subscriptions.attach(server, {"path": "subscription/p/s", "ack": "journal", "settle": "3"})
    assert server.calls == [actions.AttachSubscription("subscription/p/s", ack="journal")]
