"""A server beside a Pub/Sub, the fake or Google's emulator, the pullers that bring it messages, and a consumer."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

import penstock
from scripts.bench.figures import Sample
from scripts.bench.servers import Penstock, penstock_server
from scripts.bench.watch import processor_seconds

_PROJECT = "bench"
_PATIENCE = 120.0  # seconds for messages to come, for pullers to begin or end
_LOOK = 0.02  # seconds between looks at a journal's end
_PAUSE = 0.005  # seconds until a consumer that found nothing looks again
_NUMBERS = 10**12  # a message's id at the fake is its topic's number, then its own in twelve digits


@dataclass
class Intake:
    """A server that subscriptions are attached to. Their pullers are started here, so that they can be told apart."""

    server: Penstock
    address: str
    """Of Pub/Sub."""
    log: Path
    pullers: list[int] = field(default_factory=list)
    """The ids of the processes that run."""

    def attach(self, subscription: str, ack: str = "journal") -> str:
        """Attach a subscription, and return its path."""
        path = f"subscription/{_PROJECT}/{subscription.rpartition('/')[2]}"
        self.server.call("subscription.attach", path=path, ack=ack, pullers=0)
        return path

    @contextmanager
    def pulling(self, paths: Sequence[str], *options: str) -> Iterator[None]:
        """Run a puller for each of these paths; all are connected once it yields."""
        command = [sys.executable, "-m", "penstock.cli.app", "pull", "--url", self.server.url, "--allow-emulator"]
        with ExitStack() as stack, self.log.open("ab") as log:
            processes = [
                stack.enter_context(
                    subprocess.Popen([*command, "--endpoint", self.address, *options, path], stdout=log, stderr=log)
                )
                for path in paths
            ]
            self.pullers = [process.pid for process in processes]
            try:
                self._wait_for_pullers(paths)
                yield
            finally:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait(_PATIENCE)

    def _wait_for_pullers(self, paths: Sequence[str]) -> None:
        give_up = time.monotonic() + _PATIENCE
        while sum(len(self.server.call("describe", path=path)["subscription"]["connected"]) for path in {*paths}) < len(
            paths
        ):
            if time.monotonic() > give_up:
                raise TimeoutError(f"not all pullers were connected within {_PATIENCE:g} s: see {self.log}")
            time.sleep(_LOOK)

    def time_rows(self, paths: Sequence[str], count: int, *, warm: int = 0, total: int) -> Sample:
        """Wait for `warm` rows, then for so many more, of a total: their seconds, and for a million the processor's."""
        rows, began = self._wait_for(paths, warm)
        before = self._processor()
        end, ended = self._wait_for(paths, min(total, rows + count))
        counted = max(1, end - rows)
        used = {name: [(seconds - before[name]) / counted * 1e6] for name, seconds in self._processor().items()}
        return {"seconds": [(ended - began) / counted * count], **used}

    def _processor(self) -> dict[str, float]:
        pullers = sum(map(processor_seconds, self.pullers))
        return {"server": processor_seconds(self.server.pid), "puller": pullers}

    def _wait_for(self, paths: Sequence[str], count: int) -> tuple[int, float]:
        """Wait for at least so many durable rows, and return how many there are, and when."""
        give_up = time.monotonic() + _PATIENCE
        while (rows := sum(map(self._rows, {*paths}))) < count:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{rows:,} of {count:,} messages came within {_PATIENCE:g} s: see {self.log}")
            time.sleep(_LOOK)
        return rows, time.perf_counter()

    def _rows(self, path: str) -> int:
        ends: dict[str, int] = self.server.call("consumer.offsets", path=path)["next"]
        return sum(end for shard, end in ends.items() if shard.isdecimal())

    def duplicates(self, path: str) -> dict[str, int]:
        """Return how many messages came again, by cause."""
        causes: dict[str, int] = self.server.call("describe", path=path)["subscription"]["duplicates"]
        return causes


@dataclass
class Consumed:
    """When each message of a subscription at the fake was published, committed, and released by that commit."""

    published: npt.NDArray[np.float64]
    committed: npt.NDArray[np.float64]
    released: npt.NDArray[np.float64]
    """When the commit was asked for: its acks can't be earlier."""


def consume(server: Penstock, path: str, count: int, within: float) -> Consumed:
    """Read a subscription as a consumer that commits what it has read, until each message was there."""
    times = Consumed(*np.zeros((3, count)))
    consumer, session = uuid.uuid4().hex, uuid.uuid4().hex
    offsets = server.call("consumer.offsets", path=path)
    journal, position = offsets["journal"], offsets["first"]
    server.call("consumer.attach", path=path, journal=journal, consumer=consumer, session=session, initial=position)
    read, give_up = 0, time.monotonic() + within
    with penstock.connect(server.url) as client:
        while read < count:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{read:,} of {count:,} messages were consumed within {within:g} s")
            asked = {"path": path, "journal": journal, "consumer": consumer, "session": session}
            end = server.call("consumer.offsets", start=position, **asked)["end"]
            bounds = [{int(shard): at for shard, at in each.items() if shard != "life"} for each in (position, end)]
            if bounds[0] == bounds[1]:
                time.sleep(_PAUSE)
                continue
            table = client.get(path, columns=["message_id", "publish_time"], start=bounds[0], end=bounds[1]).read_all()
            released = time.time()
            server.call("consumer.commit", position=end, **asked)
            numbers = table["message_id"].cast("int64").to_numpy() % _NUMBERS
            times.published[numbers] = table["publish_time"].cast("int64").to_numpy() / 1e6
            times.released[numbers], times.committed[numbers] = released, time.time()
            position, read = end, read + table.num_rows
    return times


@contextmanager
def intake(folder: Path, address: str, *options: str) -> Iterator[Intake]:
    """Run a server whose Pub/Sub is at an address, with options of `penstock serve`."""
    folder.mkdir(parents=True, exist_ok=True)
    pubsub = ("--allow-emulator", "--pubsub-endpoint", address)
    with penstock_server(folder / "data", "disk:", *pubsub, *options) as server:
        yield Intake(server, address, folder / "pullers.log")
