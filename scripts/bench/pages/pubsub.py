"""docs/benchmarks-pubsub.md: messages of Pub/Sub into a journal, beside Google's subscriber and bare loops."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.exchange import Exchange, Listener
from penstock.client.settings import ConnectSettings
from penstock.errors import PenstockError, Unavailable
from penstock.queue.pubsub.registry import MESSAGES
from penstock.wire.exchange import Answer
from penstock.wire.position import Position
from scripts import emulator
from scripts.bench.bench import Bench, Case, Page, Side
from scripts.bench.figures import Line, Measure, Promise, Sample
from scripts.bench.pubsub import fake, publisher, run_peer
from scripts.bench.pulling import Intake, consume, intake
from scripts.bench.session import TENTH
from scripts.bench.watch import memory, peaks

OURS, SUBSCRIBE, BARE = "penstock", "subscribe()", "a bare loop"
_LIBRARIES = ("google-cloud-pubsub", "grpcio", "protobuf")
_STREAM_BYTES = 10e6  # a second: the most that Pub/Sub sends on one stream
_SHAPES = (
    ("100 B, no attributes", 100, 0),
    ("100 B, 2 attributes", 100, 2),
    ("1 kB, no attributes", 1_000, 0),
    ("1 kB, 2 attributes", 1_000, 2),
)
_CAUSES = ("released", "lease lapsed", "other puller", "restart of puller", "restart of server")
_SUBSCRIPTIONS = 8  # at the emulator, which gives one of them no more than 2 k/s
_GROWN_IDS = 100_000  # messages that are remembered where memory is to stay flat
_MORE = {"server": 32 << 20, "puller": 32 << 20}  # bytes that count as no more memory
_SAMPLE = 10  # one message in so many has its ack looked at
_AHEAD = 20_000  # messages that peers take before they are measured, at most
_REBUILT_BATCH = 200_000

_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    messages: int
    subscribed: int  # by `subscribe()`, which takes ten times as long for each
    seconds: float  # of a stream at its cap
    emulated: int  # messages that are published to each subscription at the emulator
    rates: tuple[int, ...]  # messages a second
    paced: float  # seconds that count at a rate
    warm: float  # seconds before them
    growth: int  # messages; ten times as many are the large backlog
    ids: int  # that are read back at a start

    @property
    def capped(self) -> int:
        """Messages that each stream has in these seconds: 1 kB, and what comes with them."""
        return round(self.seconds * _STREAM_BYTES / 1_300)

    @property
    def counted(self) -> int:
        """Messages at the emulator that count."""
        return _SUBSCRIPTIONS * self.emulated * 3 // 4

    @property
    def room(self) -> int:
        """MiB that must be free."""
        return (3 * self.messages * 1_200 + 11 * self.growth * 400 + self.ids * 250 >> 20) + 100


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases."""
    for shape, size, attributes in _SHAPES:
        yield _speed(sizes, shape, size, attributes)
    yield _streams(sizes)
    yield _emulator(sizes)
    for rate in sizes.rates:
        yield _pace(sizes, rate)
    yield _growth(sizes)
    yield _rebuild(sizes)


def _speed(sizes: Sizes, shape: str, size: int, attributes: int) -> Case:
    load, pubsub = {"size": size, "attributes": attributes}, _PubSub()
    peer = partial(_peer, pubsub=pubsub, amount=sizes.messages, load=load)
    sides: dict[str, Side] = {
        OURS: partial(_drained, pubsub=pubsub, count=sizes.messages, load=load),
        SUBSCRIBE: partial(peer, peer="subscribe", count=sizes.subscribed),
        BARE: partial(peer, peer="stream", count=sizes.messages),
    }
    rate = partial(Line, "Speed", unit="/s", amount=sizes.messages, ratio="speed")
    lines = [
        rate("messages", OURS, SUBSCRIBE, promise=(">=", 10)),
        rate("messages", OURS, BARE, promise=(">=", 0.5)),
        rate("messages, a bare loop", BARE, SUBSCRIBE),
        Line("Speed", "CPU s per million, puller", OURS, BARE, "", of="puller"),
        Line("Speed", "CPU s per million, server", OURS, unit="", of="server"),
    ]
    return Case(sides, lines, sizes.rounds, warm_up=False, data=shape)


def _streams(sizes: Sizes) -> Case:
    def name(pullers: int) -> str:
        return "one puller" if pullers == 1 else f"{pullers} pullers"

    capped = partial(_capped, pubsub=_PubSub("--stream-bytes-per-second", str(_STREAM_BYTES)), sizes=sizes)
    sides: dict[str, Side] = {name(pullers): partial(capped, pullers=pullers) for pullers in (1, 2, 4)}
    lines = []
    promises: dict[int, Promise | None] = {2: (">=", 1.9), 4: None}
    for pullers, promise in promises.items():
        line = partial(Line, "Streams", side=name(pullers), beside=name(1))
        lines.append(line(f"{name(pullers)}, messages", unit="/s", amount=sizes.capped, ratio="speed", promise=promise))
        for process in ("puller", "server"):
            what = f"{name(pullers)}, CPU s per million, {process}"
            lines.append(line(what, unit="", ratio="time", of=process, promise=("<=", 1.2) if pullers == 4 else None))
    return Case(sides, lines, sizes.rounds, warm_up=False)


def _emulator(sizes: Sizes) -> Case:
    pubsub = _Emulator()
    sides: dict[str, Side] = {
        OURS: partial(_emulated, pubsub=pubsub, sizes=sizes),
        BARE: partial(_bare_emulated, pubsub=pubsub, sizes=sizes),
    }
    line = Line("Emulator", "messages", OURS, BARE, "/s", sizes.counted, ratio="speed", promise=(">=", 0.6))
    return Case(sides, [line], sizes.rounds, warm_up=False)


def _pace(sizes: Sizes, rate: int) -> Case:
    line = partial(Line, "At a pace", side=OURS)
    lines = [line(f"{rate:,}/s: messages", unit="/s", amount=rate)]
    for of, what in (("committed", "publish to committed batch"), ("acked", "release to confirmed ack")):
        lines += [line(f"{rate:,}/s: {what}, p{p}", unit="ms", of=of, percent=p) for p in (50, 99)]
    lines += [line(f"{rate:,}/s: duplicates, {cause}", unit="", of=cause) for cause in _CAUSES]
    return Case({OURS: partial(_paced, pubsub=_PubSub(), rate=rate, sizes=sizes)}, lines, 1, warm_up=False)


def _growth(sizes: Sizes) -> Case:
    grown = partial(_grown, pubsub=_PubSub())
    sides: dict[str, Side] = {TENTH: partial(grown, count=sizes.growth), OURS: partial(grown, count=10 * sizes.growth)}
    lines = [Line("Growth", f"{10 * sizes.growth:,} messages: time", OURS, TENTH, ratio="time", promise=("<=", 11))]
    for process, more in _MORE.items():
        what = f"memory of the {process}"
        lines.append(Line("Growth", what, OURS, TENTH, "MiB", of=what, promise=("< more", more)))
    return Case(sides, lines, min(sizes.rounds, 3), warm_up=False)


def _rebuild(sizes: Sizes) -> Case:
    lines = [
        Line("Start", f"{sizes.ids:,} ids", OURS, promise=("<", 10)),
        Line("Start", "memory of the server with them", OURS, unit="MiB", of="memory"),
    ]
    return Case({OURS: partial(_rebuilt, ids=sizes.ids)}, lines, min(sizes.rounds, 3), warm_up=False)


# --- sides -------------------------------------------------------------------------------------


class _PubSub:
    """A Pub/Sub and a server beside it, which the sides of one case share: they run until it ends."""

    def __init__(self, *arguments: str) -> None:
        """Take the arguments of the fake."""
        self._arguments = arguments
        self._intake: Intake | None = None
        self.control: Callable[..., Any] = _no_control

    def start(self, bench: Bench) -> Intake:
        """Run both, unless they do."""
        if self._intake is None:
            bench.once(
                "versions", lambda: bench.notes.append(", ".join(f"{name} {version(name)}" for name in _LIBRARIES))
            )
            address, self.control = bench.contexts.enter_context(fake(*self._arguments))
            self._intake = _serve(bench, address)
        return self._intake

    def load(self, count: int, **load: Any) -> str:
        """Publish messages to a new subscription at the fake."""
        subscription = _new_subscription()
        self.control("load", subscription, count, **load)
        return subscription

    def backlog(self, server: Intake, count: int, **load: Any) -> tuple[str, Callable[[], object]]:
        """Attach a subscription with messages that aren't delivered yet; return its path, and what lets them flow."""
        subscription = self.load(count, **load)
        self.control("stall", subscription)
        return server.attach(subscription), lambda: self.control("resume", subscription)


class _Emulator:
    """The same with Google's emulator."""

    def __init__(self) -> None:
        self._intake: Intake | None = None
        self.publish: Callable[[Sequence[str], int], None] = _no_control

    def start(self, bench: Bench) -> Intake:
        """Run both, unless they do."""
        if self._intake is None:
            address, _ = bench.contexts.enter_context(emulator.running())
            self.publish = bench.contexts.enter_context(publisher(address))
            self._intake = _serve(bench, address)
            jar = emulator.find_jar()
            bench.notes.append(f"{'' if jar is None else jar.stem}, heap {emulator.default_heap()}, parallel collector")
        return self._intake


def _no_control(*_: object, **__: object) -> None:
    raise RuntimeError("the fake isn't there yet")


def _new_subscription() -> str:
    return f"projects/bench/subscriptions/s{next(_serial):04}"


def _serve(bench: Bench, address: str, *options: str) -> Intake:
    """Run a server until the case ends."""
    folder = bench.folder / f"server-{next(_serial)}"
    bench.contexts.callback(shutil.rmtree, folder)
    return bench.contexts.enter_context(intake(folder, address, *options))


def _peer(bench: Bench, pubsub: _PubSub, peer: str, count: int, amount: int, load: dict[str, int]) -> Measure:
    """A peer: the seconds of `amount` messages, from those of `count`."""
    server = pubsub.start(bench)

    def measure() -> Sample:
        figures = run_peer(peer, server.address, count, pubsub.load(3 * count + _AHEAD, **load))
        return {"seconds": [figures["seconds"] / count * amount], "puller": [figures["processor"] / count * 1e6]}

    return measure


def _drained(bench: Bench, pubsub: _PubSub, count: int, load: dict[str, int]) -> Measure:
    """One puller and a backlog, which is larger than what is measured: neither its begin nor its end counts."""
    server = pubsub.start(bench)

    def measure() -> Sample:
        total = 2 * count + _AHEAD
        path, resume = pubsub.backlog(server, total, **load)
        bench.settle()
        with server.pulling([path]):
            resume()
            sample = server.time_rows([path], count, warm=count // 10, total=total)
        server.server.drop(path)
        return sample

    return measure


def _capped(bench: Bench, pubsub: _PubSub, pullers: int, sizes: Sizes) -> Measure:
    """Pullers at a fake that sends on each stream as much as Pub/Sub does: the seconds of as many messages each."""
    server = pubsub.start(bench)

    def measure() -> Sample:
        count = pullers * sizes.capped
        path, resume = pubsub.backlog(server, 2 * count + _AHEAD, size=1_000, attributes=2)
        bench.settle()
        with server.pulling([path] * pullers):
            resume()
            sample = server.time_rows([path], count, warm=count // 4, total=2 * count + _AHEAD)
        server.server.drop(path)
        return {**sample, "seconds": [sample["seconds"][0] / pullers]}

    return measure


def _emulated(bench: Bench, pubsub: _Emulator, sizes: Sizes) -> Measure:
    """A puller for each of the subscriptions, by unary Pull."""
    server = pubsub.start(bench)

    def measure() -> Sample:
        names = [_new_subscription() for _ in range(_SUBSCRIPTIONS)]
        pubsub.publish(names, 0)
        paths = list(map(server.attach, names))
        with server.pulling(paths, "--pull", "unary"):
            pubsub.publish(names, sizes.emulated)
            total = _SUBSCRIPTIONS * sizes.emulated
            sample = server.time_rows(paths, sizes.counted, warm=sizes.counted // 8, total=total)
        for path in paths:
            server.server.drop(path)
        return sample

    return measure


def _bare_emulated(bench: Bench, pubsub: _Emulator, sizes: Sizes) -> Measure:
    """One process with a Pull in flight for each of the subscriptions."""
    server = pubsub.start(bench)

    def measure() -> Sample:
        names = [_new_subscription() for _ in range(_SUBSCRIPTIONS)]
        pubsub.publish(names, sizes.emulated)
        return {"seconds": [run_peer("pull", server.address, sizes.counted, *names)["seconds"]]}

    return measure


def _paced(bench: Bench, pubsub: _PubSub, rate: int, sizes: Sizes) -> Measure:
    """Messages that are published at a rate: those of the last seconds count."""
    server = pubsub.start(bench)

    def measure() -> Sample:
        count, warm = round(rate * (sizes.warm + sizes.paced)), round(rate * sizes.warm)
        subscription = pubsub.load(count, size=100, attributes=2, rate=rate)
        path = server.attach(subscription, ack="commit")
        with server.pulling([path]):
            times = consume(server.server, path, count, within=sizes.warm + sizes.paced + 60)
            give_up = time.monotonic() + 60
            while pubsub.control("totals", subscription)["acked"] < count and time.monotonic() < give_up:
                time.sleep(0.1)
            causes = server.duplicates(path)
        acked = np.array(pubsub.control("acked_at", subscription, _SAMPLE))
        server.server.call("delete", path=path)  # its bytes stay: the consumer's tickets name them
        assert acked.all(), f"{np.count_nonzero(acked == 0) * _SAMPLE:,} of {count:,} messages were not acked"
        late = slice(-(-warm // _SAMPLE) * _SAMPLE, None)
        taken = times.committed[late].max() - times.published[late].min()
        return {
            "seconds": [taken / (count - warm) * rate],
            "committed": (times.committed - times.published)[late].tolist(),
            "acked": (acked - times.released[::_SAMPLE])[late.start // _SAMPLE :].tolist(),
            **{cause: [causes[cause]] for cause in _CAUSES},
        }

    return measure


def _grown(bench: Bench, pubsub: _PubSub, count: int) -> Measure:
    """A backlog from its first message to its last one, at a server of its own: allocators keep what they once had."""
    address = pubsub.start(bench).address

    def measure() -> Sample:
        folder = bench.folder / f"server-{next(_serial)}"
        with intake(folder, address, "--limit", f"dedup_ids={_GROWN_IDS}") as server:
            path, resume = pubsub.backlog(server, count, size=100, attributes=2)
            watched = {"memory of the server": server.server.pid}
            with server.pulling([path]):
                watched["memory of the puller"] = server.pullers[0]
                with peaks(watched) as most:
                    resume()
                    sample = server.time_rows([path], count, total=count)
        shutil.rmtree(folder)
        return {**sample, **{name: [size] for name, size in most.items()}}

    return measure


def _rebuilt(bench: Bench, ids: int) -> Measure:
    """A server that starts with a journal of so many messages, by its own log."""
    folder = bench.folder / "ids"
    bench.contexts.callback(shutil.rmtree, folder)
    pubsub = _PubSub()
    address = pubsub.start(bench).address
    with intake(folder, address) as server:
        path = server.attach(pubsub.load(1))
        _fill(server, path, ids)

    def measure() -> Sample:
        with intake(folder, address) as server:
            log, give_up = folder / "data.log", time.monotonic() + 300
            while not (match := re.search(r"([\d,]+) ids were read back in ([\d.]+) s", log.read_text())):
                if time.monotonic() > give_up:
                    raise TimeoutError(f"no ids were read back: see {log}")
                time.sleep(0.05)
            assert int(match[1].replace(",", "")) == ids
            return {"seconds": [float(match[2])], "memory": [memory(server.server.pid)]}

    return measure


class _Filler(Listener):
    """A puller without a Pub/Sub: it counts the answers to the messages that are made here."""

    def __init__(self) -> None:
        self.answers = threading.Semaphore(4)

    def answered(self, answer: Answer, places: pa.RecordBatch | None) -> None:
        self.answers.release()

    def released(self, position: Position) -> None:
        """Ack nothing."""

    def draining(self) -> None:
        """End soon, in any case."""

    def ended(self, error: PenstockError | None) -> None:
        """Let `send` say so."""
        self.answers.release()


def _fill(server: Intake, path: str, ids: int) -> None:
    """Bring a subscription so many messages."""
    filler, give_up = _Filler(), time.monotonic() + 60
    while True:
        try:
            exchange = Exchange(ConnectSettings(server.server.url), path, filler)
        except Unavailable:  # its index is being read back
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
        else:
            break
    for first in range(0, ids, _REBUILT_BATCH):
        numbers = np.arange(first, min(ids, first + _REBUILT_BATCH))
        filler.answers.acquire()
        exchange.send(_messages(numbers))
    exchange.close(120)


def _messages(numbers: Any) -> pa.RecordBatch:
    """Return small messages with these numbers."""
    count = len(numbers)
    empty = pa.array([""] * count, pa.string())
    ids = pa.array(10**15 + numbers).cast(pa.string())
    attributes = pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), empty[:0], empty[:0])
    times = pa.array(1_795_000_000_000_000 + numbers).view(MESSAGES.field("publish_time").type)
    columns = [ids, times, empty, attributes, pa.nulls(count, pa.int32()), ids.cast(pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


PAGE = Page(
    output="docs/benchmarks-pubsub.md",
    command="make bench-pubsub",
    sizes={
        "all": Sizes(3, 500_000, 20_000, 4, 15_000, (1_000, 10_000, 50_000), 10, 8, 200_000, 10_000_000),
        "quick": Sizes(2, 200_000, 10_000, 2, 8_000, (1_000, 10_000, 50_000), 5, 8, 100_000, 2_000_000),
        "smoke": Sizes(1, 2_000, 300, 0.02, 500, (500,), 1, 1, 200, 1_000),
    },
    cases=cases,
    others=frozenset({SUBSCRIBE, BARE, TENTH}),
    lacks=emulator.missing,
)
