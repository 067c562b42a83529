"""The processes that pull: when they are started again, and which of their ends is an error of the subscription."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Denied
from penstock.flight_server import pulled_subscription
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.pulled_subscription import PulledSubscription
from penstock.flight_server.pullers import Pullers, close_all
from tests.kit.clock import Clock
from tests.kit.pubsub.owner import Owned
from tests.kit.wait import eventually

pytestmark = pytest.mark.process
REFUSED = 3


@pytest.fixture
def pullers(tmp_path: Path) -> Iterator[Pullers]:
    """A puller that runs until there is a file `refuse`, and is refused then."""
    command = ["sh", "-c", f"until [ -e {tmp_path}/refuse ]; do sleep 0.02; done; exit {REFUSED}"]
    pullers = Pullers("subscription/p/s", command, {})
    pullers.watch(0.0, 1)
    yield pullers
    pullers.close()


def end(pullers: Pullers, folder: Path, now: float) -> int | None:
    """Let the puller be refused; return what `watch` says of it."""
    codes: list[int | None] = []
    (folder / "refuse").touch()

    def has_ended() -> bool:
        codes.append(pullers.watch(now, 1))
        return not pullers.processes()

    eventually(has_ended)
    return codes[-1]


def test_a_refusal_is_an_error_and_pauses(pullers: Pullers, tmp_path: Path) -> None:
    assert end(pullers, tmp_path, 1.0) == REFUSED
    assert pullers.watch(60.0, 1) is None
    assert not pullers.processes()
    pullers.watch(61.0, 1)
    assert pullers.processes()


def test_a_refusal_from_before_a_mend_says_nothing(pullers: Pullers, tmp_path: Path) -> None:
    """A process that still ends as its subscription is made again; the next refusal counts."""
    pullers.start_again()
    assert end(pullers, tmp_path, 1.0) is None
    pullers.watch(2.0, 1)
    assert pullers.processes()
    assert end(pullers, tmp_path, 3.0) == REFUSED


def test_refused_pullers_start_when_others_bring_messages(
    pullers: Pullers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by hand has other credentials, or comes after a mend: theirs is tried again, and soon."""
    monkeypatch.setattr(pulled_subscription, "pullers_of", lambda *_: pullers)
    owned = Owned(tmp_path / "owned", Clock(1.0))
    owned.attach()

    def deny(path: str) -> None:
        raise Denied(f"{path} may not be pulled")

    pulled = PulledSubscription(owned.owner, ServerConfig(pullers=1), 0, deny)
    (tmp_path / "refuse").touch()

    def is_refused() -> bool:
        pulled.look(1_000.0)
        return owned.owner.state().error is not None

    eventually(is_refused)
    (tmp_path / "refuse").unlink()
    owned.owner.recover()
    for now in (1_001.0, 1_021.0, 1_022.0):
        assert not pullers.processes()
        pulled.look(now)
    assert pullers.processes()
    owned.close()


def test_all_are_ended_at_once(tmp_path: Path) -> None:
    """Each of these two ends once the other was told to, too."""
    several = []
    for own, other in (("a", "b"), ("b", "a")):
        told = f"touch {own}; until [ -e {other} ]; do sleep 0.02; done; touch {own}-ended; exit"
        script = f"cd {tmp_path}; trap '{told}' TERM; touch {own}-runs; while :; do sleep 0.02; done"
        command = ["sh", "-c", script]
        several.append(Pullers("publish/p/t", command, {}))
        several[-1].watch(0.0, 1)
    eventually(lambda: (tmp_path / "a-runs").exists() and (tmp_path / "b-runs").exists())
    close_all(several)
    assert (tmp_path / "a-ended").exists()
    assert (tmp_path / "b-ended").exists()
