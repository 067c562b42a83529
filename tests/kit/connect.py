"""A Spark Connect server of pip's Spark, in a process of its own, and sessions of this process with it."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.child import free_port
from scripts.connect_server import command as connect_server_command
from tests.kit.processes import kill, python_workers, session_processes
from tests.kit.spark import CONFS, needs_spark
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def needs_connect() -> None:
    """Skip the test, with the cure, where Spark has no Connect server, or Python lacks what its client needs."""
    needs_spark()
    import pyspark

    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    if version < (4, 0):
        pytest.skip("pip's Spark has a Connect server from 4.0 on")
    for name in ("grpc", "grpc_status", "pandas", *(["zstandard"] if version > (4, 0) else [])):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"Spark Connect's client needs {name}: pip install -e '.[dev]'")


class ConnectServer:
    """A Spark Connect server, `local[2]` with task retries; it is killed, and started again on its port."""

    def __init__(self, folder: Path, python: Path, confs: Mapping[str, str] | None = None) -> None:
        """`python` is that of its workers."""
        self.folder, self.port = folder, free_port()
        self._python, self._confs = python, confs or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[Any] = []

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._close_sessions()
        confs = {
            **CONFS,
            "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
            **self._confs,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
        environment |= {"PYSPARK_PYTHON": str(self._python), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment.pop("PYTHONPATH", None)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                connect_server_command(Path(os.environ["SPARK_HOME"]), self.port, confs, master="local[2, 4]"),
                cwd=self.folder, stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        eventually(self._answers, within=120, what="the Connect server listens")

    def connect(self) -> SparkSession:
        """Return a new session with it. Its calls are retried for seconds, not for Spark's ten minutes."""
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(f"sc://127.0.0.1:{self.port}").create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=1000)])
        self._sessions.append(session)
        return session  # type: ignore[return-value]  # of the same methods

    def kill_workers(self) -> None:
        """Kill the Python workers of its tasks with SIGKILL."""
        assert self._process is not None
        workers = python_workers(self._process.pid)
        assert workers
        for worker in workers:
            kill(worker)

    def kill(self) -> None:
        """Kill it with SIGKILL; its Python workers, in the middle of their tasks, end by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def close(self) -> None:
        """Kill all its processes."""
        self._close_sessions()
        if self._process is not None:
            for process in session_processes(self._process.pid):
                kill(process)
            self._process.wait(30)

    def _close_sessions(self) -> None:
        """Close the connections: those that are left would make new ones wait before they connect again."""
        for session in self._sessions:
            session.client.close()
        self._sessions.clear()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@contextmanager
def connect_server(folder: Path, python: Path, confs: Mapping[str, str] | None = None) -> Iterator[ConnectServer]:
    """Run a Connect server in a folder of its own."""
    server = ConnectServer(folder, python, confs)
    try:
        server.start()
        yield server
    finally:
        server.close()
