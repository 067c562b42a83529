"""What the ledger knows: writes, the parts they brought, datasets. And the rules a write keeps."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.errors import AlreadyExists, InvalidRequest, WriteEnded
from penstock.rows import schemas
from penstock.store.medium import Part
from penstock.wire import paths
from penstock.wire.actions import Summary
from penstock.wire.put import Mode, Receipt, State


@dataclass(frozen=True, slots=True)
class Write:
    """All attempts at one path, from open to finish."""

    id: str
    path: str
    mode: Mode
    run: str | None
    state: State
    opener: str
    schema: pa.Schema | None
    opened: float
    touched: float
    chosen: str | None
    """Stands for the list of attempts that was finished: finish with that list again is the same finish."""

    def must_be_open(self, doing: str) -> None:
        """Refuse what only an open write takes."""
        if self.state != "open":
            raise WriteEnded(
                f"write/{self.id} to {self.path} is {self.state}: {doing} needs an open write, so open a new one"
            )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One whole attempt, as its put hands it to the ledger."""

    id: str
    schema: pa.Schema
    rows: int
    parts: tuple[Part, ...]
    shards: tuple[int, ...] = ()
    """For rows of a topic: which shard each part is for."""
    journal: str | None = None
    """And of which journal these shards are; None where there was no topic yet."""

    def receipt(self, write: str) -> Receipt:
        """What its put is answered."""
        digest = digest_of([part.digest for part in self.parts])
        return Receipt(write, self.id, self.rows, sum(part.bytes for part in self.parts), len(self.parts), digest)


def check_repeated(known: Receipt, again: Receipt) -> None:
    """Whether an attempt that comes again brings what is recorded. Its bytes may count otherwise in another medium."""
    if (known.rows, known.parts, known.digest) != (again.rows, again.parts, again.digest):
        raise AlreadyExists(
            f"attempt {known.attempt} of write/{known.write} is recorded with {known.rows:,} rows "
            f"({known.bytes:,} bytes); the {again.rows:,} rows ({again.bytes:,} bytes) that came now under its name "
            "are others, and weren't kept: mint a new UUID for each put"
        )


def digest_of(words: Sequence[str]) -> str:
    """Stands for all of them: an attempt's bytes, a finish's list."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Laid:
    """Some rows of a part, as a dataset or the shard of a topic has them."""

    part: str
    rows: int
    """How many of the part's are meant, behind those that are skipped."""
    bytes: int
    schema: pa.Schema
    part_rows: int
    skip: int = 0
    shard: int | None = None
    first: int = 0
    """The offset of the part's first row, in its shard."""
    since: float = 0.0
    """When the part was appended to it."""

    @property
    def to_its_end(self) -> bool:
        """Whether the part's last row is among them."""
        return self.skip + self.rows == self.part_rows

    def cut(self, rows: int) -> Laid:
        """The first of them."""
        return replace(self, rows=rows, bytes=self.bytes * rows // max(1, self.rows))

    def goes_with(self, other: Laid) -> bool:
        """Whether one stream can have both."""
        return self.shard == other.shard and self.schema.equals(other.schema, check_metadata=True)


@dataclass(frozen=True, slots=True)
class Dataset:
    """The parts of finished writes at a path."""

    path: str
    schema: pa.Schema
    rows: int
    bytes: int
    part_count: int
    changed: float
    lost: bool = False
    """Its bytes were in the memory of a server that has ended."""


@dataclass(frozen=True, slots=True)
class Folder:
    """What lies below a path, added up."""

    path: str
    datasets: int
    rows: int
    bytes: int
    part_count: int
    changed: float


def summary(row: sqlite3.Row) -> Summary:
    """A row of the ledger's view `summaries` as it crosses the wire."""
    return Summary(**{name: row[name] for name in row.keys()})  # noqa: SIM118  # a Row iterates over values


def check_place(write: Write, exists: bool, folders_above: Iterable[str], datasets_below: bool) -> None:
    """Whether a write may make or change the dataset at its path; asked at open and again at finish."""
    for above in folders_above:
        raise AlreadyExists(f"{write.path}: {above} is a dataset, so nothing can lie below it")
    if datasets_below:
        raise AlreadyExists(f"{write.path} is a folder with datasets in it, so it can't be a dataset itself")
    if exists and write.mode == "error":
        raise AlreadyExists(f"{write.path} exists: choose mode 'append' or 'overwrite', or another path")


def merged_schema(write: Write, held: pa.Schema | None, brought: Iterable[pa.Schema]) -> pa.Schema:
    """The dataset's schema after the write: what was held, what was announced, what the attempts brought.

    Attempts are taken by their number of columns, so that their order in the list changes nothing.
    """
    kept = held if write.mode == "append" else None
    known = [schema for schema in (kept, write.schema, *sorted(brought, key=len)) if schema is not None]
    if not known:
        raise InvalidRequest(
            f"write/{write.id} brings nothing to {write.path}, which is new: say which columns an empty dataset has "
            "(the schema of write.open)"
        )
    result = known[0]
    together = schemas.grow if paths.is_topic(write.path) else schemas.merge
    for schema in known[1:]:
        result = together(result, schema, write.path)
    return result
