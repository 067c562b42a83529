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
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

import penstock
from penstock.client.client import Client
from penstock.errors import NotFound
from penstock.text import format_table
from scripts.demo import Server, paint, say
from scripts.demo_spark import code, missing, session

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Publishes events, each batch until it is answered for: it may send one again, and it counts once."""

    def __init__(self, url: str) -> None:
        self.published = 0
        self.failed: Exception | None = None
        self._url = url
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
            with penstock.connect(self._url, retry_for=PATIENCE) as client:
                for batch in events():
                    client.put(TOPIC, batch)
                    self.published += len(batch)
                    if self._stop.wait(SECONDS * EACH / EVENTS):
                        return
        except Exception as failed:  # told by the main thread
            self.failed = failed


def events() -> Iterator[pa.Table]:
    """Orders by the thousand; each id is there once."""
    for first in range(0, EVENTS, EACH):
        ids = pa.array(range(first, first + EACH), pa.int64())
        amount = pa.array([(n * 7919) % 10_000 / 100 for n in range(first, first + EACH)])
        yield pa.table({"id": ids, "customer": pa.array([f"c{n % 997}" for n in range(EACH)]), "amount": amount})


def landed(client: Client) -> int:
    """Rows in the dataset by now."""
    try:
        return client.info(DATASET).rows
    except NotFound:
        return 0


def watched(server: Server, producer: Producer, query: StreamingQuery, url: str) -> list[tuple[float, int, int]]:
    """Wait until all is landed; the server is killed on the way. Seconds, events published, rows landed."""
    samples: list[tuple[float, int, int]] = []
    began = time.monotonic()
    killed = False
    while not samples or samples[-1][2] < EVENTS:
        if producer.failed or query.exception():
            raise SystemExit(f"the demo failed: {producer.failed or query.exception()}")
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"after {PATIENCE:g} s only {samples[-1][2]:,} of {EVENTS:,} rows have landed")
        if not killed and producer.published >= EVENTS * KILLED_AT:
            say(paint(f"$ kill -9 (the server, after {producer.published:,} events)", "1;31"))
            server.end(signal.SIGKILL)
            killed = True
            time.sleep(BACK_AFTER)
            server.start()
            say("it is back, on the same data\n")
        with penstock.connect(url, retry_for=PATIENCE) as client:
            samples.append((time.monotonic() - began, producer.published, landed(client)))
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
            bars += _BARS[round(rows / EVENTS * (len(_BARS) - 1))]
        lines.append(f"{name:>10} {bars}")
    return "\n".join([*lines, f"{'':>10} 0 s{'':{width - 9}}{end:4.0f} s"])


def closing(url: str, samples: list[tuple[float, int, int]], batches: int) -> str:
    """The table at the end; ends the demo where a row is lost or doubled."""
    with penstock.connect(url) as client:
        ids = client.get(DATASET, columns=["id"]).read_all()["id"]
    distinct = pc.count_distinct(ids).as_py()
    lost, doubled = EVENTS - distinct, len(ids) - distinct
    if lost or doubled:
        raise SystemExit(f"{lost:,} events are lost, {doubled:,} doubled")
    seconds = samples[-1][0]
    line = (f"{EVENTS:,}", f"{len(ids):,}", "0", "0", "1", f"{batches:,}", f"{EVENTS / seconds:,.0f}")
    heads = ("published", "landed", "lost", "doubled", "kill -9", "batches", "events/s")
    return format_table(heads, [line], right=heads)


def main() -> None:
    """Show it, or say what is missing."""
    if lack := missing():
        say(f"Without Spark there is no stream: {lack}.")
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-stream-"))
    server = Server(folder)
    try:
        url = server.start()
        os.environ["PENSTOCK_URL"] = url
        with session("local[2, 4]") as spark:  # a task that the killed server cost is run again
            if not hasattr(spark, "dataSource"):
                say(f"Spark {spark.version} has no streaming sources in Python: docs/streaming.md has its way")
                return
            spark.sparkContext.setLogLevel("OFF")
            stream(server, url, spark, folder)
    finally:
        server.end(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def stream(server: Server, url: str, spark: Any, folder: Path) -> None:
    """Publish, stream, kill, count."""
    code(
        "spark.dataSource.register(penstock.DataSource)",
        f'orders = spark.readStream.format("penstock").load("{TOPIC}")',
        f'orders.writeStream.format("penstock").option("checkpointLocation", …).start("{DATASET}")',
    )
    with penstock.connect(url) as client:
        client.put(TOPIC, next(events()).slice(0, 0))  # the topic is there, and has its columns
    spark.dataSource.register(penstock.DataSource)
    orders = spark.readStream.format("penstock").load(TOPIC)
    sink = orders.writeStream.format("penstock").option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.start(DATASET)
    producer = Producer(url)
    producer.start()
    try:
        samples = watched(server, producer, query, url)
        batches = query.lastProgress["batchId"] + 1
    finally:
        producer.stop()
        query.stop()
    say(f"{plot(samples)}\n")
    say(closing(url, samples, batches))


if __name__ == "__main__":
    main()
