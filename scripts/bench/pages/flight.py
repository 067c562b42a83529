"""docs/benchmarks.md: puts and gets beside plain pyarrow."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock
from scripts.bench.bench import DISK, MEMORY, Bench, Case, Page
from scripts.bench.figures import Line, Measure, Promise, Sample, timed
from scripts.bench.servers import Server, penstock_server
from scripts.bench.watch import memory, peaks

Use = Callable[[pa.Table], object]
BARE = "bare"
FLIGHT, CONNECT = "import pyarrow.flight", "import penstock; penstock.connect"
NO_NUMPY, WITHOUT_NUMPY = "import sys; sys.modules['numpy'] = None; ", "the same where numpy isn't installed"
_BLOCKS = 10
_PATIENCE = 10.0  # seconds in which threads and descriptors of the last calls may go
_ROWS = 1 << 16  # of 16 bytes: batches of 1 MiB
_DIFFERENT = 16  # batches, used in turn
_SCHEMA = pa.schema({"id": pa.int64(), "value": pa.float64()})


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; streams in MiB."""

    rounds: int
    gets: tuple[int, ...]
    puts: tuple[int, ...]
    large: int  # the payload whose way through the server is watched
    small_gets: int
    appends: int  # to one dataset, before the last ones are measured
    appended: int  # appends of a round

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return (self.large + 4 * max(self.puts)) * 6 // 5


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    large = f"{sizes.large / 1024:g} GiB" if sizes.large >= 1024 else f"{sizes.large} MiB"
    lines = [
        Line("Memory", what, DISK, unit="MiB", of=of, promise=("<", limit << 20))
        for what, of, limit in (
            ("an idle server (VmRSS)", "idle", 150),
            (f"growth while {large} come in by do_put, disk (RssAnon)", "in", 128),
            (f"growth while {large} go out by do_get, disk (RssAnon)", "out", 64),
        )
    ]
    yield Case({DISK: partial(_fresh_server, mib=sizes.large)}, lines, 1, warm_up=False)
    for mib in sizes.gets:
        sides = {name: partial(_get, name=name, mib=mib) for name in (BARE, MEMORY, DISK)}
        speed = partial(Line, "do_get", beside=BARE, unit="MiB/s", amount=mib, ratio="speed")
        lines = [speed(f"do_get of {mib} MiB, {store}", store, promise=(">=", 0.9)) for store in (MEMORY, DISK)]
        yield Case(sides, lines, sizes.rounds)
    for mib in sizes.gets:
        speed = partial(Line, "get on the same host", beside=BARE, unit="MiB/s", amount=mib, ratio="speed")
        line = speed(f"get of {mib} MiB, mapped", DISK, promise=(">=", 4) if mib == 16 else None)
        yield Case({BARE: partial(_get, name=BARE, mib=mib), DISK: partial(_map, mib=mib)}, [line], sizes.rounds)
        sides = {BARE: partial(_get, name=BARE, mib=mib, use=_sum), DISK: partial(_map, mib=mib, use=_sum)}
        yield Case(sides, [speed(f"get of {mib} MiB, mapped, every value summed", DISK)], sizes.rounds)
    largest = max(sizes.gets)
    for how, store in (("sent", MEMORY), ("mapped", DISK)):
        all_rows, some = "all rows", f"1 % of the rows of {largest} MiB, {how}"
        sides = {
            all_rows: partial(_scan, store=store, mib=largest, use=_sum),
            some: partial(_scan, store=store, mib=largest, use=_sum, below=0.01),
        }
        least: Promise | None = (">=", 5) if store == MEMORY else None
        yield Case(sides, [Line("Scans", some, some, all_rows, "ms", ratio="speed", promise=least)], sizes.rounds)
    for mib in sizes.puts:
        sides = {name: partial(_put, name=name, mib=mib) for name in (BARE, MEMORY, DISK)}
        speed = partial(Line, "do_put", beside=BARE, unit="MiB/s", amount=mib, ratio="speed")
        lines = [
            speed(f"do_put of {mib} MiB, {store}", store, promise=(">=", least) if mib > 1 else None)
            for store, least in ((MEMORY, 0.85), (DISK, 0.5))
        ]
        yield Case(sides, lines, sizes.rounds)
    block = sizes.small_gets // _BLOCKS
    sides = {name: partial(_small_gets, name=name, gets=block) for name in (BARE, DISK)}
    what = f"{sizes.small_gets:,} do_gets of 10 rows"
    line = Line("Small calls", what, DISK, BARE, "/s", block, ratio="speed", promise=(">=", 0.7))
    yield Case(sides, [line], _BLOCKS)
    first, last = "to a new dataset", f"behind {sizes.appends:,}"
    sides = {
        name: partial(_append, before=before, number=sizes.appended)
        for name, before in ((first, 0), (last, sizes.appends))
    }
    line = Line("Appends", f"an append {last}, p50", last, first, "ms", ratio="time", promise=("<=", 1.2), of="each")
    yield Case(sides, [line], min(5, sizes.rounds))
    before, after = "after one block", "after all blocks"
    sides = {name: partial(_left_behind, gets=gets) for name, gets in ((before, block), (after, sizes.small_gets))}
    lines = [
        Line("Small calls", f"{of} of the server, {after}", after, before, "", of=of, promise=("< more", 1))
        for of in ("threads", "descriptors")
    ]
    yield Case(sides, lines, 1, warm_up=False)
    for what, program, beside, base in (
        ("import penstock", "import penstock", "an empty program", ""),
        ("penstock.connect", CONNECT, FLIGHT, FLIGHT),
        (WITHOUT_NUMPY, NO_NUMPY + CONNECT, FLIGHT, NO_NUMPY + FLIGHT),
    ):
        sides = {beside: partial(_start, program=base), what: partial(_start, program=program)}
        promise: Promise | None = None if what == WITHOUT_NUMPY else (">=", 1 / 1.2)
        yield Case(sides, [Line("Imports", what, what, beside, "ms", ratio="speed", promise=promise)], sizes.rounds)


def _fresh_server(bench: Bench, mib: int) -> Measure:
    """Watch a server: idle, then while a payload comes in from a generator, and while it goes out by do_get."""

    def measure() -> Sample:
        with penstock_server(bench.folder / "fresh") as server:
            idle, private = memory(server.pid, "VmRSS"), memory(server.pid)
            with peaks({"server": server.pid}, every=0.005) as most_in:
                server.put("store/bench/large", _batches(mib), _SCHEMA)
            tickets, private_full = server.tickets("store/bench/large"), memory(server.pid)
            with peaks({"server": server.pid}, every=0.005) as most_out:
                rows = sum(chunk.data.num_rows for ticket in tickets for chunk in server.client.do_get(ticket))
            assert rows == mib * _ROWS
        shutil.rmtree(bench.folder / "fresh")
        return {"idle": [idle], "in": [most_in["server"] - private], "out": [most_out["server"] - private_full]}

    return measure


def _get(bench: Bench, name: str, mib: int, use: Use = len) -> Measure:
    server, path = _stored(bench, name, mib)
    tickets = server.tickets(path)
    return timed(lambda: [use(table) for table in server.read(tickets)], times=math.ceil(64 / mib))


def _map(bench: Bench, mib: int, use: Use = len) -> Measure:
    server, path = _stored(bench, DISK, mib)
    client = bench.contexts.enter_context(penstock.connect(server.url))
    return timed(lambda: use(client.get(path).read_all()), times=math.ceil(64 / mib))


def _scan(bench: Bench, store: str, mib: int, use: Use, below: float | None = None) -> Measure:
    server, path = _stored(bench, store, mib)
    dataset = bench.contexts.enter_context(penstock.connect(server.url)).dataset(path)
    wanted = None if below is None else pc.field("value") < below
    return timed(lambda: use(dataset.to_table(filter=wanted)))


def _sum(table: pa.Table) -> list[pa.Scalar[Any]]:
    return [pc.sum(column) for column in table.columns]


def _put(bench: Bench, name: str, mib: int) -> Measure:
    server, batches, path = _server(bench, name), list(_batches(mib)), "store/bench/put"
    return timed(lambda: server.put(path, batches, _SCHEMA), clear=lambda: server.drop(path))


def _small_gets(bench: Bench, name: str, gets: int) -> Measure:
    server, path, batch = _server(bench, name), "store/bench/small", pa.record_batch({"n": list(range(10))})
    bench.once(f"{name} {path}", lambda: server.put(path, [batch], batch.schema))
    tickets = server.tickets(path) * gets
    return timed(lambda: server.read(tickets))


def _append(bench: Bench, before: int, number: int) -> Measure:
    """Measure appends of a row each, to a new dataset or to one that has had many before."""
    client = bench.contexts.enter_context(penstock.connect(bench.penstock().url))
    row, numbers = pa.table({"n": [1]}), itertools.count()

    def append(path: str) -> float:
        began = time.perf_counter()
        client.put(path, row, mode="append")
        return time.perf_counter() - began

    def measure() -> Sample:
        path = "store/bench/appended" if before else f"store/bench/new-{next(numbers)}"
        if before:
            bench.once(path, lambda: [append(path) for _ in range(before)])
        bench.settle()
        return {"each": [append(path) for _ in range(number)]}

    return measure


def _left_behind(bench: Bench, gets: int) -> Measure:
    """Count the server's threads and descriptors after so many small gets, once those of the last calls are gone."""
    process, read = f"/proc/{bench.penstock().pid}", _small_gets(bench, DISK, gets)

    def counts() -> dict[str, int]:
        return {"threads": len(os.listdir(f"{process}/task")), "descriptors": len(os.listdir(f"{process}/fd"))}

    def measure() -> Sample:
        before, give_up = counts(), time.monotonic() + _PATIENCE
        read()
        while any(counts()[what] > before[what] for what in before) and time.monotonic() < give_up:
            time.sleep(0.05)
        return {what: [number] for what, number in counts().items()}

    return measure


def _start(bench: Bench, program: str) -> Measure:
    return timed(lambda: subprocess.run([sys.executable, "-c", program], check=True))


def _server(bench: Bench, name: str) -> Server:
    return bench.bare if name == BARE else bench.penstock(name)


def _stored(bench: Bench, name: str, mib: int) -> tuple[Server, str]:
    """Put a dataset that stays, once, and return its server and its path."""
    server, path = _server(bench, name), f"store/bench/get-{mib}"
    bench.once(f"{name} {path}", lambda: server.put(path, _batches(mib), _SCHEMA))
    return server, path


def _batches(mib: int) -> Iterator[pa.RecordBatch]:
    """Yield so many batches of 1 MiB; a payload may be larger than memory."""
    random = np.random.default_rng(0)
    some = [
        pa.record_batch([random.integers(0, 2**62, _ROWS), random.random(_ROWS)], schema=_SCHEMA)
        for _ in range(min(_DIFFERENT, mib))
    ]
    yield from (some[number % len(some)] for number in range(mib))


PAGE = Page(
    output="docs/benchmarks.md",
    command="make bench",
    sizes={
        "all": Sizes(15, (1, 16, 128), (1, 16, 64, 256), 4096, 10_000, 50_000, 500),
        "quick": Sizes(7, (1, 16, 128), (1, 16, 64, 256), 512, 10_000, 5_000, 200),
        "smoke": Sizes(2, (1, 2), (1, 2), 16, 100, 20, 3),
    },
    cases=cases,
    others=frozenset({BARE, FLIGHT, "an empty program"}),
)
