"""The job's part of `make demo`: Spark writes splits, processes score them, one is killed, Spark reads the scores."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock.errors import NotFound
from penstock.pipeline import JobSummary, SparkSourceV2Config, WriteDataset
from penstock.text import format_table
from scripts.demo import paint, say
from scripts.demo_spark import ROWS, TRIPS, code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.client import Client
    from penstock.client.lease import Split

JOB, QUEUE, SOURCE, SCORED = "job/demo", "queue/demo/score", "store/demo/in", "store/demo/scored"
REPORT = Path("job.html")
SPLITS, WORKERS = 80, 2
MODEL_SECONDS = 0.2
"""For which a worker has a split: a model would, where there is one."""
KILLED_AT = 24
"""Splits that are done when a worker is killed."""
PATIENCE = 300.0
SUMS = ("count(*)", "count(distinct id)", "sum(id)", "bit_xor(xxhash64(id, score))")


def frame(spark: SparkSession) -> DataFrame:
    """Return the trips, in a partition for each split."""
    return spark.range(0, ROWS, 1, SPLITS).selectExpr(*(f"{made} AS {name}" for name, made in TRIPS.items()))


class Score:
    """What scores trips, as a model does; a copy of it is in each worker."""

    def process(self, split: Split) -> pa.Table:
        """Score the trips of a split."""
        time.sleep(MODEL_SECONDS)
        trips = split.payload.data
        return pa.table({"id": trips["id"], "score": pc.divide(trips["fare"], trips["passengers"].cast(pa.float64()))})


def strike(client: Client, ended: threading.Event) -> None:
    """Kill a worker that has splits, once some are done."""
    give_up = time.monotonic() + PATIENCE
    while not ended.wait(0.1) and time.monotonic() < give_up:
        with suppress(NotFound):  # the job has yet to make its queues
            done = client.call("describe", {"path": QUEUE})["queue"]["counts"]["done"]
            claimed = client.get(QUEUE, columns=["worker"], filter="state = 'claimed'").read_all()["worker"].to_pylist()
            names = {f"penstock-{worker.rpartition('/')[2]}" for worker in claimed}  # of host:driver/score-1
            pids = [child.pid for child in multiprocessing.active_children() if child.name in names]
            if done >= KILLED_AT and pids and pids[0]:
                os.kill(pids[0], signal.SIGKILL)
                say(paint(f"\n$ kill -9 {pids[0]} (a worker, when {done} splits are done)", "1;31"))
                say("other workers get its split at once, and those that it had claimed ahead\n")
                return


def run(client: Client) -> JobSummary:
    """Run the job, and kill one of its workers."""
    code(
        'job = penstock.Job("demo")',
        'job.stage(Stage("in", SparkSourceV2Config(dataframe_fn=frame)))',
        f'job.stage(Stage("score", Score(), workers={WORKERS}), after="in")  # {MODEL_SECONDS:g} s with a model',
        f'job.stage(Stage("out", WriteDataset("{SCORED}")), after="score")',
        'job.run(workers="processes")',
    )
    job = penstock.Job("demo")
    job.stage(penstock.Stage("in", SparkSourceV2Config(dataframe_fn=frame)))
    job.stage(penstock.Stage("score", Score(), workers=WORKERS), after="in")
    job.stage(penstock.Stage("out", WriteDataset(SCORED)), after="score")
    ended = threading.Event()
    striker = threading.Thread(target=strike, args=(client, ended), name="demo-strike")
    striker.start()
    try:
        summary = job.run(workers="processes")
    finally:
        ended.set()
        striker.join()
    say(f"{summary}\n")
    code(f'job.report("{REPORT}")  # who worked when, for a browser')
    job.report(REPORT)
    return summary


def closing(df: DataFrame, scored: DataFrame, summary: JobSummary) -> str:
    """Return the table at the end; end the demo where a row is lost, doubled or another than Spark's own."""
    sums = tuple(scored.selectExpr(*SUMS).first() or ())
    rows, ids = sums[:2]
    lost, doubled = ROWS - ids, rows - ids
    if lost or doubled:
        raise SystemExit(f"{lost:,} rows are lost, {doubled:,} doubled")
    if sums != tuple(df.selectExpr("id", "fare / passengers AS score").selectExpr(*SUMS).first() or ()):
        raise SystemExit("the scores aren't those that Spark computes itself")
    score = summary.stages[0]
    counts = (score.done, rows, score.retries, lost, doubled, 1)
    heads = ("splits", "rows", "retries", "lost", "doubled", "kill -9", "seconds")
    return format_table(heads, [(*(f"{count:,}" for count in counts), f"{summary.seconds:.0f}")], right=heads)


def show(spark: SparkSession) -> None:
    """Show it."""
    warnings = logging.StreamHandler(sys.stdout)  # that a worker has died
    logging.getLogger().addHandler(warnings)
    with penstock.connect() as client:
        try:
            summary = run(client)
        finally:
            logging.getLogger().removeHandler(warnings)
        code(f'scored = penstock.read(spark, "{SCORED}")')
        say(closing(frame(spark), penstock.read(spark, SCORED), summary))
        say("the scores are those that Spark computes itself\n")
        for path in (JOB, SOURCE, SCORED):
            client.delete(path)
