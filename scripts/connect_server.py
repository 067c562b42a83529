"""A Spark Connect server of the installed pyspark, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts import child

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


def command(home: Path, port: int, confs: Mapping[str, str], *, master: str = "local[2]") -> list[str]:
    """Return the command that starts a server; port 0 would not be reported."""
    confs = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        **confs,
    }
    settings = [part for conf in confs.items() for part in ("--conf", "=".join(conf))]
    return [str(home / "bin/spark-submit"), "--master", master, *settings, "--class", _CLASS]


@contextmanager
def running(folder: Path, confs: Mapping[str, str]) -> Iterator[str]:
    """Run a server in a new folder; its address, once it listens."""
    import pyspark

    folder.mkdir()
    port = child.free_port()
    with listening("Spark Connect", command(Path(pyspark.__path__[0]), port, confs), port, folder) as uri:
        yield uri


@contextmanager
def listening(name: str, server: Sequence[str], port: int, folder: Path) -> Iterator[str]:
    """Run a server's command in a folder, which gets its log; its address, once it listens."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(server, cwd=folder, stdout=log, stderr=log, env=environment)
    try:
        give_up = time.monotonic() + 300
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"{name} didn't start:\n{(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
