"""Clients in processes of their own: `python -m tests.kit.programs.clients VERB URL …`.

`begin_puts URL COUNT` begins so many puts, says so, and waits to be killed. `produce URL` appends
one row after the other to topic/x, each with its number as its id, until it is killed. `append URL PATH SECONDS`
appends rows by one producer after the other, and prints how many. `put_and_get URL MEBIBYTES
LIMIT` puts so much and gets it back under a memory limit; it prints the rows and the checksum of both ways.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from crc32c import crc32c

import penstock
from penstock.flight_server import supervisor
from tests.kit.wire import TRIPS, at, trips

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = 1 << 17
"""Rows of one batch: 1 MiB of noise."""


def begin_puts(url: str, count: int) -> None:
    client = flight.connect(url)
    writers = [client.do_put(at(f"store/killed/{number}"), TRIPS)[0] for number in range(count)]
    for writer in writers:
        writer.write_batch(trips(1, 2, 3))
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    time.sleep(600)


def produce(url: str) -> None:
    with penstock.connect(url) as client, client.producer("topic/x") as producer:
        for number in itertools.count(1):
            producer.send(trips(number))
            if number == 100:
                producer.flush()
                sys.stdout.write("begun\n")
                sys.stdout.flush()


def append(url: str, path: str, seconds: float) -> None:
    """Append batches of 100 KB, the ids of their rows one by one, by producers of 1 to 100 batches."""
    give_up, dice, numbers = time.monotonic() + seconds, random.Random(path), itertools.count()
    text = os.urandom(50_000).hex()
    with penstock.connect(url, timeout=5) as client:
        while time.monotonic() < give_up:
            with client.producer(path, max_in_flight=16) as producer:
                for _ in range(dice.randint(1, 100)):
                    producer.send(pa.RecordBatch.from_pydict({"id": [next(numbers)], "city": [text]}, TRIPS))
    sys.stdout.write(f"{next(numbers)}\n")


@dataclass
class Sum:
    """Rows and checksum of a stream; however it is cut, its checksum is that of all values in order."""

    rows: int = 0
    checksum: int = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, and add each; no more than one of them is in memory."""
        for batch in batches:
            self.rows += batch.num_rows
            self.checksum = crc32c(batch.column(0).to_numpy(zero_copy_only=True), self.checksum)
            yield batch


def noise(mebibytes: int) -> Iterator[pa.RecordBatch]:
    """Make each batch when it is asked for."""
    for number in range(mebibytes):
        values = np.random.default_rng(number).integers(0, 1 << 62, ROWS)
        yield pa.RecordBatch.from_arrays([pa.array(values)], schema=SCHEMA)


def put_and_get(url: str, mebibytes: int, limit: int) -> None:
    if supervisor.lean_memory():
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sent, received = Sum(), Sum()
    with penstock.connect(url) as client:
        client.put("store/large", sent.add(noise(mebibytes)), schema=SCHEMA)
        for _ in received.add(client.get("store/large")):
            pass
    json.dump([asdict(sent), asdict(received)], sys.stdout)


if __name__ == "__main__":
    if sys.argv[1] == "begin_puts":
        begin_puts(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "produce":
        produce(sys.argv[2])
    elif sys.argv[1] == "append":
        append(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        put_and_get(sys.argv[2], *map(int, sys.argv[3:]))
