"""A client in a process of its own, that publishes what it is told to: to penstock, to Kafka, or to a bare file.

    python scripts/bench_topics_client.py penstock|kafka|fsync ADDRESS TOPIC

A line of JSON on stdin is an order, its answer a line on stdout; the end of stdin is the end of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

Send = Callable[[list[bytes]], object]
"""Publishes messages; they are as safe as it makes them when it returns."""
_MESSAGE = (
    '{{"id":{id},"city":"city-{city:03d}","fare":{fare:.2f},"at":"2026-11-18T20:15:{second:02d}Z",'
    '"trip":{{"km":{km:.1f},"stops":{stops}}},"note":"as ordered, paid"}}'
)


def message(number: int) -> bytes:
    """One of about 130 bytes."""
    return _MESSAGE.format(
        id=10_000_000 + number,
        city=number % 1000,
        fare=number % 9000 / 100 + 10,
        second=number % 60,
        km=number % 400 / 10,
        stops=number % 10,
    ).encode()


def to_penstock(url: str, topic: str) -> Send:
    """As Python's client comes: each put is a run, and answered when it is durable."""
    import pyarrow as pa

    import penstock

    client = penstock.connect(url)
    schema = pa.schema({"value": pa.binary()})

    def send(messages: list[bytes]) -> None:
        client.put(topic, pa.table([pa.array(messages, pa.binary())], schema=schema))

    return send


def to_kafka(address: str, topic: str) -> Send:
    """As kafka-python's producer comes, flushed: answered by the broker, which hasn't fsynced then."""
    from kafka import KafkaProducer  # type: ignore[import-not-found]  # in a folder of the benchmark's

    producer = KafkaProducer(bootstrap_servers=address, acks="all")

    def send(messages: list[bytes]) -> None:
        futures = [producer.send(topic, each) for each in messages]
        producer.flush()
        for future in futures:
            future.get(0)

    return send


def to_file(path: str, topic: str) -> Send:  # as the others
    """What durable costs at least on this disk."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def send(messages: list[bytes]) -> None:
        os.write(file, b"".join(messages))
        os.fsync(file)

    return send


def batches(send: Send, count: int, rows: int) -> list[float]:
    """So many batches one after the other: the seconds of each."""
    messages = [message(number) for number in range(rows)]
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        send(messages)
        taken.append(time.perf_counter() - began)
    return taken


def paced(send: Send, rate: int, seconds: float, tick: float) -> list[tuple[float, int]]:
    """So many rows a second, in a batch each tick: when it was due, and its rows.

    One that can't leave when it is due, as those before it took too long, counts from then all the same.
    """
    messages = [message(number) for number in range(max(1, round(rate * tick)))]
    begin = time.time() + tick
    sent = []
    for number in range(round(seconds / tick)):
        due = begin + number * tick
        time.sleep(max(0.0, due - time.time()))
        send(messages)
        sent.append((due, len(messages)))
    return sent


def main() -> None:
    """Do as told until stdin ends."""
    kind, address, topic = sys.argv[1:]
    send = {"penstock": to_penstock, "kafka": to_kafka, "fsync": to_file}[kind](address, topic)
    verbs: dict[str, Callable[..., Any]] = {"batches": batches, "paced": paced}
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(verbs[order.pop("verb")](send, **order)), flush=True)


if __name__ == "__main__":
    main()
