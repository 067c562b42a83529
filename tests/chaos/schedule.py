"""Which fault falls when: drawn from a seed, at moments that are counted in rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Moment:
    """A fault, and how many rows are published or have landed when it falls."""

    kind: str
    counted: Literal["published", "landed"]
    rows: int
    dice: int
    """The fault's own seed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each kind of fault falls."""

    least: Mapping[str, int]
    """How often each kind falls at least."""
    more: Sequence[str]
    """The kinds that the rest is drawn from."""
    faults: int
    """How many there are in all."""
    early: str | None = None
    """A kind that needs enough rows behind it."""

    def once(self, kinds: Sequence[str] | None = None) -> Plan:
        """Return a plan with one fault of each of these kinds, or of all."""
        least = dict.fromkeys(kinds or self.least, 1)
        return replace(self, least=least, faults=len(least))

    def drawn(self, seed: int, number: int, without: Collection[str] = ()) -> Plan:
        """Return a plan with one fault of each of so many kinds, which the seed draws."""
        return self.once(random.Random(seed).sample(sorted({*self.least} - {*without}), number))


def schedule(seed: int, rows: int, plan: Plan) -> list[Moment]:
    """Draw a plan's faults, each kind its least, spread over the rows."""
    dice = random.Random(seed)
    kinds = list(Counter(plan.least).elements())
    kinds += dice.choices(plan.more, k=plan.faults - len(kinds))
    dice.shuffle(kinds)
    middle = len(kinds) // 2
    if plan.early and (late := kinds.index(plan.early)) > middle:
        kinds[late], kinds[middle] = kinds[middle], kinds[late]
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
