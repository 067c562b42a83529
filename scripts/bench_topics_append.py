"""Appending: four clients at once in batches, one client row by row; penstock, Kafka, and a bare fsync."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scripts.bench_rows import interleaved
from scripts.bench_servers import ENVIRONMENT, ROOT, Penstock
from scripts.bench_spark_page import Line
from scripts.bench_topics_kafka import Kafka
from scripts.bench_topics_page import Rounds, better, latency, per_second
from scripts.bench_topics_sides import create

CLIENTS, BATCH = 4, 1_000
OURS, KAFKA, FSYNC = "penstock", "kafka-python", "a bare fsync"
_PATIENCE = 60.0


class Publisher:
    """A client's process, and what it is told to do."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, verb: str, **order: object) -> None:
        """Tell it to; `ended` has the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **order}) + "\n")
        self._process.stdin.flush()

    def ended(self) -> Any:
        """What came of it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client ended: {self._process.wait(_PATIENCE)}")
        return json.loads(line)

    def told(self, verb: str, **order: object) -> Any:
        """Both."""
        self.begin(verb, **order)
        return self.ended()


@contextmanager
def publisher(kind: str, address: str, topic: str, kafka: Kafka | None = None) -> Iterator[Publisher]:
    """A client of a kind: penstock, kafka or fsync."""
    path = os.pathsep.join([str(ROOT), *([str(kafka.python)] if kafka else [])])
    command = [sys.executable, str(ROOT / "scripts" / "bench_topics_client.py"), kind, address, topic]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**ENVIRONMENT, "PYTHONPATH": path}
    )
    try:
        yield Publisher(process)
    finally:
        process.communicate(timeout=_PATIENCE)  # closes its stdin, which ends it


def batches(server: Penstock, kafka: Kafka | None, count: int, rounds: int) -> Iterator[Line]:
    """Four clients, so many batches of 1,000 rows each."""
    create(server, "topic/bench/appended", shards=1)
    rows = CLIENTS * count * BATCH
    with ExitStack() as stack:
        sides = {OURS: _together(stack, "penstock", server.url, "topic/bench/appended")}
        if kafka:
            sides[KAFKA] = _together(stack, "kafka", kafka.address, "appended", kafka)
        taken = interleaved({name: _times(side, count) for name, side in sides.items()}, rounds)
    found = taken[OURS]
    theirs = taken.get(KAFKA)
    yield better(f"{CLIENTS} clients, batches of 1,000", found, f"{KAFKA}, acks=all", theirs, per_second(rows), least=5)


def single(server: Penstock, kafka: Kafka | None, folder: Path, count: int, rounds: int) -> Iterator[Line]:
    """One client, a row at a time, in turn with a bare fsync of as many bytes and with Kafka."""
    create(server, "topic/bench/single", shards=1)
    with ExitStack() as stack:
        clients = {
            OURS: stack.enter_context(publisher("penstock", server.url, "topic/bench/single")),
            FSYNC: stack.enter_context(publisher("fsync", str(folder / "fsynced"), "")),
        }
        if kafka:
            clients[KAFKA] = stack.enter_context(publisher("kafka", kafka.address, "single", kafka))
        found: dict[str, list[list[float]]] = {name: [] for name in clients}
        for _ in range(rounds + 1):
            for name, client in clients.items():
                found[name].append(client.told("batches", count=count, rows=1))
    yield from _latencies({name: rounds[1:] for name, rounds in found.items()})  # the first one is to warm up


def _latencies(found: Mapping[str, Rounds]) -> Iterator[Line]:
    for name in (FSYNC, KAFKA):
        for percent in (50, 99):
            what = f"one client, a row at a time, p{percent}"
            yield latency(what, found[OURS], name, found.get(name), percent)


def _together(stack: ExitStack, *about: Any) -> list[Publisher]:
    return [stack.enter_context(publisher(*about)) for _ in range(CLIENTS)]


def _times(clients: list[Publisher], count: int) -> Callable[[], float]:
    def once() -> float:
        os.sync()
        began = time.perf_counter()
        for client in clients:
            client.begin("batches", count=count, rows=BATCH)
        for client in clients:
            client.ended()
        return time.perf_counter() - began

    return once
