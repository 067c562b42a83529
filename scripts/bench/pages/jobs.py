"""docs/benchmarks-jobs.md: jobs beside a pool of processes and Ray Data, queues on Kafka beside bare transactions, and
Ray Data's reads and stores beside Ray's own.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.client.push import settle, to_outputs
from penstock.ledger.ledger import Ledger
from penstock.queue.destinations import DESTINATIONS, TABLES
from penstock.queue.kafka.kafka_queue import KafkaQueue
from penstock.queue.work import work_queues
from penstock.queue.work.lease_queue import Forward, NewMessage
from penstock.store.database import Database
from penstock.wire.actions import CLAIM_MESSAGES
from penstock.wire.kafka import KafkaAddress
from penstock.wire.message import QueueMessage
from penstock.wire.queue import ClaimMessages, LeaseKey
from scripts import kafka_broker
from scripts.bench import job_sides, on_ray
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.figures import Line, Measure, Sample
from scripts.bench.servers import penstock_server

READ, PARQUET = "Datasource", "Ray Data's read_parquet"
STORE, REGISTRY, OWNER = "store ray:", "a registry of Ray, the producer owns", "a registry of Ray, which owns"
_WAYS = {STORE: "store", REGISTRY: "registry", OWNER: "owned"}
_OF_RAY = frozenset({job_sides.RAY_DATA, job_sides.RAY})
ON_KAFKA, BY_WIRE, BARE = "queue on Kafka", "a client of it", "bare transactions"
_BATCHES = (100, 1_000)  # messages of a call
_PUSH = 10_000
_serial = itertools.count(1)
_PATH = "store/bench/jobs"
_BATCH_ROWS = 65_536
_FILE_BYTES = 32 << 20
"""Of an endpoint, and of a Parquet file."""
_ROW_BYTES = 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    rows: int
    payloads: int
    messages: int  # of queues on Kafka
    splits: int  # of 100 kB, through three stages
    growth: tuple[int, ...]  # splits of jobs, each ten times the one before

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return (2 * self.rows * _ROW_BYTES + 4 * self.splits * 100_000 >> 20) + 600


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    yield from job_sides.cases(sizes.rounds, sizes.splits, sizes.growth)
    sides: dict[str, Side] = {READ: partial(_read, rows=sizes.rows), PARQUET: partial(_read_parquet, rows=sizes.rows)}
    amount = sizes.rows * _ROW_BYTES / 2**20
    what = f"{amount:,.0f} MiB"
    read = Line("Ray Data's read", what, READ, PARQUET, "MiB/s", amount, (">=", 0.8), "speed")
    yield Case(sides, [read], sizes.rounds)
    for batch in _BATCHES:
        sides = {
            ON_KAFKA: partial(_forward, count=sizes.messages, batch=batch),
            BY_WIRE: partial(_forward_by_wire, count=sizes.messages, batch=batch),
            BARE: partial(_transactions, count=sizes.messages, batch=batch),
        }
        line = partial(Line, "Queue on Kafka", beside=BARE, unit="/s", amount=sizes.messages, ratio="speed")
        lines = [
            line(f"forward, {batch:,} messages a call", ON_KAFKA, promise=(">=", 0.5)),
            line(f"claim and forward by a client, {batch:,} messages a call", BY_WIRE),
        ]
        yield Case(sides, lines, sizes.rounds)
    for size, name in ((100_000, "100 kB"), (1_000_000, "1 MB")):
        sides = {way: partial(_pass_on, way=way, count=sizes.payloads, size=size) for way in _WAYS}
        line = partial(
            Line, "Store of Ray", f"payloads of {name}", STORE, unit="/s", amount=sizes.payloads, ratio="speed"
        )
        yield Case(sides, [line(beside=OWNER, promise=(">=", 1)), line(beside=REGISTRY)], sizes.rounds)


def _read(bench: Bench, rows: int) -> Measure:
    server, peer = bench.penstock(), bench.ray
    schema = next(_batches(1)).schema
    bench.once(_PATH, lambda: server.put(_PATH, _batches(rows), schema))
    return lambda: {"seconds": [peer("read_dataset", server.url, _PATH, rows)]}


def _read_parquet(bench: Bench, rows: int) -> Measure:
    peer, folder = bench.ray, bench.folder / "parquet"

    def write() -> None:
        folder.mkdir()
        count = _FILE_BYTES // _ROW_BYTES // _BATCH_ROWS
        batches, files = _batches(rows), itertools.count()
        while some := list(itertools.islice(batches, count)):
            pq.write_table(pa.Table.from_batches(some), folder / f"{next(files):06}.parquet", compression="none")

    bench.once(str(folder), write)
    return lambda: {"seconds": [peer("read_parquet", str(folder), rows)]}


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield so many rows of four int64, of which no two are equal: Parquet's dictionaries would save most of them."""
    for first in range(0, rows, _BATCH_ROWS):
        ids = np.arange(first, min(first + _BATCH_ROWS, rows))
        yield pa.RecordBatch.from_arrays([pa.array(ids * (2 * n + 1) + n) for n in range(4)], names=list("abcd"))


# --- queues on Kafka ---------------------------------------------------------------------------


def _forward(bench: Bench, count: int, batch: int) -> Measure:
    """Claim and forward messages in the process that has the queue, until the broker has all and the ledger knows."""

    def measure() -> Sample:
        folder, name = bench.folder / f"kafka-{next(_serial)}", f"bench-{next(_serial)}"
        address, into, out = KafkaAddress.parse(f"kafka://{bench.broker}"), f"queue/{name}/in", f"queue/{name}/out"
        with closing(Database(folder / "ledger.db", *TABLES)) as database:
            queue = KafkaQueue(Ledger(database, DESTINATIONS, work_queues), address)
            queue.link.start()
            with closing(queue.link), _reading(folder) as ledger:
                for path in (into, out):
                    queue.create(path, address)
                for messages in _pushes(count):
                    queue.push([NewMessage(into, message) for message in messages])
                _wait_until_settled(ledger)
                bench.settle()
                began = time.perf_counter()
                while leases := queue.claim(into, f"{next(_serial)}", worker="bench", most=batch).leases:
                    outputs = [NewMessage(out, _message(f"{lease.message.message_id}/out")) for lease in leases]
                    queue.forward([Forward(tuple(lease.key for lease in leases), tuple(outputs))])
                _wait_until_settled(ledger)
                seconds = time.perf_counter() - began
                assert queue.counts(out).pushed == count
        shutil.rmtree(folder)
        return {"seconds": [seconds]}

    return measure


def _pushes(count: int) -> Iterator[list[QueueMessage]]:
    """Yield so many messages, as many at once as a push takes."""
    for start in range(0, count, _PUSH):
        yield [_message(f"m{number}") for number in range(start, min(count, start + _PUSH))]


def _message(name: str) -> QueueMessage:
    return QueueMessage(name, name, "", {"source_stage": "in", "num_records": 1_000}, 1.5)


def _wait_until_settled(ledger: sqlite3.Connection) -> None:
    """Wait until the broker has what a ledger says, and the ledger knows where."""
    to_do = "unsent OR offset IS NOT NULL AND (acked = 2 OR acked = 0 AND state IN ('done', 'dead'))"
    while ledger.execute(f"SELECT 1 FROM messages WHERE {to_do} LIMIT 1").fetchone() is not None:
        time.sleep(0.005)


def _forward_by_wire(bench: Bench, count: int, batch: int) -> Measure:
    """The same by a client of a server."""
    data = bench.folder / f"on-kafka-{next(_serial)}"
    data.mkdir()
    server = bench.contexts.enter_context(penstock_server(data, "disk:", "--kafka", f"kafka://{bench.broker}"))
    client = bench.contexts.enter_context(penstock.connect(server.url))
    ledger = bench.contexts.enter_context(_reading(data))

    def measure() -> Sample:
        name = f"bench-{next(_serial)}"
        into, out = f"queue/{name}/in", f"queue/{name}/out"
        for path in (into, out):
            client.create_queue(path, f"kafka://{bench.broker}")
        for messages in _pushes(count):
            client.push(into, messages)
        client.push(into, [], finish=True)
        _wait_until_settled(ledger)
        bench.settle()
        began = time.perf_counter()
        while claimed := client.call(CLAIM_MESSAGES, ClaimMessages(into, f"{next(_serial)}", "bench", batch)).messages:
            made = [(LeaseKey(into, each.message.message_id, each.token), each.message) for each in claimed]
            outputs = [(key, to_outputs(out, _message(f"{message.message_id}/out"))) for key, message in made]
            settle(client.connection, outputs, retry_for=30)
        _wait_until_settled(ledger)
        return {"seconds": [time.perf_counter() - began]}

    return measure


@contextmanager
def _reading(data: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{data / 'ledger.db'}?mode=ro", uri=True, isolation_level=None)) as ledger:
        yield ledger


def _transactions(bench: Bench, count: int, batch: int) -> Measure:
    """What a program without penstock does: read a batch, send as many records and the offsets in a transaction."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    def measure() -> Sample:
        name, address = f"bare-{next(_serial)}", bench.broker
        into, out = TopicPartition(f"{name}.in", 0), f"{name}.out"
        with closing(KafkaProducer(bootstrap_servers=address)) as producer:
            for number in range(count):
                message = _message(f"m{number}")
                producer.send(into.topic, message.encode(), key=message.split_id.encode())
            producer.flush()
        with (
            closing(KafkaConsumer(
                bootstrap_servers=address, group_id=name, enable_auto_commit=False, isolation_level="read_committed",
                auto_offset_reset="earliest", max_poll_records=batch,
            )) as consumer,
            closing(KafkaProducer(bootstrap_servers=address, transactional_id=name)) as producer,
        ):  # fmt: skip
            consumer.assign([into])
            producer.init_transactions()
            bench.settle()
            began, done = time.perf_counter(), 0
            while done < count:
                records: list[Any] = []
                while len(records) < min(batch, count - done):
                    records += consumer.poll(1_000, max_records=batch - len(records)).get(into, [])
                producer.begin_transaction()
                for record in records:
                    producer.send(out, record.value, key=record.key)
                offset = OffsetAndMetadata(records[-1].offset + 1, "", -1)
                producer.send_offsets_to_transaction({into: offset}, name)
                producer.commit_transaction()
                done += len(records)
            return {"seconds": [time.perf_counter() - began]}

    return measure


# --- stores of Ray -----------------------------------------------------------------------------


def _pass_on(bench: Bench, way: str, count: int, size: int) -> Measure:
    peer = bench.ray
    return lambda: {"seconds": [peer("pass_on", _WAYS[way], count, size)]}


PAGE = Page(
    output="docs/benchmarks-jobs.md",
    command="make bench-jobs",
    sizes={
        "all": Sizes(5, 128_000_000, 500, 20_000, 10_000, (1_000, 10_000, 100_000)),
        "quick": Sizes(3, 16_000_000, 200, 10_000, 1_000, (1_000, 10_000)),
        "smoke": Sizes(1, 8_000, 4, 200, 20, (2, 20)),
    },
    cases=cases,
    others=frozenset({PARQUET, REGISTRY, OWNER, BARE, job_sides.POOL, job_sides.TENTH, *_OF_RAY}),
    rivals={on_ray.NAME: frozenset({PARQUET, REGISTRY, OWNER, *_OF_RAY})},
    lacks=lambda: on_ray.lacks() or kafka_broker.missing(),
)
