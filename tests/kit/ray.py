"""A Ray of two workers for the tests, started once; without Ray they are skipped, and say so."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

VARIABLES = {"RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
"""Without a token it writes one to ~/.ray."""


FOLDER = "ray-"


@contextmanager
def ray_running() -> Iterator[Any]:
    """Run a Ray: half a minute on a busy machine, and 850 MB. Its folder's name is short, as it has Unix sockets.

    It begins with FOLDER and the process's id: a process that is killed leaves it behind.
    """
    import ray

    with tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        ray.init(
            "local", num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False,
            logging_level=logging.WARNING, _node_ip_address="127.0.0.1", object_store_memory=100 << 20,
        )  # fmt: skip
        try:
            yield ray
        finally:
            ray.shutdown()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """The Ray that the tests of a process share."""
    pytest.importorskip("ray", reason="Ray is missing: pip install 'penstock-flight[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        with ray_running() as ray:
            yield ray


@pytest.fixture
def ray_data(ray: Any) -> Any:
    """Return Ray Data, which prints neither progress nor plans."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    return ray.data
