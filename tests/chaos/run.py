"""A run of chaos: rows are published and streamed while faults fall, drawn from a seed; then all is counted.

What went in is compared with what came out by the laws of chaos_ledger: nothing may be lost, changed or doubled.
`python -m tests.chaos.run SEED …` prints a row of a table for each; with `-v` each fault, too.
"""

from __future__ import annotations

import logging
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.chaos.driver import TOPIC
from tests.chaos.faults import FAULTS, TOO_OLD
from tests.chaos.ledger import Outcome, check
from tests.chaos.schedule import Moment, schedule
from tests.chaos.world import World
from tests.kit.proxy import open_proxy

log = logging.getLogger(__name__)
ROWS, LEAST_FAULTS = 200_000, 50
AHEAD = 8_000
"""Rows that producers may publish beyond the next fault's moment, so that it falls while rows flow."""
UNCALLED = re.compile(r"penstock\.errors\.(Lost|Fenced|NotFound|SchemaMismatch|Denied|Expired|InvalidRequest)\b")
"""What no fault may bring a query, but for a checkpoint that is too old: TOO_OLD."""
HEADS = ("seed", "sink", "rows", "faults", "lost", "changed", "doubled", "seconds")
CLUSTER = "local-cluster[2,1,1024]"


@dataclass
class Report:
    """How a run went."""

    seed: int
    sink: str
    rows: int
    faults: Counter[str]
    broken: dict[str, list[str]]
    unknown: int
    """Rows that nobody answered for; they are there or not."""
    repeated: int
    """Puts that were sent again."""
    seconds: float
    unplanned: list[str]
    """Queries and drivers that ended without being killed."""

    def uncalled(self) -> list[str]:
        """Ends that no fault explains."""
        return [end for end in self.unplanned if UNCALLED.search(end) and TOO_OLD not in end]

    @property
    def cells(self) -> list[str]:
        counts = [f"{len(self.broken[law]):,}" for law in ("lost", "changed", "doubled")]
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        many = f"{self.faults.total()} of {len(self.faults)} kinds: {kinds}"
        return [str(self.seed), self.sink, f"{self.rows:,}", many, *counts, f"{self.seconds:.0f}"]

    def __str__(self) -> str:
        wrong = "".join(
            f"\n{law}: {len(found):,}, such as {'; '.join(found[:3])}" for law, found in self.broken.items() if found
        )
        told = ", ".join(f"{name} {cell}" for name, cell in zip(HEADS, self.cells, strict=True))
        ends = "".join(f"\nended: {end[:300]}" for end in self.unplanned)
        return f"{told} (puts sent again {self.repeated}, rows of unknown outcome {self.unknown}){ends}{wrong}"


def run(
    seed: int,
    folder: Path,
    python: Path,
    *,
    rows: int = ROWS,
    faults: int = LEAST_FAULTS,
    master: str = CLUSTER,
) -> Report:
    """One seed, from an empty folder to the checker's word. The sink is a dataset for an even seed, else a topic."""
    began = time.monotonic()
    sink = "topic/landed" if seed % 2 else "store/landed"
    with open_proxy() as proxy:
        world = World(seed, rows, folder, proxy, sink, python, master)
        try:
            world.start()
            fallen = strike(world, schedule(seed, rows, faults))
            world.drain()
            seen = outcome(world)
        finally:
            world.close()
    unknown = sum(len(sent.rows) for sent in world.ledger.sent if sent.outcome == "unknown")
    ends = [*world.driver.ends(), *["the driver died"] * world.unplanned]
    broken = check(world.ledger, seen)
    seconds = time.monotonic() - began
    return Report(seed, sink, rows, fallen, broken, unknown, world.ledger.repeated, seconds, ends)


def strike(world: World, moments: list[Moment]) -> Counter[str]:
    """Each fault at its moment; how many of each kind."""
    fallen: Counter[str] = Counter()
    for moment in moments:
        world.allowed = max(moment.rows + AHEAD, world.ledger.asked + AHEAD // 5)
        world.until(partial(reached, world, moment), f"{moment.rows:,} rows {moment.counted}")
        log.info("%s, %s rows %s", moment.kind, f"{moment.rows:,}", moment.counted)
        FAULTS[moment.kind](world, random.Random(moment.dice))
        fallen[moment.kind] += 1
    return fallen


def reached(world: World, moment: Moment) -> bool:
    """Whether its rows are there."""
    return (world.ledger.asked if moment.counted == "published" else world.watch.landed) >= moment.rows


def outcome(world: World) -> Outcome:
    """All that is left; read, and read again after a restart."""
    topic = world.read(TOPIC)
    litter = world.swept()
    idle = world.server.look(world.sink)
    assert world.server.process.terminate() == 0
    world.server.start()
    base = world.server.look(world.sink)
    again, landed = world.read(TOPIC), world.read(world.sink)
    is_ordered = world.sink.startswith("topic/")
    return Outcome(topic, again, landed, world.watch.samples, base, idle, litter, is_ordered)


def main() -> int:
    """Run each seed; 1 if a law was broken."""
    logging.basicConfig(format="%(relativeCreated)8d ms  %(message)s", force=True)
    log.setLevel("INFO" if "-v" in sys.argv else "WARNING")
    broken = False
    sys.stdout.write(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}\n")
    for seed in (int(given) for given in sys.argv[1:] if given != "-v"):
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            report = run(seed, Path(folder), Path(sys.executable))
        sys.stdout.write(f"| {' | '.join(report.cells)} |\n")
        sys.stderr.write(f"{report}\n")
        broken |= any(report.broken.values())
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
