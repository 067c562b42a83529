"""`penstock pull`: how it is refused, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import app
from tests.kit.cli import NOWHERE, PENSTOCK, Run
from tests.kit.pubsub.emulator import Names
from tests.kit.pubsub.fake import FakePubSub, served
from tests.kit.wait import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def address(fake_pubsub: FakePubSub, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fake, which the environment names."""
    with served(fake_pubsub) as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        yield address


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topic/orders",), "topic/orders: expected subscription/PROJECT/NAME"),
        (("subscription/p",), "subscription/p: expected subscription/PROJECT/NAME"),
        (("subscription/p/s/t",), "expected subscription/PROJECT/NAME"),
        (("subscription/p/s", "--pull", "push"), "'streaming', 'unary'"),
        (("subscription/p/s", "--lease", "5"), "10<=x<=600"),
        (("subscription/p/s", "--pubsub-credentials", "/none"), "/none: expected a service account's key"),
    ],
)
def test_a_mistake_is_refused(penstock: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = penstock("pull", *arguments)
    assert (ran.code, message in ran.err) == (app.USAGE, True), ran.err


def test_a_stray_emulator_is_not_called(
    penstock: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --allow-emulator Google is meant, and here are no credentials for it."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    ran = penstock("pull", "subscription/p/s")
    assert (ran.code, "no Google credentials" in ran.err) == (app.DENIED, True), ran.err


@pytest.mark.process
def test_a_missing_subscription_is_a_refusal(address: str) -> None:
    command = [*PENSTOCK, "pull", "subscription/p/none", "--allow-emulator", "--url", NOWHERE]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ran.returncode == app.NOT_FOUND, ran.stderr
    assert f"projects/p/subscriptions/none: calls the emulator at {address}, not Google" in ran.stderr
    assert "projects/p/subscriptions/none: Pub/Sub says NOT_FOUND" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(
    address: str, fake_pubsub: FakePubSub, pubsub_names: Names, number: signal.Signals
) -> None:
    """What it holds is given back, though its server is away."""
    fake_pubsub.load(pubsub_names.subscription, 100)
    command = [*PENSTOCK, "pull", pubsub_names.path, "--allow-emulator", "--url", NOWHERE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        eventually(lambda: fake_pubsub.totals(pubsub_names.subscription)["leased"] == 100)
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert f"{pubsub_names.subscription}: the penstock server is away" in log
    totals = fake_pubsub.totals(pubsub_names.subscription)
    assert (totals["ready"], totals["nacks"], totals["acked"]) == (100, 100, 0)


_STARTS_AND_WAITS = """
import os, subprocess, sys
puller = subprocess.Popen([*sys.argv[1:], "--parent", str(os.getpid())], stderr=subprocess.DEVNULL)
print(puller.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_a_puller_ends_with_the_process_that_started_it(
    address: str, fake_pubsub: FakePubSub, pubsub_names: Names
) -> None:
    fake_pubsub.load(pubsub_names.subscription, 100)
    command = [*PENSTOCK, "pull", pubsub_names.path, "--allow-emulator", "--url", NOWHERE]
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS_AND_WAITS, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        puller = int(parent.stdout.readline())
        eventually(lambda: fake_pubsub.totals(pubsub_names.subscription)["leased"] == 100)
        os.kill(puller, 0)
        parent.kill()
    eventually(lambda: _has_ended(puller))


def _has_ended(pid: int) -> bool:
    """Tell whether a process is gone, or a zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
