"""The processes that pull: when they are started again, and which of their ends is an error of the subscription."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.flight_server.pullers import Pullers
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
