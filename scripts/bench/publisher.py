"""Clients in processes of their own that publish as they are told: to penstock, to Kafka, or to a bare file."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

Send = Callable[[list[bytes]], object]
"""Publishes messages; when it returns they are as safe as this kind of client makes them."""
Publisher = Callable[..., Future[list[Any]]]
"""Gives an order to a publisher's process: `batches` or `paced`, with what they take."""
_DIFFERENT = 10_000
_clients: list[Send] = []
"""In a publisher's process, its one client."""
_flushes: list[Callable[[], None]] = []
"""Waits until all that a producer has sent is durable."""


def message(number: int) -> bytes:
    """Return a message of about 130 bytes."""
    return (
        f'{{"id":{10_000_000 + number},"city":"city-{number % 1000:03d}","fare":{number % 9000 / 100 + 10:.2f},'
        f'"at":"2026-11-18T20:15:{number % 60:02d}Z","trip":{{"km":{number % 400 / 10:.1f},"stops":{number % 10}}},'
        '"note":"as ordered, paid"}'
    ).encode()


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": "string"},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "trip",
            "type": {
                "type": "record",
                "name": "Trip",
                "fields": [{"name": "km", "type": "double"}, {"name": "stops", "type": "int"}],
            },
        },
        {"name": "note", "type": "string"},
    ],
}
"""The schema of the same messages in Avro."""


@lru_cache(_DIFFERENT)
def avro_message(number: int) -> bytes:
    """Return a message in Avro."""
    import fastavro

    row = json.loads(message(number), parse_float=Decimal)
    row["trip"]["km"], row["at"] = float(row["trip"]["km"]), datetime.fromisoformat(row["at"])
    fastavro.schemaless_writer(file := io.BytesIO(), AVRO, row)
    return file.getvalue()


def rows(kind: str, numbers: range) -> pa.Table:
    """Return the rows with these numbers: messages in JSON or Avro, or four integers."""
    if kind == "json":
        return pa.table({"value": pa.array(map(message, numbers), pa.binary())})
    if kind == "avro":  # which takes long to write, so there are 10,000 different ones
        return pa.table({"value": pa.array([avro_message(each % _DIFFERENT) for each in numbers], pa.binary())})
    return pa.table(dict.fromkeys(("id", "a", "b", "c"), pa.array(numbers, pa.int64())))


@contextmanager
def publisher(kind: str, address: str, topic: str, libraries: Path | None = None) -> Iterator[Publisher]:
    """Run a publisher, with a folder of Python libraries if it needs one."""
    about = (kind, address, topic, libraries)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_connect, initargs=about) as pool:
        yield lambda verb, **order: pool.submit(_carry_out, verb, order)


def _connect(kind: str, address: str, topic: str, libraries: Path | None) -> None:
    if kind == "penstock":  # Python's client as it comes: answered when durable
        import penstock

        client = penstock.connect(address)
        _clients.append(lambda messages: client.put(topic, pa.table({"value": pa.array(messages, pa.binary())})))
    elif kind.startswith("producer"):  # its first messages go out while the last ones are made durable, or one by one
        import penstock

        stream = penstock.connect(address).producer(topic)
        waits = kind == "producer, answered"

        def append(messages: list[bytes]) -> None:
            answer = stream.send(pa.record_batch({"value": pa.array(messages, pa.binary())}))
            if waits:
                answer.result()

        _clients.append(append)
        _flushes.append(stream.flush)
    elif kind == "kafka":  # kafka-python's producer as it comes, flushed: answered before the broker has fsynced
        sys.path.append(str(libraries))
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=address, acks="all")

        def send(messages: list[bytes]) -> None:
            futures = [producer.send(topic, each) for each in messages]
            producer.flush()
            for future in futures:
                future.get(0)

        _clients.append(send)
    else:  # what durable costs at least on this disk
        file = open(address, "ab", buffering=0)  # noqa: SIM115  # for as long as the process
        _clients.append(lambda messages: (file.write(b"".join(messages)), os.fsync(file)))  # type: ignore[func-returns-value]


def _carry_out(verb: Callable[..., list[Any]], order: dict[str, float]) -> list[Any]:
    answer = verb(_clients[0], **order)
    for flush in _flushes:
        flush()
    return answer


def batches(send: Send, count: int, rows: int) -> list[float]:
    """Send so many batches, one after the other, and return the seconds of each."""
    messages = [message(number) for number in range(rows)]
    times = [time.perf_counter()]
    for _ in range(count):
        send(messages)
        times.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(times)]


def paced(send: Send, rate: int, seconds: float, tick: float) -> list[tuple[float, int]]:
    """Send so many rows a second, in a batch each tick, and return when each was due, and its rows.

    A batch that cannot leave when it is due, as those before it took too long, counts from then all the same.
    """
    messages = [message(number) for number in range(max(1, round(rate * tick)))]
    begin, sent = time.time() + tick, []
    for number in range(round(seconds / tick)):
        due = begin + number * tick
        time.sleep(max(0.0, due - time.time()))
        send(messages)
        sent.append((due, len(messages)))
    return sent
