"""The queue's part of `make demo`: Spark writes splits, workers score them, one is killed, Spark reads the scores."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

import penstock
from penstock.errors import NotFound
from penstock.text import counted, format_table
from penstock.wire.actions import DESCRIBE, Target
from scripts.demo import paint, say
from scripts.demo_spark import PARTITIONS, ROWS, TRIPS, code, missing, session, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.client import Client
    from penstock.wire.queue import QueueCounts

SOURCE, SCORED = "store/demo/in", "store/demo/scored"
IN, OUT = "queue/demo/in", "queue/demo/out"
SPLIT_ROWS = 25_000
MODEL_SECONDS = 0.4
"""For which a worker has a split: a model would, where there is one."""
KILLED_AT = 0.3
"""Which part of the splits is done when a worker is killed."""
PATIENCE = 300.0
WORKERS = 2
SCORE = "fare / passengers"
"""In Spark's words; `score` has it in Arrow's."""
SUMS = ("count(*)", "count(distinct id)", "sum(id)", "bit_xor(xxhash64(id, score))")


def score(trips: pa.Table) -> pa.Table:
    """Score trips, as a model does."""
    time.sleep(MODEL_SECONDS)
    return pa.table({"id": trips["id"], "score": pc.divide(trips["fare"], trips["passengers"].cast(pa.float64()))})


def work() -> None:
    """Score splits until the queue is complete: a worker's whole program, but for the notes of split and tries."""
    with penstock.connect() as c:
        for lease in c.claim(IN, to=[OUT]):
            with lease as split:
                scored = score(split.payload.data)
                scored = scored.append_column("split", pa.repeat(split.message.split_id, len(scored)))
                lease.forward(OUT, scored.append_column("tries", pa.repeat(lease.tries, len(scored))))


def collect() -> None:
    """Append what the workers forward to a dataset: a message is a run, which is written once."""
    with penstock.connect() as c:
        for lease in c.claim(OUT):
            with lease as split:
                c.put(SCORED, split.payload.data, mode="append", run=split.message.message_id)


class Processes:
    """Processes that run this script's programs, by their ids."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, program: str) -> None:
        """Start a program: `work` or `collect`."""
        process = subprocess.Popen([sys.executable, __file__, program])
        self._running[process.pid] = process

    def kill(self, pid: int) -> None:
        """End a process without notice."""
        process = self._running.pop(pid)
        process.kill()
        process.wait()

    def check(self) -> None:
        """End the demo if a process has failed."""
        if failed := [pid for pid, process in self._running.items() if process.poll()]:
            raise SystemExit(f"process {failed[0]} failed")

    def join(self) -> None:
        """Wait for all: they end by themselves."""
        for process in self._running.values():
            process.wait(PATIENCE)
        self.check()

    def close(self) -> None:
        """Kill what still runs."""
        for pid in list(self._running):
            self.kill(pid)


def counts_of(client: Client, queue: str) -> QueueCounts | None:
    """Return a queue's counts, None before there is one."""
    try:
        description = client.call(DESCRIBE, Target(queue)).queue
    except NotFound:
        return None
    return description.counts if description else None


def strike(client: Client, processes: Processes, done: int) -> bool:
    """Kill a worker that holds leases; return whether there was one."""
    claimed = client.get(IN, columns=["worker"], filter="state = 'claimed'", limit=1).read_all()["worker"].to_pylist()
    for worker in claimed:
        pid = int(worker.rpartition(":")[2])
        processes.kill(pid)
        held = client.get(IN, filter=f"state = 'claimed' and worker = '{worker}'").read_all().num_rows
        say(paint(f"\n$ kill -9 {pid} (a worker, when {done} splits are done)", "1;31"))
        say(f"it holds {counted(held, 'split')}: 30 s after its last sign of life another worker gets them\n")
    return bool(claimed)


def watch(client: Client, processes: Processes) -> None:
    """Wait until all is scored and collected; on the way kill a worker."""
    collecting = struck = False
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        processes.check()
        scoring, collected = counts_of(client, IN), counts_of(client, OUT)
        assert scoring is not None
        if sys.stdout.isatty():
            line = f"pending {scoring.pending:>3}   claimed {scoring.claimed:>2}   done {scoring.done:>3}"
            sys.stdout.write(f"\r  {line} of {scoring.pushed}   collected {collected.done if collected else 0:>3} ")
            sys.stdout.flush()
        if collected is not None and not collecting:
            processes.start("collect")
            collecting = True
        if not struck and scoring.done >= scoring.pushed * KILLED_AT:
            struck = strike(client, processes, scoring.done)
        if collected is not None and collected.state == "complete":
            break
        time.sleep(0.2)
    else:
        raise SystemExit(f"after {PATIENCE:g} s the scores aren't collected: {scoring}, {collected}")
    processes.join()
    if sys.stdout.isatty():
        say("\n")


def closing(df: DataFrame, scored: DataFrame, splits: int, seconds: float) -> str:
    """Return the table at the end; end the demo where a row is lost, doubled or another than Spark's own."""
    sums = tuple(scored.selectExpr(*SUMS).first() or ())
    rows, ids = sums[:2]
    lost, doubled = ROWS - ids, rows - ids
    if lost or doubled:
        raise SystemExit(f"{lost:,} rows are lost, {doubled:,} doubled")
    if sums != tuple(df.selectExpr("id", f"{SCORE} AS score").selectExpr(*SUMS).first() or ()):
        raise SystemExit("the scores aren't those that Spark computes itself")
    redelivered = scored.where("tries > 1").select("split").distinct().count()
    counts = (splits, rows, redelivered, lost, doubled, 1)
    heads = ("splits", "rows", "redelivered", "lost", "doubled", "kill -9", "seconds")
    return format_table(heads, [(*(f"{count:,}" for count in counts), f"{seconds:.0f}")], right=heads)


def hand_off(client: Client, spark: SparkSession, processes: Processes) -> None:
    """Write, score, kill, collect, read."""
    df = spark.range(0, ROWS, 1, PARTITIONS).selectExpr(*(f"{made} AS {name}" for name, made in TRIPS.items()))
    code(f'penstock.write(df, "{SOURCE}", queue="{IN}", split_rows={SPLIT_ROWS:_})')
    began = time.monotonic()
    written = penstock.write(df, SOURCE, queue=IN, split_rows=SPLIT_ROWS)
    say(f"{written}\n")
    say(f"{WORKERS} processes score the splits, each {MODEL_SECONDS:g} s with a model:")
    code(
        f'for lease in c.claim("{IN}", to=["{OUT}"]):',
        "    with lease as split:",
        f'        lease.forward("{OUT}", score(split.payload.data))',
    )
    say("and one collects the scores:")
    code(
        f'for lease in c.claim("{OUT}"):',
        "    with lease as split:",
        f'        c.put("{SCORED}", split.payload.data, mode="append", run=split.message.message_id)',
    )
    for _ in range(WORKERS):
        processes.start("work")
    watch(client, processes)
    seconds = time.monotonic() - began
    code(f'scored = penstock.read(spark, "{SCORED}")')
    say(closing(df, penstock.read(spark, SCORED), written.parts, seconds))
    say("the scores are those that Spark computes itself\n")


def main() -> None:
    """Show it, or say what is missing."""
    if lack := missing():
        say(f"Without Spark nothing fills the queue: {lack}.")
        return
    processes = Processes()
    try:
        with penstock.connect() as client, session() as spark:
            started(spark)
            hand_off(client, spark, processes)
            for path in (IN, OUT, SOURCE, SCORED):
                client.delete(path)
    finally:
        processes.close()


if __name__ == "__main__":
    {"work": work, "collect": collect}.get("".join(sys.argv[1:]), main)()
