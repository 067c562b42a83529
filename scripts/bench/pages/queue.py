"""docs/benchmarks-queue.md: queues of work beside bare SQLite transactions, Ray, and the driver's way."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

import penstock
from penstock.client.client import Client
from penstock.client.push import settle, to_outputs
from penstock.errors import NotFound
from penstock.ledger.ledger import Ledger
from penstock.pipeline import SparkSource, SparkSourceConfig, SparkSourceV2Config, SparkSourceV2Master
from penstock.queue.destinations import DESTINATIONS, TABLES
from penstock.queue.work import work_queues
from penstock.queue.work.lease_queue import Forward, NewMessage
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.store.database import Database
from penstock.wire import actions as wire
from penstock.wire.message import QueueMessage
from penstock.wire.queue import AckLeases, ClaimMessages, LeaseKey
from scripts.bench import on_ray
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.figures import Line, Measure, Sample, timed
from scripts.bench.servers import Penstock, penstock_server
from scripts.bench.session import CountRows, Shape, integers, lacks, repeated
from scripts.bench.watch import peaks, processor_seconds

BARE, ONE, BATCHES = "bare SQLite transactions", "one by one", "batches of 50"
CLIENTS = {8: "8 clients", 32: "32 clients"}
OURS, BY_WIRE = "penstock", "penstock, in batches of 256"
REGISTRY, RAY_DATA = "a registry actor of Ray", "Ray Data's map"
FLOOR, V2, V1 = "empty mapInArrow, then the store's own write", "V2", "V1"
EARLY = "V2, early release"
FEW, TENTH = "a third of the rows", "a tenth of the messages"
IDLE = "waiting workers"
_BATCH, _CLAIM, _PUSH = 50, 256, 10_000
_SPLIT, _SMALL = 100_000, 1_000  # bytes
_PARTITIONS = 8
_WORKERS = 200
_BATCH_ROWS = 65_536
_LOOK = 0.02  # seconds between looks for a queue that isn't there yet

_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    forwards: int  # of the embedded queue
    splits: int  # of 100 kB
    small: int  # payloads of 1 kB
    rows: int  # of Spark's frame
    messages: tuple[int, ...]  # through two queues, each ten times the one before
    idle: float  # seconds that workers wait

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return (4 * self.splits * _SPLIT + 8 * self.rows * 32 + 3 * self.messages[-1] * 1_000 >> 20) + 100


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    yield _embedded(sizes)
    yield _handed_off(sizes)
    yield _small(sizes)
    yield from _sources(sizes)
    yield from _growth(sizes)
    lines = [
        Line("Idle", f"{_WORKERS} workers: cores of the server", IDLE, unit="", of="cores", promise=("<", 0.05)),
        Line("Idle", f"{_WORKERS} workers: more threads of the server", IDLE, unit="", of="threads", promise=("<", 50)),
    ]
    yield Case({IDLE: partial(_idle, seconds=sizes.idle)}, lines, min(3, sizes.rounds), warm_up=False)


def _embedded(sizes: Sizes) -> Case:
    side = partial(_forwards, count=sizes.forwards)
    sides: dict[str, Side] = {
        BARE: partial(_bare, count=sizes.forwards),
        ONE: side,
        **{name: partial(side, clients=clients) for clients, name in CLIENTS.items()},
        BATCHES: partial(side, batch=_BATCH),
    }
    line = partial(Line, "Embedded", unit="/s", amount=sizes.forwards, ratio="speed")
    lines = [
        line(ONE, ONE, BARE, promise=(">=", 0.7)),
        line(CLIENTS[8], CLIENTS[8], ONE, promise=(">=", 1.8)),
        line(CLIENTS[32], CLIENTS[32], ONE, promise=(">=", 2.5)),
        line(BATCHES, BATCHES, ONE, promise=(">=", 10)),
    ]
    return Case(sides, lines, sizes.rounds)


def _handed_off(sizes: Sizes) -> Case:
    sides: dict[str, Side] = {
        OURS: partial(_worked, count=sizes.splits, size=_SPLIT),
        REGISTRY: partial(_by_ray, name="hand_off", count=sizes.splits, size=_SPLIT),
    }
    line = Line("Hand-off", "splits of 100 kB", OURS, REGISTRY, "/s", sizes.splits, (">=", 1.5), "speed")
    return Case(sides, [line], sizes.rounds)


def _small(sizes: Sizes) -> Case:
    sides: dict[str, Side] = {
        OURS: partial(_worked, count=sizes.small, size=_SMALL),
        BY_WIRE: partial(_worked_in_batches, count=sizes.small, size=_SMALL),
        RAY_DATA: partial(_by_ray, name="map_blocks", count=sizes.small, size=_SMALL),
    }
    line = partial(Line, "Hand-off", unit="/s", amount=sizes.small, ratio="speed", beside=RAY_DATA)
    lines = [
        line(f"{sizes.small:,} payloads of 1 kB", OURS, promise=(">=", 5)),
        line(f"{sizes.small:,} payloads of 1 kB, in batches of {_CLAIM}", BY_WIRE),
    ]
    return Case(sides, lines, sizes.rounds)


def _sources(sizes: Sizes) -> Iterator[Case]:
    shape, third = integers(sizes.rows, _PARTITIONS), integers(max(1, sizes.rows // 3), _PARTITIONS)
    sides: dict[str, Side] = {
        FLOOR: partial(_floor, shape=shape),
        V2: partial(_filled, way=V2, shape=shape),
        V1: partial(_filled, way=V1, shape=shape),
    }
    lines = [
        Line("Sources", "V2, all in all", V2, FLOOR, ratio="time", promise=("<=", 1.05)),
        Line("Sources", "V1, all in all", V1, V2, ratio="time"),
        Line("Sources", "V2, memory of the driver's Python", V2, V1, "MiB", of="driver"),
    ]
    yield Case(sides, lines, sizes.rounds, data=str(shape))
    sides = {FEW: partial(_filled, way=V2, shape=third), V2: partial(_filled, way=V2, shape=shape)}
    what = "V2, memory of the driver's Python, three times the rows"
    flat = Line("Sources", what, V2, FEW, "MiB", of="driver", promise=("< more", 16 << 20))
    yield Case(sides, [flat], min(3, sizes.rounds), data=str(shape))
    sides = {way: partial(_first_payload, way=way, shape=shape) for way in (V2, EARLY, V1)}
    lines = [
        Line("Sources", "V2, first payload at a worker", V2, V1, ratio="speed", promise=(">=", 1.3)),
        Line("Sources", "V2 with early release, first payload", EARLY, V1, ratio="speed", promise=(">=", 2)),
    ]
    yield Case(sides, lines, sizes.rounds, data=str(shape))


def _growth(sizes: Sizes) -> Iterator[Case]:
    for few, many in itertools.pairwise(sizes.messages):
        sides: dict[str, Side] = {TENTH: partial(_two_queues, count=few), OURS: partial(_two_queues, count=many)}
        lines = [
            Line("Growth", f"{many:,} messages: time", OURS, TENTH, ratio="time", promise=("<=", 11)),
            Line(
                "Growth", f"{many:,} messages: memory of the server", OURS, TENTH, "MiB", of="server",
                promise=("< more", 32 << 20),
            ),
        ]  # fmt: skip
        yield Case(sides, lines, min(3, sizes.rounds), warm_up=False)


# --- the embedded queue ------------------------------------------------------------------------


@contextmanager
def _leased(bench: Bench, count: int) -> Iterator[tuple[LedgerQueue, Path, list[LeaseKey], str]]:
    """Give a ledger's queue on a disk, its file, leases of so many messages, and another queue."""
    folder = bench.folder / f"embedded-{next(_serial)}"
    into, out = "queue/bench/in", "queue/bench/out"
    with closing(Database(folder / "ledger.db", *TABLES)) as database:
        queue = LedgerQueue(Ledger(database, DESTINATIONS, work_queues))
        queue.push([NewMessage(into, _message(f"m{number}")) for number in range(count)])
        queue.push([NewMessage(out, _message("first"))])
        leases = queue.claim(into, "claim", worker="bench", most=count).leases
        bench.settle()
        yield queue, folder / "ledger.db", [lease.key for lease in leases], out
    shutil.rmtree(folder)


def _message(name: str) -> QueueMessage:
    return QueueMessage(name, name, "", {"source_stage": "bench/in", "num_records": 1}, 1.5)


def _forwards(bench: Bench, count: int, clients: int = 1, batch: int = 1) -> Measure:
    """Forward messages by `queue.forward`, each in a Forward of its own, from threads."""

    def measure() -> Sample:
        with _leased(bench, count) as (queue, _, keys, out):
            forwards = [Forward((key,), (NewMessage(out, _message(key.message_id)),)) for key in keys]
            calls = [forwards[start : start + batch] for start in range(0, count, batch)]

            def work(own: Sequence[Sequence[Forward]]) -> None:
                for call in own:
                    queue.forward(call)

            threads = [threading.Thread(target=work, args=(calls[each::clients],)) for each in range(clients)]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - began
            counts = queue.counts(out)
            assert counts.pushed == count + 1, counts
        return {"seconds": [seconds]}

    return measure


def _bare(bench: Bench, count: int) -> Measure:
    """Change the same rows of the same tables, without asking who holds them."""

    def measure() -> Sample:
        with _leased(bench, count) as (_, file, keys, out), closing(sqlite3.connect(file, isolation_level=None)) as sql:
            sql.execute("PRAGMA synchronous = FULL")
            ids = dict(sql.execute("SELECT path, id FROM queues"))
            began = time.perf_counter()
            for key in keys:
                _forward_by_sql(sql, ids[key.queue], ids[out], key.message_id)
            return {"seconds": [time.perf_counter() - began]}

    return measure


def _forward_by_sql(sql: sqlite3.Connection, into: int, out: int, name: str) -> None:
    sql.execute("BEGIN IMMEDIATE")
    sql.execute(
        "INSERT INTO messages(queue, pushed, message_id, split_id, payload_key, metadata, timestamp, bytes)"
        """ VALUES (?, 1.5, ?, ?, '', '{"source_stage": "bench/in", "num_records": 1}', 1.5, 0)""",
        (out, name, name),
    )
    sql.execute(
        "UPDATE messages SET state = 'done', forwarded = 1, ended = 1.5 WHERE queue = ? AND message_id = ?",
        (into, name),
    )
    sql.execute("UPDATE queues SET pushed = pushed + 1 WHERE id = ?", (out,))
    sql.execute("UPDATE queues SET claimed = claimed - 1, done = done + 1 WHERE id = ?", (into,))
    sql.execute("COMMIT")


# --- through the door --------------------------------------------------------------------------


def _by_ray(bench: Bench, name: str, count: int, size: int) -> Measure:
    peer = bench.ray
    return lambda: {"seconds": [peer(name, count, size)]}


@contextmanager
def _pushed(bench: Bench, count: int, size: int) -> Iterator[tuple[Client, str, str]]:
    """Give a client, a queue with so many payloads of so many bytes, and the path of another queue."""
    number, server = next(_serial), bench.penstock()
    into, out = f"queue/bench/in-{number}", f"queue/bench/out-{number}"
    with penstock.connect(server.url) as client:
        client.push(into, [_payload(size, number) for number in range(count)], finish=True)
        bench.settle()
        yield client, into, out
        assert _counts(client, out) == (count, 0)
        for path in (into, out):
            client.delete(path)


def _payload(size: int, number: int) -> pa.Table:
    return pa.table({"x": pa.array(range(number, number + size // 8), pa.int64())})


def _counts(client: Client, path: str) -> tuple[int, int]:
    """Return how many messages were pushed to a queue, and how many of them are done."""
    described = client.call(wire.DESCRIBE, wire.Target(path)).queue
    assert described is not None
    return described.counts.pushed, described.counts.done


def _worked(bench: Bench, count: int, size: int) -> Measure:
    """One worker as the README has it."""

    def measure() -> Sample:
        with _pushed(bench, count, size) as (client, into, out):
            began = time.perf_counter()
            for lease in client.claim(into):
                with lease as split:
                    lease.forward(out, split.payload)
            return {"seconds": [time.perf_counter() - began]}

    return measure


def _worked_in_batches(bench: Bench, count: int, size: int) -> Measure:
    """One worker that speaks to the server as docs/wire.md has it: the leases of a claim end in one transaction."""

    def measure() -> Sample:
        with _pushed(bench, count, size) as (client, into, out):
            began = time.perf_counter()
            while keys := _claim(client, into, (out,)):
                settle(client.connection, [(key, to_outputs(out, _payload(size, 0))) for key in keys], retry_for=30)
            return {"seconds": [time.perf_counter() - began]}

    return measure


def _claim(client: Client, path: str, to: tuple[str, ...] = ()) -> tuple[LeaseKey, ...]:
    request = ClaimMessages(path, uuid.uuid4().hex, "bench", _CLAIM, to)
    answer = client.call(wire.CLAIM_MESSAGES, request)
    return tuple(LeaseKey(path, each.message.message_id, each.token) for each in answer.messages)


def _two_queues(bench: Bench, count: int) -> Measure:
    """Messages without payload through two queues at a server of their own: allocators keep what they once had."""

    def measure() -> Sample:
        folder = bench.folder / f"server-{next(_serial)}"
        folder.mkdir()
        first, second = "queue/bench/first", "queue/bench/second"
        with ExitStack() as stack:
            server = stack.enter_context(penstock_server(folder / "data"))
            client = stack.enter_context(penstock.connect(server.url))
            most = stack.enter_context(peaks({"server": server.pid}))
            began = time.perf_counter()
            for start in range(0, count, _PUSH):
                numbers = range(start, min(count, start + _PUSH))
                client.push(first, [_message(f"m{number}") for number in numbers], finish=numbers[-1] == count - 1)
            while keys := _claim(client, first, (second,)):
                settle(client.connection, [(key, to_outputs(second, _message(""))) for key in keys], retry_for=30)
            while keys := _claim(client, second):
                client.call(wire.ACK_LEASES, AckLeases(keys))
            seconds = time.perf_counter() - began
            assert _counts(client, second) == (count, count)
        shutil.rmtree(folder)
        return {"seconds": [seconds], "server": [most["server"]]}

    return measure


def _idle(bench: Bench, seconds: float) -> Measure:
    """Workers that wait at a queue without messages; what the server takes for them once all of them have asked."""
    server = bench.penstock()

    def measure() -> Sample:
        path = f"queue/bench/idle-{next(_serial)}"
        with penstock.connect(server.url) as client:
            client.push(path, _message("m"))
            client.call(wire.ACK_LEASES, AckLeases(_claim(client, path)))
            before = _threads(server)
            claims = [client.claim(path) for _ in range(_WORKERS)]
            threads = [threading.Thread(target=lambda claim=claim: list(claim)) for claim in claims]
            for thread in threads:
                thread.start()
            time.sleep(seconds / 2)  # until they take turns
            began, used = time.perf_counter(), processor_seconds(server.pid)
            time.sleep(seconds)
            used = (processor_seconds(server.pid) - used) / (time.perf_counter() - began)
            more = _threads(server) - before
            for claim in claims:
                claim.stop()
            for thread in threads:
                thread.join()
            client.delete(path)
        return {"seconds": [seconds], "cores": [used], "threads": [more]}

    return measure


def _threads(server: Penstock) -> int:
    return len(list(Path(f"/proc/{server.pid}/task").iterdir()))


# --- Spark's way into a queue ------------------------------------------------------------------


def _floor(bench: Bench, shape: Shape) -> Measure:
    """What Spark needs to hand the rows to Python at all, then what the server needs to keep as many."""
    spark, server = bench.spark, bench.penstock()
    frame, path = shape.frame(spark), "store/bench/own-write"

    def work() -> None:
        counts = frame.mapInArrow(CountRows(), "rows long").collect()
        assert sum(count.rows for count in counts) == shape.rows
        with penstock.connect(server.url) as client:
            client.put(path, pa.RecordBatchReader.from_batches(shape.row.schema, _batches(shape)))

    return timed(work, before=bench.settle, clear=lambda: server.drop(path))


def _batches(shape: Shape) -> Iterator[pa.RecordBatch]:
    return repeated(shape.row, shape.rows, _BATCH_ROWS)


def _filled(bench: Bench, way: str, shape: Shape) -> Measure:
    """Fill a queue, until its splits are known to be all."""

    def measure() -> Sample:
        stage = f"bench/{way}-{next(_serial)}".lower()
        bench.settle()
        fill = _source(bench, way, stage, shape)
        with peaks({"driver": os.getpid()}) as most:
            began = time.perf_counter()
            splits = fill()
            seconds = time.perf_counter() - began
        with penstock.connect(bench.penstock().url) as client:
            assert _counts(client, f"queue/{stage}") == (splits, 0)
        _clear(bench, stage)
        return {"seconds": [seconds], "driver": [most["driver"]]}

    return measure


def _source(bench: Bench, way: str, stage: str, shape: Shape) -> Callable[[], int]:
    url = bench.penstock().url
    if way == EARLY:
        frame, names = shape.frame(bench.spark), (f"store/{stage}", f"queue/{stage}")
        return lambda: penstock.write(frame, names[0], queue=names[1], release="partition", url=url).parts
    if way == V2:
        config = SparkSourceV2Config(dataframe_fn=shape.frame)
        return SparkSourceV2Master(stage, config, spark=bench.spark, url=url).start
    return SparkSource(stage, SparkSourceConfig(dataframe_fn=shape.frame), spark=bench.spark, url=url).start


def _first_payload(bench: Bench, way: str, shape: Shape) -> Measure:
    """Fill a queue that a worker waits for, until it has its first rows."""
    url = bench.penstock().url

    def measure() -> Sample:
        stage, moments = f"bench/first-{next(_serial)}", list[float]()

        def work() -> None:
            with penstock.connect(url) as client:
                _wait_for_queue(client, f"queue/{stage}")
                claims = client.claim(f"queue/{stage}", prefetch=0)
                for lease in claims:
                    with lease as split:
                        source = SparkSource(stage, SparkSourceConfig(), url=url)
                        payload = source.read(split) if way == V1 else split.payload
                        assert payload.data.num_rows
                        moments.append(time.perf_counter())
                        claims.stop()

        bench.settle()
        fill, worker = _source(bench, way, stage, shape), threading.Thread(target=work)
        worker.start()
        began = time.perf_counter()
        fill()
        worker.join()
        _clear(bench, stage)
        return {"seconds": [moments[0] - began]}

    return measure


def _wait_for_queue(client: Client, path: str) -> None:
    while True:
        try:
            _counts(client, path)
        except NotFound:
            time.sleep(_LOOK)
        else:
            return


def _clear(bench: Bench, stage: str) -> None:
    server = bench.penstock()
    server.call("delete", path=f"queue/{stage}")
    server.call("delete", path=f"store/{stage}")


PAGE = Page(
    output="docs/benchmarks-queue.md",
    command="make bench-queue",
    sizes={
        "all": Sizes(7, 3_200, 500, 10_000, 12_000_000, (10_000, 100_000, 1_000_000), 10),
        "quick": Sizes(3, 640, 200, 1_000, 3_000_000, (10_000, 100_000), 6),
        "smoke": Sizes(1, 64, 4, 4, 8_000, (30, 300), 0.5),
    },
    cases=cases,
    others=frozenset({BARE, REGISTRY, RAY_DATA, FLOOR, FEW, TENTH}),
    rivals={on_ray.NAME: frozenset({REGISTRY, RAY_DATA})},
    lacks=lacks,
)
