"""Pub/Sub to Pub/Sub: a typed stream is published to a second topic, and a puller is killed: `make demo-pubsub`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

import penstock
from penstock.client.client import Client
from penstock.text import format_table
from scripts import emulator
from scripts.demo import Server, paint, say, shell
from scripts.demo_spark import code, missing, session
from scripts.demo_stream import PATIENCE, Producer, closing, plot, watched

if TYPE_CHECKING:
    from google.cloud.pubsub_v1 import PublisherClient

TOPIC, SUBSCRIPTION = "projects/demo/topics/orders", "projects/demo/subscriptions/orders"
PATH = "subscription/demo/orders"
CLEAN_TOPIC, CLEAN = "projects/demo/topics/clean", "subscription/demo/clean"
SCHEMA = "id long, customer string, amount decimal(10,2)"
MESSAGES = 30_000
"""The emulator brings some 2,000 a second by StreamingPull; Pub/Sub 10 MB."""
DEADLINE = 10
"""Seconds after which Pub/Sub delivers a message again that nobody has acknowledged.

The emulator goes on leasing to a stream that was killed, for several of these: with a minute each that takes minutes.
"""


def publish(publisher: PublisherClient, batch: pa.Table) -> None:
    """Publish a thousand orders as JSON."""
    messages = [{"data": json.dumps(order).encode()} for order in batch.to_pylist()]
    publisher.api.publish(topic=TOPIC, messages=messages)


def wait_for_puller(client: Client, path: str) -> None:
    """Wait until a subscription is pulled."""
    give_up = time.monotonic() + PATIENCE
    while not client.call("describe", {"path": path})["subscription"]["connected"]:
        if time.monotonic() > give_up:
            raise SystemExit(f"{path} has no puller after {PATIENCE:g} s")
        time.sleep(0.2)


def unreleased(client: Client) -> int:
    """Return how many messages wait for an acknowledgement."""
    about = client.call("describe", {"path": PATH})["subscription"]
    outstanding: int = sum(puller["counters"].get("outstanding", 0) for puller in about["connected"])
    return outstanding + int(about["unreleased_rows"])


def unacknowledged() -> int:
    """Return how many messages Pub/Sub still brings, once no lease holds any back."""
    from google.api_core.exceptions import DeadlineExceeded
    from google.cloud.pubsub_v1 import SubscriberClient

    left = 0
    with SubscriberClient() as subscriber:
        give_up = time.monotonic() + DEADLINE * 1.5
        while not left and time.monotonic() < give_up:
            with suppress(DeadlineExceeded):
                answer = subscriber.api.pull(subscription=SUBSCRIPTION, max_messages=1000, timeout=2)
                left = len(answer.received_messages)
    return left


def main() -> None:
    """Show it, or say what is missing."""
    if lack := emulator.missing() or missing():
        raise SystemExit(lack)
    folder = Path(tempfile.mkdtemp(prefix="penstock-pubsub-"))
    server = Server(folder)
    try:
        with emulator.running() as (address, _):
            os.environ["PUBSUB_EMULATOR_HOST"] = address
            say(f"Google's Pub/Sub emulator answers at {address}\n")
            os.environ["PENSTOCK_URL"] = server.start("--allow-emulator", "--pubsub-lease", str(DEADLINE))
            with session() as spark:
                spark.sparkContext.setLogLevel("OFF")
                stream(spark, folder)
            server.end(signal.SIGTERM)
            left = unacknowledged()
            say(f"left in Pub/Sub after {DEADLINE * 1.5:g} s without a lease: {left}")
            if left:
                raise SystemExit("messages that have landed were not acknowledged")
    finally:
        server.end(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def stream(spark: Any, folder: Path) -> None:
    """Publish, stream, kill a puller, count."""
    from google.cloud.pubsub_v1 import PublisherClient

    publisher = PublisherClient()
    publisher.api.create_topic(name=TOPIC)
    publisher.api.create_topic(name=CLEAN_TOPIC)
    code(
        "spark.dataSource.register(penstock.DataSource)",
        f'orders = spark.readStream.format("penstock").option("subscription", "{SUBSCRIPTION}").option("create", …)',
        f'typed = orders.option("decode", "json").schema("{SCHEMA}").load()',
        f'typed.writeStream.format("penstock").option("topic", "{CLEAN_TOPIC}").option("encode", "json")…start()',
    )
    client = penstock.connect(retry_for=PATIENCE)
    for path, topic in ((PATH, TOPIC), (CLEAN, CLEAN_TOPIC)):
        client.call("subscription.attach", {"path": path, "create": topic})
        wait_for_puller(client, path)
    spark.dataSource.register(penstock.DataSource)
    source = spark.readStream.format("penstock").option("subscription", SUBSCRIPTION).option("create", TOPIC)
    orders = source.option("decode", "json").schema(SCHEMA).load()
    sink = orders.writeStream.format("penstock").option("topic", CLEAN_TOPIC).option("encode", "json")
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).start()
    producer = Producer(lambda batch: publish(publisher, batch), MESSAGES)

    def kill() -> None:
        (puller,) = client.call("describe", {"path": PATH})["subscription"]["connected"]
        pid = int(puller["puller"].rpartition(":")[2])
        say(paint(f"$ kill -9 {pid} (the puller, after {producer.published:,} messages)\n", "1;31"))
        os.kill(pid, signal.SIGKILL)

    producer.start()
    try:
        samples = watched(producer, query, client.settings.url, kill, CLEAN)
        batches = query.lastProgress["batchId"] + 1
        give_up = time.monotonic() + PATIENCE
        while unreleased(client) and time.monotonic() < give_up:
            time.sleep(0.2)
    finally:
        producer.stop()
        query.stop()
    say(f"{plot(samples)}\n")
    orders = client.get(CLEAN, decode="json", schema=SCHEMA).read_all()
    say(closing(orders["id"], samples, batches))
    rows = [[str(order[name]) for name in ("id", "customer", "amount")] for order in orders.slice(0, 3).to_pylist()]
    say(f"{format_table(('id', 'customer', 'amount'), rows, right=('id', 'amount'))}\n")
    say(causes(client))
    shell(f"penstock show {PATH}")
    client.close()


def causes(client: Client) -> str:
    """Return the duplicates that were recognized, by their cause."""
    duplicates = client.call("describe", {"path": PATH})["subscription"]["duplicates"]
    lines = [(cause, f"{count:,}") for cause, count in duplicates.items() if count]
    return format_table(("duplicates, recognized", "messages"), lines or [("none", "0")], right=("messages",))


if __name__ == "__main__":
    main()
