"""Queues of a server, for tests: what is pushed to them, what comes out, and workers in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.client import Client

IN, OUT = "queue/j/in", "queue/j/out"


def numbered(*numbers: int) -> list[pa.Table]:
    """Return a payload for each number."""
    return [pa.table({"x": pa.array([number], pa.int64())}) for number in numbers]


def counts(client: Client, path: str = IN) -> dict[str, Any]:
    """Return a queue's state and counts."""
    described: dict[str, Any] = client.call("describe", {"path": path})["queue"]["counts"]
    return described


def states(client: Client, path: str = IN) -> tuple[int, int, int, int]:
    """Return how many messages are pending, claimed, done and dead."""
    known = counts(client, path)
    return known["pending"], known["claimed"], known["done"], known["dead"]


def drained(client: Client, path: str) -> list[int]:
    """Claim all messages of a queue until it is complete; return their numbers."""
    numbers: list[int] = []
    for lease in client.claim(path):
        with lease as split:
            numbers += split.payload.data["x"].to_pylist()
    return sorted(numbers)


def work(client: Client, source: str = IN, target: str = OUT) -> None:
    """Double all numbers of a queue, until it is complete."""
    for lease in client.claim(source, to=[target]):
        with lease as split:
            lease.forward(target, pa.table({"x": pc.multiply(split.payload.data["x"], 2)}))


@contextmanager
def worker(url: str, *how: str, source: str = IN, target: str = OUT) -> Iterator[subprocess.Popen[str]]:
    """Start a worker in a process of its own; it is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.programs.worker", url, source, target, *how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def line(process: subprocess.Popen[str]) -> Sequence[str]:
    """Return the words of a worker's next line."""
    assert process.stdout is not None
    return process.stdout.readline().split()
