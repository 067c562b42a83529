"""Losses that a start recognizes: changes at the ledger's end that only parts know of, named parts that are gone, and
rows of the ledger that contradict each other.

SQLite takes a log that was cut, and a file from an older copy, for the whole: nothing in it says what is missing. The
parts do, as each notes how many commits had returned when it was written.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import Lost
from penstock.ledger import parts
from penstock.ledger.ledger import Ledger
from penstock.ledger.parts import NamedPart
from penstock.ledger.tables import damaged_schemas
from penstock.ledger.writes import Destination, WorkQueues
from penstock.store.database import Reader
from penstock.store.payloads import Store
from penstock.store.records import Label
from penstock.text import counted

log = logging.getLogger("penstock")
_NAMED = 10
"""Paths that one message names."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What was acknowledged and is gone."""

    cut: Mapping[str, Label]
    """By name, the parts that were written after the ledger's last commit."""
    missing: Mapping[str, str]
    """By name, the paths of the parts that the ledger names, and the store lacks."""
    disagreements: Sequence[str]
    """What in the ledger can't be as it was written."""

    def sentences(self, ledger: Ledger) -> list[str]:
        """Describe each loss."""
        sentences = []
        if self.cut:
            last = max(label.commits for label in self.cut.values())
            paths = _count_paths(label.path for label in self.cut.values())
            sentences.append(
                f"{ledger.database.path} ends with commit {ledger.database.commits:,}, and the store has parts from "
                f"after commit {last:,}: the changes in between are gone, with rows of {paths}"
            )
        if self.missing:
            sentences.append(f"the store lacks parts that the ledger names: of {_count_paths(self.missing.values())}")
        if self.disagreements:
            sentences.append(f"{ledger.database.path} is damaged: {'; '.join(self.disagreements[:_NAMED])}")
        return sentences


def find_losses(ledger: Ledger, store: Store) -> Losses:
    """Compare the ledger with the parts at rest, before either changes; of the parts, only unnamed ones are read."""
    database = ledger.database
    labels = {name: store.medium.label(name) for name in store.orphans(ledger.part_names())}
    cut = {
        name: label
        for name, label in labels.items()
        if label is not None and label.ledger == database.id and label.commits > database.commits
    }
    with ledger.reading() as reader:
        named = named_parts(reader, ledger.destinations)
        contradictions = disagreements(reader, ledger.destinations, ledger.queues)
    aside = set(store.medium.quarantined())
    missing = {part.name: part.path for part in named if not (store.has(part.name) or part.name in aside)}
    return Losses(cut, missing, contradictions)


def named_parts(reader: Reader, destinations: Mapping[str, Destination]) -> list[NamedPart]:
    """Return the parts of datasets, of topics, and of open writes."""
    queries = [*(each.visible_parts for each in destinations.values()), parts.OF_OPEN_WRITES]
    return [NamedPart(**dict(row)) for query in queries for row in reader.rows(query)]


def disagreements(reader: Reader, destinations: Mapping[str, Destination], queues: WorkQueues) -> list[str]:
    """Describe what in the ledger can't be as it was written."""
    structure = [row[0] for row in reader.rows("PRAGMA integrity_check(10)") if row[0] != "ok"]
    contents = [text for each in destinations.values() for text in each.disagreements(reader)]
    return structure + damaged_schemas(reader) + contents + queues.disagreements(reader)


def check_whole(ledger: Ledger, store: Store, *, accept_loss: bool) -> None:
    """Reject a ledger or a store that has lost what was acknowledged.

    With `accept_loss`, log the losses and note them, so that the next start is not rejected for them: the count of
    commits continues behind that of the parts, and reading a missing part names it. Contradictions can't be noted.
    """
    losses = find_losses(ledger, store)
    sentences = losses.sentences(ledger)
    if not sentences:
        return
    if not accept_loss:
        times = "each time until then" if losses.disagreements else "once"
        raise Lost(
            f"{'; '.join(sentences)}. Nothing was changed: restore ledger and store from one backup, or start {times} "
            "with --accept-loss, which continues with what is left"
        )
    for sentence in sentences:
        log.warning("accepted loss: %s", sentence)
    ledger.accept_missing(list(losses.missing))
    if losses.cut:
        ledger.database.count_from(max(label.commits for label in losses.cut.values()))


def _count_paths(paths: Iterable[str]) -> str:
    counts = Counter(paths).most_common()
    names = [f"{path} ({counted(count, 'part')})" for path, count in counts[:_NAMED]]
    more = len(counts) - len(names)
    return ", ".join(names) + (f" and {more:,} more paths" if more > 0 else "")
