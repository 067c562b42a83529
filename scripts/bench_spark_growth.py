"""More data: ten times the rows may take ten times as long, and no more memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from scripts import bench_spark_sides as sides
from scripts.bench_servers import peak
from scripts.bench_spark_page import Line, compared, memory
from scripts.bench_spark_session import Bench, Shape, integers

_MIB = 1 << 20
_SERVER_MORE, _DRIVER_MORE = 32 * _MIB, 16 * _MIB
"""What counts as no more: a server of two streams has peaks of about 100 MiB that differ by so much between rounds."""
_TENTH = "a tenth of the rows"
_PARTITION = 1_500_000  # rows; ten times the data are ten times the partitions


@dataclass(frozen=True, slots=True)
class Watched:
    """What the rounds took."""

    seconds: list[float] = field(default_factory=list)
    server: list[int] = field(default_factory=list)
    driver: list[int] = field(default_factory=list)

    def add(self, bench: Bench, work: Callable[[], object]) -> None:
        """One round."""
        bench.settle()
        with peak(bench.disk.pid, os.getpid()) as most:
            began = time.perf_counter()
            work()
            self.seconds.append(time.perf_counter() - began)
        self.server.append(most[bench.disk.pid])
        self.driver.append(most[os.getpid()])

    def forget_the_first(self) -> None:
        """It was to warm up."""
        for values in (self.seconds, self.server, self.driver):
            del values[0]


def growth(bench: Bench, rows: int, rounds: int) -> Iterator[Line]:
    """Ten times the rows out and in, in turn with one time; then what the driver's memory does by the other way."""
    small, large = _shape(rows), _shape(10 * rows)
    clear = {shape: sides.dropped(bench.disk, shape) for shape in (small, large)}
    once, tenfold = Watched(), Watched()
    for _ in range(rounds + 1):
        for shape, watched in ((small, once), (large, tenfold)):
            watched.add(bench, partial(sides.write_whole, bench, shape))
            clear[shape]()
    yield from _lines(sides.DISK, once, tenfold)

    paths = {small: "store/bench/small", large: "store/bench/large"}
    for shape, path in paths.items():
        sides.kept(bench, shape, path)
    once, tenfold = Watched(), Watched()
    for _ in range(rounds + 1):
        for shape, watched in ((small, once), (large, tenfold)):
            watched.add(bench, partial(sides.read_whole, bench, shape, paths[shape]))
    yield from _lines(sides.READ, once, tenfold)


def at_the_driver(bench: Bench, rows: int) -> Iterator[Line]:
    """What its memory does where the rows pass through it: of three times the rows, ten might be too much for it."""
    found = []
    for shape in (_shape(rows), _shape(3 * rows)):
        watched = Watched()
        watched.add(bench, partial(sides.write_collected, bench, shape))
        sides.dropped(bench.disk, shape)()
        found.append(watched.driver[0])
    yield memory(f"{sides.AT_THE_DRIVER}: memory of the driver's Python", found[1], found[0], "a third of the rows")


def _lines(what: str, once: Watched, tenfold: Watched) -> Iterator[Line]:
    for watched in (once, tenfold):
        watched.forget_the_first()
    yield compared(f"{what}: time", tenfold.seconds, _TENTH, once.seconds, most=11)
    for who, large, small, more in (
        ("server", tenfold.server, once.server, _SERVER_MORE),
        ("driver's Python", tenfold.driver, once.driver, _DRIVER_MORE),
    ):
        most = statistics.median(large), statistics.median(small)
        yield memory(f"{what}: memory of the {who}", *most, _TENTH, more)


def _shape(rows: int) -> Shape:
    return integers(rows, max(1, rows // _PARTITION))
