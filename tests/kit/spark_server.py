"""A Spark Connect server for each of xdist's workers, and sessions of penstock's own client with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.spark.session import Session
from tests.kit.connect import ConnectServer, connect_server
from tests.kit.spark import needs_spark

CONFS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000", "spark.driver.maxResultSize": "0"}


@pytest.fixture(scope="session")
def spark_server(quick_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """The server that this worker's tests share: who kills one makes a `connect_server`."""
    needs_spark()
    import pyspark

    if pyspark.__version__.startswith("3."):
        pytest.skip("pip's Spark has a Connect server from 4.0 on")
    with connect_server(tmp_path_factory.mktemp("connect"), Path(sys.executable), CONFS) as server:
        yield server


@pytest.fixture
def remote(spark_server: ConnectServer) -> Iterator[Session]:
    """A session of the test's own with the shared server."""
    with penstock.spark_connect(f"sc://127.0.0.1:{spark_server.port}", retry_for=60) as session:
        yield session
