"""A server without Spark, and a session with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.spark.session import Session
from tests.kit.fake_connect import FakeConnect, fake_connect


@pytest.fixture
def fake() -> Iterator[FakeConnect]:
    with fake_connect() as fake:
        yield fake


@pytest.fixture
def session(fake: FakeConnect) -> Iterator[Session]:
    with penstock.spark_connect(fake.uri, retry_for=20) as session:
        yield session
