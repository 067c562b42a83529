"""Which fault falls when: drawn from a seed, at moments that are counted in rows."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

LEAST = {
    "server killed": 3, "server killed at a step": 3, "server stopped": 2, "server's clock jumps": 2,
    "answer lost": 1, "run sent again": 2, "orphans damaged": 2, "disk full": 2, "fsync fails": 2, "fsync slow": 2,
    "connections cut": 3, "connections reset": 3, "half-open": 2, "latency": 2, "throttled": 2,
    "worker killed": 3, "worker stopped": 2, "executor killed": 1, "source killed": 1, "driver killed": 1,
    "commit unlogged": 1, "older checkpoint": 1,
}  # fmt: skip
"""Each kind that there is, and how often it falls at least."""
MORE = ("server killed", "server killed at a step", "server stopped", "server's clock jumps", "run sent again",
        "connections cut", "connections reset", "latency", "worker killed", "worker stopped")  # fmt: skip
"""What the rest is drawn from: none of these costs a new driver."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A fault, and how many rows are published or have landed when it falls."""

    kind: str
    counted: Literal["published", "landed"]
    rows: int
    dice: int
    """The fault's own seed."""


def schedule(seed: int, rows: int, faults: int) -> list[Moment]:
    """So many faults, each kind its least, spread over the rows."""
    dice = random.Random(seed)
    kinds = list(Counter(LEAST).elements())
    kinds += dice.choices(MORE, k=faults - len(kinds))
    dice.shuffle(kinds)
    copied, middle = kinds.index("older checkpoint"), len(kinds) // 2
    if copied > middle:  # enough rows must come behind it
        kinds[copied], kinds[middle] = kinds[middle], kinds[copied]
    each = rows * 95 / 100 / len(kinds)
    return [
        Moment(
            kind,
            dice.choice(("published", "landed")),
            int((number + dice.uniform(0.5, 1.5)) * each),
            dice.getrandbits(32),
        )
        for number, kind in enumerate(kinds)
    ]
