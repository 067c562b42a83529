"""Hypothesis's profiles, and where the fixtures are. `pytest --hypothesis-profile=long` looks further."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest_plugins = [
    "tests.kit.server",
    "tests.kit.ledger",
    "tests.kit.plain_server",
    "tests.kit.cli",
    "tests.kit.spark",
    "tests.kit.topics",
    "tests.kit.consumption",
    "tests.kit.streams",
]

# No deadline per example: a busy machine makes an fsync slow, and that is no fault of the code.
# Not derandomized, as Hypothesis would be where CI is set: each run looks somewhere new, its blob replays it.
settings.register_profile("ci", max_examples=60, deadline=None, print_blob=True, derandomize=False)
settings.register_profile("long", parent=settings.get_profile("ci"), max_examples=3_000)
settings.load_profile("ci")


SLOWEST = (
    "test_chaos",
    "test_cluster",
    "test_stream_cluster",
    "test_demo",
    "test_notebooks",
    "test_bench_pages",
    "test_stream",
)
"""Files of minutes, each for one of xdist's workers; none should be left to one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest first. A test that needs Spark has one that starts sooner, and may take its time."""
    order = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    for item in items:
        if item.get_closest_marker("spark") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "quick_spark")
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(300))  # the first one starts the JVM, on a busy machine
