"""Work with Ray, in a process of its own: commands come as lines of JSON, seconds go back.

A registry is an actor that has references of payloads by key, and the messages of queues: all in memory, no leases.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import ray

_FIRST = "first"
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
    registry: Any = ray.remote(num_cpus=0)(Registry).remote()
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
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    blocks = ray.data.from_arrow([payload(size, number) for number in range(count)])
    mapped = blocks.map_batches(lambda table: table, batch_size=None, batch_format="pyarrow")
    began = time.perf_counter()
    number = mapped.materialize().num_blocks()
    seconds = time.perf_counter() - began
    assert number == count, f"{number:,} of {count:,} blocks"
    return seconds


def map_twice(count: int, size: int) -> float:
    """Take so many blocks from memory through two functions of Ray Data; return the seconds."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    tables = [payload(size, number) for number in range(count)]
    began = time.perf_counter()
    dataset: Any = ray.data.from_arrow(tables)
    for _ in range(2):
        dataset = dataset.map_batches(lambda table: table, batch_size=None, batch_format="pyarrow")
    rows = sum(batch.num_rows for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"))
    seconds = time.perf_counter() - began
    assert rows == count * (size // 8), f"{rows:,} rows"
    return seconds


def first_block(count: int, size: int) -> float:
    """Start another Ray, and map a block with Ray Data there; return the seconds."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:
        command = [sys.executable, __file__, short, _FIRST]
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(run.stdout.split()[-1])


def _map_first() -> None:
    began = time.perf_counter()
    _start()
    map_twice(1, 100_000)
    print(time.perf_counter() - began)
    ray.shutdown()


class Registered:
    """Payloads by a registry; the process that stores one owns it."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def store(self, key: str, table: pa.Table) -> None:
        """Put a payload, and register its reference."""
        ray.get(self._registry.store.remote(key, [ray.put(table)]))

    def get(self, key: str) -> pa.Table:
        """Return the payload of a key."""
        [reference] = ray.get(self._registry.get.remote(key))
        return ray.get(reference)


class OwningRegistry(Registry):
    """One that puts the payloads itself, so that they outlive who stored them."""

    def put(self, key: str, table: pa.Table) -> None:
        """Put a payload."""
        self.store(key, [ray.put(table)])


class Owned(Registered):
    """Payloads by a registry that owns them."""

    def store(self, key: str, table: pa.Table) -> None:
        """Have a payload put."""
        ray.get(self._registry.put.remote(key, table))


class RayStore:
    """Payloads by a store `ray:`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def store(self, key: str, table: pa.Table) -> None:
        """Store a payload."""
        self._store.store(key, table)

    def get(self, key: str) -> pa.Table:
        """Return the payload of a key."""
        table: pa.Table = self._store.get(key).data
        return table


class Worker:
    """Stores payloads, or gets them and sums their values; returns the seconds."""

    def __init__(self, payloads: Registered | RayStore) -> None:
        self._payloads = payloads

    def store(self, number: int, size: int) -> float:
        """Store a payload."""
        table = payload(size, number)
        began = time.perf_counter()
        self._payloads.store(str(number), table)
        return time.perf_counter() - began

    def get(self, number: int) -> float:
        """Get a payload."""
        import pyarrow.compute as pc

        began = time.perf_counter()
        pc.sum(self._payloads.get(str(number))["x"]).as_py()
        return time.perf_counter() - began


def pass_on(way: str, count: int, size: int) -> float:
    """Pass so many payloads of so many bytes from one process to another; return the seconds of both."""
    import penstock

    actor = ray.remote(num_cpus=0)
    ended: Any
    payloads: Registered | RayStore
    if way == "store":
        store = penstock.SplitPayloadStore("ray:")
        payloads, ended = RayStore(store), store.close
    else:
        registry: Any = actor(OwningRegistry).remote()
        payloads, ended = (Owned if way == "owned" else Registered)(registry), lambda: ray.kill(registry)
    workers: list[Any] = [actor(Worker).remote(payloads) for _ in range(2)]
    producer, consumer = workers
    seconds = 0.0
    for number in range(-1, count):  # the first one warms up
        took = ray.get(producer.store.remote(number, size)) + ray.get(consumer.get.remote(number))
        seconds += took if number >= 0 else 0
    for worker in workers:
        ray.kill(worker)
    ended()
    return seconds


def read_dataset(url: str, path: str, rows: int) -> float:
    """Read a dataset by its Datasource; return the seconds."""
    import ray.data

    from penstock.pipeline.ray_data import Datasource

    return _read(lambda: ray.data.read_datasource(Datasource(path, url=url)), rows)


def read_parquet(folder: str, rows: int) -> float:
    """Read a folder of Parquet; return the seconds."""
    import ray.data

    return _read(lambda: ray.data.read_parquet(folder), rows)


def _read(dataset: Callable[[], Any], rows: int) -> float:
    """Read a dataset of Ray Data as it comes, a block at a time; return the seconds."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    began = time.perf_counter()
    number = sum(batch.num_rows for batch in dataset().iter_batches(batch_size=None, batch_format="pyarrow"))
    seconds = time.perf_counter() - began
    assert number == rows, f"{number:,} of {rows:,} rows"
    return seconds


COMMANDS: dict[str, Callable[..., float]] = {
    each.__name__: each for each in (first_block, hand_off, map_blocks, map_twice, pass_on, read_dataset, read_parquet)
}


def payload(size: int, number: int) -> pa.Table:
    """Return a table of so many bytes."""
    return pa.table({"x": pa.array(range(number, number + size // 8), pa.int64())})


def main() -> None:
    """Serve commands until stdin ends."""
    with os.fdopen(int(os.environ[_ANSWERS]), "w", buffering=1) as answers:
        _start()
        hand_off(1, 1_000)  # starts its processes
        print(json.dumps(0), file=answers)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(COMMANDS[name](*arguments)), file=answers)
        ray.shutdown()


def _start() -> None:
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=False,
        logging_level=logging.ERROR, _node_ip_address="127.0.0.1", object_store_memory=500 << 20,
    )  # fmt: skip


if __name__ == "__main__":
    _map_first() if sys.argv[2:] == [_FIRST] else main()
