"""The stream's part of `make demo`: a topic streams into a dataset, and the server is killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock.client.client import Client
from penstock.errors import NotFound
from penstock.text import format_table
from scripts.demo import Server, paint, say
from scripts.demo_spark import code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS, EACH = 300_000, 1_000
SECONDS = 12.0
"""For which the producer publishes."""
KILLED_AT, BACK_AFTER = 0.4, 1.5
"""Which part of the events is published when the server is killed, and for how many seconds it is away."""
PATIENCE = 300.0
TOPIC, DATASET = "topic/demo/orders", "store/demo/orders"
_BARS = " ▁▂▃▄▅▆▇█"


class Producer:
    """Publishes events: hands each batch to `publish`, which returns once it is answered for."""

    def __init__(self, publish: Callable[[pa.Table], object], count: int = EVENTS) -> None:
        self.count = count
        self.published = 0
        self.failed: Exception | None = None
        self._publish = publish
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-producer", daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> None:
        """Publish no more, and wait for the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for batch in events(self.count):
                self._publish(batch)
                self.published += len(batch)
                if self._stop.wait(SECONDS * EACH / self.count):
                    return
        except Exception as failed:  # told by the main thread
            self.failed = failed


def events(count: int = EVENTS) -> Iterator[pa.Table]:
    """Orders by the thousand; each id is there once."""
    for first in range(0, count, EACH):
        ids = pa.array(range(first, first + EACH), pa.int64())
        amount = pa.array([(n * 7919) % 10_000 / 100 for n in range(first, first + EACH)])
        yield pa.table({"id": ids, "customer": pa.array([f"c{n % 997}" for n in range(EACH)]), "amount": amount})


def landed(client: Client, path: str) -> int:
    """Rows at the end of the way by now."""
    try:
        return client.info(path).rows
    except NotFound:
        return 0


def watched(
    producer: Producer, query: StreamingQuery, url: str, strike: Callable[[], None], end: str = DATASET
) -> list[tuple[float, int, int]]:
    """Wait until all is landed; on the way something is struck. Seconds, events published, rows landed."""
    samples: list[tuple[float, int, int]] = []
    began = time.monotonic()
    struck = False
    while not samples or samples[-1][2] < producer.count:
        if producer.failed or query.exception():
            raise SystemExit(f"the demo failed: {producer.failed or query.exception()}")
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"after {PATIENCE:g} s only {samples[-1][2]:,} of {producer.count:,} rows have landed")
        if not struck and producer.published >= producer.count * KILLED_AT:
            strike()
            struck = True
        with penstock.connect(url, retry_for=PATIENCE) as client:
            samples.append((time.monotonic() - began, producer.published, landed(client, end)))
        if sys.stdout.isatty():
            sys.stdout.write(f"\r  published {samples[-1][1]:>9,}   landed {samples[-1][2]:>9,} ")
            sys.stdout.flush()
        time.sleep(0.25)
    if sys.stdout.isatty():
        say("\n")
    return samples


def plot(samples: list[tuple[float, int, int]], width: int = 60) -> str:
    """Rows over time, a line each for what was published and what has landed."""
    end = samples[-1][0]
    lines = []
    for name, column in (("published", 1), ("landed", 2)):
        bars = ""
        for place in range(width):
            until = end * (place + 1) / width
            rows = max((sample[column] for sample in samples if sample[0] <= until), default=0)
            bars += _BARS[round(rows / samples[-1][1] * (len(_BARS) - 1))]
        lines.append(f"{name:>10} {bars}")
    return "\n".join([*lines, f"{'':>10} 0 s{'':{width - 9}}{end:4.0f} s"])


def closing(ids: pa.ChunkedArray, samples: list[tuple[float, int, int]], batches: int) -> str:
    """The table at the end; ends the demo where a row is lost or doubled."""
    distinct, count = pc.count_distinct(ids).as_py(), samples[-1][1]
    lost, doubled = count - distinct, len(ids) - distinct
    if lost or doubled:
        raise SystemExit(f"{lost:,} events are lost, {doubled:,} doubled")
    seconds = samples[-1][0]
    line = (f"{count:,}", f"{len(ids):,}", "0", "0", "1", f"{batches:,}", f"{count / seconds:,.0f}")
    heads = ("published", "landed", "lost", "doubled", "kill -9", "batches", "events/s")
    return format_table(heads, [line], right=heads)


def show(spark: SparkSession) -> None:
    """Show it, or say what is missing."""
    if not hasattr(spark, "dataSource"):
        say(f"Spark {spark.version} has no streaming sources in Python: docs/streaming.md has its way")
        return
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(tempfile.mkdtemp(prefix="penstock-stream-"))
    server = Server(folder)
    try:
        url = server.start()
        os.environ["PENSTOCK_URL"] = url
        stream(server, url, spark, folder)
    finally:
        server.end(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def stream(server: Server, url: str, spark: SparkSession, folder: Path) -> None:
    """Publish, stream, kill, count."""
    code(
        "spark.dataSource.register(penstock.DataSource)",
        f'orders = spark.readStream.format("penstock").load("{TOPIC}")',
        f'orders.writeStream.format("penstock").option("checkpointLocation", …).start("{DATASET}")',
    )
    client = penstock.connect(url, retry_for=PATIENCE)  # a put that is sent again counts once
    client.put(TOPIC, next(events()).slice(0, 0))  # the topic is there, and has its columns
    spark.dataSource.register(penstock.DataSource)
    orders = spark.readStream.format("penstock").load(TOPIC)
    sink = orders.writeStream.format("penstock").option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.start(DATASET)
    producer = Producer(lambda batch: client.put(TOPIC, batch))

    def kill() -> None:
        say(paint(f"$ kill -9 (the server, after {producer.published:,} events)", "1;31"))
        server.end(signal.SIGKILL)
        time.sleep(BACK_AFTER)
        server.start()
        say("it is back, on the same data\n")

    producer.start()
    try:
        samples = watched(producer, query, url, kill)
        progress = query.lastProgress
        assert progress is not None
    finally:
        producer.stop()
        query.stop()
    say(f"{plot(samples)}\n")
    say(closing(client.get(DATASET, columns=["id"]).read_all()["id"], samples, progress["batchId"] + 1))
    client.close()
