"""What a server takes of its machine: memory, threads, descriptors; many small calls; what imports cost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from scripts.bench_rows import Row, Sizes, Timed, compared, interleaved, limited, mebibytes
from scripts.bench_servers import ENVIRONMENT, Server, penstock
from scripts.bench_streams import SCHEMA, batches

_BLOCKS = 10
_FLIGHT, _CONNECT = "import pyarrow.flight", "import penstock; penstock.connect"
_MIB = 1 << 20
_SETTLE = 10.0  # seconds in which threads and descriptors of the last calls may go


def large(data: Path, sizes: Sizes) -> Iterator[Row]:
    """A fresh server: idle, then a payload in from a generator, then the same payload out by do_get."""
    words = f"{sizes.large_mb / 1024:g} GiB" if sizes.large_mb >= 1024 else f"{sizes.large_mb} MiB"
    with penstock(data, "disk:") as server:
        yield limited("an idle server (VmRSS)", server.memory("VmRSS"), 150 * _MIB, mebibytes)
        with server.grown("RssAnon") as growth:
            server.put("store/bench/large", batches(sizes.large_mb), SCHEMA)
        yield limited(f"growth while {words} come in by do_put, disk (RssAnon)", growth[0], 128 * _MIB, mebibytes)
        tickets = server.tickets("store/bench/large")
        with server.grown("RssAnon") as growth:
            rows = sum(_count(server, ticket) for ticket in tickets)
        assert rows * 16 == sizes.large_mb * _MIB
        yield limited(f"growth while {words} go out by do_get, disk (RssAnon)", growth[0], 64 * _MIB, mebibytes)


def small(bare: Server, disk: Server, sizes: Sizes) -> Iterator[Row]:
    """Many do_gets of ten rows by one client, in ten blocks; then what is left of them."""
    batch = pa.record_batch({"n": list(range(10))})
    for side in (bare, disk):
        side.put("store/bench/small", [batch], batch.schema)
    block = sizes.small_gets // _BLOCKS
    sides = {"bare": _small_gets(bare, block), "ours": _small_gets(disk, block)}
    for timed in sides.values():
        timed()
    threads, descriptors = disk.threads(), disk.descriptors()
    seconds = interleaved(sides, _BLOCKS)
    yield compared(
        f"{sizes.small_gets:,} do_gets of 10 rows",
        seconds["bare"],
        seconds["ours"],
        lambda s: f"{block / s:,.0f}/s",
        0.7,
    )
    give_up = time.monotonic() + _SETTLE
    while (disk.threads() > threads or disk.descriptors() > descriptors) and time.monotonic() < give_up:
        time.sleep(0.05)
    yield _back("threads of the server afterwards", threads, disk.threads())
    yield _back("descriptors of the server afterwards", descriptors, disk.descriptors())


def imports(sizes: Sizes) -> Iterator[Row]:
    """Fresh interpreters, until they have ended."""
    without = "import sys; sys.modules['numpy'] = None; "
    for what, base, ours, most in (
        ("import penstock, beside an empty program", "pass", "import penstock", 1.2),
        ("penstock.connect, beside import pyarrow.flight", _FLIGHT, _CONNECT, 1.2),
        ("the same where numpy isn't installed", without + _FLIGHT, without + _CONNECT, None),
    ):
        seconds = interleaved({"base": _starting(base), "ours": _starting(ours)}, sizes.repeats)
        least = None if most is None else 1 / most
        yield compared(what, seconds["base"], seconds["ours"], lambda s: f"{s * 1000:,.0f} ms", least)


def _count(server: Server, ticket: object) -> int:
    """The rows that a ticket names, dropped as they come."""
    return sum(chunk.data.num_rows for chunk in server.client.do_get(ticket))


def _small_gets(side: Server, times: int) -> Timed:
    tickets = side.tickets("store/bench/small") * times

    def timed() -> float:
        began = time.perf_counter()
        side.read(tickets)
        return time.perf_counter() - began

    return timed


def _back(what: str, before: int, after: int) -> Row:
    return Row(what, "", f"{after}", promise=f"<= {before}, as before", held=after <= before)


def _starting(program: str) -> Timed:
    def timed() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT)
        return time.perf_counter() - began

    return timed
