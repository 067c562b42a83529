"""Verify a data folder: every part that its ledger names is there, with the bytes that were written, of its path.

It reads and changes nothing, so that it may run beside a server, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import Lost
from penstock.ledger.loss import disagreements, named_parts
from penstock.ledger.parts import NamedPart
from penstock.ledger.writes import Destination, WorkQueues
from penstock.store import wal
from penstock.store.database import read_file
from penstock.store.disk import DiskMedium
from penstock.store.medium import file_of
from penstock.text import counted

Progress = Callable[[int], None]
"""Called with the number of bytes that are verified or copied."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a data folder has, and what it has lost."""

    parts: int
    rows: int
    bytes: int
    unnamed: int
    """Parts that no row names: of puts under way, or orphans."""
    quarantined: int
    losses: tuple[str, ...]
    """A sentence for each."""


def verify(
    data: Path,
    medium: DiskMedium,
    destinations: Mapping[str, Destination],
    queues: WorkQueues,
    *,
    is_served: bool,
    progress: Progress = lambda done: None,
) -> Verified:
    """Verify a data folder and its store. The log of a folder that `is_served` changes meanwhile, and isn't checked."""
    ledger = data / "ledger.db"
    damage = None if is_served else wal.damage(ledger.with_name("ledger.db-wal"))
    with read_file(ledger) as reader:
        named = named_parts(reader, destinations)
        contradictions = disagreements(reader, destinations, queues)
        row = reader.row("SELECT id FROM ledger")
    assert row is not None
    faults = dict(_faults(medium, named, row["id"], progress))
    if faults:  # a part that was deleted meanwhile is no loss
        with read_file(ledger) as reader:
            still = {part.name for part in named_parts(reader, destinations)}
        faults = {name: fault for name, fault in faults.items() if name in still}
    files = {file_of(part.name) for part in named}
    return Verified(
        len(named), sum(part.rows for part in named), sum(part.bytes for part in named),
        sum(name not in files for name, _ in medium.names()), len(medium.quarantined()),
        (*([f"{ledger}-wal: {damage}"] if damage else []), *contradictions, *faults.values()),
    )  # fmt: skip


def _faults(medium: DiskMedium, named: list[NamedPart], ledger: str, progress: Progress) -> Iterator[tuple[str, str]]:
    """Yield the name of each part that isn't what the ledger says, and a sentence."""
    done = 0
    for part in named:
        try:
            opened = medium.verify(part.name)
        except Lost as lost:
            yield part.name, f"{part.path}: {counted(part.rows, 'row')}: {lost}"
        else:
            label = opened.label
            if opened.rows != part.rows:
                has = f"has {counted(opened.rows, 'row')}, the ledger {part.rows:,}"
                yield part.name, f"{part.path}: part {part.name} {has}"
            elif part.digest not in (None, opened.digest):
                yield part.name, f"{part.path}: part {part.name} has the records {opened.digest}, not {part.digest}"
            elif label is not None and (label.path, label.ledger) != (part.path, ledger):
                yield part.name, f"{part.path}: part {part.name} was written for {label.path} of ledger {label.ledger}"
        done += part.bytes
        progress(done)
