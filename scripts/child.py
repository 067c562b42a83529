"""Servers of others as processes that end with the one that started them, for the tests, demos and benchmarks."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_END_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: of the thread that has started this process
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started it has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Runs a program that ends with this process, whose id is its first argument."""


@contextmanager
def running(
    name: str, command: Sequence[str], port: int, *, hello: bytes, log: IO[str], patience: float
) -> Iterator[int]:
    """Run a server; yields its process's id once it answers the first bytes of a client at the port.

    The thread that enters has to live until the end: Linux kills the server when that thread ends.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _END_WITH_PARENT, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )  # fmt: skip
    try:
        give_up = time.monotonic() + patience
        while not _answers(port, hello):
            if process.poll() is not None or time.monotonic() > give_up:
                log.seek(0)
                raise RuntimeError(f"{name} did not start at port {port}:\n{log.read()[-2000:]}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _answers(port: int, hello: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(2)
            connection.sendall(hello)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


def free_port() -> int:
    """Return a port that nobody has, nor gets by asking the kernel for any: those are from another range."""
    kernels = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(kernels.read_text().split()[0]) if kernels.exists() else 32_768
    while True:
        port = random.randrange(10_000, max(first, 20_000))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def is_alive(pid: int) -> bool:
    """Whether a process that this one has started runs."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
