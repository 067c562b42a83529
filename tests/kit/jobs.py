"""Jobs for tests: operators that processes can import, and the numbers that go through them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.client import Client
from penstock.client.lease import Split


def double(split: Split) -> pa.Table:
    """Return the numbers of a split twice as large."""
    return pa.table({"x": pc.multiply(split.payload.data["x"], 2)})


def numbers(split: Split) -> list[int]:
    """Return the numbers of a split."""
    values: list[int] = split.payload.data["x"].to_pylist()
    return values


class Fails:
    """Doubles numbers, and fails at some of them."""

    def __init__(self, at: Iterable[int]) -> None:
        self.at = frozenset(at)

    def process(self, split: Split) -> pa.Table:
        """Fail, or double."""
        if self.at & set(numbers(split)):
            raise ValueError(f"{numbers(split)} is odd")
        return double(split)


class Dies:
    """Doubles numbers, and kills its process at some of them; a folder counts how often."""

    def __init__(self, at: Iterable[int], folder: Path, most: int = 99) -> None:
        self.at, self.folder, self.most = frozenset(at), folder, most

    def process(self, split: Split) -> pa.Table:
        """Die, at most so often, or double."""
        if self.at & set(numbers(split)) and len(list(self.folder.iterdir())) < self.most:
            (self.folder / str(time.monotonic_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return double(split)


class Sleeps:
    """Doubles numbers, and takes its time with some of them."""

    def __init__(self, seconds: float, at: Iterable[int] | None = None) -> None:
        self.seconds, self.at = seconds, None if at is None else frozenset(at)

    def process(self, split: Split) -> pa.Table:
        """Sleep, then double."""
        if self.at is None or self.at & set(numbers(split)):
            time.sleep(self.seconds)
        return double(split)


def values(client: Client, path: str) -> list[int]:
    """Return the numbers of a dataset, sorted."""
    return sorted(client.get(path).read_all()["x"].to_pylist())


def stage_counts(client: Client, job: str) -> dict[str, dict[str, Any]]:
    """Return the counts of a job's queues, by stage."""
    stages = client.call("describe", {"path": f"job/{job}"})["job"]["stages"]
    return {each["planned"]["stage"]: each["queue"]["counts"] for each in stages if "queue" in each}


def state_of(client: Client, job: str) -> tuple[str, str | None]:
    """Return a job's state and cause."""
    described = client.call("describe", {"path": f"job/{job}"})["job"]
    return described["state"], described.get("cause")
