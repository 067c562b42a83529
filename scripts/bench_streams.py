"""Streams in and out: do_get, the mapped get of a client on the same host, do_put."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock.client.client import Client
from scripts.bench_rows import Row, Sizes, Timed, compared, interleaved, rate
from scripts.bench_servers import Server

_ROWS = 1 << 16  # of 16 bytes: batches of 1 MiB
_DIFFERENT = 16  # batches, used in turn
SCHEMA = pa.schema({"id": pa.int64(), "value": pa.float64()})


def batches(mebibytes: int) -> Iterator[pa.RecordBatch]:
    """So many batches of 1 MiB; an iterator, so that a payload may be larger than memory."""
    random = np.random.default_rng(0)
    some = [
        pa.record_batch([random.integers(0, 2**62, _ROWS), random.random(_ROWS)], schema=SCHEMA)
        for _ in range(min(_DIFFERENT, mebibytes))
    ]
    for number in range(mebibytes):
        yield some[number % len(some)]


def gets(bare: Server, memory: Server, disk: Server, sizes: Sizes) -> Iterator[Row]:
    """do_get by tickets that were fetched before, as one `read_all` after the other."""
    for size in sizes.streams_mb:
        timed = {
            name: _reading(side, f"store/bench/get-{size}", size)
            for name, side in (("bare", bare), ("memory", memory), ("disk", disk))
        }
        seconds = interleaved(timed, sizes.repeats)
        for store in ("memory", "disk"):
            yield compared(f"do_get of {size} MiB, {store}", seconds["bare"], seconds[store], rate(size), 0.9)


def mapped(bare: Server, disk: Server, sizes: Sizes) -> Iterator[Row]:
    """`c.get(path).read_all()` beside the bare server's do_get: once as it is, once with every value summed up."""
    with penstock.connect(disk.url) as client:
        for size in sizes.streams_mb:
            for what, use, least in (
                (f"get of {size} MiB, mapped", _as_it_is, 4.0 if size == 16 else None),
                ("the same, and every value summed", _summed, None),
            ):
                seconds = interleaved(_mapping(bare, client, size, use), sizes.repeats)
                yield compared(what, seconds["bare"], seconds["ours"], rate(size), least)


def puts(bare: Server, memory: Server, disk: Server, sizes: Sizes) -> Iterator[Row]:
    """do_put of batches of 1 MiB until the server has said that it holds them; deleted after each repeat."""
    for size in sizes.puts_mb:
        data = list(batches(size))
        sides = (("bare", bare), ("memory", memory), ("disk", disk))
        seconds = interleaved({name: _putting(side, data) for name, side in sides}, sizes.repeats)
        for store, least in (("memory", 0.85), ("disk", 0.5)):
            promised = least if size > 1 else None
            yield compared(f"do_put of {size} MiB, {store}", seconds["bare"], seconds[store], rate(size), promised)


def _reading(side: Server, path: str, size: int) -> Timed:
    side.put(path, batches(size), SCHEMA)
    tickets = side.tickets(path)
    return _repeated(lambda: side.read(tickets), size)


def _mapping(bare: Server, client: Client, size: int, use: Callable[[pa.Table], Any]) -> dict[str, Timed]:
    path = f"store/bench/get-{size}"
    tickets = bare.tickets(path)
    return {
        "bare": _repeated(lambda: use(bare.read(tickets)[0]), size),
        "ours": _repeated(lambda: use(client.get(path).read_all()), size),
    }


def _repeated(work: Callable[[], Any], size: int) -> Timed:
    """Small work is done several times in one measurement, about 64 MiB of it."""
    times = math.ceil(64 / size)

    def timed() -> float:
        began = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - began) / times

    return timed


def _putting(side: Server, data: list[pa.RecordBatch]) -> Timed:
    def timed() -> float:
        began = time.perf_counter()
        side.put("store/bench/put", data, SCHEMA)
        taken = time.perf_counter() - began
        side.drop("store/bench/put")
        return taken

    return timed


def _as_it_is(table: pa.Table) -> pa.Table:
    return table


def _summed(table: pa.Table) -> list[Any]:
    return [pc.sum(column) for column in table.columns]
