"""What a page of figures is made of: cases with their sides and lines, and the servers that sides share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts import connect_server, kafka_broker
from scripts.bench import kafka, on_ray
from scripts.bench.figures import Line, Measure, Result, Work, interleaved, nothing
from scripts.bench.servers import Penstock, Server, bare_server, penstock_server
from scripts.bench.session import jvm, running_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DISK, MEMORY = "disk", "memory"
CONNECT_CONFS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.maxResultSize": "0",
    "spark.driver.memory": "6g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Bench:
    """What sides are measured with. Servers, the broker and Spark start when a side first asks for them."""

    def __init__(self, folder: Path, run: ExitStack, *, settles: bool, with_kafka: bool) -> None:
        self.folder = folder
        self.notes: list[str] = []
        """The versions of what was started, for the page."""
        self.contexts = ExitStack()
        """What ends with the case."""
        self._run, self._settles, self._with_kafka = run, settles, with_kafka
        self._servers: dict[str, Penstock] = {}
        self._done: set[str] = set()

    def penstock(self, name: str = DISK) -> Penstock:
        """Return the server of this name: MEMORY's has a memory store, any other a disk store."""
        if name not in self._servers:
            server = penstock_server(self.folder / name, "memory:" if name == MEMORY else "disk:")
            self._servers[name] = self._run.enter_context(server)
        return self._servers[name]

    @cached_property
    def bare(self) -> Server:
        """The bare server."""
        return self._run.enter_context(bare_server(self.folder))

    @cached_property
    def kafka(self) -> kafka.Kafka:
        """A broker."""
        self.notes.append(kafka.VERSIONS)
        return self._run.enter_context(kafka.broker(self.folder / "kafka"))

    @cached_property
    def broker(self) -> str:
        """The host:port of a broker for queues on Kafka: the tests' one, with the JVM as it comes."""
        folder = self.folder / "broker"
        folder.mkdir()
        address, _ = self._run.enter_context(kafka_broker.running(folder, heap="1g", java_options=()))
        self.notes.append(f"Kafka {kafka_broker.VERSION}, heap 1 GiB; kafka-python {kafka.CLIENT}")
        return address

    @cached_property
    def ray(self) -> on_ray.Peer:
        """A process that works with Ray."""
        self.notes.append(f"Ray {on_ray.version()}, 2 cores, object store 500 MiB")
        return self._run.enter_context(on_ray.ray_peer(self.folder))

    @cached_property
    def connect(self) -> str:
        """The address of a Spark Connect server."""
        uri = self._run.enter_context(connect_server.running(self.folder / "connect", CONNECT_CONFS))
        self.notes.append(f"Spark {version('pyspark')}'s Connect server, local[2], driver heap 6 GiB")
        return uri

    @cached_property
    def spark(self) -> SparkSession:
        """Spark in this process."""
        jars = kafka.spark_jars() if self._with_kafka else []
        spark = self._run.enter_context(running_spark(self.folder, jars))
        java = jvm(spark).System.getProperty("java.version")
        self.notes.append(f"Spark {spark.version}, Java {java}, local[2], driver heap 6 GiB")
        return spark

    def once(self, name: str, work: Work) -> None:
        """Do some work unless it was done under this name."""
        if name not in self._done:
            work()
            self._done.add(name)

    def settle(self) -> None:
        """Collect the JVM's garbage and write out dirty pages: they are on nobody's account."""
        if self._settles:
            if "spark" in self.__dict__:  # it has been started
                jvm(self.spark).System.gc()
            os.sync()


Side = Callable[[Bench], Measure]
"""Prepares a measurement."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sides that are measured in turn, and the lines that they give."""

    sides: Mapping[str, Side]
    lines: Sequence[Line]
    rounds: int
    warm_up: bool = True
    data: str = ""
    """What the sides work on, if a heading has more than one such."""

    def measure(self, bench: Bench, without: frozenset[str], rounds: int, before: Work = nothing) -> Iterator[Result]:
        """Measure the sides, but for those that are left out."""
        with bench.contexts:
            measures = {name: side(bench) for name, side in self.sides.items() if name not in without}
            samples = interleaved(measures, rounds, warm_up=self.warm_up, before=before)
        yield from (line.result(samples, self.data) for line in self.lines if line.side not in without)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of docs/, which says how its figures are taken, and the cases that they come from."""

    output: str
    command: str
    sizes: Mapping[str, Any]
    """How much is measured when `all` is, with --quick, with --smoke: dataclasses, with `room` in MiB."""
    cases: Callable[[Any], Iterable[Case]]
    others: frozenset[str]
    """Sides that say nothing of a revision of penstock: rivals, floors, smaller amounts."""
    rivals: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Those of them that need a rival, which may not be here: by the NAME of its module."""
    lacks: Callable[[], str | None] = lambda: None
    """Why these figures cannot be taken here."""
