"""docs/benchmarks-topics.md: topics, and streams that read them, beside Kafka and a bare fsync.

Kafka and Spark's source for it are got by Maven into .venv-bench/, and the Spark that they are for into .venv-spark/,
once.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import penstock
from scripts.bench import kafka
from scripts.bench.backlog import SHARDS, copied, filled, of_kafka
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.consuming import readers
from scripts.bench.figures import Line, Measure, Sample
from scripts.bench.publisher import batches, publisher, rows
from scripts.bench.session import TENTH, growth, lacks
from scripts.bench.streaming import Pace, drained, stream, tailed
from scripts.bench.watch import processor_seconds

OURS, KAFKA, READY = "penstock", "Spark's Kafka source", "ready batches"
PRODUCER, FSYNC = "kafka-python", "a bare fsync"
PUT, PIPELINE = "c.put", "a producer"
GROUP, FOLLOW = "a group of four", "c.follow"
_CLIENTS, _BATCH = 4, 1_000
_MEMBERS, _PUTS = 4, 200
_MOST_OF_KAFKA = 10_000  # rows a second; kafka-python sends twice as many at best, with a core for itself
_INTO_A_DATASET = 10_000  # rows a second, of the side with a sink that keeps them
_PHASES = {
    "triggerExecution": "a batch, all in all",
    "latestOffset": "where it ends",
    "walCommit": "its offsets on disk",
    "getBatch": "its range",
    "queryPlanning": "its plan, and its tickets",
    "addBatch": "its rows",
    "commitOffsets": "its commit",
}
_CLOCKS = {
    "mean": "mean by its own clock",
    'penstock_call_seconds_sum{verb="do_put"}': "of that the server's do_put",
    'penstock_append_seconds_sum{step="fsync"}': "of that the file of the rows",
    'penstock_append_seconds_sum{step="ledger"}': "and the change of the ledger",
    "processor": "the server's processor time",
}
"""What is told of a put, a part of it by the server's own metrics."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    messages: int
    limit: int  # rows of a batch where they are limited
    integers: int  # rows; ten times as many are the large backlog
    growth: int  # rounds of it
    batches: int  # of a client that appends
    single: int  # rows in a round of a client that appends row by row
    clients: tuple[int, ...]  # that append row by row at once
    rates: tuple[int, ...]  # rows a second
    seconds: float  # that count of a publisher at a rate
    warm: float  # seconds before them

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return 50 * self.messages * 130 + 30 * 32 * self.integers >> 20


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases; growth first, as allocators keep what they once had."""
    few, many = sizes.integers, 10 * sizes.integers
    sides: dict[str, Side] = {
        TENTH: partial(_backlog, kind="integers", number=few, watched=True),
        OURS: partial(_backlog, kind="integers", number=many, watched=True),
        READY: partial(_ready, kind="integers", number=many),
    }
    what = f"{many:,} rows of 4 int64, one batch"
    lines = [
        Line("Growth", what, OURS, READY, "/s", many, ratio="speed", promise=(">=", 0.8)),
        *growth(OURS, "server", "driver", "source"),
    ]
    yield Case(sides, lines, sizes.growth)
    ways: dict[str, Callable[..., Measure]] = {OURS: _backlog, READY: _ready, KAFKA: _kafka}
    for limit, what, least in ((0, "one batch", 3), (sizes.limit, f"{sizes.limit:,} rows a batch", 1)):
        sides = {name: partial(way, kind="json", number=sizes.messages, limit=limit) for name, way in ways.items()}
        speed = partial(Line, "Backlog", side=OURS, unit="/s", amount=sizes.messages, ratio="speed")
        lines = [
            speed(what, beside=KAFKA, promise=(">=", least)),
            speed(what, beside=READY, promise=None if limit else (">=", 0.8)),
            speed(f"{what}, the whole query", beside=KAFKA, of="whole"),
        ]
        for beside, phase in itertools.product((READY, KAFKA) if limit else (), _PHASES):
            lines.append(Line("Trigger", f"{_PHASES[phase]} ({phase})", OURS, beside, "ms", of=phase))
        yield Case(sides, lines, sizes.rounds)
    yield from _appends(sizes)
    yield from _tails(sizes)


def _appends(sizes: Sizes) -> Iterator[Case]:
    batched = partial(_publish, clients=_CLIENTS, number=sizes.batches, rows=_BATCH)
    sides: dict[str, Side] = {OURS: partial(batched, kind="penstock"), PRODUCER: partial(batched, kind="kafka")}
    what, number = f"{_CLIENTS} clients, batches of 1,000", _CLIENTS * sizes.batches * _BATCH
    line = Line("Append", what, OURS, PRODUCER, "/s", number, ratio="speed", promise=(">=", 5))
    yield Case(sides, [line], sizes.rounds)
    kinds = {OURS: "penstock", FSYNC: "fsync", PRODUCER: "kafka"}
    sides = {name: partial(_publish, kind=kind, clients=1, number=sizes.single, rows=1) for name, kind in kinds.items()}
    what = "one client, a row at a time"
    yield Case(sides, [*_latency("Append", what, FSYNC), *_latency("Append", what, PRODUCER)], sizes.rounds)
    yield from _producers(sizes)
    yield from _groups(sizes)
    for clients in sizes.clients:
        who = "one client" if clients == 1 else f"{clients} clients"
        lines = [
            *_latency("Small puts", who),
            Line("Small puts", f"{who}, fsyncs for each put", OURS, unit="", of="fsyncs"),
            *(Line("Small puts", f"{who}, {what}", OURS, unit="ms", of=of) for of, what in _CLOCKS.items()),
        ]
        yield Case({OURS: partial(_small_put, clients=clients, number=sizes.single)}, lines, sizes.rounds)


def _producers(sizes: Sizes) -> Iterator[Case]:
    """A producer beside puts of the same batches: as fast as it goes, and row by row, each answered first."""
    batched = partial(_publish, clients=1, number=5 * sizes.batches, rows=_BATCH)
    sides: dict[str, Side] = {PIPELINE: partial(batched, kind="producer"), PUT: partial(batched, kind="penstock")}
    number = 5 * sizes.batches * _BATCH
    line = Line("Producer", "batches of 1,000", PIPELINE, PUT, "/s", number, ratio="speed", promise=(">=", 2))
    yield Case(sides, [line], sizes.rounds)
    single = partial(_publish, clients=1, number=sizes.single, rows=1)
    sides = {PIPELINE: partial(single, kind="producer, answered"), PUT: partial(single, kind="penstock")}
    lines = [
        Line("Producer", "a row at a time, p50", PIPELINE, PUT, "ms", ratio="time", promise=("<=", 1.2), of="each"),
        Line("Producer", "a row at a time, p99", PIPELINE, PUT, "ms", ratio="time", of="each", percent=99),
    ]
    yield Case(sides, lines, sizes.rounds)


def _groups(sizes: Sizes) -> Iterator[Case]:
    """Four processes of a group beside one that follows: what is there already, and while it comes."""
    for what, number, live in (
        ("a backlog", 5 * sizes.integers, False),
        ("while rows come", sizes.integers // 2 // _PUTS * _PUTS, True),
    ):
        read = partial(_consumed, number=number, live=live)
        sides: dict[str, Side] = {
            GROUP: partial(read, processes=_MEMBERS),
            FOLLOW: partial(read, processes=1),
        }
        line = Line("Group", what, GROUP, FOLLOW, "/s", number, ratio="speed", promise=(">=", 0.9))
        yield Case(sides, [line], sizes.rounds)


def _tails(sizes: Sizes) -> Iterator[Case]:
    """Each rate from penstock and, where its client can send as much, from Kafka; one of them into a dataset too."""
    for rate in sizes.rates:
        pace = {"rate": rate, "seconds": sizes.seconds, "warm": sizes.warm}
        sides: dict[str, Side] = {OURS: partial(_tail, topic=f"topic/bench/tail-{rate}", pace=pace)}
        if rate <= _MOST_OF_KAFKA:
            sides[KAFKA] = partial(_kafka_tail, pace=pace)
        yield Case(sides, _latency("End to end", f"{rate:,} rows/s", KAFKA), 1, warm_up=False)
        if rate == _INTO_A_DATASET:
            sides = {OURS: partial(_tail, topic="topic/bench/tail-kept", pace=pace, into="store/bench/tailed")}
            yield Case(sides, _latency("End to end", f"{rate:,} rows/s into a dataset"), 1, warm_up=False)


def _latency(heading: str, what: str, beside: str = "") -> list[Line]:
    return [
        Line(heading, f"{what}, p{percent}", OURS, beside, "ms", ratio="speed", of="each", percent=percent)
        for percent in (50, 99)
    ]


def _backlog(bench: Bench, kind: str, number: int, limit: int = 0, *, watched: bool = False) -> Measure:
    """A topic, read by penstock's source."""
    options = {"url": bench.penstock().url, **({"maxRowsPerTrigger": limit} if limit else {})}
    return drained(bench, stream(bench, "penstock", options, filled(bench, kind, number)), number, watched=watched)


def _ready(bench: Bench, kind: str, number: int, limit: int = 0) -> Measure:
    """As many rows that are ready, in as many tasks as penstock has."""
    from scripts.bench.ready import Ready

    bench.spark.dataSource.register(Ready)
    tickets = penstock.do_get(filled(bench, kind, number), url=bench.penstock().url).tickets(bench.spark)
    options = {"kind": kind, "rows": number, "each": min(-(-number // tickets.count()), limit or number), "most": limit}
    return drained(bench, stream(bench, "ready", options), number)


def _kafka(bench: Bench, kind: str, number: int, limit: int) -> Measure:
    """The same rows in Kafka, partition by shard, read by Spark's source for it."""
    copied(bench, kind, number)
    return drained(bench, of_kafka(bench, kind, {"maxOffsetsPerTrigger": limit} if limit else {}), number)


def _publish(bench: Bench, kind: str, clients: int, number: int, rows: int) -> Measure:
    """Clients at once, each with so many batches: the seconds of all, and of `each` batch."""
    topic = f"appended-{clients}-{rows}"
    about: dict[str, Callable[[], tuple[Any, ...]]] = {
        "penstock": lambda: (bench.penstock().url, f"topic/bench/{topic}"),
        "producer": lambda: (bench.penstock().url, f"topic/bench/produced-{rows}"),
        "kafka": lambda: (bench.kafka.address, topic, bench.kafka.libraries),
        "fsync": lambda: (bench.folder / "fsynced", ""),
    }
    publishers = [
        bench.contexts.enter_context(publisher(kind, *about[kind.partition(",")[0]]())) for _ in range(clients)
    ]

    def measure() -> Sample:
        bench.settle()
        began = time.perf_counter()
        answers = [publisher(batches, count=number, rows=rows) for publisher in publishers]
        each = [seconds for answer in answers for seconds in answer.result()]
        return {"seconds": [time.perf_counter() - began], "each": each}

    return measure


def _small_put(bench: Bench, clients: int, number: int) -> Measure:
    """Clients that put row by row, and what each put takes of the server by its own account."""
    server, publish = bench.penstock(), _publish(bench, "penstock", clients, number, rows=1)

    def totals() -> dict[str, float]:
        return {**server.totals(), "processor": processor_seconds(server.pid)}

    def measure() -> Sample:
        before, sample = totals(), publish()
        means = {name: [(total - before.get(name, 0)) / clients / number] for name, total in totals().items()}
        return {**means, **sample, "mean": [statistics.mean(sample["each"])]}

    return measure


def _consumed(bench: Bench, number: int, live: bool, processes: int) -> Measure:
    """Processes that read a topic of four shards from its oldest row, filled before or while they do; several are a
    group.
    """
    server, numbers = bench.penstock(), itertools.count()
    begin = bench.contexts.enter_context(readers(server.url, processes))
    client = bench.contexts.enter_context(penstock.connect(server.url))
    table = rows("integers", range(number // _PUTS))

    def create(path: str) -> None:
        server.create_topic(path, table.schema, shards=_MEMBERS)

    def fill(path: str) -> None:
        for _ in range(_PUTS):
            client.put(path, table)

    def measure() -> Sample:
        run = f"{processes}-{next(numbers)}"
        path = f"topic/bench/consumed-{run}" if live else "topic/bench/consumed"
        bench.once(f"{path} is there", partial(create, path))
        if not live:
            bench.once(path, partial(fill, path))
        bench.settle()
        began = time.time()
        end = begin(path, number, run if processes > 1 else None)
        if live:
            fill(path)
        return {"seconds": [end() - began]}

    return measure


def _tail(bench: Bench, topic: str, pace: Pace, into: str = "") -> Measure:
    """A query that reads on while a client puts, each time in a topic of its own."""
    numbers = itertools.count()

    def measure() -> Sample:
        server, path = bench.penstock(), f"{topic}-{next(numbers)}"
        server.create_topic(path, rows("json", range(0)).schema, shards=SHARDS)
        with publisher("penstock", server.url, path) as client:
            return tailed(bench, stream(bench, "penstock", {"url": server.url}, path), client, pace, into=into)

    return measure


def _kafka_tail(bench: Bench, pace: Pace) -> Measure:
    """The same with Kafka, whose topic is made by a first row."""

    def measure() -> Sample:
        topic = f"tail-{pace['rate']}"
        with publisher("kafka", bench.kafka.address, topic, bench.kafka.libraries) as client:
            client(batches, count=1, rows=1).result()
            return tailed(bench, of_kafka(bench, topic, {}), client, pace, before=1)

    return measure


PAGE = Page(
    output="docs/benchmarks-topics.md",
    command="make bench-topics",
    sizes={
        "all": Sizes(7, 2_000_000, 200_000, 2_000_000, 3, 40, 200, (1, 8, 32), (1_000, 10_000, 50_000), 12, 4),
        "quick": Sizes(3, 1_000_000, 100_000, 500_000, 2, 20, 100, (1, 8, 32), (1_000, 10_000, 50_000), 5, 3),
        "smoke": Sizes(1, 4_000, 2_000, 1_000, 1, 1, 5, (1, 2), (1_000,), 0.4, 0.1),
    },
    cases=cases,
    others=frozenset({KAFKA, READY, PRODUCER, FSYNC, TENTH, PUT, FOLLOW}),
    rivals={kafka.NAME: frozenset({KAFKA, PRODUCER})},
    lacks=lacks,
)
