"""One log: what pullers write is in the server's log, and what that warns of reaches the drivers of the queries."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.flight_server.pullers import log_lines
from penstock.flight_server.subscription_log import SubscriptionLog

ORDERS, OTHER = "subscription/p/orders", "subscription/p/orders-2"
OF_A_DOMAIN = "subscription/example.com:p/orders"
log = logging.getLogger("penstock.test")


@pytest.fixture
def kept() -> Iterator[SubscriptionLog]:
    kept = SubscriptionLog({ORDERS, OTHER, OF_A_DOMAIN}.__contains__)
    logging.getLogger("penstock").addHandler(kept)
    yield kept
    logging.getLogger("penstock").removeHandler(kept)


def texts(kept: SubscriptionLog, path: str = ORDERS, after: int = 1) -> list[str]:
    return [line.text for line in kept.after(path, after)]


def test_warnings_are_kept_by_path(kept: SubscriptionLog) -> None:
    log.info("%s: nothing", ORDERS)
    log.warning("%s: slow", ORDERS)
    log.error("3f-12 do_exchange failed: %s.", ORDERS)
    log.warning("%s: other", OTHER)
    log.warning("subscription/p/unknown: not here")
    assert texts(kept) == [f"{ORDERS}: slow", f"3f-12 do_exchange failed: {ORDERS}."]
    assert [line.level for line in kept.after(ORDERS, 1)] == ["warning", "error"]
    assert texts(kept, OTHER) == [f"{OTHER}: other"]
    log.warning("%s: slow", OF_A_DOMAIN)
    assert texts(kept, OF_A_DOMAIN) == [f"{OF_A_DOMAIN}: slow"]


def test_only_newer_lines_come(kept: SubscriptionLog) -> None:
    log.warning("%s: first", ORDERS)
    [first] = kept.after(ORDERS, 0)
    assert kept.after(ORDERS, first.number) == ()
    log.warning("%s: second", ORDERS)
    assert texts(kept, after=first.number) == [f"{ORDERS}: second"]


def test_lines_are_escaped_and_bounded(kept: SubscriptionLog) -> None:
    log.warning("%s: \x1b[31mred\nnext", ORDERS)
    log.warning("%s: %s", ORDERS, "x" * 5_000)
    first, second = texts(kept)
    assert first == f"{ORDERS}: \\x1b[31mred\\nnext"
    assert len(second) == 1_000
    for number in range(1_000):
        log.warning("%s: %d", ORDERS, number)
    assert len(kept.after(ORDERS, 1)) == 200
    kept.forget(ORDERS)
    assert kept.after(ORDERS, 0) == ()


_PULLER = r"""
import sys
for line in (
    "2026-11-19 21:00:00,123 INFO penstock.queue.pubsub.pull: pulls",
    "2026-11-19 21:00:01,123 WARNING penstock.queue.pubsub.pull: the penstock server is away [request 3f-12]",
    "2026-11-19 21:00:02,123 ERROR penstock.queue.pubsub.pull: a fault",
    "Traceback (most recent call last):",
    "",
    "2026-11-19 21:00:03,123 INFO penstock.x: on",
    "penstock: it is denied",
):
    print(line, file=sys.stderr)
sys.stderr.buffer.write(b"\xff\x1b[31m\n" + b"y" * 9_000)
"""


def test_a_puller_s_lines_are_the_server_s(caplog: pytest.LogCaptureFixture, kept: SubscriptionLog) -> None:
    caplog.set_level(logging.INFO, logger="penstock")
    process = subprocess.Popen([sys.executable, "-c", _PULLER], stderr=subprocess.PIPE)
    log_lines(ORDERS, process)
    assert process.wait(30) == 0
    head = f"{ORDERS}: puller {process.pid}: "
    lines = [(record.levelname, record.getMessage().removeprefix(head)) for record in caplog.records]
    assert lines[:6] == [
        ("INFO", "pulls"),
        ("WARNING", "the penstock server is away [request 3f-12]"),
        ("ERROR", "a fault"),
        ("ERROR", "Traceback (most recent call last):"),
        ("INFO", "on"),
        ("ERROR", "penstock: it is denied"),
    ]
    assert lines[6][1].endswith("\\x1b[31m")
    assert all(len(text) <= 4_000 for _, text in lines)
    assert any("3f-12" in text for text in texts(kept)), "request ids stay"
