"""docs/benchmarks-typed.md: payloads that become columns, rows that become messages of Pub/Sub, beside others' ways."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

import penstock
from penstock.decode.decoding import plan
from scripts.bench import kafka
from scripts.bench.backlog import copied, filled, of_kafka
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.figures import Line, Measure, Promise, Sample, Work, timed
from scripts.bench.publisher import AVRO, message
from scripts.bench.pubsub import fake, run_peer
from scripts.bench.pulling import Intake, intake
from scripts.bench.session import TENTH, lacks
from scripts.bench.streaming import drained, stream
from scripts.bench.watch import descendant, peaks, processor_seconds

OURS, KAFKA = "penstock", "Kafka, decoded by Spark"
BARE, WRAPPED = "pyarrow.json", "pyarrow.json, rows with numbers"
GOOGLE, STUB = "PublisherClient, row by row", "the bare stub, ready requests"
AGAIN = "another cut"
SCHEMA = "id long, city string, fare decimal(10,2), at timestamp, trip struct<km: double, stops: int>, note string"
_ARROW = pa.schema(
    {
        "id": pa.int64(),
        "city": pa.string(),
        "fare": pa.decimal128(10, 2),
        "at": pa.timestamp("us", "UTC"),
        "trip": pa.struct({"km": pa.float64(), "stops": pa.int32()}),
        "note": pa.string(),
    }
)
"""The same as Arrow's."""
_BATCH = 1 << 15
"""Rows of a batch as a topic's reader gets it: 4 MiB."""
_BAD: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda _: b"oops",
    "cut short": lambda payload: payload[:-40],
    "a wrong type": lambda payload: payload.replace(b'"id":', b'"id":"none","key":'),
    "no such time": lambda payload: payload.replace(b'"at":"2026', b'"at":"in 2026'),
}
"""What becomes of one payload in a hundred."""
_KINDS = {"json": 3, "avro": 2}
"""How many times as fast as Spark's own way each is to be."""
_CUTS = 7
_PUT = 20_000  # rows of a batch that is put
_MORE = {"server": 32 << 20, "publisher": 32 << 20}  # bytes that count as no more memory
_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, in rows."""

    rounds: int
    streamed: int
    decoded: int
    replayed: int
    published: int
    singly: int  # published row by row, which takes ten times as long for each
    growth: int  # published; ten times as many are the large write

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return (3 * self.streamed + 2 * self.replayed + 10 * self.published + 30 * self.growth) * 150 >> 20


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    yield _growth(sizes)
    yield from _decoding(sizes)
    yield _replay(sizes)
    yield _publishing(sizes)
    for kind, least in _KINDS.items():
        yield _streams(sizes, kind, least)


def _streams(sizes: Sizes, kind: str, least: float) -> Case:
    number = sizes.streamed
    ways: dict[str, Callable[..., Measure]] = {OURS: _stream, KAFKA: _from_kafka}
    sides: dict[str, Side] = {name: partial(way, kind=kind, number=number) for name, way in ways.items()}
    speed = partial(Line, "Streams", side=OURS, beside=KAFKA, unit="/s", amount=number, ratio="speed")
    lines = [speed(f"{kind}, one batch", promise=(">=", least)), speed(f"{kind}, the whole query", of="whole")]
    return Case(sides, lines, sizes.rounds)


def _decoding(sizes: Sizes) -> Iterator[Case]:
    rate = partial(Line, "Decoding", unit="/s", amount=sizes.decoded, ratio="speed")
    sides: dict[str, Side] = {
        OURS: partial(_decode, number=sizes.decoded),
        WRAPPED: partial(_parse, number=sizes.decoded, wrapped=True),
        BARE: partial(_parse, number=sizes.decoded, wrapped=False),
    }
    lines = [
        rate("JSON", OURS, WRAPPED, promise=(">=", 0.6)),
        rate("JSON", OURS, BARE, promise=(">=", 0.45)),
    ]
    for what in _BAD:
        sides[what] = partial(_decode, number=sizes.decoded, bad=what)
        lines.append(rate(f"JSON, 1 % of it {what}", what, OURS, promise=(">=", 0.5)))
    yield Case(sides, lines, sizes.rounds)


def _replay(sizes: Sizes) -> Case:
    what = f"{sizes.replayed:,} rows, 4 % of them bad: rows that differ"
    sides: dict[str, Side] = {AGAIN: partial(_replayed, number=sizes.replayed)}
    return Case(sides, [Line("Replay", what, AGAIN, unit="", of="different", promise=("<", 1))], 1, warm_up=False)


def _publishing(sizes: Sizes) -> Case:
    pubsub = _PubSub()
    sides: dict[str, Side] = {
        OURS: partial(_publish, pubsub=pubsub, number=sizes.published),
        GOOGLE: partial(_peer, pubsub=pubsub, peer="publish", number=sizes.singly, amount=sizes.published),
        STUB: partial(_peer, pubsub=pubsub, peer="requests", number=sizes.published, amount=sizes.published),
    }
    rate = partial(Line, "Publishing", unit="/s", amount=sizes.published, ratio="speed")
    lines = [
        rate("messages", OURS, GOOGLE, promise=(">=", 5)),
        rate("messages", OURS, STUB, promise=(">=", 0.7)),
        Line("Publishing", "CPU s per million, publisher", OURS, STUB, "", of="publisher"),
        Line("Publishing", "CPU s per million, server", OURS, unit="", of="server"),
    ]
    return Case(sides, lines, sizes.rounds)


def _growth(sizes: Sizes) -> Case:
    grown = partial(_grown, pubsub=_PubSub())
    few, many = sizes.growth, 10 * sizes.growth
    sides: dict[str, Side] = {TENTH: partial(grown, number=few), OURS: partial(grown, number=many)}
    limit: Promise = ("<=", 11)
    lines = [Line("Growth", f"{many:,} messages: time", OURS, TENTH, ratio="time", promise=limit)]
    for process, more in _MORE.items():
        what = f"memory of the {process}"
        lines.append(Line("Growth", what, OURS, TENTH, "MiB", of=process, promise=("< more", more)))
    return Case(sides, lines, min(sizes.rounds, 3), warm_up=False)


# --- streams -----------------------------------------------------------------------------------


def _stream(bench: Bench, kind: str, number: int) -> Measure:
    """A topic, decoded by penstock's source."""
    options: dict[str, object] = {"url": bench.penstock().url, "decode": kind}
    if kind == "avro":
        file = bench.folder / "order.avsc"
        file.write_text(json.dumps(AVRO))
        options["writerSchema"] = file
    return drained(bench, stream(bench, "penstock", options, filled(bench, kind, number), schema=SCHEMA), number)


def _from_kafka(bench: Bench, kind: str, number: int) -> Measure:
    """The same rows in Kafka, decoded by Spark."""
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import col, from_json

    copied(bench, kind, number)
    value = col("value")
    row = from_avro(value, json.dumps(AVRO)) if kind == "avro" else from_json(value.cast("string"), SCHEMA)
    return drained(bench, of_kafka(bench, kind, {}).select(row.alias("row")).select("row.*"), number)


# --- decoding, in this process -----------------------------------------------------------------


def _payloads(number: int, bad: str = "") -> pa.Array:
    """Return messages, every hundredth of them bad."""
    payloads = list(map(message, range(number)))
    for row in range(50, number, 100) if bad else ():
        payloads[row] = _BAD[bad](payloads[row])
    return pa.array(payloads, pa.binary())


def _decode(bench: Bench, number: int, bad: str = "") -> Measure:
    """Rows as a topic's reader gets them."""
    table = pa.table({"value": _payloads(number, bad)})
    decoding = plan("topic/bench/json", ["value"], "json", SCHEMA, with_error=True).reading(table.schema)
    batches = table.to_batches(_BATCH)

    def decode() -> None:
        errors = sum(len(batch) - batch.column("_error").null_count for batch in decoding.batches(batches))
        assert errors == len(range(50, number, 100) if bad else ())

    return timed(decode, clock=time.process_time)


def _parse(bench: Bench, number: int, *, wrapped: bool) -> Measure:
    """The same rows as lines of JSON, which are ready, by Arrow's reader with the types that it has."""
    payloads = _payloads(number).to_pylist()
    schema = _ARROW
    if wrapped:
        payloads = [b'{"i":%d,"d":%b}' % (at % _BATCH, each) for at, each in enumerate(payloads)]
        schema = pa.schema({"i": pa.int64(), "d": pa.struct(list(schema))})
    texts = [b"\n".join(payloads[first : first + _BATCH]) + b"\n" for first in range(0, number, _BATCH)]
    as_we_read = pyarrow.json.ReadOptions(use_threads=False)
    with_schema = pyarrow.json.ParseOptions(schema, unexpected_field_behavior="ignore")

    def parse() -> None:
        tables = [pyarrow.json.read_json(pa.BufferReader(text), as_we_read, with_schema) for text in texts]
        assert sum(table.num_rows for table in tables) == number

    return timed(parse, clock=time.process_time)


# --- replay ------------------------------------------------------------------------------------


def _replayed(bench: Bench, number: int) -> Measure:
    """A topic, read whole and then in ranges that begin elsewhere: other neighbours, other batches."""
    path, server = f"topic/bench/replayed-{number}", bench.penstock()

    def measure() -> Sample:
        payloads = list(map(message, range(number)))
        for row in range(20, number, 25):
            payloads[row] = list(_BAD.values())[row // 25 % len(_BAD)](payloads[row])
        with penstock.connect(server.url) as client:
            for first in range(0, number, _BATCH):
                client.put(path, pa.table({"value": pa.array(payloads[first : first + _BATCH], pa.binary())}))
            arguments: Any = {"decode": "json", "schema": f"_offset long, {SCHEMA}"}
            once = client.get(path, **arguments).read_all()
            cuts = [number * cut // _CUTS for cut in range(_CUTS + 1)]
            ranges = [({0: start}, {0: end}) for start, end in itertools.pairwise(cuts)]
            again = [client.get(path, start=start, end=end, **arguments).read_all() for start, end in ranges]
        return {"different": [_different(once, pa.concat_tables(again))]}

    return measure


def _different(one: pa.Table, other: pa.Table) -> int:
    """Count the rows that differ in a bit; all of them, if there aren't as many."""
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return int(one.num_rows)
    [mine], [others] = (_as_bits(each).combine_chunks().to_batches() for each in (one, other))
    if mine.equals(others):
        return 0
    return sum(not mine.slice(row, 1).equals(others.slice(row, 1)) for row in range(mine.num_rows))


def _as_bits(table: pa.Table) -> pa.Table:
    """Return a flat table with floats as integers: else 0.0 were -0.0."""
    flat = table.flatten()
    for at, field in enumerate(flat.schema):
        if pa.types.is_float64(field.type):
            bits = [chunk.view(pa.int64()) for chunk in flat.column(at).chunks]
            flat = flat.set_column(at, field.name, pa.chunked_array(bits, pa.int64()))
    return flat


# --- publishing --------------------------------------------------------------------------------


class _PubSub:
    """A fake Pub/Sub that only counts, which the sides of one case share, and a server beside it."""

    def __init__(self) -> None:
        self._server: Intake | None = None
        self.address = ""
        self.control: Callable[..., Any]

    def start(self, bench: Bench) -> None:
        """Run the fake, unless it runs."""
        if not self.address:
            self.address, self.control = bench.contexts.enter_context(fake())

    def server(self, bench: Bench) -> Intake:
        """Return the one server of the case."""
        self.start(bench)
        if self._server is None:
            folder = bench.folder / f"publishing-{next(_serial)}"
            bench.contexts.callback(shutil.rmtree, folder)
            self._server = bench.contexts.enter_context(intake(folder, self.address))
        return self._server

    def topic(self) -> str:
        """Return a new topic."""
        name = f"projects/bench/topics/topic-{next(_serial)}"
        self.control("count", name)
        return name


def _messages(number: int) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = pa.table({"data": _payloads(number)}).to_batches(_PUT)
    return batches


def _publish(bench: Bench, pubsub: _PubSub, number: int) -> Measure:
    """A put of messages that are ready, until Pub/Sub has answered all."""
    server, topic = pubsub.server(bench).server, pubsub.topic()
    work = _put(server.url, topic, _messages(number))
    publisher = partial(descendant, b"publisher", server.pid)

    def processor() -> dict[str, float]:
        pid = publisher()
        return {"server": processor_seconds(server.pid), "publisher": processor_seconds(pid) if pid else 0.0}

    def measure() -> Sample:
        bench.settle()
        counted, before = pubsub.control("counted", topic), processor()
        sample = timed(work)()
        assert pubsub.control("counted", topic) == counted + number
        return {**sample, **{name: [(used - before[name]) / number * 1e6] for name, used in processor().items()}}

    return measure


def _put(url: str, topic: str, batches: Sequence[pa.RecordBatch]) -> Work:
    _, project, _, name = topic.split("/")

    def put() -> None:
        with penstock.connect(url) as client:
            client.put(f"publish/{project}/{name}", pa.RecordBatchReader.from_batches(batches[0].schema, batches))

    return put


def _peer(bench: Bench, pubsub: _PubSub, peer: str, number: int, amount: int) -> Measure:
    """A peer: the seconds of `amount` messages, from those of `number`."""
    pubsub.start(bench)
    topic = pubsub.topic()

    def measure() -> Sample:
        bench.settle()
        figures = run_peer(peer, pubsub.address, number, topic)
        return {"seconds": [figures["seconds"] / number * amount], "publisher": [figures["processor"] / number * 1e6]}

    return measure


def _grown(bench: Bench, pubsub: _PubSub, number: int) -> Measure:
    """A put of messages at a server of its own: allocators keep what they once had."""
    pubsub.start(bench)
    batches = _messages(min(number, _PUT))

    def measure() -> Sample:
        folder: Path = bench.folder / f"publishing-{next(_serial)}"
        with intake(folder, pubsub.address) as server:
            pid = server.server.pid
            topic = pubsub.topic()
            _put(server.server.url, topic, batches)()  # starts the publisher
            with peaks({"server": pid, "publisher": partial(descendant, b"publisher", pid)}) as most:
                sample = timed(_put(server.server.url, topic, batches * (number // len(batches[0]))))()
        shutil.rmtree(folder)
        return {**sample, **{name: [size] for name, size in most.items()}}

    return measure


PAGE = Page(
    output="docs/benchmarks-typed.md",
    command="make bench-typed",
    sizes={
        "all": Sizes(5, 2_000_000, 500_000, 1_000_000, 500_000, 20_000, 200_000),
        "quick": Sizes(2, 500_000, 200_000, 100_000, 100_000, 5_000, 50_000),
        "smoke": Sizes(1, 2_000, 2_000, 1_000, 2_000, 100, 200),
    },
    cases=cases,
    others=frozenset({KAFKA, WRAPPED, BARE, AGAIN, GOOGLE, STUB, TENTH}),
    rivals={kafka.NAME: frozenset({KAFKA})},
    lacks=lacks,
)
