"""Jobs on processes, and what does the same without a server: the sides of docs/benchmarks-jobs.md that have stages.

The operators are here because a worker's process imports them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock import Job, Stage
from penstock.client.lease import Split
from penstock.errors import NotFound
from penstock.pipeline import Call, WriteDataset
from scripts.bench.bench import Bench, Case, Side
from scripts.bench.figures import Line, Measure, Sample
from scripts.bench.servers import penstock_server
from scripts.bench.watch import peaks

JOB, POOL, RAY_DATA = "job", "a pool that fsyncs files", "Ray Data's map_batches"
SLEEPING, TENTH, RAY = "job that sleeps", "a tenth of the splits", "Ray and Ray Data"
_SPLIT, _SMALL, _WORKERS, _SLEEP = 100_000, 1_000, 2, 0.01
_CHUNK = 8  # files that a process of the pool is given at once
_serial = itertools.count(1)


def cases(rounds: int, splits: int, growth: Sequence[int]) -> Iterator[Case]:
    """Yield the cases."""
    sides: dict[str, Side] = {
        JOB: partial(_through_stages, count=splits),
        POOL: partial(_through_files, count=splits),
        RAY_DATA: partial(_by_ray, name="map_twice", count=splits),
    }
    line = partial(Line, "Three stages", f"{splits:,} splits of 100 kB", JOB, unit="/s", amount=splits, ratio="speed")
    warm_up = rounds > 1
    lines = [line(beside=POOL, promise=(">=", 0.7)), line(beside=RAY_DATA, promise=(">=", 3))]
    yield Case(sides, lines, rounds, warm_up)
    what = "the workers' time that isn't the operator's"
    lost = Line("Three stages", what, SLEEPING, unit="", of="lost", promise=("<", 0.05))
    yield Case({SLEEPING: partial(_asleep, count=max(20, splits // 10))}, [lost], rounds, warm_up=False)
    yield Case(
        {JOB: _first_split, RAY: partial(_by_ray, name="first_block")},
        [Line("Start", "from run() to the first split", JOB, RAY, promise=("<", 2.0), ratio="speed")],
        rounds,
        warm_up,
    )
    for few, many in itertools.pairwise(growth):
        sides = {TENTH: partial(_grown, count=few), JOB: partial(_grown, count=many)}
        lines = [
            Line("Growth", f"{many:,} splits: time", JOB, TENTH, ratio="time", promise=("<=", 11)),
            Line(
                "Growth", f"{many:,} splits: memory of the server", JOB, TENTH, "MiB", of="server",
                promise=("< more", 32 << 20),
            ),
        ]  # fmt: skip
        yield Case(sides, lines, min(3, rounds), warm_up=False)


# --- operators -----------------------------------------------------------------------------


def keep(split: Split) -> Any:
    """Return a split as it is."""
    return split.payload


@dataclass
class Sleeps:
    """Sleeps, and notes in a folder when it began and ended, and for how long it slept."""

    folder: Path

    def open(self) -> None:
        self.began = self.slept = 0.0
        self.ended = 0.0

    def process(self, split: Split) -> None:
        began = time.monotonic()
        self.began = self.began or began
        time.sleep(_SLEEP)
        self.ended = time.monotonic()
        self.slept += self.ended - began

    def close(self) -> None:
        if self.began:
            (self.folder / f"{os.getpid()}").write_text(f"{self.slept} {self.ended - self.began}")


@dataclass
class Stamps:
    """Notes in a file when it was first called."""

    file: Path

    def process(self, split: Split) -> None:
        if not self.file.exists():
            self.file.write_text(str(time.time()))


# --- jobs ----------------------------------------------------------------------------------


def _payload(size: int, number: int = 0) -> pa.Table:
    return pa.table({"x": pa.array(range(number, number + size // 8), pa.int64())})


@contextmanager
def _job(url: str, stages: Sequence[Stage]) -> Iterator[Job]:
    """Give a job whose stages follow each other; it goes at the end, with what it has written."""
    job = Job(f"bench-{next(_serial)}", url=url)
    above = ""
    for stage in stages:
        job.stage(stage, after=above or ())
        above = stage.stage_id
    yield job
    with penstock.connect(url) as client:
        client.delete(job.path)
        for stage in stages:
            if isinstance(stage.what, WriteDataset):
                try:
                    client.delete(stage.what.path)
                except NotFound:
                    continue


def _three(blocks: Sequence[pa.Table], path: str) -> list[Stage]:
    return [Stage("in", blocks), Stage("score", keep), Stage("out", WriteDataset(path))]


def _through_stages(bench: Bench, count: int) -> Measure:
    """Splits from the driver's memory through an operator to a dataset, a process for each of the two."""
    server, blocks = bench.penstock(), [_payload(_SPLIT, number) for number in range(count)]

    def measure() -> Sample:
        bench.settle()
        with _job(server.url, _three(blocks, f"store/bench/jobs-{next(_serial)}")) as job:
            began = time.perf_counter()
            summary = job.run("processes", progress=False)
            seconds = time.perf_counter() - began
        assert summary.stages[-1].done == count, summary
        return {"seconds": [seconds]}

    return measure


def _asleep(bench: Bench, count: int) -> Measure:
    server, blocks = bench.penstock(), [_payload(_SPLIT)] * count

    def measure() -> Sample:
        folder = bench.folder / f"asleep-{next(_serial)}"
        folder.mkdir()
        with _job(server.url, [Stage("in", blocks), Stage("out", Sleeps(folder), workers=_WORKERS)]) as job:
            job.run("processes", progress=False)
        noted = [list(map(float, file.read_text().split())) for file in folder.iterdir()]
        slept, lasted = map(sum, zip(*noted, strict=True))
        return {"lost": [1 - slept / lasted]}

    return measure


def _first_split(bench: Bench) -> Measure:
    server = bench.penstock()

    def measure() -> Sample:
        file = bench.folder / f"first-{next(_serial)}"
        stages = [Stage("in", [_payload(_SPLIT)]), Stage("out", Call(Stamps(file).process))]
        with _job(server.url, stages) as job:
            began = time.time()
            job.run("processes", progress=False)
        return {"seconds": [float(file.read_text()) - began]}

    return measure


def _grown(bench: Bench, count: int) -> Measure:
    """Splits of 1 kB at a server of their own: allocators keep what they once had."""

    def measure() -> Sample:
        folder = bench.folder / f"server-{next(_serial)}"
        folder.mkdir()
        with ExitStack() as stack:
            server = stack.enter_context(penstock_server(folder / "data"))
            job = stack.enter_context(_job(server.url, _three([_payload(_SMALL)] * count, "store/bench/jobs")))
            most = stack.enter_context(peaks({"server": server.pid}))
            began = time.perf_counter()
            job.run("processes", progress=False)
            seconds = time.perf_counter() - began
        shutil.rmtree(folder)
        return {"seconds": [seconds], "server": [most["server"]]}

    return measure


# --- beside them ---------------------------------------------------------------------------


def _by_ray(bench: Bench, name: str, count: int = 1) -> Measure:
    peer = bench.ray
    return lambda: {"seconds": [peer(name, count, _SPLIT)]}


def _through_files(bench: Bench, count: int) -> Measure:
    """Write each block to a file, and that to a second and a third one: no queue, no lease, no resume."""
    blocks = [_payload(_SPLIT, number) for number in range(count)]

    def measure() -> Sample:
        folder = bench.folder / f"files-{next(_serial)}"
        folder.mkdir()
        bench.settle()
        began = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(_WORKERS) as pool:
            for stage in range(3):
                given = ((folder, stage, number, blocks[number] if stage == 0 else None) for number in range(count))
                for _ in pool.imap_unordered(_pass_on, given, chunksize=_CHUNK):
                    pass
        seconds = time.perf_counter() - began
        shutil.rmtree(folder)
        return {"seconds": [seconds]}

    return measure


def _pass_on(given: tuple[Path, int, int, pa.Table | None]) -> None:
    folder, stage, number, table = given
    before = folder / f"{stage - 1}-{number}"
    if table is None:
        with pa.memory_map(str(before)) as file:
            table = pa.ipc.open_stream(file).read_all()
    with (folder / f"{stage}-{number}").open("wb") as output:
        with pa.ipc.new_stream(output, table.schema) as writer:
            writer.write_table(table)
        output.flush()
        os.fsync(output.fileno())
    if stage:
        before.unlink()
