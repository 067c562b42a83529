"""The same work with Ray, in a process of Ray's own environment: commands come as lines of JSON, seconds go back.

A registry is an actor that has references of payloads by key, and the messages of queues: all in memory, no leases.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from typing import Any

import pyarrow as pa
import ray  # type: ignore[import-not-found]

_ANSWERS = "BENCH_ANSWERS"
"""Has the file descriptor that answers go to, as Ray's own processes print to stdout."""


class Registry:
    """References by key, and keys by queue. A reference travels in a list, as Ray would resolve a bare one."""

    def __init__(self) -> None:
        self._references: dict[str, list[Any]] = {}
        self._queues: dict[str, deque[str]] = {"in": deque(), "out": deque()}

    def store(self, key: str, reference: list[Any]) -> None:
        """Register a payload."""
        self._references[key] = reference

    def get(self, key: str) -> list[Any]:
        """Return a payload's reference."""
        return self._references[key]

    def push(self, queue: str, key: str) -> None:
        """Push a message."""
        self._queues[queue].append(key)

    def claim(self, queue: str) -> str:
        """Take the oldest message."""
        return self._queues[queue].popleft()

    def done(self, queue: str, key: str, output: str) -> None:
        """Push the output's message, and drop the input's payload."""
        self._queues[queue].append(output)
        del self._references[key]


def hand_off(count: int, size: int) -> float:
    """Claim, load and forward so many payloads of so many bytes; return the seconds."""
    registry = ray.remote(num_cpus=0)(Registry).remote()
    for number in range(count):
        ray.get(registry.store.remote(f"in-{number}", [ray.put(payload(size, number))]))
        ray.get(registry.push.remote("in", f"in-{number}"))
    began = time.perf_counter()
    for number in range(count):
        key = ray.get(registry.claim.remote("in"))
        [reference] = ray.get(registry.get.remote(key))
        table = ray.get(reference)
        ray.get(registry.store.remote(f"out-{number}", [ray.put(table)]))
        ray.get(registry.done.remote("out", key, f"out-{number}"))
    seconds = time.perf_counter() - began
    ray.kill(registry)
    return seconds


def map_blocks(count: int, size: int) -> float:
    """Map so many blocks of so many bytes with Ray Data; return the seconds."""
    import ray.data  # type: ignore[import-not-found]

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    blocks = ray.data.from_arrow([payload(size, number) for number in range(count)])
    mapped = blocks.map_batches(lambda table: table, batch_size=None, batch_format="pyarrow")
    began = time.perf_counter()
    number = mapped.materialize().num_blocks()
    seconds = time.perf_counter() - began
    assert number == count, f"{number:,} of {count:,} blocks"
    return seconds


def payload(size: int, number: int) -> pa.Table:
    """Return a table of so many bytes."""
    return pa.table({"x": pa.array(range(number, number + size // 8), pa.int64())})


def main() -> None:
    """Serve commands until stdin ends."""
    with os.fdopen(int(os.environ[_ANSWERS]), "w", buffering=1) as answers:
        ray.init(
            num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=False, logging_level="ERROR",
            _node_ip_address="127.0.0.1", object_store_memory=500 << 20,
        )  # fmt: skip
        hand_off(1, 1_000)  # starts its processes
        print(json.dumps(0), file=answers)
        for line in sys.stdin:
            name, count, size = json.loads(line)
            print(json.dumps({"hand_off": hand_off, "map_blocks": map_blocks}[name](count, size)), file=answers)
        ray.shutdown()


if __name__ == "__main__":
    main()
