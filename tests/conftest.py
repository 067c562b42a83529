"""Where the fixtures are, and in which order tests run."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import tests.kit.profiles  # noqa: F401  # Hypothesis's, before any test is collected

pytest_plugins = [
    "tests.kit.clock",
    "tests.kit.certificates",
    "tests.kit.wire",
    "tests.kit.server",
    "tests.kit.ledger",
    "tests.kit.topics",
    "tests.kit.cli",
    "tests.kit.spark",
    "tests.kit.spark_server",
    "tests.kit.streams",
    "tests.kit.clients",
    "tests.kit.kafka",
    "tests.kit.pubsub.emulator",
    "tests.kit.native_calls",
    "tests.kit.pubsub.fixtures",
    "tests.kit.pubsub.publishing",
    "tests.kit.ray",
]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts jobs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOWEST = (
    "test_chaos",
    "test_chaos_queue",
    "test_chaos_jobs",
    "test_chaos_subscription",
    "test_cluster",
    "test_demo",
    "test_notebooks",
    "test_bench_pages",
    "test_stream",
)
"""Files of minutes, each for one of xdist's workers; they start first, so that none is left to run alone at the end."""

QUICK = "not process and not faults and not spark"
"""What `make check` runs."""
OTHERS = re.compile(r"^pytestmark = (\[[^]]*)?pytest\.mark\.(process|faults|spark)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import a file none of whose tests would run: Ray, Spark and Google's client take seconds in each worker."""
    if config.option.markexpr != QUICK or collection_path.suffix != ".py":
        return None
    return True if OTHERS.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out `soak`, unless -m names it; run the slowest files first; give Spark's tests a quick one, and time."""
    if "soak" not in config.option.markexpr:
        repetitions = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=repetitions)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    order = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    for item in items:
        if item.get_closest_marker("spark") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "quick_spark")
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(300))  # the first one starts the JVM, on a busy machine
