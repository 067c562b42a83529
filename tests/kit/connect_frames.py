"""A session of Spark Connect that sends nothing: for tests of what would be sent."""

from __future__ import annotations

from typing import Any

import pytest


def unsent_session() -> Any:
    """Return a session whose frames may be built and encoded, and which fails as soon as anything is sent."""
    pytest.importorskip("grpc")
    from penstock.spark.sources import Sources

    class UnsentSession(Sources):
        def execute(self, *_: object, **__: object) -> Any:
            raise AssertionError("a query was sent")

        def analyze(self, *_: object, **__: object) -> Any:
            raise AssertionError("a plan was sent")

    return UnsentSession()
